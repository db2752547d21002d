"""One Poisson-sampled Gaussian release: delta and epsilon in closed form, both directions, rounded outward."""

import math

import numpy as np
from scipy import special

from privet import _check
from privet.accounting import gdp
from privet.accounting.accountant import (
    GaussianAccountant,
    refuse_unsupported,
    register,
    representative_steps,
    truncated_deltas,
)
from privet.accounting.guarantee import Adjacency
from privet.accounting.ledger import Floats, Ledger
from privet.accounting.pld.fourier import spectrum
from privet.accounting.pld.frequencies import EFFORTS
from privet.accounting.pld.levels import LossLevels, bin_levels, loss_levels
from privet.accounting.pld.loss_moments import DIRECTIONS, ULP, Direction, QuadratureTooCostly, log_payoff
from privet.accounting.pld.saddle_point import IntegrationLine, LogDelta, invert_delta_bounds, saddle_point_line

TINY = 1e-300  # above what underflows
OUTWARD = 1e-12  # closed forms are evaluated to a few ulps; their bounds are moved out by this much, relatively


def one_step_delta(rate: float, mu: float, epsilon: float, direction: Direction) -> tuple[float, float]:
    """(lower, upper) for delta(epsilon) of one Poisson-sampled Gaussian release; epsilon may be negative.

        remove:  q d(log((e^eps - 1 + q) / q)),          d the profile of the Gaussian with this mu
        add:     (1 - e^eps (1 - q)) d(log(q e^eps / (1 - e^eps (1 - q))))

    Both by splitting the mixture (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647v2, Theorem 2).
    """
    if rate == 1:
        found = [_gaussian_delta(mu, epsilon)] * 2
    elif direction == "remove":
        least = epsilon <= math.log1p(-rate)  # no loss is smaller
        found = [-math.expm1(epsilon) if least else rate * _gaussian_delta(mu, _shifted_log_ratio(rate, epsilon))] * 2
    else:
        # 1 - e^eps (1 - q) cancels near the largest loss; delta rises with it, so its error goes to both sides.
        gone = math.expm1(min(epsilon, 700.0)) * (1 - rate)
        slip = 4 * ULP * (rate + abs(gone))
        kept = (rate - gone - slip, rate - gone + slip)
        found = [k * _gaussian_delta(mu, _shifted_log_ratio(k, epsilon)) if k > 0 else 0.0 for k in kept]
    return max(0.0, found[0] * (1 - OUTWARD) - TINY), min(1.0, found[1] * (1 + OUTWARD) + TINY)


def _shifted_log_ratio(share: float, epsilon: float) -> float:
    """log((e^eps - 1 + share) / share), to a few ulps of itself."""
    if epsilon > 600:
        return epsilon - math.log(share)
    return math.log1p(max(math.expm1(epsilon) / share, ULP - 1))


def _gaussian_delta(mu: float, epsilon: float) -> float:
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
    ends = [gdp.round_outward(gdp.epsilon_of_mu(mu, d), mu) if d < 1 else (0.0, 0.0) for d in within]
    inner = ends[0][0], ends[1][1]
    low, high = (math.log1p(rate * math.expm1(e)) if e < 700 else e + math.log(rate) for e in inner)
    return max(0.0, low * (1 - OUTWARD)), max(0.0, high * (1 + OUTWARD))


WIDE = 1e-4  # relative width at which a better line is looked for


@register("pld")
class Pld(GaussianAccountant):
    """Certified interval for Poisson-sampled, whole-dataset and shuffled Gaussian steps."""

    covers_shuffled = True

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        lower, upper = epsilon_bounds(loss_levels(ledger), delta)
        return (None if is_hidden(ledger) else lower), upper


def is_hidden(ledger: Ledger) -> bool:
    """Whether there are shuffled batches: taken without amplification they are a bound from above only."""
    return any(step.sample_rate < 1 and step.sampling.name == "shuffled" for step in representative_steps(ledger))


def epsilon_bounds(levels: LossLevels, delta: float, *, quick: bool = False) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta`, over both directions. `quick`: certified all the same, but wider."""
    one = _as_one_release(levels)
    if one is not None:
        return one_step_epsilon(*one, delta) if one[1] else (0.0, 0.0)
    if _total_variation_bound(levels) <= delta:
        return 0.0, 0.0
    with np.errstate(over="ignore", under="ignore"):
        lower, upper = directed_epsilon(levels, "remove", delta, quick)
        if lower < _largest_add_loss(levels):
            low, high = directed_epsilon(levels, "add", delta, quick=True)
            if high > lower and not quick:  # it may be the worse one: as fine as the other
                low, high = directed_epsilon(levels, "add", delta)
            lower, upper = max(lower, low), max(upper, high)
    return lower, upper


def _as_one_release(levels: LossLevels) -> tuple[float, float] | None:
    """(rate, mu) of the one release that the ledger amounts to, which has a closed form; None if it is more."""
    if not levels.steps:
        return 1.0, math.sqrt(levels.gaussian)
    if levels.steps > 1 or levels.gaussian:
        return None
    only = levels.drop_empty()
    return float(only.rate[0]), float(only.mu[0])


def delta_at(ledger: Ledger, epsilon: float, adjacency: Adjacency = "zero-out") -> tuple[float, float]:
    """(lower, upper) for the delta of `ledger` at `epsilon`, certified.

    >>> ledger = Ledger()
    >>> ledger.extend(noise_multiplier=[1.1] * 14063, sample_rate=256 / 60000)
    >>> lower, upper = delta_at(ledger, 2.0)
    >>> f"{lower:.4g} {upper:.4g}"
    '0.0001191 0.0001191'

    Raises:
        Unsupported: no theorem covers a step, or batches are cut so often that nothing is left to prove.
    """
    _check.non_negative(epsilon=epsilon)
    refuse_unsupported(Pld(), ledger, adjacency=adjacency, accountant="pld")
    levels = loss_levels(ledger)
    with np.errstate(over="ignore", under="ignore"):
        found = [directed_delta(levels, direction, epsilon) for direction in DIRECTIONS]
    lower, upper = truncated_deltas(ledger, epsilon, *np.max(found, axis=0))
    return 0.0 if is_hidden(ledger) else float(lower), float(upper)


def directed_delta(levels: LossLevels, direction: Direction, epsilon: float) -> tuple[float, float]:
    """(lower, upper) for delta(epsilon) in one direction; epsilon may be negative."""
    one = _as_one_release(levels)
    if one is not None:
        return one_step_delta(*one, epsilon, direction)
    if direction == "add" and epsilon >= _largest_add_loss(levels):
        return 0.0, 0.0
    try:
        lower, upper = _log_delta_bounds(levels, direction, saddle_point_line(levels, direction, epsilon=epsilon))
        return _delta_interval(lower(epsilon), upper(epsilon))
    except QuadratureTooCostly:  # so far out that no saddle is found: delta is 0 or 1 to within what follows
        return 0.0, one_step_delta(1.0, math.sqrt(_total_squared_mu(levels)), epsilon, direction)[1]


def _delta_interval(low: float, high: float) -> tuple[float, float]:
    """(lower, upper) for delta from bounds on its logarithm; not a number counts for nothing."""
    lower = math.exp(min(low, 0.0)) * (1 - 4 * ULP) if low > -math.inf else 0.0
    return lower, min(1.0, math.exp(high) * (1 + 4 * ULP) + TINY) if high < 0 else 1.0


def directed_epsilon(
    levels: LossLevels, direction: Direction, delta: float, quick: bool = False
) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta` in one direction."""
    try:
        line = saddle_point_line(levels, direction, delta=delta)
        low, high = invert_delta_bounds(*_log_delta_bounds(levels, direction, line, quick), delta, line)
        if high - low > WIDE * high and not quick and not 0.95 * low <= line.epsilon <= 1.05 * high:
            # Few steps, and the saddle's estimate of epsilon was poor: a better line from what is known now.
            line = saddle_point_line(levels, direction, delta=delta, epsilon=(low + high) / 2)
            again = invert_delta_bounds(*_log_delta_bounds(levels, direction, line, quick), delta, line)
            low, high = max(low, again[0]), min(high, again[1])
        if high - low > 0.01 * high and not quick:
            high = min(high, _chernoff_epsilon(levels, direction, delta, line.c * np.geomspace(0.4, 4, 12)))
        return low, high
    except QuadratureTooCostly:
        # Sampling never costs: the Gaussian without amplification is always an upper bound.
        plain = one_step_epsilon(1.0, math.sqrt(_total_squared_mu(levels)), delta)[1]
        plain = min(plain, _chernoff_epsilon(levels, direction, delta, np.geomspace(0.1, 1e5, 61)))
        return 0.0, min(plain, _largest_add_loss(levels)) if direction == "add" else plain


def _chernoff_epsilon(levels: LossLevels, direction: Direction, delta: float, at: Floats) -> float:
    """An upper bound on epsilon by delta(eps) <= m(c) e^(K(c) - c eps), the best of several c (`fourier`)."""
    bins, found = bin_levels(levels, 32), math.inf
    for c in at.tolist():
        try:
            moment = c * (c + 1) * levels.gaussian / 2 + bins.log_moment(direction, c)
        except QuadratureTooCostly:
            break
        found = min(found, ((moment + log_payoff(c) - math.log(delta)) * (1 + OUTWARD) + OUTWARD) / c)
    return max(0.0, found) if not math.isnan(found) else math.inf


def _log_delta_bounds(
    levels: LossLevels, direction: Direction, line: IntegrationLine, quick: bool = False
) -> tuple[LogDelta, LogDelta]:
    """Functions of epsilon that bound log delta from below and above, good near the line's epsilon."""
    for effort in range(1 if quick else 0, len(EFFORTS) - 1):
        try:
            found = spectrum(levels, direction, line, effort=effort)
            return found.lower, found.upper
        except QuadratureTooCostly:
            continue
    found = spectrum(levels, direction, line, effort=len(EFFORTS) - 1)
    return found.lower, found.upper


def _largest_add_loss(levels: LossLevels) -> float:
    """In the direction `add` a sampled step's loss -log w is below -log(1 - q), whatever its noise."""
    return math.inf if levels.gaussian else float(levels.count @ -np.log1p(-levels.rate)) * (1 + OUTWARD)


def _total_variation_bound(levels: LossLevels) -> float:
    """At least delta(0), the total variation distance: q (2 Phi(mu/2) - 1) for each step, and they add up at most."""
    sampled = float(levels.count @ (levels.rate * special.erf(levels.mu / math.sqrt(8))))
    return (sampled + math.erf(math.sqrt(levels.gaussian / 8))) * (1 + OUTWARD)


def _total_squared_mu(levels: LossLevels) -> float:
    return float(levels.count @ levels.mu**2) + levels.gaussian


# --- delta at many epsilons ---------------------------------------------------------------------------
def delta_curve(ledger: Ledger, epsilons: Floats) -> tuple[Floats, Floats]:
    """(lower, upper) for delta at each of the rising `epsilons`, the larger of both directions, certified.

    Where batches are cut to a cap, the chance of a cut is charged. One Fourier sum serves its neighbourhood; a new one
    is made where its interval grows wide.
    """
    levels = loss_levels(ledger)
    found = [_directed_delta_curve(levels, direction, epsilons) for direction in DIRECTIONS]
    lower, upper = truncated_deltas(ledger, epsilons, *np.max(found, axis=0))
    return np.zeros_like(lower) if is_hidden(ledger) else lower, upper


def _directed_delta_curve(levels: LossLevels, direction: Direction, epsilons: Floats) -> tuple[Floats, Floats]:
    rows: list[tuple[float, float]] = []
    curves: tuple[LogDelta, LogDelta] | None = None
    allowed = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for epsilon in (float(e) for e in epsilons):
            low, high = _evaluate_bounds(curves, epsilon)
            if not high - low <= allowed:
                curves = _try_log_delta_bounds(levels, direction, epsilon)
                low, high = _evaluate_bounds(curves, epsilon)
                allowed = max(1e-3, 3 * (high - low))
            if curves is None:
                rows.append(directed_delta(levels, direction, epsilon))
            else:
                rows.append(_delta_interval(low, high))
    lower, upper = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return lower, np.minimum.accumulate(upper)  # delta falls with epsilon


def _evaluate_bounds(curves: tuple[LogDelta, LogDelta] | None, epsilon: float) -> tuple[float, float]:
    try:
        return (curves[0](epsilon), curves[1](epsilon)) if curves else (-math.inf, math.inf)
    except QuadratureTooCostly:
        return -math.inf, math.inf


def _try_log_delta_bounds(levels: LossLevels, direction: Direction, epsilon: float) -> tuple[LogDelta, LogDelta] | None:
    if _as_one_release(levels) is not None:
        return None  # the closed form is as quick
    try:
        return _log_delta_bounds(levels, direction, saddle_point_line(levels, direction, epsilon=epsilon), quick=True)
    except QuadratureTooCostly:
        return None
