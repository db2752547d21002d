"""Clipping rules: how norms become factors, and the most that one example can then move the sum."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from privet._registry import Registry
from privet.errors import InvalidValue


class Rule(Protocol):
    """Its promise: one example's scaled groups together have norm at most `norm_bound`."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Which parameters are clipped together."""

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """What each group of each example is multiplied by, (B, G), from norms (B, G)."""

    def norm_bound(self, clip: float, groups: int) -> float:
        """The most one example can move the sum."""


registry: Registry[Rule] = Registry("rule")
register = registry.register


def rule_for(rule: Any, *, as_published: bool = False) -> Rule:
    """The rule called so, or the rule itself."""
    if isinstance(rule, str):
        return registry.make(rule)
    if not hasattr(rule, "factors"):
        raise InvalidValue(f"rule={rule!r} must be a name or have groups, factors and norm_bound.")
    return rule


@register("flat")
class Flat:
    """The whole gradient is clipped: g min(1, clip / |g|)."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)]

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        return clip / norms.clamp(min=clip)

    def norm_bound(self, clip: float, groups: int) -> float:
        return clip


@register("per_layer")
class PerLayer:
    """Equal shares: each of G parameters is clipped to clip / sqrt(G), and G (clip / sqrt(G))^2 = clip^2."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [[name] for name in names]

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        each = clip / math.sqrt(norms.shape[1])
        return each / norms.clamp(min=each)

    def norm_bound(self, clip: float, groups: int) -> float:
        return clip
