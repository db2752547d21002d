"""The accountants that are compared, each a maker of a function that gives its bounds.

It takes (noise_multiplier, count, sample_rate, delta); `noise_multiplier` and `count` are lists, one entry for
each distinct noise. Each is called as its own documentation shows, with its own defaults; where it must be told how
exact to be (prv-accountant), it is told what Opacus uses.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _measure import Function, Result

Floats = NDArray[np.float64]


def runs_of(noise: Floats) -> tuple[list[float], list[int]]:
    """A schedule as (noise, count): equal steps together, since their order does not matter."""
    values, counts = np.unique(noise, return_counts=True)
    return values.tolist(), counts.tolist()


def cut(noise: Floats, levels: int = 64) -> Floats:
    """A schedule of at most `levels` values, nowhere above `noise`: what it costs bounds what `noise` costs."""
    logs = np.log(noise)
    low, high = float(logs.min()), float(logs.max())
    if math.isclose(low, high):
        return np.full_like(noise, noise.min())
    cells = np.minimum((levels * (logs - low) / (high - low)).astype(np.intp), levels - 1)
    least = np.full(levels, np.inf)
    np.minimum.at(least, cells, noise)  # the least of each cell: less noise never costs less
    return least[cells]


def privet() -> Function:
    from privet.accounting import Ledger, spent

    def epsilon(*, schedule: Floats, sample_rate: float, delta: float) -> Result:
        ledger = Ledger()
        ledger.extend(noise_multiplier=schedule, sample_rate=sample_rate)
        found = spent(ledger, delta)
        return {"lower": found.epsilon_lower, "upper": found.epsilon}

    return epsilon


def dp_pld() -> Function:
    from dp_accounting.pld import PLDAccountant

    return _dp_accounting(PLDAccountant)


def dp_rdp() -> Function:
    from dp_accounting.rdp import RdpAccountant

    return _dp_accounting(RdpAccountant)


def _dp_accounting(accountant: Any) -> Function:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    def epsilon(*, noise_multiplier: Sequence[float], count: Sequence[int], sample_rate: float, delta: float) -> Result:
        account = accountant()
        for sigma, times in zip(noise_multiplier, count, strict=True):
            account.compose(PoissonSampledDpEvent(sample_rate, GaussianDpEvent(sigma)), times)
        return {"upper": float(account.get_epsilon(delta))}

    return epsilon


def opacus_prv() -> Function:
    from opacus.accountants import PRVAccountant

    return _opacus(PRVAccountant)


def opacus_rdp() -> Function:
    from opacus.accountants import RDPAccountant

    return _opacus(RDPAccountant)


def _opacus(accountant: Any) -> Function:
    def epsilon(*, noise_multiplier: Sequence[float], count: Sequence[int], sample_rate: float, delta: float) -> Result:
        account = accountant()
        account.history = [(sigma, sample_rate, times) for sigma, times in zip(noise_multiplier, count, strict=True)]
        return {"upper": float(account.get_epsilon(delta))}

    return epsilon


def prv() -> Function:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def epsilon(*, noise_multiplier: Sequence[float], count: Sequence[int], sample_rate: float, delta: float) -> Result:
        losses = [PoissonSubsampledGaussianMechanism(sample_rate, sigma) for sigma in noise_multiplier]
        account = PRVAccountant(
            prvs=losses, max_self_compositions=list(count), eps_error=0.01, delta_error=delta / 1000
        )
        lower, _, upper = account.compute_epsilon(delta, list(count))
        return {"lower": float(lower), "upper": float(upper)}

    return epsilon
