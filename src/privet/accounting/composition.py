"""Composition theorems for (epsilon, delta)-DP steps: basic, advanced, optimal.

Each step is one Gaussian release, (epsilon_0, delta_0)-DP by its exact curve, amplified by Poisson sampling to
(log(1 + rate (e^epsilon_0 - 1)), rate delta_0)-DP. The deltas of the steps and the delta of the theorem add up to
at most the delta that was asked for.
"""

import math

import numpy as np

from privet import _check
from privet.accounting.accountant import GaussianAccountant, register
from privet.accounting.gdp import ROUNDING_NEAR_ZERO, epsilons_of_mu
from privet.accounting.ledger import Floats, Ledger

# The share of delta that goes to the steps, tried one by one: logits from -4 to 8. A fixed list, so that a costlier
# ledger stays costlier. Any share is sound; over 288 settings (noise 0.5 to 500, rate 0.001 to 1, 1 to 100,000 steps,
# delta 1e-2 to 1e-10) the list was at most 1.4 % above one twelve times as fine and twice as wide.
SHARES: tuple[float, ...] = tuple(1 / (1 + np.exp(-np.arange(-4.0, 8.01, 0.25))))

# Upper values are raised by this; summing a million random terms measured a relative error of 4e-14.
ROUNDING = 1e-11

# With more different steps than this, noise is rounded down and rate up to 1024 levels per octave: at most 0.07 % each.
MOST_DISTINCT = 4096


def amplified_epsilon(epsilon: Floats, sample_rate: Floats) -> Floats:
    """The epsilon of an (epsilon, delta)-DP mechanism on a Poisson sample; its delta becomes rate delta.

        epsilon' = log(1 + rate (e^epsilon - 1))

    For neighbours that differ in one record's presence (or by zeroing it). Source: Balle, Barthe, Gaboardi 2018,
    arXiv:1807.01647, Theorem 8.

    >>> round(float(amplified_epsilon(np.array(0.807), np.array(0.01))), 6)
    0.012335
    """
    with np.errstate(over="ignore", divide="ignore"):
        return np.where(
            epsilon < 1,
            np.log1p(sample_rate * np.expm1(np.minimum(epsilon, 1.0))),
            np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + epsilon),
        )


def basic_composition(epsilons: Floats, counts: Floats) -> float:
    """sum_t epsilon_t. Deltas add up. Source: Dwork and others, as quoted by Wei and Liu 2021, Theorem 2.

    >>> basic_composition(np.array([0.5]), np.array([4.0]))
    2.0
    """
    return float((counts * epsilons).sum())


def advanced_composition(epsilons: Floats, counts: Floats, delta: float) -> float:
    """Advanced composition of steps that need not be alike.

        epsilon = sum_t epsilon_t (e^epsilon_t - 1)/(e^epsilon_t + 1) + sqrt(2 log(1/delta) sum_t epsilon_t^2)

    `delta` is spent on top of the deltas of the steps. Source: Kairouz, Oh, Viswanath 2017, Theorem 3.5 (third member),
    as quoted by Wei and Liu 2021, eq. (3).

    >>> round(advanced_composition(np.array([0.01]), np.array([10000.0]), 1e-5), 3)
    5.299
    """
    _check.delta(delta)
    return _expected_loss(epsilons, counts) + math.sqrt(2 * -math.log(delta) * sum_of_squares(epsilons, counts))


def optimal_composition(epsilons: Floats, counts: Floats, delta: float) -> float:
    """The best of the three members of the heterogeneous composition theorem.

        min of  basic,  advanced,  and
        sum_t epsilon_t (e^epsilon_t - 1)/(e^epsilon_t + 1) + sqrt(2 S log(e + sqrt(S)/delta)),   S = sum_t epsilon_t^2

    Source: Kairouz, Oh, Viswanath 2017, Theorem 3.5; the last member as quoted by Wei and Liu 2021, eq. (4).

    >>> round(optimal_composition(np.array([0.001]), np.array([10000.0]), 1e-5), 4)
    0.4342
    """
    _check.delta(delta)
    return min(
        basic_composition(epsilons, counts),
        advanced_composition(epsilons, counts, delta),
        third_bound(epsilons, counts, delta),
    )


def third_bound(epsilons: Floats, counts: Floats, delta: float) -> float:
    squares = sum_of_squares(epsilons, counts)
    return _expected_loss(epsilons, counts) + math.sqrt(2 * squares * math.log(math.e + math.sqrt(squares) / delta))


def _expected_loss(epsilons: Floats, counts: Floats) -> float:
    return float((counts * epsilons * np.tanh(epsilons / 2)).sum())  # (e^x - 1)/(e^x + 1), without overflow


def sum_of_squares(epsilons: Floats, counts: Floats) -> float:
    return float((counts * epsilons**2).sum())


class _Honest(GaussianAccountant):
    """Splits delta between the steps (in equal parts) and the theorem; tries every share; keeps the least epsilon."""

    shares: tuple[float, ...] = SHARES

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        raise NotImplementedError

    def upper(self, ledger: Ledger, delta: float) -> float:
        noise, rate, counts = distinct_steps(ledger)
        steps = counts.sum()
        found = []
        for share in self.shares:
            # rate delta_0 is the same for every step; (1 - ROUNDING) keeps the sum of all deltas below delta.
            per_step = delta * share * (1 - ROUNDING) / steps
            single = epsilons_of_mu(1 / noise, per_step / rate) * (1 + ROUNDING) + ROUNDING_NEAR_ZERO / noise
            left = delta * (1 - share) if share < 1 else 0.0
            found.append(self.total(amplified_epsilon(single, rate), counts, left))
        return min(found) * (1 + ROUNDING)


@register("basic")
class Basic(_Honest):
    """Sums of epsilons and of deltas: sum_t epsilon_t at delta = sum_t delta_t. `certified`."""

    shares = (1.0,)

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        return basic_composition(epsilons, counts)


@register("advanced")
class Advanced(_Honest):
    """`advanced` at the best split of delta = delta' + sum_t delta_t. `certified`."""

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        return advanced_composition(epsilons, counts, delta)


@register("optimal")
class Optimal(_Honest):
    """`optimal` at the best split of delta = delta' + sum_t delta_t. `certified`."""

    shares = (*SHARES, 1.0)

    def total(self, epsilons: Floats, counts: Floats, delta: float) -> float:
        return optimal_composition(epsilons, counts, delta) if delta else basic_composition(epsilons, counts)


def distinct_steps(ledger: Ledger) -> tuple[Floats, Floats, Floats]:
    """(noise, rate, count) of the different steps; beyond MOST_DISTINCT on a grid that is never too favourable."""
    columns = ledger.columns()
    # A pair as one complex number: sorting those measured five times faster than sorting rows.
    found, where = np.unique(columns.noise_multiplier + 1j * columns.sample_rate, return_inverse=True)
    noise, rate = found.real.copy(), found.imag.copy()
    if len(found) > MOST_DISTINCT:
        grid = np.floor(1024 * np.log2(noise)) + 1j * np.ceil(1024 * np.log2(rate))
        levels, coarser = np.unique(grid, return_inverse=True)
        where = coarser[where]
        # One part in 1e12 towards less noise and more sampling: logarithms and powers are rounded numbers too.
        noise = 2.0 ** (levels.real / 1024) * (1 - 1e-12)
        rate = np.minimum(2.0 ** (levels.imag / 1024) * (1 + 1e-12), 1.0)
    counts: Floats = np.bincount(where, weights=columns.count).astype(np.float64)
    return noise, rate, counts
