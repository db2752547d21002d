"""Attacks: what gradients and models give away, and what privacy leaves of it."""

from privet.attacks import analytic, invert, prior  # they register their attacks
from privet.attacks.attack import Attacked, attack
from privet.attacks.base import Attack, Observation, Reconstruction, attack_for, register, registry

__all__ = [
    "Attack",
    "Attacked",
    "Observation",
    "Reconstruction",
    "analytic",
    "attack",
    "attack_for",
    "invert",
    "prior",
    "register",
    "registry",
]
