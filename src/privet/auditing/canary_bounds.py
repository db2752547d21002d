"""How many coins can be guessed from one run? Limits on the number of right guesses, for any attacker.

m canaries take part each by a fair coin of its own. From all that is released an attacker guesses r of the coins and
leaves out the rest; W guesses are right. Each function gives a limit above P[W >= v] if the claim is true: a p-value.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from privet import _check
from privet.accounting.tradeoff import Curve, Gaussian, Tradeoff
from privet.errors import InvalidValue

Floats = NDArray[np.float64]

ROUNDING = 1e-9  # the recursion's sums are moved by this much, relatively, to the safe side
HALVINGS = 60


def pair_p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """A limit above P[W >= v] under (epsilon, delta).

        P[W >= v] <= P[B >= v] + 2 m delta max_i P[v - i <= B < v] / i,   B ~ Binomial(r, 1 / (1 + e^-eps))

    Source: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, Theorem 5.2.

    >>> round(pair_p_value(canaries=100, guesses=100, right=80, epsilon=0.0, delta=0.0), 12)
    5.58e-10
    """
    _check_counts(canaries, guesses, right)
    _check.non_negative(epsilon=epsilon, delta=delta)
    law = stats.binom(guesses, special.expit(epsilon))
    beyond = float(law.sf(right - 1))
    if delta == 0 or right == 0:
        return min(1.0, beyond)
    below = law.pmf(np.arange(right - 1, -1, -1)).cumsum()
    return min(1.0, beyond + 2 * canaries * delta * float((below / np.arange(1, right + 1)).max()))


def curve_p_value(curve: Curve, *, canaries: int, guesses: int, right: int) -> float:
    """A limit above P[W >= v] under a trade-off curve f that is symmetric, as ours are.

    Let p_j = P[W = j]. Flipping the coin of a canary that is guessed right turns W = j into W = j - 1, and f bounds how
    much likelier the one is than the other. Summed over all canaries, with f's concavity: for every j

        sum_{i >= j} (i / m) p_i  <=  1 - f( sum_{i >= j - 1} ((r - i) / m) p_i )

    The answer is the largest P[W >= v] that these allow. It is found by going down from v: all of it is put on v, then
    each p_j is the least that its inequality asks for; what needs more than probability 1 is impossible.
    Source: Mahloujifar, Melis, Chaudhuri 2024, arXiv:2410.22235 (two choices per canary). The proof is in
    docs/howto-audit.md, and a linear program is the oracle in tests/unit/test_audit_canaries.py.

    >>> round(curve_p_value(Gaussian(mu=1.0), canaries=1000, guesses=1000, right=720), 3)
    0.853
    """
    _check_counts(canaries, guesses, right)
    if right == 0:
        return 1.0
    if _needed(curve, canaries, guesses, right, 1.0) <= 1:
        return 1.0
    low, high = -80.0, 0.0  # in logarithms: P[W >= v] of e^low is always allowed
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = _needed(curve, canaries, guesses, right, math.exp(middle)) <= 1
        low, high = (middle, high) if fits else (low, middle)
    return min(1.0, math.exp(high))


def is_rejected(curve: Curve, *, canaries: int, guesses: int, right: int, alarm: float) -> bool:
    """Whether so many right guesses have a chance below `alarm` under the curve: quicker than the p-value."""
    return right > 0 and _needed(curve, canaries, guesses, right, alarm) > 1


def _needed(curve: Curve, m: int, r: int, v: int, tail: float) -> float:
    """The least total probability of a law with P[W >= v] = tail; rounded down, so that a limit is never too low."""
    inverse = _inverse(curve)
    total: float = tail
    rights, wrongs = tail * v / m, tail * (r - v) / m
    for j in range(v - 1, -1, -1):
        more = inverse(rights) * (1 - ROUNDING) - wrongs
        if more > 0:
            p = m * more / (r - j)
            total += p
            if total * (1 - ROUNDING) > 1:
                return total
            wrongs += more
            rights += j * p / m
    return total * (1 - ROUNDING)


def _inverse(curve: Curve) -> Callable[[float], float]:
    """y -> the least x with 1 - f(x) >= y, which is f(1 - y) for a symmetric f; quick for single numbers."""
    if isinstance(curve, Gaussian):
        mu = curve.mu
        return lambda y: float(special.ndtr(special.ndtri(min(y, 1.0)) - mu))
    if isinstance(curve, Tradeoff):
        eps, delta = np.array(curve.epsilon), np.array(curve.delta)
        rise, fall = np.exp(np.minimum(eps, 700.0)), np.exp(-eps)
        return lambda y: max(0.0, float(np.maximum(1 - delta - rise * (1 - y), fall * (y - delta)).max()))
    return lambda y: float(curve(max(0.0, 1 - y)))


def mu_bound(*, canaries: int, guesses: int, right: int, alarm: float) -> float:
    """The largest mu whose G_mu is rejected at `alarm`: the Gaussian reading of the guesses; 0 if none is."""
    return _largest(
        lambda mu: is_rejected(Gaussian(mu=mu), canaries=canaries, guesses=guesses, right=right, alarm=alarm), most=64.0
    )


def epsilon_bound(*, canaries: int, guesses: int, right: int, delta: float, alarm: float) -> float:
    """The largest epsilon whose (epsilon, delta) is rejected at `alarm`, by the direct bound; 0 if none is."""
    return _largest(
        lambda eps: pair_p_value(canaries=canaries, guesses=guesses, right=right, epsilon=eps, delta=delta) <= alarm,
        most=64.0,
    )


def _largest(rejected: Callable[[float], bool], *, most: float) -> float:
    """Where `rejected` turns from true to false, from below."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _check_counts(canaries: int, guesses: int, right: int) -> None:
    _check.whole(canaries=canaries, guesses=guesses)
    _check.whole(least=0, right=right)
    if not right <= guesses <= canaries:
        raise InvalidValue(
            f"right={right}, guesses={guesses} and canaries={canaries} must rise in this order. Each guess is about "
            "one canary. Check the counts."
        )
