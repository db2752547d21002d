"""Attacks: what gradients and models give away, and what privacy leaves of it."""

from privet.attacks import identification, inversion  # they register their attacks
from privet.attacks.attack import AttackReport, attack
from privet.attacks.base import Attack, Observation, Reconstruction, register, registry, resolve_attack

__all__ = [
    "Attack", "AttackReport", "Observation", "Reconstruction", "attack", "identification", "inversion", "register",
    "registry", "resolve_attack",
]  # fmt: skip
