"""Where curves that bound log delta from below and above cross a given delta: bounds on epsilon, on the safe side."""

import math
from collections.abc import Callable

from privet.accounting.aim import Line
from privet.accounting.moments import ULP, TooHard

LogDelta = Callable[[float], float]

STEPS = tuple(1e-14 * 8.0**k for k in range(12))  # how far from the root a point is tried that is surely safe


def epsilon_between(lower: LogDelta, upper: LogDelta, delta: float, line: Line) -> tuple[float, float]:
    """(lower, upper) for epsilon from curves that bound log delta from below and above."""
    goal, rounding = math.log(delta), 4 * ULP * abs(math.log(delta))
    return _least(lower, goal + rounding, line), _most(upper, goal - rounding, line)


def _most(upper: LogDelta, goal: float, line: Line) -> float:
    """An epsilon >= 0 with upper(epsilon) <= goal, as small as the search finds."""
    root = _root(upper, goal, line)
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


def _least(lower: LogDelta, goal: float, line: Line) -> float:
    """An epsilon with lower(epsilon) >= goal, as large as the search finds; 0 if there is none."""
    root = _root(lower, goal, line)
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


def _root(curve: LogDelta, goal: float, line: Line) -> float:
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
