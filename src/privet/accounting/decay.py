"""How fast far frequencies die: proven lower bounds on K(c) - Re K(c + iu) = -sum_t log |E e^(iu L_t)|.

The expectation is under the law tilted by e^(cL). Cut the line of x into windows; a window holds at least the
mass p_i, and the loss rises over it by at least and at most known amounts. Bounds on 1 - |E e^(iuL)|, of which the
largest counts:

    pairs    gather windows into blocks of mass P. Within a block, with an independent copy L',
             1 - |E e^(iuL)| >= E sin^2(u (L - L') / 2) >= 2 sum_(i<k) p_i p_k / P^2 min sin^2 over what L - L' can be
             between windows i and k; a block counts for its mass P. Several sizes of block are tried;
    inside   the loss has density at least g on an interval of length l, so its law is p = g l parts uniform and
             1 - |E e^(iuL)| >= sum_i p_i (1 - |sin(u l_i / 2) / (u l_i / 2)|).

Every step of a bin is taken at the bin's worst corner, so the bound holds for all of them.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privet.accounting.levels import Bins
from privet.accounting.moments import Direction, exponent, tilted

Floats = NDArray[np.float64]

WINDOWS = 24
BLOCKS = (3, 6, 12, 24)
FLOOR = 0.7827  # 1 - |sin x / x| for x >= pi is at least this


class Decay:
    """Lower bounds on K(c) - Re K(c + iu) for a binned ledger, on whole intervals of u."""

    def __init__(self, bins: Bins, gaussian: float, direction: Direction, c: float) -> None:
        self._gaussian = gaussian
        self._count = bins.count
        if len(bins.count):
            self._prepare(bins, exponent(direction, c), direction, c)

    def _prepare(self, bins: Bins, s: float, direction: Direction, c: float) -> None:
        width = np.minimum(0.33, 0.33 / bins.high)[:, None]
        edges = _centre(bins, s, direction, c)[:, None] + width * (np.arange(WINDOWS + 1) - 10)
        v_low, v_high = _least_v(bins, edges), _largest_v(bins, edges)
        tilt = _log_tilt(bins, s, v_low, v_high) + np.log(width) - 0.5 * math.log(2 * math.pi)
        low, high = edges[:, :-1], edges[:, 1:]
        mass = np.exp(np.minimum(tilt - (low**2 + low * high + high**2) / 6, 0.0))  # Jensen on the mean of e^(-x^2/2)
        rise_low, rise_high = _rises(bins, width, v_low, v_high)
        start, stop = _running(rise_low), _running(rise_high)
        i, k = np.triu_indices(WINDOWS, 1)
        self._weights = [_pair_weights(mass, i, k, block) for block in BLOCKS]
        self._least = start[:, k] - start[:, i + 1]
        self._largest = stop[:, k + 1] - stop[:, i]
        # Density of L in a window >= (least density of x) / (largest slope).
        flat = np.exp(np.minimum(tilt - np.maximum(low**2, high**2) / 2, 0.0))
        self._uniform = flat * rise_low / np.maximum(rise_high, 1e-300)
        self._length = rise_low

    def between(self, u: Floats, until: float) -> Floats:
        """A lower bound valid from u[m] to u[m+1], for each m; the last one from u[-1] to `until`."""
        total = self._gaussian * u**2 / 2
        if len(self._count):
            following = np.append(u[1:], until)
            total += [float(self._count @ self._on(low, high)) for low, high in zip(u, following, strict=True)]
        return np.asarray(total)

    def _on(self, low: float, high: float) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):  # inf * 0 is nan, and counts for nothing
            near, far = low * self._least / 2, high * self._largest / 2
        # sin^2 over [near, far]: least at an end as long as the interval stays inside [0, pi].
        square = np.where(far < math.pi, np.minimum(np.sin(near), np.sin(np.minimum(far, math.pi))) ** 2, 0.0)
        pairs = np.max([np.einsum("bp,bp->b", square, weight) for weight in self._weights], axis=0)
        x = low * self._length / 2
        gap = np.where(x < 1e-3, x**2 / 6 * (1 - x**2 / 20), 1 - np.sin(x) / np.maximum(x, 1e-3))
        inside = (self._uniform * np.where(x < 2.6, np.minimum(gap, FLOOR), FLOOR)).sum(axis=1)
        return np.asarray(np.maximum(pairs, inside) * (1 - 1e-9))


def _pair_weights(mass: Floats, i: NDArray[np.int64], k: NDArray[np.int64], block: int) -> Floats:
    """2 p_i p_k / P for windows of one block, 0 otherwise."""
    total = np.repeat(np.add.reduceat(mass, np.arange(0, WINDOWS, block), axis=1), block, axis=1)[:, :WINDOWS]
    together = (i // block) == (k // block)
    return np.where(together, 2 * mass[:, i] * mass[:, k] / np.maximum(total[:, i], 1e-300), 0.0)


def _centre(bins: Bins, s: float, direction: Direction, c: float) -> Floats:
    """About the mean of x under the tilted law, s mu E[hit]: where to put the windows. Nothing rests on it."""
    w = np.exp(np.minimum(bins.middle_moments(direction, c).mean, 50.0))
    return np.asarray(s * bins.middle * np.clip(1 - (1 - bins.rate_high) / w, 0.0, 1.0))


def _least_v(bins: Bins, x: Floats) -> Floats:
    """The least of v = mu x - mu^2/2 over the bin: concave in mu, so at an end."""
    low, high = bins.low[:, None], bins.high[:, None]
    return np.minimum(low * x - low**2 / 2, high * x - high**2 / 2)


def _largest_v(bins: Bins, x: Floats) -> Floats:
    mu = np.clip(x, bins.low[:, None], bins.high[:, None])
    return np.asarray(mu * x - mu**2 / 2)


def _log_tilt(bins: Bins, s: float, v_low: Floats, v_high: Floats) -> Floats:
    """log of the least w^s / Psi in each window, over every step of the bin."""
    if s > 0:  # w rises with x and is linear in q: least at the window's start, at an end of the rates
        log_w = np.minimum(_log_w(bins.rate_low, v_low[:, :-1]), _log_w(bins.rate_high, v_low[:, :-1]))
    else:
        log_w = np.maximum(_log_w(bins.rate_low, v_high[:, 1:]), _log_w(bins.rate_high, v_high[:, 1:]))
    return np.asarray(s * log_w - tilted(bins.rate_high, bins.high, s).log_psi[:, None] - 1e-9)


def _log_w(rate: Floats, v: Floats) -> Floats:
    return np.asarray(np.logaddexp(np.log1p(-rate)[:, None], np.log(rate)[:, None] + v))


def _rises(bins: Bins, width: Floats, v_low: Floats, v_high: Floats) -> tuple[Floats, Floats]:
    """Least and largest rise of the loss over each window.

    dL/dx = mu hit, hit = q e^v / (1 - q + q e^v) a logistic curve in v, so rising in x, in q and in v.
    """
    hit_low = special.expit(special.logit(bins.rate_low)[:, None] + v_low)
    hit_high = special.expit(special.logit(bins.rate_high)[:, None] + v_high)
    return bins.low[:, None] * width * hit_low[:, :-1], bins.high[:, None] * width * hit_high[:, 1:]


def _running(rises: Floats) -> Floats:
    return np.concatenate((np.zeros((len(rises), 1)), np.cumsum(rises, axis=1)), axis=1)
