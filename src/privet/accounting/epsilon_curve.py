"""Epsilon after each step of a run, cheap enough to plot.

Neighbouring prefixes of a ledger differ little, so one line of integration and one set of transformed levels
(`fourier.spectra`) serves a whole stretch of them; a new one is made where its interval grows wide.
"""

from dataclasses import dataclass

import numpy as np

from privet import _check
from privet.accounting.accountant import is_truncated, spent
from privet.accounting.guarantee import Adjacency, Label
from privet.accounting.ledger import Floats, Ints, Ledger
from privet.accounting.pld.accountant import directed_epsilon, epsilon_bounds, is_hidden
from privet.accounting.pld.fourier import spectra
from privet.accounting.pld.levels import LossLevels, prefix_levels
from privet.accounting.pld.loss_moments import DIRECTIONS, Direction, QuadratureTooCostly
from privet.accounting.pld.saddle_point import invert_delta_bounds, saddle_point_line
from privet.errors import InvalidValue

SHORT = 16  # prefixes shorter than this share no line: each has its own
EARLY = 4  # further points before the second evenly spaced one, where epsilon rises fastest
STRETCH, SHARE = 40, 0.35  # prefixes tried with one line: so many, of at least that share of its steps
FEWER = 40  # points of a curve whose accountant starts anew at each
LINES = 20  # lines at most: where they serve few prefixes each, the next ones take over an upper bound
WIDE = 3e-4  # relative width at which a new line is worth it


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonCurve:
    """Epsilon at `delta` after the first `steps[i]` releases: at most `upper[i]`, at least `lower[i]` (if known).

    More releases never cost less, so between two points the upper bound of the later one holds, and the lower bound of
    the earlier one: `step_points` has them as a line that may be drawn.
    """

    steps: Ints
    lower: Floats | None
    upper: Floats
    delta: float
    method: str
    label: Label

    def step_points(self) -> tuple[Ints, Floats, Floats]:
        """(steps, lower, upper): the corners of two staircases from step 0, between which the truth lies everywhere.

        >>> ledger = Ledger()
        >>> ledger.extend(noise_multiplier=[2.0, 1.8], sample_rate=0.01)
        >>> steps, lower, upper = epsilon_curve(ledger, 1e-5).step_points()
        >>> steps.tolist(), lower.round(3).tolist(), upper.round(3).tolist()
        ([0, 1, 1, 2], [0.0, 0.0, 0.028, 0.028], [0.028, 0.028, 0.041, 0.041])
        """
        lower = np.zeros(len(self.steps)) if self.lower is None else np.append(0.0, self.lower[:-1])
        return np.append(0, np.repeat(self.steps, 2)[:-1]), np.repeat(lower, 2), np.repeat(self.upper, 2)


def epsilon_curve(
    ledger: Ledger, delta: float, *, points: int = 200, accountant: str = "pld", adjacency: Adjacency = "zero-out"
) -> EpsilonCurve:
    """Epsilon over the run, at about `points` evenly spaced steps, and some more among the first.

    >>> ledger = Ledger()
    >>> ledger.extend(noise_multiplier=[2.0, 1.8, 1.6, 1.4], sample_rate=0.01)
    >>> curve = epsilon_curve(ledger, 1e-5)
    >>> curve.label, curve.upper.round(3).tolist()
    ('certified', [0.028, 0.041, 0.055, 0.077])
    """
    _check.whole(points=points)
    if not ledger:
        raise InvalidValue("ledger=empty has no curve. Add at least one step.")
    quick = accountant == "pld" and not is_truncated(ledger)
    steps = _curve_steps(ledger.steps, points if quick else min(points, FEWER))
    last = spent(ledger, delta, accountant=accountant, adjacency=adjacency)  # refuses what has no theorem
    if quick:
        lower, upper = _pld_bounds(ledger, delta, steps[:-1])
    else:
        found = [spent(ledger.first(int(n)), delta, accountant=accountant, adjacency=adjacency) for n in steps[:-1]]
        lower = np.array([np.nan if g.epsilon_lower is None else g.epsilon_lower for g in found])
        upper = np.array([g.epsilon for g in found])
    lower = np.append(lower, np.nan if last.epsilon_lower is None else last.epsilon_lower)
    upper = np.append(upper, last.epsilon)
    # What bounds more steps from above bounds fewer, and what bounds fewer from below bounds more: no wobble.
    kept = None if np.isnan(lower).any() else np.maximum.accumulate(lower)
    upper = np.minimum.accumulate(upper[::-1])[::-1]
    return EpsilonCurve(steps=steps, lower=kept, upper=upper, delta=delta, method=accountant, label=last.label)


def _curve_steps(total: int, points: int) -> Ints:
    even = np.linspace(1, total, min(points, total))
    early = np.geomspace(1, even[1], EARLY + 1) if 1 < len(even) < total else even[:1]
    return np.unique(np.concatenate((early, even)).round().astype(np.int64))


def _pld_bounds(ledger: Ledger, delta: float, steps: Ints) -> tuple[Floats, Floats]:
    rows = prefix_levels(ledger, steps)
    short = sum(row.steps < SHORT for row in rows)  # the first so many: each on its own
    found = np.empty((len(rows), 2))
    for i, row in enumerate(rows[:short]):
        found[i] = epsilon_bounds(row.drop_empty(), delta, quick=True)
    if short < len(rows):
        with np.errstate(over="ignore", under="ignore"):
            found[short:] = np.max(
                [_directed_bounds(rows[short:], direction, delta) for direction in DIRECTIONS], axis=0
            )
    lower, upper = found.T
    return np.full_like(lower, np.nan) if is_hidden(ledger) else lower, upper


def _directed_bounds(rows: list[LossLevels], direction: Direction, delta: float) -> list[tuple[float, float]]:
    """(lower, upper) for every prefix, from the longest down, in stretches."""
    found: list[tuple[float, float]] = []
    for lines in range(LINES, 0, -1):
        left = len(rows) - len(found)
        if not left:
            break
        stretch = _stretch_bounds(rows[max(0, left - STRETCH) : left][::-1], direction, delta)
        # Fewer steps never cost more, so what bounds the last of the stretch from above bounds the next ones too.
        missing = -(-left // lines) - len(stretch)
        found += stretch + [(0.0, stretch[-1][1])] * missing
    return found[::-1]


def _stretch_bounds(rows: list[LossLevels], direction: Direction, delta: float) -> list[tuple[float, float]]:
    """Bounds for as many of the `rows` (long to short) as one line serves well; at least one."""
    longest = rows[0].drop_empty()
    try:
        line = saddle_point_line(longest, direction, delta=delta)
        shared = [row.select(rows[0].count > 0) for row in rows if row.steps > SHARE * longest.steps]
        found: list[tuple[float, float]] = []
        for one in spectra(longest, shared, direction, line, effort=1):
            low, high = invert_delta_bounds(one.lower, one.upper, delta, line)
            if found and high - low > WIDE * high:
                break
            found.append((low, high))
        return found
    except QuadratureTooCostly:
        return [directed_epsilon(longest, direction, delta, quick=True)]
