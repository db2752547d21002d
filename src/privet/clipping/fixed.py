"""Rules without a memory: flat, per layer, normalised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from privet import _check
from privet.clipping.rule import register
from privet.errors import InvalidValue

LEAST_GAMMA = 1e-12


def groups_by_layer(names: Sequence[str]) -> list[list[str]]:
    """One group for each module that has parameters of its own: a layer's weight and bias are clipped together.

    This is what Wei and Liu mean by the M layers of a network, and what users count as layers.

    >>> groups_by_layer(["conv.weight", "conv.bias", "fc.weight", "fc.parametrizations.bias.original", "scale"])
    [['conv.weight', 'conv.bias'], ['fc.weight', 'fc.parametrizations.bias.original'], ['scale']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        module = name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]
        groups.setdefault(module, []).append(name)
    return list(groups.values())


def clip_scales(norms: Tensor, clip: float) -> Tensor:
    """min(1, clip / norm), without a division by zero."""
    return clip / norms.clamp(min=clip)


class ClipWhole:
    """What rules share that clip the whole gradient: g min(1, clip / |g|)."""

    __slots__ = ()

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)]

    def scales(self, norms: Tensor, clip: float) -> Tensor:
        return clip_scales(norms, clip)

    def l2_bound(self, clip: float, groups: int) -> float:
        return clip


@register("flat")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flat(ClipWhole):
    """The whole gradient is clipped: g min(1, clip / |g|)."""


@register("per_layer")
@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer(ClipWhole):
    """Equal shares: each of M layers is clipped to clip / sqrt(M), and M (clip / sqrt(M))^2 = clip^2."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return groups_by_layer(names)

    def scales(self, norms: Tensor, clip: float) -> Tensor:
        return clip_scales(norms, clip / math.sqrt(norms.shape[1]))


@register("normalised")
@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised(ClipWhole):
    """Every gradient gets nearly the same norm: clip g / (|g| + gamma), of norm below clip; nothing to tune.

    Called automatic clipping by its authors. `clip` is only a scale: with learning rate eta it acts as clip * eta, and
    noise moves along. Source: Bu, Wang, Zha, Karypis 2022, arXiv:2206.07136.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        _check.positive(gamma=self.gamma)
        if self.gamma < LEAST_GAMMA:
            raise InvalidValue(
                f"gamma={self.gamma!r} must be at least {LEAST_GAMMA:g}. The squares of small gradients vanish in "
                "float32, and a factor of clip / gamma would make much of them. Use a larger gamma."
            )

    def scales(self, norms: Tensor, clip: float) -> Tensor:
        return clip / (norms + self.gamma)
