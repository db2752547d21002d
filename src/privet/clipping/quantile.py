"""The clip follows a quantile of the norms, learnt from a noisy count that is released with the gradient."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from privet import _check
from privet.clipping.fixed import ClipWhole
from privet.clipping.rule import register
from privet.per_example.forms import PerExampleGradient

FURTHEST = 1e6  # the clip stays within the plan's over this and times this: public, so that noise stays a number
COUNT = 10.0  # the count's noise multiplier is the expected batch over this: a standard deviation of batch / 20
LEAST = 5.0  # but at least this many times the step's noise, so that the gradient's rises by 2.1 % at most


@register("quantile")
@dataclass(slots=True, kw_only=True)
class Quantile(ClipWhole):
    """Flat clipping to C, with C moved by how many examples were left unclipped.

        C <- C exp(-speed (b - target)),   b = 1/2 + (sum_i (1[|g_i| <= C] - 1/2) + noise) / batch

    `target` is the fraction to leave unclipped, `batch` the public expected batch. A plan's clip is the start; where it
    is a schedule, C is that schedule times what was learnt. A bit is worth +-1/2, so that an example moves the count by
    1/2 whatever its norm. Gradient and count come from one sample and are charged as one step: `release` gives the
    gradient the noise that makes up for the count. `count_noise` is the count's multiplier (its standard deviation over
    1/2); left out, it is the larger of batch / 10 and 5 times the step's noise.
    Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871 (geometric update, speed 0.2, batch / 20).
    """

    target: float = 0.5
    speed: float = 0.2
    count_noise: float | None = None
    adaptive: bool = field(default=True, init=False, repr=False)
    statistics_bound: float = field(default=0.5, init=False, repr=False)
    _moved: float = field(default=0.0, init=False, repr=False)  # log of C over the plan's clip

    def __post_init__(self) -> None:
        _check.between(0, 1, target=self.target)
        _check.positive(speed=self.speed)
        if self.count_noise is not None:
            _check.positive(count_noise=self.count_noise)

    def current_clip(self, clip: float) -> float:
        return clip * math.exp(self._moved)

    def transform(self, name: str, share: PerExampleGradient) -> PerExampleGradient:
        return share

    def statistics(self, norms: Tensor, clip: float) -> Tensor:
        return (norms <= clip).double()[:, None] - 0.5  # a norm that is not a number counts as clipped

    def statistics_noise(self, noise: float, batch: float) -> float:
        return max(batch / COUNT, LEAST * noise) if self.count_noise is None else self.count_noise

    def learn(
        self, grads: Mapping[str, Tensor], statistics: Tensor, *, clip: float, std: float, batch_size: float
    ) -> dict[str, Tensor]:
        unclipped = 0.5 + float(statistics[0])
        limit = math.log(FURTHEST)
        self._moved = min(limit, max(-limit, self._moved - self.speed * (unclipped - self.target)))
        return dict(grads)

    def state_dict(self) -> dict[str, Any]:
        return {"moved": self._moved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check.finite(moved=state["moved"])
        self._moved = float(state["moved"])
