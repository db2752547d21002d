"""`pld`, the default accountant: certified lower and upper bounds on epsilon for any schedule.

For Poisson-sampled Gaussian steps, each with its own noise and rate, both neighbour directions:
the true epsilon lies in the interval, proven as docs/math.md says, whatever route found it.

    one step, or rate 1 throughout   the closed form (`one_step`)
    anything else                    one Fourier sum with every error bounded (`fourier`); hundreds of steps and more
                                     have few frequencies, a few steps of low noise thousands (`frequencies`)
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privet import _check
from privet.accounting.aim import Line, line_for
from privet.accounting.base import (
    gaussian_refuses,
    refuse_unsupported,
    register,
    representatives,
    shuffled_refuses,
    truncated_deltas,
)
from privet.accounting.crossing import LogDelta, epsilon_between
from privet.accounting.fourier import spectrum
from privet.accounting.frequencies import EFFORTS
from privet.accounting.guarantee import Label, Relation
from privet.accounting.ledger import Ledger, Step
from privet.accounting.levels import Levels, binned, levels_of
from privet.accounting.moments import DIRECTIONS, ULP, Direction, TooHard, log_payoff
from privet.accounting.one_step import OUTWARD, TINY, one_step_delta, one_step_epsilon

Floats = NDArray[np.float64]

WIDE = 1e-4  # relative width at which a better line is looked for


@register("pld")
class Pld:
    """Certified interval for Poisson-sampled, whole-dataset and shuffled Gaussian steps."""

    def refuses(self, step: Step, relation: Relation) -> str | None:
        if step.sampling.name == "shuffled":
            return shuffled_refuses(relation)
        return gaussian_refuses(step, relation)

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        lower, upper = epsilon_bounds(levels_of(ledger), delta)
        return (None if is_hidden(ledger) else lower), upper

    def label(self, ledger: Ledger, delta: float) -> Label:
        return "certified"


def is_hidden(ledger: Ledger) -> bool:
    """Whether there are shuffled batches: taken without amplification they are a bound from above only."""
    return any(step.rate < 1 and step.sampling.name == "shuffled" for step in representatives(ledger))


def epsilon_bounds(levels: Levels, delta: float, *, quick: bool = False) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta`, over both directions. `quick`: certified all the same, but wider."""
    one = _one_release(levels)
    if one is not None:
        return one_step_epsilon(*one, delta) if one[1] else (0.0, 0.0)
    if _distance(levels) <= delta:
        return 0.0, 0.0
    with np.errstate(over="ignore", under="ignore"):
        lower, upper = directed_epsilon(levels, "remove", delta, quick)
        if lower < _largest_added_loss(levels):
            low, high = directed_epsilon(levels, "add", delta, quick=True)
            if high > lower and not quick:  # it may be the worse one: as fine as the other
                low, high = directed_epsilon(levels, "add", delta)
            lower, upper = max(lower, low), max(upper, high)
    return lower, upper


def _one_release(levels: Levels) -> tuple[float, float] | None:
    """(rate, mu) of the one release that the ledger amounts to, which has a closed form; None if it is more."""
    if not levels.steps:
        return 1.0, math.sqrt(levels.gaussian)
    if levels.steps > 1 or levels.gaussian:
        return None
    only = levels.kept()
    return float(only.rate[0]), float(only.mu[0])


def delta_at(ledger: Ledger, epsilon: float, relation: Relation = "zero-out") -> tuple[float, float]:
    """(lower, upper) for the delta of `ledger` at `epsilon`, certified.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise=1.1, rate=256 / 60000), count=14063)
    >>> lower, upper = delta_at(ledger, 2.0)
    >>> f"{lower:.4g} {upper:.4g}"
    '0.0001191 0.0001191'

    Raises:
        Unsupported: no theorem covers a step, or batches are cut so often that nothing is left to prove.
    """
    _check.non_negative(epsilon=epsilon)
    refuse_unsupported(Pld(), ledger, relation=relation, accountant="pld")
    levels = levels_of(ledger)
    with np.errstate(over="ignore", under="ignore"):
        found = [directed_delta(levels, direction, epsilon) for direction in DIRECTIONS]
    lower, upper = truncated_deltas(ledger, epsilon, *np.max(found, axis=0))
    return 0.0 if is_hidden(ledger) else float(lower), float(upper)


def directed_delta(levels: Levels, direction: Direction, epsilon: float) -> tuple[float, float]:
    """(lower, upper) for delta(epsilon) in one direction; epsilon may be negative."""
    one = _one_release(levels)
    if one is not None:
        return one_step_delta(*one, epsilon, direction)
    if direction == "add" and epsilon >= _largest_added_loss(levels):
        return 0.0, 0.0
    try:
        lower, upper = _routes(levels, direction, line_for(levels, direction, epsilon=epsilon))
        return _interval(lower(epsilon), upper(epsilon))
    except TooHard:  # so far out that no saddle is found: delta is 0 or 1 to within what follows
        return 0.0, one_step_delta(1.0, math.sqrt(_total(levels)), epsilon, direction)[1]


def _interval(low: float, high: float) -> tuple[float, float]:
    """(lower, upper) for delta from bounds on its logarithm; not a number counts for nothing."""
    lower = math.exp(min(low, 0.0)) * (1 - 4 * ULP) if low > -math.inf else 0.0
    return lower, min(1.0, math.exp(high) * (1 + 4 * ULP) + TINY) if high < 0 else 1.0


def directed_epsilon(levels: Levels, direction: Direction, delta: float, quick: bool = False) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta` in one direction."""
    try:
        line = line_for(levels, direction, delta=delta)
        low, high = epsilon_between(*_routes(levels, direction, line, quick), delta, line)
        if high - low > WIDE * high and not quick and not 0.95 * low <= line.epsilon <= 1.05 * high:
            # Few steps, and the saddle's estimate of epsilon was poor: a better line from what is known now.
            line = line_for(levels, direction, delta=delta, epsilon=(low + high) / 2)
            again = epsilon_between(*_routes(levels, direction, line, quick), delta, line)
            low, high = max(low, again[0]), min(high, again[1])
        if high - low > 0.01 * high and not quick:
            high = min(high, _chernoff_epsilon(levels, direction, delta, line.c * np.geomspace(0.4, 4, 12)))
        return low, high
    except TooHard:
        # Sampling never costs: the Gaussian without amplification is always an upper bound.
        plain = one_step_epsilon(1.0, math.sqrt(_total(levels)), delta)[1]
        plain = min(plain, _chernoff_epsilon(levels, direction, delta, np.geomspace(0.1, 1e5, 61)))
        return 0.0, min(plain, _largest_added_loss(levels)) if direction == "add" else plain


def _chernoff_epsilon(levels: Levels, direction: Direction, delta: float, at: Floats) -> float:
    """An upper bound on epsilon by delta(eps) <= m(c) e^(K(c) - c eps), the best of several c (`fourier`)."""
    bins, found = binned(levels, 32), math.inf
    for c in at.tolist():
        try:
            moment = c * (c + 1) * levels.gaussian / 2 + bins.log_moment(direction, c)
        except TooHard:
            break
        found = min(found, ((moment + log_payoff(c) - math.log(delta)) * (1 + OUTWARD) + OUTWARD) / c)
    return max(0.0, found) if not math.isnan(found) else math.inf


def _routes(levels: Levels, direction: Direction, line: Line, quick: bool = False) -> tuple[LogDelta, LogDelta]:
    """Functions of epsilon that bound log delta from below and above, good near the line's epsilon."""
    for effort in range(1 if quick else 0, len(EFFORTS) - 1):
        try:
            found = spectrum(levels, direction, line, effort=effort)
            return found.lower, found.upper
        except TooHard:
            continue
    found = spectrum(levels, direction, line, effort=len(EFFORTS) - 1)
    return found.lower, found.upper


def _largest_added_loss(levels: Levels) -> float:
    """In the direction `add` a sampled step's loss -log w is below -log(1 - q), whatever its noise."""
    return math.inf if levels.gaussian else float(levels.count @ -np.log1p(-levels.rate)) * (1 + OUTWARD)


def _distance(levels: Levels) -> float:
    """At least delta(0), the total variation distance: q (2 Phi(mu/2) - 1) for each step, and they add up at most."""
    sampled = float(levels.count @ (levels.rate * special.erf(levels.mu / math.sqrt(8))))
    return (sampled + math.erf(math.sqrt(levels.gaussian / 8))) * (1 + OUTWARD)


def _total(levels: Levels) -> float:
    return float(levels.count @ levels.mu**2) + levels.gaussian


# --- delta at many epsilons ---------------------------------------------------------------------------


def delta_curve(ledger: Ledger, epsilons: Floats) -> tuple[Floats, Floats]:
    """(lower, upper) for delta at each of the rising `epsilons`, the larger of both directions, certified.

    Where batches are cut to a cap, the chance of a cut is charged. One Fourier sum serves its neighbourhood; a new one
    is made where its interval grows wide.
    """
    levels = levels_of(ledger)
    found = [_directed_curve(levels, direction, epsilons) for direction in DIRECTIONS]
    lower, upper = truncated_deltas(ledger, epsilons, *np.max(found, axis=0))
    return np.zeros_like(lower) if is_hidden(ledger) else lower, upper


def _directed_curve(levels: Levels, direction: Direction, epsilons: Floats) -> tuple[Floats, Floats]:
    rows: list[tuple[float, float]] = []
    curves: tuple[LogDelta, LogDelta] | None = None
    allowed = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for epsilon in (float(e) for e in epsilons):
            low, high = _read(curves, epsilon)
            if not high - low <= allowed:
                curves = _try_routes(levels, direction, epsilon)
                low, high = _read(curves, epsilon)
                allowed = max(1e-3, 3 * (high - low))
            if curves is None:
                rows.append(directed_delta(levels, direction, epsilon))
            else:
                rows.append(_interval(low, high))
    lower, upper = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return lower, np.minimum.accumulate(upper)  # delta falls with epsilon


def _read(curves: tuple[LogDelta, LogDelta] | None, epsilon: float) -> tuple[float, float]:
    try:
        return (curves[0](epsilon), curves[1](epsilon)) if curves else (-math.inf, math.inf)
    except TooHard:
        return -math.inf, math.inf


def _try_routes(levels: Levels, direction: Direction, epsilon: float) -> tuple[LogDelta, LogDelta] | None:
    if _one_release(levels) is not None:
        return None  # the closed form is as quick
    try:
        return _routes(levels, direction, line_for(levels, direction, epsilon=epsilon), quick=True)
    except TooHard:
        return None
