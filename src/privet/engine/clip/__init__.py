"""Clipping rules: how norms become factors, and the most that one example can then move the sum."""

from privet.engine.clip import adaclip, fixed, quantile  # they register their rules
from privet.engine.clip.base import Adaptive, Published, Rule, is_adaptive, is_published, register, rule_for
from privet.engine.clip.bounded import bounded_factors
from privet.planning.rules import registry

registry.seal()  # any other rule is from outside, but those of `published`: mapped over examples, held to its bound

__all__ = [
    "Adaptive",
    "Published",
    "Rule",
    "adaclip",
    "bounded_factors",
    "fixed",
    "is_adaptive",
    "is_published",
    "quantile",
    "register",
    "registry",
    "rule_for",
]
