"""A moving average of the weights: computed from what was released alone, so it costs no privacy."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privet import _check


class Average:
    """mean <- d mean + (1 - d) weights after each step, d = min(decay, (1 + t) / (10 + t)) at the t-th.

    The smaller d of the first steps lets the starting weights be forgotten. Kept in float32 or better.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> average = Average({"w": weight}, decay=0.9)
    >>> weight.data += 1
    >>> average.add()
    >>> average.mean["w"]
    tensor([0.8182])
    """

    def __init__(self, named: Mapping[str, nn.Parameter], *, decay: float) -> None:
        _check.between(0, 1, average=decay)
        self._named, self.decay, self.steps = dict(named), decay, 0
        self.mean: dict[str, Tensor] = {name: _wide(p).clone() for name, p in named.items()}

    @torch.no_grad()
    def add(self) -> None:
        """Take in the weights as they are now."""
        self.steps += 1
        weight = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, p in self._named.items():
            self.mean[name].lerp_(_wide(p), weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights inside, with its own again after it."""
        own = {name: p.detach().clone() for name, p in self._named.items()}
        try:
            self._put(self.mean)
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, p in self._named.items():
            p.copy_(weights[name])


def _wide(p: Tensor) -> Tensor:
    return p.detach().to(torch.promote_types(p.dtype, torch.float32))
