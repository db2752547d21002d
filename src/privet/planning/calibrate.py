"""Calibration: the height of a noise shape that meets a budget, never above it and within 1e-4 below.

The search is a secant in log-log, kept inside a bracket and started from the extended central limit theorem. What it
returns has been priced by the accountant itself: an estimate can cost time, never privacy.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize

from privet import _check
from privet.accounting import gdp
from privet.accounting.ledger import Ledger
from privet.accounting.pld import accountant as pld
from privet.accounting.pld.levels import LossLevels, loss_levels
from privet.errors import NoSolution, Unsupported

RTOL = 1e-4
AIM = 0.3 * RTOL  # below the target: within reach of a secant, and clear of rounding
LEAST_HEIGHT, MOST_HEIGHT = 2.0**-20, 2.0**20
MOST_TRIES = 150
REACH = 3.0
_CLOSEST = 1e-13  # heights nearer than this are one height

EpsilonAt = Callable[[float], float]


def scale_levels(levels: LossLevels, height: float) -> LossLevels:
    """The levels with every noise multiplied by `height`: mu_t / height."""
    return LossLevels(levels.rate, levels.mu / height, levels.count, levels.gaussian / height**2)


def pld_epsilon_at(ledger: Ledger, delta: float) -> EpsilonAt:
    """The certified upper bound as a function of the height; the distinct levels are found once."""
    levels = loss_levels(ledger)
    return lambda height: pld.epsilon_bounds(scale_levels(levels, height), delta)[1]


def proactive_noise(*, epsilon: float, delta: float) -> float:
    """The noise that the closed form asks for, whatever the number of rounds T.

        noise = sqrt(2 (epsilon + log(1/delta)) / epsilon)

    Published for epsilon = Omega(T / N^2), N the size of the dataset, with a constant that depends on the batch: at
    epsilon 2, delta 1e-5 and T = N = 60,000 it is enough for batches of 256 and too little for batches of 600.
    `privet.published.accountants.closed_form_holds` decides a given case. Source: van Dijk, Nguyen, Nguyen, Nguyen 2021
    (abstract).

    >>> round(proactive_noise(epsilon=2.0, delta=1e-5), 3)
    3.676
    """
    _check.positive(epsilon=epsilon)
    _check.delta(delta)
    return math.sqrt(2 * (epsilon - math.log(delta)) / epsilon)


def clt_height(ledger: Ledger, *, epsilon: float, delta: float) -> float:
    """The height at which the extended central limit theorem gives exactly (epsilon, delta).

        mu_tot^2 = sum over rate < 1 of q_t^2 (e^(mu_t^2 / h^2) - 1)  +  sum over rate 1 of mu_t^2 / h^2

    mu_tot follows from (epsilon, delta) by duality; h = 1/mu_0 by root finding, since the right side falls with h.
    Source: Du et al. 2021, eq. (12) and Algorithm 1 (with one rate). Approximate: no bound in either direction.

    >>> from privet.accounting import Step
    >>> ledger = Ledger()
    >>> ledger.add(Step(noise=1.0, rate=256 / 60000), count=14063)
    >>> round(clt_height(ledger, epsilon=2.32, delta=1e-5), 2)
    1.1
    """
    levels, goal = loss_levels(ledger), 2 * math.log(gdp.mu_of(epsilon, delta))

    def excess(log_height: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            at = scale_levels(levels, math.exp(log_height))
            total = float(at.count @ (at.rate**2 * np.expm1(at.mu**2))) + at.gaussian
        if math.isnan(total):  # a rate whose square vanishes, and a noise at which that would not matter
            total = math.inf
        return math.log(min(max(total, 1e-300), 1e300)) - goal

    low, high = math.log(1e-12), math.log(1e12)
    if excess(low) < 0 or excess(high) > 0:
        return 1.0
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def calibrate(epsilon_at: EpsilonAt, *, epsilon: float, start: float = 1.0, rtol: float = RTOL) -> float:
    """A height with epsilon (1 - rtol) <= epsilon_at(height) <= epsilon.

    `epsilon_at` must not rise with the height; where it is refused (Unsupported) it counts as infinite. If it jumps
    over the interval, the least height on the private side to 13 digits.

    >>> round(calibrate(lambda height: 3 / height, epsilon=2.0), 3)
    1.5

    Raises:
        NoSolution: even a height of 2^20 costs more, or 2^-20 less.
    """
    low, high = LEAST_HEIGHT, MOST_HEIGHT  # too little noise, and enough: both ends are checked when they are reached
    aim = math.log(epsilon) + math.log1p(-AIM * rtol / RTOL)
    tried: list[tuple[float, float]] = []  # (log height, log epsilon - aim)
    here = min(max(start, low), high)
    while len(tried) < MOST_TRIES and high > low * (1 + _CLOSEST):
        found = _cost(epsilon_at, here)
        if epsilon * (1 - rtol) <= found <= epsilon:
            return here
        if here == (LEAST_HEIGHT if found <= epsilon else MOST_HEIGHT):
            raise NoSolution(_unreachable_message(epsilon, here, found))
        low, high = (low, here) if found <= epsilon else (here, high)
        tried.append((math.log(here), (math.log(found) if found > 0 else -math.inf) - aim))
        here = _next_height(tried, low, high)
    return high


def _unreachable_message(epsilon: float, height: float, found: float) -> str:
    if found <= epsilon:
        return (
            f"epsilon={epsilon!r} needs no noise to speak of: noise x{height:.3g} costs {found:.6g} and less. "
            "Use a smaller epsilon."
        )
    return f"epsilon={epsilon!r} cannot be reached: even noise x{height:.0f} costs {found:.6g}."


def raise_until_met(make: Callable[[float], float], *, epsilon: float, height: float) -> float:
    """`height`, moved up by as many ulps as it takes for make(height), the accountant's own epsilon, to meet it."""
    for step in (0.0, *(1e-16 * 4.0**k for k in range(20))):
        if make(height * (1 + step)) <= epsilon:
            return height * (1 + step)
    raise NoSolution(f"epsilon={epsilon!r} cannot be reached near noise={height:.6g}. Use accountant='pld'.")


def _cost(epsilon_at: EpsilonAt, height: float) -> float:
    try:
        found = epsilon_at(height)
    except Unsupported:
        if height >= MOST_HEIGHT / 2:
            raise
        return math.inf
    return math.inf if math.isnan(found) else found


def _next_height(tried: list[tuple[float, float]], low: float, high: float) -> float:
    """The next height: where a straight line in log-log meets the aim; the middle of the bracket if that is no help."""
    left, right = math.log(low), math.log(high)
    x, y = tried[-1]
    slope = -1.0  # epsilon falls about like 1 / noise
    if len(tried) > 1 and tried[-2][0] != x:
        slope = (y - tried[-2][1]) / (x - tried[-2][0])
    guess = x - y / slope if math.isfinite(y) and math.isfinite(slope) and slope < 0 else math.nan
    if math.isnan(guess) or abs(guess - x) > REACH:  # the line is an estimate: no farther than e^REACH at once
        guess = x + math.copysign(REACH, y)
    if guess <= left or guess >= right:
        ends = (low == LEAST_HEIGHT and guess <= left) or (high == MOST_HEIGHT and guess >= right)
        if ends:  # never tried
            return low if guess <= left else high
        guess = (left + right) / 2
    if len(tried) > 8 and len(tried) % 2:
        guess = (left + right) / 2  # a curve with jumps: halve
    return math.exp(guess)
