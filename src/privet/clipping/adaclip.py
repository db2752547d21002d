"""Each coordinate is centred and scaled before the norm is taken, by what earlier noisy releases have taught."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privet import _check
from privet.clipping.fixed import ClipWhole
from privet.clipping.rule import register
from privet.errors import InvalidValue
from privet.per_example.forms import PerExampleGradient, norms_in_chunks


@dataclass(slots=True)
class Transformed:
    """(gradient - mean) / scale, coordinate by coordinate."""

    inner: PerExampleGradient
    mean: Tensor
    scale: Tensor

    def squared_norms(self) -> Tensor:
        like = self.inner.squared_norms()  # for number and precision; what must hold its gradients does so now
        return norms_in_chunks(self, len(like), self.mean.numel(), like.dtype)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        summed = self.inner.weighted_sum(weights).view(self.mean.shape)
        return (summed - weights.sum() * self.mean.to(summed)) / self.scale.to(summed)

    def materialize(self) -> Tensor:
        grads = self.inner.materialize().view(-1, *self.mean.shape)
        return (grads - self.mean.to(grads)) / self.scale.to(grads)

    def select(self, rows: Tensor, dtype: torch.dtype) -> "Transformed":
        return Transformed(self.inner.select(rows, dtype), self.mean, self.scale)


@register("adaclip")
@dataclass(slots=True, kw_only=True)
class AdaClip(ClipWhole):
    """Flat clipping of w = (g - m) / b: less noise where gradients are small, at the same total.

        released: g~ = b w~ + m,   w~ = (sum_i clipped w_i + noise) / batch
        m <- beta1 m + (1 - beta1) g~
        s^2 <- beta2 s^2 + (1 - beta2) v,   v = batch ((b w~)^2 - (b std / batch)^2), kept within [low, high] clip^2 / d
        b_i = sqrt(s_i d / sum_j s_j)

    The sum of n examples spreads n times as much as one, hence `batch` in v; the noise's own spread is taken out. The
    mean is put back whole, for the public batch: realised sizes never enter. b_i goes as sqrt(s_i), which is best, and
    sum_i b_i^2 = d, the number of coordinates: so the noise has the norm that flat clipping to the same clip would
    have, and it starts as flat clipping. The authors scale b by sqrt(sum_j s_j) in its place, which suits few
    coordinates; with many, estimates made of noise would drive it up without end.
    Source: Pichapati, Suresh, Yu, Reddi, Kumar 2019, arXiv:1908.07643.
    """

    beta1: float = 0.99
    beta2: float = 0.9
    low: float = 1e-4
    high: float = 1e4
    adaptive: bool = field(default=True, init=False, repr=False)
    statistics_bound: float = field(default=0.0, init=False, repr=False)
    _unit: float | None = field(default=None, init=False, repr=False, compare=False)  # clip^2 / d at the first release
    _mean: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _variance: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _scale: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check.between(0, 1, beta1=self.beta1, beta2=self.beta2)
        _check.positive(low=self.low, high=self.high)
        if self.low > self.high:
            raise InvalidValue(
                f"low={self.low!r} must be at most high={self.high!r}. They bound a variance. Swap them."
            )

    def current_clip(self, clip: float) -> float:
        return clip

    def transform(self, name: str, share: PerExampleGradient) -> PerExampleGradient:
        if self._unit is None:
            return share
        if name not in self._mean:
            raise InvalidValue(
                f"parameter={name!r} is new to the rule, which has learnt of {len(self._mean)} others. Centre and "
                "scale belong to one set of parameters. Make a new rule when you freeze or unfreeze some."
            )
        return Transformed(share, self._mean[name], self._scale[name])

    def statistics(self, norms: Tensor, clip: float) -> Tensor:
        return norms.new_zeros(len(norms), 0)

    def statistics_noise(self, noise: float, batch: float) -> float:
        return math.inf  # there are no statistics

    def learn(
        self, grads: Mapping[str, Tensor], statistics: Tensor, *, clip: float, std: float, batch_size: float
    ) -> dict[str, Tensor]:
        if self._unit is None:
            self._start_statistics(grads, clip)
        assert self._unit is not None
        low, high = self.low * self._unit, self.high * self._unit
        restored: dict[str, Tensor] = {}
        for name, grad in grads.items():
            mean, variance, scale = self._mean[name], self._variance[name], self._scale[name]
            moved = scale * grad
            seen = batch_size * (moved.square() - (scale * (std / batch_size)).square())
            restored[name] = moved + mean
            self._variance[name] = self.beta2 * variance + (1 - self.beta2) * seen.clamp(low, high)
            self._mean[name] = self.beta1 * mean + (1 - self.beta1) * restored[name]
        self._rescale()
        return restored

    def _start_statistics(self, grads: Mapping[str, Tensor], clip: float) -> None:
        self._unit = clip**2 / max(1, sum(grad.numel() for grad in grads.values()))
        self._mean = {name: torch.zeros_like(grad) for name, grad in grads.items()}
        self._variance = {name: torch.full_like(grad, self._unit) for name, grad in grads.items()}
        self._rescale()

    def _rescale(self) -> None:
        spread = {name: variance.sqrt() for name, variance in self._variance.items()}
        count = sum(s.numel() for s in spread.values())
        total = sum(float(s.double().sum()) for s in spread.values())
        self._scale = {name: (s * (count / total)).sqrt() for name, s in spread.items()}

    def state_dict(self) -> dict[str, Any]:
        """Empty before the first release."""
        if self._unit is None:
            return {}
        means = {f"mean.{name}": t for name, t in self._mean.items()}
        return {"unit": self._unit} | means | {f"variance.{name}": t for name, t in self._variance.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._unit, self._scale = state.get("unit"), {}
        self._mean = _select_prefix("mean.", state)
        self._variance = _select_prefix("variance.", state)
        if self._unit is not None:
            self._rescale()


def _select_prefix(prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}
