"""One Poisson-sampled Gaussian release: delta and epsilon in closed form, both directions, rounded outward."""

import math

from privet.accounting import gdp
from privet.accounting.moments import ULP, Direction

TINY = 1e-300  # above what underflows
OUTWARD = 1e-12  # closed forms are evaluated to a few ulps; their bounds are moved out by this much, relatively


def one_step_delta(rate: float, mu: float, epsilon: float, direction: Direction) -> tuple[float, float]:
    """(lower, upper) for delta(epsilon) of one Poisson-sampled Gaussian release; epsilon may be negative.

        remove:  q d(log((e^eps - 1 + q) / q)),          d the profile of the Gaussian with this mu
        add:     (1 - e^eps (1 - q)) d(log(q e^eps / (1 - e^eps (1 - q))))

    Both by splitting the mixture (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647v2, Theorem 2).
    """
    if rate == 1:
        found = [_profile(mu, epsilon)] * 2
    elif direction == "remove":
        least = epsilon <= math.log1p(-rate)  # no loss is smaller
        found = [-math.expm1(epsilon) if least else rate * _profile(mu, _inner(rate, epsilon))] * 2
    else:
        # 1 - e^eps (1 - q) cancels near the largest loss; delta rises with it, so its error goes to both sides.
        gone = math.expm1(min(epsilon, 700.0)) * (1 - rate)
        slip = 4 * ULP * (rate + abs(gone))
        kept = (rate - gone - slip, rate - gone + slip)
        found = [k * _profile(mu, _inner(k, epsilon)) if k > 0 else 0.0 for k in kept]
    return max(0.0, found[0] * (1 - OUTWARD) - TINY), min(1.0, found[1] * (1 + OUTWARD) + TINY)


def _inner(share: float, epsilon: float) -> float:
    """log((e^eps - 1 + share) / share), to a few ulps of itself."""
    if epsilon > 600:
        return epsilon - math.log(share)
    return math.log1p(max(math.expm1(epsilon) / share, ULP - 1))


def _profile(mu: float, epsilon: float) -> float:
    """delta(epsilon) of the Gaussian; below 0 by symmetry: d(-eps) = 1 - e^-eps + e^-eps d(eps)."""
    if not mu:  # so much noise that mu^2 underflows
        return max(0.0, -math.expm1(epsilon))
    if epsilon >= 0:
        return gdp.delta_of_mu(mu, epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * gdp.delta_of_mu(mu, -epsilon)


def one_step_epsilon(rate: float, mu: float, delta: float) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta` of one Poisson-sampled Gaussian release.

    The direction `remove` is the worse one at T = 1: with k = 1 - e^eps (1 - q) <= q, `add` has
    k d(log(1 + (e^eps - 1) / k)), which rises with k, and `remove` the same with q for k.
    """
    if delta >= rate:
        return 0.0, 0.0
    # The rounding of delta / q matters where it is near 1: each end from its own side.
    within = [delta / rate * (1 + 4 * ULP), delta / rate * (1 - 4 * ULP)]
    ends = [gdp.outward(gdp.epsilon_of_mu(mu, d), mu) if d < 1 else (0.0, 0.0) for d in within]
    inner = ends[0][0], ends[1][1]
    low, high = (math.log1p(rate * math.expm1(e)) if e < 700 else e + math.log(rate) for e in inner)
    return max(0.0, low * (1 - OUTWARD)), max(0.0, high * (1 + OUTWARD))
