"""Clipping rules: how norms become factors, and the most that one example can then move the sum."""

from privet.engine.clip import adaclip, fixed, published, quantile  # they register their rules
from privet.engine.clip.base import Adaptive, Published, Rule, is_adaptive, is_published, register, registry, rule_for

__all__ = [
    "Adaptive",
    "Published",
    "Rule",
    "adaclip",
    "fixed",
    "is_adaptive",
    "is_published",
    "published",
    "quantile",
    "register",
    "registry",
    "rule_for",
]
