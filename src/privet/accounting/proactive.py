"""Proactive DP-SGD: a closed form for the noise that does not mention the number of rounds, and its condition."""

import math

from privet import _check
from privet.accounting.base import gaussian_refuses, register, spent
from privet.accounting.guarantee import Label, Relation
from privet.accounting.ledger import Ledger, Step


def proactive_noise(*, epsilon: float, delta: float) -> float:
    """The noise that the closed form asks for, whatever the number of rounds T.

        noise = sqrt(2 (epsilon + log(1/delta)) / epsilon)

    Published for epsilon = Omega(T / N^2), N the size of the dataset, with a constant that depends on the batch: at
    epsilon 2, delta 1e-5 and T = N = 60,000 it is enough for batches of 256 and too little for batches of 600.
    `holds` decides a given case. Source: van Dijk, Nguyen, Nguyen, Nguyen 2021 (abstract).

    >>> round(proactive_noise(epsilon=2.0, delta=1e-5), 3)
    3.676
    """
    _check.positive(epsilon=epsilon)
    _check.delta(delta)
    return math.sqrt(2 * (epsilon - math.log(delta)) / epsilon)


def proactive_epsilon(*, noise: float, delta: float) -> float:
    """The epsilon for which `proactive_noise` gives `noise`; infinite unless noise^2 > 2.

        epsilon = 2 log(1/delta) / (noise^2 - 2)

    >>> round(proactive_epsilon(noise=proactive_noise(epsilon=2.0, delta=1e-5), delta=1e-5), 9)
    2.0
    """
    _check.positive(noise=noise)
    _check.delta(delta)
    return 2 * -math.log(delta) / (noise**2 - 2) if noise**2 > 2 else math.inf


def holds(ledger: Ledger, delta: float) -> bool:
    """Whether the closed form is true for this ledger: the certified epsilon is at most the claimed one.

    The published condition has an unnamed constant, so it is decided by the certified accountant `pld`, not by T / N^2.
    """
    claimed = spent(ledger, delta, accountant="proactive").epsilon
    return spent(ledger, delta, accountant="pld").epsilon <= claimed


@register("proactive")
class Proactive:
    """The closed form read backwards, at the least noise of the ledger. Always `claimed`: `holds` checks a case.

    It does not see rate or number of steps, so more steps cost nothing here; that is the claim.
    """

    def refuses(self, step: Step, relation: Relation) -> str | None:
        if step.noise**2 <= 2:
            return (
                f"noise={step.noise:g} must be above sqrt(2) for the closed form 2 log(1/delta) / (noise^2 - 2). "
                "Use more noise, or accountant='pld'."
            )
        return gaussian_refuses(step, relation)

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        if not ledger:
            return 0.0, 0.0
        return None, proactive_epsilon(noise=float(ledger.columns().noise.min()), delta=delta)

    def label(self, ledger: Ledger, delta: float) -> Label:
        return "claimed"
