"""The sturdy route: losses on a lattice, composed by a tilted FFT. For few steps, and where the fast route gives up.

Both bounds hold by construction, second order in the spacing:

    upper   the mass (P, Q) of a cell [l, l + spacing] moves to its two ends so that P and Q are both kept
            ("connect the dots", Doroshenko et al. 2022): the true step is a post-processing of the result;
    lower   cells around the lattice points are merged (a post-processing of the true step) and their losses
            rounded down to the lattice.

The lattice is a circle of `size` points: what wraps around is weighted by e^(-c * circumference) from below and
bounded by Chernoff from above, as in the fast route.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privet.accounting.aim import Line
from privet.accounting.levels import Bins, Levels, binned
from privet.accounting.moments import ULP, Direction, log_payoff

Floats = NDArray[np.float64]

MOST_POINTS = 1 << 23
CELLS = 1_500_000  # lattice cells over all levels
LEVELS = 256  # so many levels are kept apart; more are gathered into cells
GAUSS = np.polynomial.legendre.leggauss(7)
FAR = 600.0  # e^600 still fits a double
LEAST = 1e-280  # masses below this are not trusted to be accurate
REACH = 11.0  # standard deviations of x kept on each side; what lies beyond is charged to delta


@dataclass(frozen=True, slots=True)
class Step:
    """One level on the lattice: point number and mass under P, and the mass that was cut off."""

    points: NDArray[np.int64]
    mass: Floats
    offset: float  # the loss at point k is k * spacing - offset
    lost: float


class Composed:
    """All steps together: tilted masses on the circle, as the two sums that delta(epsilon) needs from each point up."""

    def __init__(
        self, *, upper: bool, losses: Floats, c: float, log_scale: float, mass: Floats, outside: float
    ) -> None:
        # The mass at loss l is mass * e^(log_scale - c l). Sums of positive terms from the top down.
        # `outside` is the log of what lies outside the circle: a share of delta, or (lower) of delta(eps) e^(c eps).
        self._upper, self._losses, self._c, self._outside = upper, losses, c, outside
        self._middle = float(losses[len(losses) // 2])
        self._scale = log_scale - c * self._middle
        self._drift = 8 * ULP * (abs(log_scale) + c * abs(self._middle)) + 1e-15
        # Far below the middle the weight would overflow; less is still a bound from below, infinity one from above.
        weight = c * (self._middle - losses)
        self._plain = mass * np.exp(weight if upper else np.minimum(weight, FAR))
        self._above = np.append(np.cumsum(self._plain[::-1])[::-1], 0.0)
        weighted = self._plain * np.exp(np.clip(self._middle - losses, -FAR, FAR))
        self._weighted = np.append(np.cumsum(weighted[::-1])[::-1], 0.0)

    def log_delta(self, epsilon: float) -> float:
        """log of sum_(l > eps) mass(l) (1 - e^(eps - l)), every error added (upper) or taken off (lower)."""
        if self._upper and epsilon < self._losses[0]:
            return 0.0  # losses between epsilon and the circle were wrapped to above it: all that is left is delta <= 1
        sign = 1 if self._upper else -1
        first = int(np.searchsorted(self._losses, epsilon, side="right"))
        above = float(self._above[first])
        if abs(epsilon - self._middle) < FAR / 2:
            below = math.exp(epsilon - self._middle) * float(self._weighted[first])
        else:  # beyond the range of the prepared weights
            below = float((self._plain[first:] * np.exp(epsilon - self._losses[first:])).sum())
        total = above - below + sign * (len(self._losses) + 1024) * ULP * (above + below)
        if not math.isfinite(total):
            return 0.0 if self._upper else -math.inf
        found = math.log(total) + self._scale if total > 0 else -math.inf
        found += sign * self._drift
        if self._upper:
            return min(0.0, float(np.logaddexp(found, self._outside)))
        charged = self._outside - self._c * epsilon
        return found + math.log1p(-math.exp(charged - found)) if found > charged else -math.inf


def _losses_to_x(losses: Floats, rate: float, mu: float, direction: Direction) -> Floats:
    """Where the loss is reached: x rising with the loss in `remove`, falling in `add`; +-inf outside its range."""
    signed = losses if direction == "remove" else -losses
    if rate == 1:
        odds = signed
    else:
        up, down = np.maximum(signed, 0.0), np.minimum(signed, 0.0)
        with np.errstate(divide="ignore"):  # log(e^l - 1 + q), from whichever side does not overflow
            above, below = np.log1p(-(1 - rate) * np.exp(-up)), np.log(np.maximum(np.expm1(down) + rate, 0.0))
        odds = np.where(signed > 0, up + above, below)
        odds = odds - math.log(rate)
    return np.asarray((odds + mu**2 / 2) / mu)


def _cell_masses(edges: Floats, rate: float, mu: float, direction: Direction) -> tuple[Floats, Floats, Floats]:
    """(P, Q, error) of the cells between consecutive losses `edges`: P and Q err by `error` of themselves at most.

    Both are taken over the same interval of x: an edge that is off by a rounding moves P and Q together.
    """
    x = _losses_to_x(edges, rate, mu, direction)
    low, high = np.minimum(x[:-1], x[1:]), np.maximum(x[:-1], x[1:])
    base, shifted = _between(low, high, 0.0), _between(low, high, mu)
    mixed = (1 - rate) * base + rate * shifted
    reach = np.minimum(np.minimum(np.abs(low), np.abs(high)), 40.0) + mu
    error = ULP * (256 + 32 * reach**2)
    return (mixed, base, error) if direction == "remove" else (base, mixed, error)


def _between(low: Floats, high: Floats, shift: float) -> Floats:
    """P(low < N(shift, 1) < high), to a few ulps of itself: Gauss-Legendre in narrow cells, tails in wide ones."""
    low, high = np.clip(low, -1e150, 1e150), np.clip(high, -1e150, 1e150)  # losses outside the range have infinite x
    a, b = low - shift, high - shift
    far = np.maximum(np.abs(a), np.abs(b))
    narrow = (high - low <= 0.5) & ((high - low) * far <= 1)
    found = np.empty_like(a)
    wide_a, wide_b = a[~narrow], b[~narrow]
    flip = wide_a > 0
    found[~narrow] = special.ndtr(np.where(flip, -wide_a, wide_b)) - special.ndtr(np.where(flip, -wide_b, wide_a))
    # Seven points err by 7e-20 (width * |x|)^14 of the mass.
    half, middle = (high[narrow] - low[narrow]) / 2, (a[narrow] + b[narrow]) / 2
    total = np.zeros_like(half)
    for point, weight in zip(GAUSS[0], GAUSS[1], strict=True):
        total += weight * np.exp(-((middle + point * half) ** 2) / 2)
    found[narrow] = total * half / math.sqrt(2 * math.pi)
    return found


def _range(rate: float, mu: float, direction: Direction, floor: float) -> tuple[float, float]:
    """Least and largest loss that matter. Losses below `floor` cannot come back into the circle."""
    near, far = mu * REACH + mu**2 / 2, mu * (REACH + mu) - mu**2 / 2
    kept = math.log1p(-rate) if rate < 1 else -math.inf
    low, high = (float(np.logaddexp(kept, math.log(rate) + v)) for v in (-near, far))
    return (max(floor, low), high) if direction == "remove" else (max(floor, -high), -low)


def _points(rate: float, mu: float, direction: Direction, line: Line, spacing: float) -> NDArray[np.int64]:
    low, high = _range(rate, mu, direction, -2 * line.period)
    return np.arange(math.floor(low / spacing) - 1, math.ceil(high / spacing) + 2)


def pessimistic(rate: float, mu: float, direction: Direction, line: Line, spacing: float) -> Step:
    """Connect the dots: each cell's mass moved to its ends, keeping P and Q."""
    points = _points(rate, mu, direction, line, spacing)
    edges = np.asarray(points * spacing, dtype=np.float64)
    p, q, error = _cell_masses(edges, rate, mu, direction)
    p = np.where(p > LEAST, p * (1 + error), 0.0)
    q = np.where(q > LEAST, q, 0.0)  # less of Q is more loss
    # p_low + p_high = p and p_low e^-l + p_high e^-(l+h) = q. Rounding errors move mass up.
    moved = np.exp(np.minimum(edges[:-1], 700.0)) * q
    rounding = (error + 4 * ULP * (1 + np.abs(edges[:-1]))) * (p + moved)
    high = np.clip((p - moved + rounding) / -math.expm1(-spacing), 0.0, p)
    mass = np.zeros(len(points))
    mass[:-1] += p - high
    mass[1:] += high
    # What lies below the first point is rounded up to it.
    mass[0] += max(0.0, 1 - float(p.sum())) + 2 * float(error.max())
    return Step(points, mass, 0.0, float(special.ndtr(-REACH)) * 1.01 + len(points) * LEAST)


def optimistic(rate: float, mu: float, direction: Direction, line: Line, spacing: float) -> Step:
    """Merge the cells around lattice points and round their losses down; what is cut off is dropped."""
    points = _points(rate, mu, direction, line, spacing)
    edges = (np.append(points, points[-1] + 1) - 0.5) * spacing
    p, q, error = _cell_masses(edges, rate, mu, direction)
    real = p > LEAST
    points, p, q, error = points[real], p[real] * (1 - error[real]), np.maximum(q[real], LEAST), error[real]
    # A cell's own loss against its lattice point: second order in the spacing where the law is smooth, and never
    # below the cell's lower edge (which serves where Q is too small for a double).
    sizes = np.abs(np.log(p)) + np.abs(np.log(q)) + np.abs(points * spacing)
    rounding = 2 * error + 16 * ULP * (sizes - math.log(rate) + mu**2)
    away = np.clip(np.log(p) - np.log(q) - points * spacing, -0.5 * spacing, 0.5 * spacing)
    away = np.where(q > LEAST, away, -0.5 * spacing) - rounding
    shift = _shift(away, p * np.exp(line.c * (points - points[-1]) * spacing), spacing)
    return Step(points - _down(away, shift, spacing), p, shift, 0.0)


def _down(away: Floats, shift: float, spacing: float) -> NDArray[np.int64]:
    """How many points a cell drops so that its lattice loss is not above its own, the lattice shifted by `shift`."""
    short = np.maximum(0.0, -(away + shift) - 4 * ULP * shift)  # what the shift was chosen for, it serves
    return np.ceil(short / spacing).astype(np.int64)


def _shift(away: Floats, weight: Floats, spacing: float) -> float:
    """The shift of the lattice that wastes least: enough for most cells, the rare rest drops a whole point."""
    order = np.argsort(-away)
    mass = np.cumsum(weight[order])
    picks = order[np.minimum(np.searchsorted(mass, mass[-1] * (1 - np.logspace(0, -8, 17))), len(order) - 1)]
    candidates = np.unique(np.maximum(0.0, -away[picks]))
    waste = [float(weight @ (away + s + spacing * _down(away, s, spacing))) for s in candidates]
    return float(candidates[int(np.argmin(waste))])


def compose(levels: Levels, direction: Direction, *, line: Line, upper: bool, quick: bool = False) -> Composed:
    """All steps on one circle around the line's epsilon, tilted by e^(cL). `quick` trades width for time."""
    rows = _rows(levels, upper, 16 if quick else LEVELS)
    spacing, size = _grid(rows, direction, line, quick)
    epsilon = line.epsilon
    make = pessimistic if upper else optimistic
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    ceiling = np.ones(size // 2 + 1)
    slip = 4 * ULP * math.log2(size)  # of one coefficient of the FFT of a probability vector
    log_scale, offset, lost, steps, uneven = 0.0, 0.0, 0.0, 0, 0.0
    for rate, mu, count in rows:
        step = make(rate, mu, direction, line, spacing)
        log_mass, tilt = np.log(np.maximum(step.mass, 1e-320)), line.c * (step.points * spacing)
        log_terms = log_mass + tilt
        peak = float(log_terms.max())
        terms = np.exp(log_terms - peak)
        near = terms > 0  # each term errs by this much of itself, so n steps by n times as much
        uneven += count * 4 * ULP * (8 + float((np.abs(log_mass) + np.abs(tilt))[near].max()) + abs(peak))
        total = float(terms.sum())
        one = np.fft.rfft(np.bincount(step.points % size, weights=terms / total, minlength=size))
        transform *= _power(one, count)
        ceiling *= (np.abs(one) + slip) ** count
        log_scale += count * (math.log(total) + peak)
        offset, lost, steps = offset + count * step.offset, lost + count * step.lost, steps + count
    start = math.floor(epsilon / spacing) - size // 2
    mass = np.roll(np.fft.irfft(transform, size), -(start % size))
    # |prod a - prod b| <= prod (|a| + slip) - prod |a| where each |a - b| <= slip.
    wrong = float((ceiling * (1 + steps * 4 * ULP) - np.abs(transform)).sum())
    # The transform back: at most slip times the mean size of what it sums.
    error = 2 * (wrong + slip * float(np.abs(transform).sum())) / size
    log_scale += (1 if upper else -1) * (16 * ULP * (steps + abs(log_scale)) + uneven) - line.c * offset
    bottom, top = start * spacing - offset, (start + size) * spacing - offset
    beyond = math.exp(min(0.0, log_scale - line.c * top))  # P(L >= top), by Markov
    outside = math.log(lost + beyond) if upper else _wrapped(line, bottom, top)
    losses = bottom + spacing * np.arange(size, dtype=np.float64)
    mass = np.maximum(mass + error if upper else mass - error, 0.0)
    return Composed(upper=upper, losses=losses, c=line.c, log_scale=log_scale, mass=mass, outside=outside)


def _power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """values**count by squaring: several times faster than NumPy's complex power."""
    result, square = np.ones_like(values), values.copy()
    while True:
        if count & 1:
            result *= square
        count >>= 1
        if not count:
            return result
        square *= square


def _wrapped(line: Line, bottom: float, top: float) -> float:
    """log of what wraps into the circle, as a bound on its share of delta(eps) e^(c eps).

    A loss l counts e^(-c (l - eps)) (1 - e^(eps - l)) <= m(c) for each unit of tilted mass e^(cL), and outside the
    circle there is at most E[e^(cL); L < bottom] + E[e^(cL); L >= top] of that.
    """
    above = min(moment - (c - line.c) * top for c, moment in line.moments if c > line.c * 1.01)
    return log_payoff(line.c) + float(np.logaddexp(above, line.c * bottom)) + 1e-9


def _grid(rows: list[tuple[float, float, int]], direction: Direction, line: Line, quick: bool) -> tuple[float, int]:
    """Spacing and number of points: fine enough for a relative width near 1e-6 (1e-4), within memory and time."""
    steps = sum(count for _, _, count in rows)
    spacing = math.sqrt((2e-4 if quick else 2e-6) * max(line.epsilon, 1e-3) / (line.c * steps))
    ranges = (_range(rate, mu, direction, -2 * line.period) for rate, mu, _ in rows)
    # The time goes into one FFT per level, the memory into one circle.
    most = max(min((MOST_POINTS >> 6 * quick) // len(rows), MOST_POINTS >> 2), 1 << 15)
    cells = CELLS // 16 if quick else CELLS * (1 + (len(rows) > 64))
    spacing = max(spacing, sum(high - low for low, high in ranges) / cells, 2 * line.period / most)
    size = 1 << max(10, math.ceil(math.log2(2 * line.period / spacing)))
    return 2 * line.period / size, size


def _rows(levels: Levels, upper: bool, most: int) -> list[tuple[float, float, int]]:
    """(rate, mu, count): exact levels if there are few, else each cell at its worst (or best) corner."""
    bins: Bins = binned(levels, most)
    rate, mu = (bins.rate_high, bins.high) if upper else (bins.rate_low, bins.low)
    rows = [(float(q), float(m), round(n)) for q, m, n in zip(rate, mu, bins.count, strict=True)]
    return rows + ([(1.0, math.sqrt(levels.gaussian), 1)] if levels.gaussian > 0 else [])
