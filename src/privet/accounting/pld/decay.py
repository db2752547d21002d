"""How fast far frequencies die: proven lower bounds on K(c) - Re K(c + iu) = -sum_t log |E e^(iu L_t)|.

The expectation is under the law tilted by e^(cL), with density f = w^s phi / Psi in x. Two kinds of bound on
1 - |E e^(iuL)|; the largest counts:

    pairs    cut the line of x into windows of mass at least p_i and gather them into blocks of mass P. Within a
             block, with an independent copy L', 1 - |E e^(iuL)|^2 = 2 E sin^2(u (L - L') / 2)
             >= 4 sum_(i<k) p_i p_k / P^2 min sin^2 over what L - L' can be between windows i and k;
             a block counts for its mass P. Good for slow turning, at two sizes of block;
    flat     in a window so narrow that neither f nor the slope of L changes much, the law of L is p parts uniform
             on an interval of length l, and 1 - |E e^(iuL)| >= p (1 - |sin(ul/2) / (ul/2)|). Good for fast
             turning, the windows made narrower as u grows.

Every step of a bin is taken at the bin's worst corner, so the bound holds for all of them.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from privet.accounting.ledger import Floats
from privet.accounting.pld.levels import BinnedLevels
from privet.accounting.pld.loss_moments import Direction, tilt_exponent, tilted_moments

SHAPES = ((20, 0.4, 20), (40, 0.2, 10))  # windows, width, windows to a block
ZONES, ZONE = 16, 0.5
TURNS = (3.6, 5.2)  # radians
FLOOR = 0.7827  # 1 - |sin x / x| for x >= pi is at least this


class Decay:
    """Lower bounds on K(c) - Re K(c + iu) for a binned ledger, on whole intervals of u."""

    def __init__(self, bins: BinnedLevels, gaussian: float, direction: Direction, c: float) -> None:
        self._gaussian, self._count = gaussian, bins.count
        self._pairs: list[_Pairs] = []
        if len(bins.count):
            law = _Law(bins, tilt_exponent(direction, c), direction, c)
            self._pairs = [_build_pairs(law, *shape) for shape in SHAPES]
            self._flat = _build_flat(law)

    def lower_bounds(self, u: Floats, until: float) -> Floats:
        """A lower bound valid from u[m] to u[m+1], for each m; the last one from u[-1] to `until`."""
        total = self._gaussian * u**2 / 2
        if len(self._count):
            following = np.append(u[1:], until)
            for m, (low, high) in enumerate(zip(u, following, strict=True)):
                total[m] -= self._count @ np.log1p(-self._interval_bound(low, high))
        return np.asarray(total)

    def _interval_bound(self, low: float, high: float) -> Floats:
        found = [self._flat.frequency_bound(low)]
        if math.isfinite(high):
            found += [pairs.interval_bound(low, high) for pairs in self._pairs]
        return np.asarray(np.minimum(np.max(found, axis=0), 1.0) * (1 - 1e-9))


class _Law:
    """The tilted law of x for every step of a bin at once: least densities, and slopes of the loss."""

    def __init__(self, bins: BinnedLevels, s: float, direction: Direction, c: float) -> None:
        self.bins, self.s = bins, s
        self.centre = _window_centre(bins, s, direction, c)[:, None]
        self.log_psi = tilted_moments(bins.rate_high, bins.high, s).log_psi[:, None]

    def edges(self, windows: int, width: float) -> tuple[Floats, Floats]:
        """Edges of windows around the centre (a little more to the right, where the loss moves), and their width."""
        size = np.minimum(width, width / self.bins.high)[:, None]
        return self.centre + size * (np.arange(windows + 1) - round(windows * 0.42)), size

    def log_tilt(self, edges: Floats) -> Floats:
        """log of the least w^s / Psi in each window: w rises with x and v, and is linear in q."""
        v = _least_v(self.bins, edges[:, :-1]) if self.s > 0 else _largest_v(self.bins, edges[:, 1:])
        ends = _log_w(self.bins.rate_low, v), _log_w(self.bins.rate_high, v)
        return np.asarray(self.s * (np.minimum(*ends) if self.s > 0 else np.maximum(*ends)) - self.log_psi - 1e-9)

    def slopes(self, edges: Floats) -> tuple[Floats, Floats]:
        """Least and largest dL/dx = mu hit in each window; hit = q e^v / (1 - q + q e^v) rises with x, v and q."""
        low = special.expit(special.logit(self.bins.rate_low)[:, None] + _least_v(self.bins, edges[:, :-1]))
        high = special.expit(special.logit(self.bins.rate_high)[:, None] + _largest_v(self.bins, edges[:, 1:]))
        return self.bins.low[:, None] * low, self.bins.high[:, None] * high


@dataclass(frozen=True, slots=True)
class _Pairs:
    mass: Floats  # P of each block
    weight: Floats  # 4 p_i p_k / P^2, the pairs of a block side by side
    least: Floats  # of L - L' between windows i and k
    largest: Floats

    def interval_bound(self, low: float, high: float) -> Floats:
        near, far = low * self.least / 2, high * self.largest / 2
        # sin^2 over [near, far]: least at an end as long as the interval stays inside [0, pi].
        square = np.where(far < math.pi, np.minimum(np.sin(near), np.sin(np.minimum(far, math.pi))) ** 2, 0.0)
        lost = (self.weight * square).reshape(*self.mass.shape, -1).sum(axis=2)  # 1 - |E_block|^2
        return np.asarray((self.mass * (1 - np.sqrt(np.maximum(1 - lost, 0.0)))).sum(axis=1))


def _build_pairs(law: _Law, windows: int, width: float, block: int) -> _Pairs:
    edges, size = law.edges(windows, width)
    low, high = edges[:, :-1], edges[:, 1:]
    log_mass = law.log_tilt(edges) - (low**2 + low * high + high**2) / 6  # Jensen on the mean of e^(-x^2/2)
    mass = np.exp(np.minimum(log_mass, 0.0)) * size / math.sqrt(2 * math.pi)
    slope_low, slope_high = law.slopes(edges)
    start, stop = _running_sum(slope_low * size), _running_sum(slope_high * size)
    first, second = np.triu_indices(block, 1)
    shift = np.arange(0, windows, block)[:, None]
    i, k = (shift + first).ravel(), (shift + second).ravel()
    blocks = mass.reshape(len(mass), -1, block).sum(axis=2)
    return _Pairs(
        mass=blocks,
        weight=4 * mass[:, i] * mass[:, k] / np.maximum(np.repeat(blocks, len(first), axis=1), 1e-150) ** 2,
        least=start[:, k] - start[:, i + 1],
        largest=stop[:, k + 1] - stop[:, i],
    )


@dataclass(frozen=True, slots=True)
class _Flat:
    mass: Floats  # of each zone, at least
    width: Floats  # of each zone
    slope: Floats  # dL/dx in the zone, at least
    change: Floats  # |d log f / dx| + |d log slope / dx| in the zone, at most

    def frequency_bound(self, low: float) -> Floats:
        """Zones cut into equal windows that turn by a few radians each; the law in each is p parts uniform."""
        return np.asarray((self.mass * np.max([self._share_bound(low, turn) for turn in TURNS], axis=0)).sum(axis=1))

    def _share_bound(self, low: float, turn: float) -> Floats:
        with np.errstate(over="ignore"):
            pieces = np.clip(np.ceil(low * self.slope * self.width / turn), 1.0, 1e9)
        window = self.width / pieces
        x = low * self.slope * window / 2
        gap = np.where(x < 1e-3, x**2 / 6 * (1 - x**2 / 20), 1 - np.sin(x) / np.maximum(x, 1e-3))
        turned = np.where(x < 2.6, np.minimum(gap, FLOOR), FLOOR)
        return np.asarray(np.exp(-self.change * window) * turned)


def _build_flat(law: _Law) -> _Flat:
    edges, size = law.edges(ZONES, ZONE)
    low, high = edges[:, :-1], edges[:, 1:]
    log_mass = law.log_tilt(edges) - (low**2 + low * high + high**2) / 6
    slope_low, slope_high = law.slopes(edges)
    # d log f / dx = -x + s mu hit, linear in mu hit; d log(mu hit) / dx = mu (1 - hit), between 0 and mu.
    corners = [np.abs(-x + law.s * slope) for x in (low, high) for slope in (slope_low, slope_high)]
    return _Flat(
        mass=np.exp(np.minimum(log_mass, 0.0)) * size / math.sqrt(2 * math.pi), width=np.broadcast_to(size, low.shape),
        slope=slope_low, change=np.max(corners, axis=0) + law.bins.high[:, None],
    )  # fmt: skip


def _window_centre(bins: BinnedLevels, s: float, direction: Direction, c: float) -> Floats:
    """About the mean of x under the tilted law, s mu E[hit]: where to put the windows. Nothing rests on it."""
    w = np.exp(np.minimum(bins.middle_moments(direction, c).mean, 50.0))
    return np.asarray(s * bins.middle * np.clip(1 - (1 - bins.rate_high) / w, 0.0, 1.0))


def _least_v(bins: BinnedLevels, x: Floats) -> Floats:
    """The least of v = mu x - mu^2/2 over the bin: concave in mu, so at an end."""
    low, high = bins.low[:, None], bins.high[:, None]
    return np.minimum(low * x - low**2 / 2, high * x - high**2 / 2)


def _largest_v(bins: BinnedLevels, x: Floats) -> Floats:
    mu = np.clip(x, bins.low[:, None], bins.high[:, None])
    return np.asarray(mu * x - mu**2 / 2)


def _log_w(rate: Floats, v: Floats) -> Floats:
    return np.asarray(np.logaddexp(np.log1p(-rate)[:, None], np.log(rate)[:, None] + v))


def _running_sum(rises: Floats) -> Floats:
    return np.concatenate((np.zeros((len(rises), 1)), np.cumsum(rises, axis=1)), axis=1)
