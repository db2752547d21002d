"""Many noise levels from few: sum_t log M(z; mu_t) by Chebyshev interpolation in log mu, with a proven error.

Write tau = mu^2. In the variable v = mu x - mu^2/2 the moment is M(z; tau) = integral of w(v)^s against the
Gaussian kernel N(v; -tau/2, tau), and w does not depend on tau: M is analytic where Re(1/tau) > 0. On that
half-plane, with phi = arg tau and tau' = |tau| / cos(phi),

    |M(z; tau) - 1| <= R cos(phi)^(-1/2) exp(|tau| (1/cos(phi) - cos(phi)) / 8) (Psi(Re s; sqrt(tau')) - 1),
    R = |z (z + 1)| / (Re z (Re z + 1)).

Where the right side stays below 1/2 on a Bernstein ellipse of parameter rho, log M is analytic and bounded
there, and interpolation in n + 1 Chebyshev points errs by at most 4 B rho^-n / (rho - 1), B = log 2 at most
(Trefethen, Approximation Theory and Approximation Practice, Theorem 8.2). docs/math.md has the proof.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.accounting.levels import Levels
from privet.accounting.moments import ULP, Direction, TooHard, exponent, tilted

Floats = NDArray[np.float64]

RADII = (1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0)
SECTORS = np.linspace(0.0, math.pi / 2, 9)
MOST_NODES = 48
FEW = 16  # so few levels are cheaper kept as they are


@dataclass(frozen=True, slots=True)
class Nodes:
    """sum_t log M(z; mu_t) = sum_k weight_k log M(z; mu_k), up to `error`; `exact` nodes stand for themselves."""

    rate: Floats
    mu: Floats
    weight: Floats
    exact: NDArray[np.bool_]
    error: float


def compress(levels: Levels, *, direction: Direction, c: float, top: float, tolerance: float = 1e-12) -> Nodes:
    """Nodes that serve every z = c + iu with |u| <= top."""
    ratio = abs(complex(c, top) * complex(c + 1, top)) / (c * (c + 1))
    parts: list[Nodes] = []
    for rate in np.unique(levels.rate):
        here = levels.rate == rate
        mu, count = levels.mu[here], levels.count[here]
        if len(mu) <= FEW:
            parts.append(_exact(rate, mu, count))
            continue
        bound = _Excess(rate, mu, exponent(direction, c))
        parts += _panels(rate, mu, count, ratio, bound, tolerance)
    return Nodes(
        rate=np.concatenate([p.rate for p in parts]),
        mu=np.concatenate([p.mu for p in parts]),
        weight=np.concatenate([p.weight for p in parts]),
        exact=np.concatenate([p.exact for p in parts]),
        error=sum(p.error for p in parts),
    )


class _Excess:
    """An upper bound on Psi(s; mu) - 1 by table: Psi rises with mu, so the next entry of the table is a bound."""

    def __init__(self, rate: float, mu: Floats, s: float) -> None:
        grid = np.geomspace(mu.min(), mu.max() * 3.0, 192)
        try:
            excess = tilted(np.full_like(grid, rate), grid, s).excess
        except TooHard:
            excess = np.full_like(grid, np.inf)
        self._mu = grid
        self._excess = np.append(excess * (1 + 1e-9) + 1e-14, np.inf)

    def __call__(self, mu: Floats) -> Floats:
        return np.asarray(self._excess[np.searchsorted(self._mu, mu)])


def _panels(
    rate: float, mu: Floats, count: Floats, ratio: float, bound: _Excess, tolerance: float
) -> list[Nodes]:
    """One panel if it can be certified with few nodes, else both halves."""
    if len(mu) <= FEW:
        return [_exact(rate, mu, count)]
    low, high = 2 * math.log(mu[0]), 2 * math.log(mu[-1])
    found = _degree(low, high, float(count.sum()), ratio, bound, tolerance)
    if found is not None and found[0] + 1 < len(mu):
        return [_chebyshev(rate, mu, count, low, high, *found)]
    cut = int(np.searchsorted(mu, math.exp((low + high) / 4)))
    cut = min(max(cut, 1), len(mu) - 1)
    halves = ((mu[:cut], count[:cut]), (mu[cut:], count[cut:]))
    return [part for m, n in halves for part in _panels(rate, m, n, ratio, bound, tolerance)]


def _degree(
    low: float, high: float, steps: float, ratio: float, bound: _Excess, tolerance: float
) -> tuple[int, float, float] | None:
    """(degree, error, bound on |log M|) of the best certified ellipse, or None."""
    middle, half = (low + high) / 2, (high - low) / 2
    best: tuple[int, float, float] | None = None
    for radius in RADII:
        wide, tall = half * (radius + 1 / radius) / 2, half * (radius - 1 / radius) / 2
        if tall > 1.4:
            break
        # On the arc from SECTORS[k] to SECTORS[k+1] the real part is largest at its start, the imaginary at its end.
        log_tau = middle + wide * np.cos(SECTORS[:-1])
        cosine = np.cos(tall * np.sin(SECTORS[1:]))
        tau = np.exp(log_tau)
        stretch = np.exp(tau * (1 / cosine - cosine) / 8) / np.sqrt(cosine)
        r = float((ratio * stretch * bound(np.sqrt(tau / cosine))).max())
        if not r <= 0.5:
            continue
        size = -math.log1p(-r)
        need = steps * 4 * size / (radius - 1) / tolerance
        degree = max(2, math.ceil(math.log(max(need, 1.0)) / math.log(radius)))
        if degree <= MOST_NODES and (best is None or degree < best[0]):
            best = degree, steps * 4 * size * radius**-degree / (radius - 1), size
    return best


def _exact(rate: float, mu: Floats, count: Floats) -> Nodes:
    return Nodes(np.full_like(mu, rate), mu, count, np.ones(len(mu), dtype=bool), 0.0)


def _chebyshev(
    rate: float, mu: Floats, count: Floats, low: float, high: float, degree: int, error: float, size: float
) -> Nodes:
    """Weights of the interpolant summed over the steps: through the Chebyshev moments sum_t n_t T_k(y_t)."""
    y = np.clip((2 * np.log(mu) - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)
    moments = np.empty(degree + 1)
    before, here = np.ones_like(y), y
    moments[0], moments[1] = count.sum(), count @ y
    for k in range(2, degree + 1):
        before, here = here, 2 * y * here - before
        moments[k] = count @ here
    # Interpolant through f at cos(pi j / n): coefficients a_k = (2/n) sum''_j f_j cos(pi j k / n), ends halved twice.
    j = np.arange(degree + 1)
    ends = np.where((j == 0) | (j == degree), 0.5, 1.0)
    table = (2 / degree) * np.cos(np.pi * np.outer(j, j) / degree) * ends[:, None] * ends[None, :]
    weight = table.T @ moments
    points = np.cos(np.pi * j / degree)
    nodes = np.exp(((low + high) / 2 + (high - low) / 2 * points) / 2)
    rounding = 64 * ULP * degree**2 * float(count.sum()) * size
    return Nodes(np.full_like(nodes, rate), nodes, weight, np.zeros(degree + 1, dtype=bool), error + rounding)
