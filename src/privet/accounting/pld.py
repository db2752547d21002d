"""`pld`, the default accountant: certified lower and upper bounds on epsilon for any schedule.

For Poisson-sampled Gaussian steps, each with its own noise and rate, both neighbour directions:
the true epsilon lies in the interval, proven as docs/math.md says, whatever route found it.

    one step, or rate 1 throughout   the closed form
    most ledgers                     `fourier`: milliseconds, widths near 1e-9
    few or very uneven steps         `lattice`: tenths of a second, widths near 1e-6
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privet import _check
from privet.accounting import gdp
from privet.accounting.aim import Line, line_for
from privet.accounting.base import gaussian_refuses, refuse_unsupported, register, shuffled_refuses
from privet.accounting.fourier import MOST_WORK, spectrum
from privet.accounting.guarantee import Label, Relation
from privet.accounting.lattice import LEVELS, compose
from privet.accounting.ledger import Ledger, Step
from privet.accounting.levels import Levels, levels_of
from privet.accounting.moments import DIRECTIONS, Direction, TooHard

Floats = NDArray[np.float64]
LogDelta = Callable[[float], float]

QUICK_WORK = 3e6
OUTWARD = 1e-12  # closed forms are evaluated to a few ulps; their bounds are moved out by this much, relatively


@register("pld")
class Pld:
    """Certified interval for Poisson-sampled, whole-dataset and shuffled Gaussian steps."""

    def refuses(self, step: Step, relation: Relation) -> str | None:
        if step.sampling.name == "shuffled":
            return shuffled_refuses(relation)
        return gaussian_refuses(step, relation)

    def bounds(self, ledger: Ledger, delta: float) -> tuple[float | None, float]:
        return epsilon_bounds(levels_of(ledger), delta)

    def label(self, ledger: Ledger, delta: float) -> Label:
        return "certified"


def epsilon_bounds(levels: Levels, delta: float, *, quick: bool = False) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta`, over both directions. `quick`: certified all the same, but wider."""
    if not levels.steps:
        return _outward(gdp.epsilon_of_mu(math.sqrt(levels.gaussian), delta)) if levels.gaussian else (0.0, 0.0)
    if levels.steps == 1 and not levels.gaussian:
        return _outward(one_step_epsilon(float(levels.rate[0]), float(levels.mu[0]), delta))
    with np.errstate(over="ignore", under="ignore"):
        lower, upper = directed_epsilon(levels, "remove", delta, quick)
        if lower < _largest_added_loss(levels):
            low, high = directed_epsilon(levels, "add", delta, quick)
            lower, upper = max(lower, low), max(upper, high)
    return lower, upper


def delta_at(ledger: Ledger, epsilon: float, relation: Relation = "zero-out") -> tuple[float, float]:
    """(lower, upper) for the delta of `ledger` at `epsilon`, certified.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise=1.1, rate=256 / 60000), count=14063)
    >>> lower, upper = delta_at(ledger, 2.0)
    >>> f"{lower:.4g} {upper:.4g}"
    '0.0001191 0.0001191'
    """
    _check.non_negative(epsilon=epsilon)
    refuse_unsupported(Pld(), ledger, relation=relation, accountant="pld")
    levels = levels_of(ledger)
    with np.errstate(over="ignore", under="ignore"):
        found = [directed_delta(levels, direction, epsilon) for direction in DIRECTIONS]
    return max(low for low, _ in found), max(high for _, high in found)


def directed_delta(levels: Levels, direction: Direction, epsilon: float) -> tuple[float, float]:
    """(lower, upper) for delta(epsilon) in one direction; epsilon may be negative."""
    if not levels.steps or (levels.steps == 1 and not levels.gaussian):
        rate = float(levels.rate[0]) if levels.steps else 1.0
        mu = float(levels.mu[0]) if levels.steps else math.sqrt(levels.gaussian)
        exact = one_step_delta(rate, mu, epsilon, direction)
        return max(0.0, exact * (1 - OUTWARD)), min(1.0, exact * (1 + OUTWARD))
    try:
        lower, upper = _routes(levels, direction, line_for(levels, direction, epsilon=epsilon))
    except TooHard:  # so far out that no saddle is found: delta is 0 or 1 to within what follows
        return 0.0, min(1.0, one_step_delta(1.0, math.sqrt(_total(levels)), epsilon, direction) * (1 + OUTWARD))
    return math.exp(min(0.0, lower(epsilon))), min(1.0, math.exp(min(0.0, upper(epsilon))))


def directed_epsilon(levels: Levels, direction: Direction, delta: float, quick: bool = False) -> tuple[float, float]:
    """(lower, upper) for epsilon at `delta` in one direction."""
    try:
        line = line_for(levels, direction, delta=delta)
        return epsilon_between(*_routes(levels, direction, line, quick), delta, line)
    except TooHard:
        # Sampling never costs: the Gaussian without amplification is always an upper bound.
        plain = gdp.epsilon_of_mu(math.sqrt(_total(levels)), delta) * (1 + OUTWARD)
        return 0.0, min(plain, _largest_added_loss(levels)) if direction == "add" else plain


def epsilon_between(lower: LogDelta, upper: LogDelta, delta: float, line: Line) -> tuple[float, float]:
    """(lower, upper) for epsilon from curves that bound log delta from below and above."""
    return _least(lower, math.log(delta), line), _most(upper, math.log(delta), line)


def _routes(levels: Levels, direction: Direction, line: Line, quick: bool = False) -> tuple[LogDelta, LogDelta]:
    """Functions of epsilon that bound log delta from below and above, good near the line's epsilon."""
    try:
        found = spectrum(levels, direction, line, work=_work(levels, quick))
        return (lambda e: found.log_delta(e)[0]), (lambda e: found.log_delta(e)[1])
    except TooHard:
        low = compose(levels, direction, line=line, upper=False, quick=quick)
        high = compose(levels, direction, line=line, upper=True, quick=quick)
        return low.log_delta, high.log_delta


def _work(levels: Levels, quick: bool) -> float:
    """How much the fast route may do before the lattice, which keeps up to LEVELS levels apart, is the better one."""
    return QUICK_WORK if quick else MOST_WORK if len(levels.mu) > LEVELS else MOST_WORK / 8


def _most(upper: LogDelta, goal: float, line: Line) -> float:
    """An epsilon >= 0 with upper(epsilon) <= goal, as small as the search finds."""
    if upper(0.0) <= goal:
        return 0.0
    inside, outside = _bracket(upper, goal, line)
    for _ in range(200):
        if outside - inside <= 1e-13 * max(outside, 1e-3):
            break
        middle = _between(upper, goal, inside, outside)
        inside, outside = (middle, outside) if upper(middle) > goal else (inside, middle)
    return outside


def _least(lower: LogDelta, goal: float, line: Line) -> float:
    """An epsilon with lower(epsilon) >= goal, as large as the search finds; 0 if there is none."""
    if lower(0.0) < goal and line.epsilon <= 0:
        return 0.0
    inside, outside = _bracket(lower, goal, line)
    if lower(inside) < goal:
        return 0.0
    for _ in range(200):
        if outside - inside <= 1e-13 * max(outside, 1e-3):
            break
        middle = _between(lower, goal, inside, outside)
        inside, outside = (middle, outside) if lower(middle) >= goal else (inside, middle)
    return max(0.0, inside)


def _bracket(curve: LogDelta, goal: float, line: Line) -> tuple[float, float]:
    """(a, b) around the line's epsilon with curve(a) > goal >= curve(b), as far as the curve is good."""
    width = max(1.0 / line.c, 1e-9)
    low = high = max(line.epsilon, 0.0)
    for _ in range(60):
        if curve(high) <= goal:
            break
        low, high, width = high, high + width, width * 2
    else:
        raise TooHard("the curve does not come down")
    for _ in range(60):
        if curve(low) > goal or low <= 0:
            break
        low, width = max(0.0, low - width), width * 2
    return low, high


def _between(curve: LogDelta, goal: float, inside: float, outside: float) -> float:
    """The next point to try: a secant step kept away from the ends, else the middle."""
    a, b = curve(inside) - goal, curve(outside) - goal
    if math.isfinite(a) and math.isfinite(b) and a > b:
        share = a / (a - b)
        return inside + (outside - inside) * min(max(share, 0.02), 0.98)
    return (inside + outside) / 2


def _largest_added_loss(levels: Levels) -> float:
    """In the direction `add` a sampled step's loss -log w is below -log(1 - q), whatever its noise."""
    return math.inf if levels.gaussian else float(levels.count @ -np.log1p(-levels.rate)) * (1 + OUTWARD)


def _total(levels: Levels) -> float:
    return float(levels.count @ levels.mu**2) + levels.gaussian


def _outward(epsilon: float) -> tuple[float, float]:
    return epsilon * (1 - OUTWARD), epsilon * (1 + OUTWARD)


# --- one step, in closed form ------------------------------------------------------------------------


def one_step_delta(rate: float, mu: float, epsilon: float, direction: Direction) -> float:
    """Exact delta(epsilon) of one Poisson-sampled Gaussian release; epsilon may be negative.

        remove:  q d(log((e^eps - 1 + q) / q)),          d the profile of the Gaussian with this mu
        add:     (1 - e^eps (1 - q)) d(log(q e^eps / (1 - e^eps (1 - q))))

    Both by splitting the mixture (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647v2, Theorem 2).
    """
    if rate == 1:
        return gdp.delta_of_mu(mu, epsilon)
    if direction == "remove":
        odds = math.expm1(epsilon) + rate
        return rate * gdp.delta_of_mu(mu, math.log(odds / rate)) if odds > 0 else -math.expm1(epsilon)
    left = 1 - math.exp(epsilon) * (1 - rate)
    return left * gdp.delta_of_mu(mu, math.log(rate) + epsilon - math.log(left)) if left > 0 else 0.0


def one_step_epsilon(rate: float, mu: float, delta: float) -> float:
    """Exact epsilon at `delta` of one Poisson-sampled Gaussian release: `remove` is the worse direction at T = 1."""
    if delta >= rate:
        return 0.0
    inner = gdp.epsilon_of_mu(mu, delta / rate)
    removed = math.log1p(rate * math.expm1(inner)) if inner < 700 else inner + math.log(rate)
    return max(0.0, removed)


# --- delta at many epsilons ---------------------------------------------------------------------------


def delta_curve(ledger: Ledger, epsilons: Floats) -> tuple[Floats, Floats]:
    """(lower, upper) for delta at each of the rising `epsilons`, the larger of both directions, certified.

    One Fourier sum serves its neighbourhood; a new one is made where its interval grows wide.
    """
    levels = levels_of(ledger)
    found = [_directed_curve(levels, direction, epsilons) for direction in DIRECTIONS]
    return np.maximum(found[0][0], found[1][0]), np.maximum(found[0][1], found[1][1])


def _directed_curve(levels: Levels, direction: Direction, epsilons: Floats) -> tuple[Floats, Floats]:
    rows: list[tuple[float, float]] = []
    curves: tuple[LogDelta, LogDelta] | None = None
    allowed = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for epsilon in (float(e) for e in epsilons):
            low, high = (curve(epsilon) for curve in curves) if curves else (-math.inf, math.inf)
            if not high - low <= allowed:
                curves = _try_routes(levels, direction, epsilon)
                low, high = (curve(epsilon) for curve in curves) if curves else (-math.inf, math.inf)
                allowed = max(1e-3, 3 * (high - low))
            if curves is None:
                rows.append(directed_delta(levels, direction, epsilon))
            else:
                rows.append((math.exp(min(low, 0.0)), math.exp(min(high, 0.0))))
    lower, upper = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    return lower, np.minimum.accumulate(upper)  # delta falls with epsilon


def _try_routes(levels: Levels, direction: Direction, epsilon: float) -> tuple[LogDelta, LogDelta] | None:
    if not levels.steps or (levels.steps == 1 and not levels.gaussian):
        return None  # a closed form
    try:
        return _routes(levels, direction, line_for(levels, direction, epsilon=epsilon), quick=True)
    except TooHard:
        return None
