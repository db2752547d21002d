"""Clipping: per-example gradients in, a clipped sum with its proven bound out."""

from privet.clipping import adaclip, fixed, quantile  # they register their rules
from privet.clipping.clipped_sum import ClippedSum, clipped_sum
from privet.clipping.rule import (
    AdaptiveClippingRule,
    ClippingRule,
    UncertifiedRule,
    clipping_rule,
    is_adaptive,
    is_published,
    register,
)
from privet.planning.clipping_rules import registry

registry.seal()  # any other rule is from outside: mapped over the examples, and held to its bound

__all__ = [
    "AdaptiveClippingRule", "ClippedSum", "ClippingRule", "UncertifiedRule", "adaclip",
    "clipped_sum", "clipping_rule", "fixed", "is_adaptive", "is_published", "quantile", "register", "registry",
]  # fmt: skip
