"""Where to integrate: the line Re z = c and the period, chosen by the saddle. No bound rests on these estimates."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from privet.accounting.pld.levels import BinnedLevels, LossLevels, bin_levels
from privet.accounting.pld.loss_moments import ULP, Direction, QuadratureTooCostly, log_payoff

TOLERANCE = 1e-10  # relative error in delta allowed to each source
LINES = (0.4, 0.5, 0.62, 0.8, 1.0)  # lines to try, in units of the saddle
CANCELS = 0.1  # what a factor e lost to cancellation is worth, as a share of the period
LOST = 0.07  # where rounding begins to tell: about e^(-1/LOST)
BEYOND = (1.15, 1.35, 1.7, 2.3, 3.5)  # further points for Chernoff bounds


@dataclass(frozen=True, slots=True)
class IntegrationLine:
    """The line Re z = c, the period A of the sum, and Chernoff points (c', upper bound on K(c')) around the saddle."""

    c: float
    saddle: float  # where the integrand is least
    period: float
    epsilon: float  # about where delta is wanted
    log_delta: float  # about the delta there
    spread: float  # about the width of the integrand's peak, as a standard deviation of losses
    deviation: float  # about the standard deviation of the tilted loss
    moments: tuple[tuple[float, float], ...]

    def value(self) -> float:
        """About the value of the integral, in units of e^(K(c) - c epsilon)."""
        return math.exp(min(self.log_delta + self.c * self.epsilon - dict(self.moments)[self.c], 700.0))


@dataclass(frozen=True, slots=True)
class _Saddle:
    c: float
    epsilon: float
    log_delta: float
    spread: float


def saddle_point_line(
    levels: LossLevels, direction: Direction, *, delta: float | None = None, epsilon: float | None = None
) -> IntegrationLine:
    """The line for the epsilon at a given delta, or for the delta at a given epsilon; better if both are known."""
    bins = bin_levels(levels, 20)
    if epsilon is not None:
        wanted = epsilon
        point = _solve(lambda p: wanted - p.epsilon, bins, levels.gaussian, direction)
        point = point if delta is None else replace(point, log_delta=math.log(delta))
    else:
        goal = math.log(delta if delta is not None else 0.5)
        point = _solve(lambda p: p.log_delta - goal, bins, levels.gaussian, direction)
    moments = _chernoff_points(bins, levels.gaussian, direction, point.c)
    need = 1 - math.log(TOLERANCE) - point.log_delta

    def period(c: float) -> float:
        above = min(
            (log_payoff(o) + moment - o * point.epsilon + need) / (o - c) for o, moment in moments if o > c * 1.01
        )
        return max(need / c, above, point.spread)

    # At the saddle the integrand is least, but where K rises steeply just beyond it, a line to its left has far
    # smaller aliases. Away from it the integral is a smaller part of its terms.
    size = {c: moment - c * point.epsilon - point.log_delta for c, moment in moments}
    c = min(
        (point.c * factor for factor in LINES),
        key=lambda c: period(c) * (1 + CANCELS * max(0.0, size[c] - size[point.c])) * max(1.0, LOST * size[c]) ** 4,
    )
    deviation = math.sqrt(max(log_moments(bins, levels.gaussian, direction, c)[2], 1e-300))
    return IntegrationLine(c, point.c, period(c), point.epsilon, point.log_delta, point.spread, deviation, moments)


def log_moments(bins: BinnedLevels, gaussian: float, direction: Direction, c: float) -> tuple[float, float, float]:
    """K(c), K'(c), K''(c), estimated at the middles of the bins."""
    value, slope, curve = c * (c + 1) * gaussian / 2, (2 * c + 1) * gaussian / 2, gaussian
    if len(bins.count):
        found = bins.middle_moments(direction, c)
        sign = 1 if direction == "remove" else -1
        value += float(bins.count @ found.log_psi)
        slope += sign * float(bins.count @ found.mean)
        curve += float(bins.count @ found.variance)
    return value, slope, curve


def _solve(wanted: Callable[[_Saddle], float], bins: BinnedLevels, gaussian: float, direction: Direction) -> _Saddle:
    """The saddle at which `wanted`, falling in c, is zero."""

    def at(log_c: float) -> _Saddle:
        c = math.exp(log_c)
        value, slope, curve = log_moments(bins, gaussian, direction, c)
        # The saddle of K(z) - z eps - log z - log(1 + z), for the eps that puts it at c.
        epsilon = slope - 1 / c - 1 / (1 + c)
        spread = math.sqrt(max(curve, 0.0) + 1 / c**2 + 1 / (1 + c) ** 2)
        log_delta = value - c * epsilon - math.log(c * (1 + c) * spread * math.sqrt(2 * math.pi))
        return _Saddle(c, epsilon, log_delta, spread)

    def miss(log_c: float) -> float:
        try:
            return max(wanted(at(log_c)), -1e6)
        except QuadratureTooCostly:  # only far to the right
            return -1e6

    low, high = -1.0, 2.0
    while miss(high) > 0:
        low, high = high, high + 1.5
        if high > 30:
            raise QuadratureTooCostly("no saddle")
    while miss(low) < 0:
        low, high = low - 1.5, low
        if low < -30:
            raise QuadratureTooCostly("no saddle")
    return at(float(optimize.brentq(miss, low, high, xtol=1e-2)))


def _chernoff_points(
    bins: BinnedLevels, gaussian: float, direction: Direction, c: float
) -> tuple[tuple[float, float], ...]:
    """(c', upper bound on K(c')) around the saddle, for Chernoff bounds on delta."""
    found = []
    for factor in LINES + BEYOND:
        other = c * factor
        moment = other * (other + 1) * gaussian / 2
        try:
            moment += bins.log_moment(direction, other) if len(bins.count) else 0.0
        except QuadratureTooCostly:
            break
        found.append((other, float(np.nextafter(moment, np.inf)) + 1e-12))
    if len(found) <= len(LINES):
        raise QuadratureTooCostly("no Chernoff bound")
    return tuple(found)


LogDelta = Callable[[float], float]

STEPS = tuple(1e-14 * 8.0**k for k in range(12))  # how far from the root a point is tried that is surely safe


def invert_delta_bounds(lower: LogDelta, upper: LogDelta, delta: float, line: IntegrationLine) -> tuple[float, float]:
    """(lower, upper) for epsilon from curves that bound log delta from below and above."""
    goal, rounding = math.log(delta), 4 * ULP * abs(math.log(delta))
    return _lower_epsilon(lower, goal + rounding, line), _upper_epsilon(upper, goal - rounding, line)


def _upper_epsilon(upper: LogDelta, goal: float, line: IntegrationLine) -> float:
    """An epsilon >= 0 with upper(epsilon) <= goal, as small as the search finds."""
    root = _crossing(upper, goal, line)
    for step in (0.0, *STEPS) if root > 0 else ():
        if upper(root * (1 + step)) <= goal:
            return root * (1 + step)
    if upper(0.0) <= goal:
        return 0.0
    inside, outside = _bracket(upper, goal, line)
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if upper(middle) <= goal else (middle, outside)
    return outside


def _lower_epsilon(lower: LogDelta, goal: float, line: IntegrationLine) -> float:
    """An epsilon with lower(epsilon) >= goal, as large as the search finds; 0 if there is none."""
    root = _crossing(lower, goal, line)
    for step in (0.0, *STEPS) if root > 0 else ():
        if lower(root * (1 - step)) >= goal:
            return root * (1 - step)
    if lower(0.0) < goal and line.epsilon <= 0:
        return 0.0
    inside, outside = _bracket(lower, goal, line)
    if not lower(inside) >= goal:
        return 0.0
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if lower(middle) >= goal else (inside, middle)
    return max(0.0, inside)


def _crossing(curve: LogDelta, goal: float, line: IntegrationLine) -> float:
    """About where the curve crosses `goal`, by secant steps; 0 if they do not settle on a positive number."""
    before, here = line.epsilon, line.epsilon
    wrong_before, wrong = 0.0, curve(here) - goal
    for _ in range(20):
        if not math.isfinite(wrong):
            return 0.0
        slope = (wrong - wrong_before) / (here - before) if here != before else -line.c
        if not slope < 0:
            return 0.0
        before, wrong_before = here, wrong
        here -= wrong / slope
        if here <= 0 or abs(here - before) <= 1e-12 * here:
            return max(here, 0.0)
        wrong = curve(here) - goal
    return 0.0


def _bracket(curve: LogDelta, goal: float, line: IntegrationLine) -> tuple[float, float]:
    """(a, b) around the line's epsilon with curve(a) > goal >= curve(b), as far as the curve is good."""
    width = max(1.0 / line.c, 1e-9)
    low = high = max(line.epsilon, 0.0)
    for _ in range(60):
        if curve(high) <= goal:
            break
        low, high, width = high, high + width, width * 2
    else:
        raise QuadratureTooCostly("the curve does not come down")
    for _ in range(60):
        if curve(low) > goal or low <= 0:
            break
        low, width = max(0.0, low - width), width * 2
    return low, high
