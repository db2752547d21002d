"""Many noise levels from few: sum_t log M(z; mu_t) by Chebyshev interpolation in log mu, with a proven error.

Write tau = mu^2. In the variable v = mu x - mu^2/2 the moment is M(z; tau) = integral of w(v)^s against the
Gaussian kernel N(v; -tau/2, tau), and w does not depend on tau: M is analytic where Re(1/tau) > 0. On that
half-plane, with phi = arg tau and tau' = |tau| / cos(phi),

    |M(z; tau) - 1| <= R cos(phi)^(-1/2) exp(|tau| (1/cos(phi) - cos(phi)) / 8) (Psi(Re s; sqrt(tau')) - 1),
    R = |z (z + 1)| / (Re z (Re z + 1)).

Where the right side stays below 1/2 on a Bernstein ellipse of parameter rho, log M is analytic and bounded
there, and interpolation in n + 1 Chebyshev points errs by at most 4 B rho^-n / (rho - 1), B = log 2 at most
(Trefethen, Approximation Theory and Approximation Practice, chapter 8). Where it does not (few steps, each of
weight), M itself is interpolated, step by step: |M| <= the same stretch times Psi, whatever the frequency. docs/math.md
has the proofs.
"""

import math
from dataclasses import dataclass

import numpy as np

from privet.accounting.ledger import Bools, Floats, Ints
from privet.accounting.pld.levels import LossLevels
from privet.accounting.pld.loss_moments import ULP, Direction, QuadratureTooCostly, tilt_exponent, tilted_moments

RADII = (1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0)
SECTORS = np.linspace(0.0, math.pi / 2, 9)
MOST_NODES = 48
CHUNK = 1 << 16  # levels at a time, to bound memory
NARROW = 0.1  # least width of a panel in log tau
MOST_RATES = 20_000
MOST_BLENDED = 1500  # levels interpolated one by one
FEW = 20  # so few levels are cheaper kept as they are


@dataclass(frozen=True, slots=True)
class Blend:
    """Levels t with M(z; mu_t) = sum_k basis_tk M(z; mu_k), k running over some of the nodes."""

    nodes: Ints
    basis: Floats
    count: Floats  # one row per ledger

    @property
    def rounding(self) -> float:
        """What the rounding of a row of the basis does to a sum of basis_tk f_k, at most, in units of the largest f_k.

        (3n + 4) ulps of the sums of |l_k f_k| and of |l_k| (Higham 2004), and those are below 4 for these points.
        """
        return ULP * (24 * len(self.nodes) + 64) * 4


@dataclass(frozen=True, slots=True)
class Nodes:
    """sum_t log M(z; mu_t) = sum_k weight_k log M(z; mu_k) + the blends; `exact` nodes stand for themselves.

    `error` bounds what interpolation does to the logarithm of the product, relative to its value at z = c.
    """

    rate: Floats
    mu: Floats
    weight: Floats  # one row per ledger
    exact: Bools
    error: float
    blends: tuple[Blend, ...] = ()


def compress(
    levels: LossLevels, counts: Floats, *, direction: Direction, c: float, top: float, tolerance: float = 1e-13
) -> Nodes:
    """Nodes that serve every z = c + iu with |u| <= top, for ledgers on these levels.

    Each row of `counts` is a ledger with no more of any level than `levels` itself, whose error bound serves all.
    """
    ratio = abs(complex(c, top) * complex(c + 1, top)) / (c * (c + 1))
    parts: list[Nodes] = []
    rates, starts = np.unique(levels.rate, return_index=True)  # levels come sorted by rate, then mu
    if len(rates) > MOST_RATES:
        raise QuadratureTooCostly(f"{len(rates)} rates")
    for rate, start, stop in zip(rates.tolist(), starts, np.append(starts[1:], len(levels.rate)), strict=True):
        here = slice(start, stop)
        mu, count = levels.mu[here], counts[:, here]
        if len(mu) <= FEW:
            parts.append(_exact_nodes(rate, mu, count))
            continue
        bound = _Excess(rate, mu, tilt_exponent(direction, c))
        parts += _panels(rate, mu, count, levels.count[here], ratio, bound, tolerance)
    offsets = np.cumsum([0] + [len(p.mu) for p in parts])
    placed = ((b, offset) for p, offset in zip(parts, offsets[:-1], strict=True) for b in p.blends)
    return Nodes(
        blends=tuple(Blend(b.nodes + offset, b.basis, b.count) for b, offset in placed),
        rate=np.concatenate([p.rate for p in parts]), mu=np.concatenate([p.mu for p in parts]),
        weight=np.concatenate([p.weight for p in parts], axis=1), exact=np.concatenate([p.exact for p in parts]),
        error=sum(p.error for p in parts),
    )  # fmt: skip


class _Excess:
    """An upper bound on Psi(s; mu) - 1 by table: Psi rises with mu, so the next entry of the table is a bound."""

    def __init__(self, rate: float, mu: Floats, s: float) -> None:
        grid = np.geomspace(mu.min(), mu.max() * 3.0, 192)
        try:
            excess = tilted_moments(np.full_like(grid, rate), grid, s).excess
        except QuadratureTooCostly:
            excess = np.full_like(grid, np.inf)
        self._mu = grid
        self._excess = np.append(excess * (1 + 1e-9) + 1e-13, np.inf)  # both far above what `tilted` errs by

    def __call__(self, mu: Floats) -> Floats:
        return np.asarray(self._excess[np.searchsorted(self._mu, mu)])

    def least_psi(self, mu: float) -> float:
        """A lower bound on Psi for this mu and all larger ones: the entry before; Psi >= 1 anyway."""
        before = float(self._excess[max(int(np.searchsorted(self._mu, mu, side="right")) - 1, 0)])
        return 1 + max(0.0, before * (1 - 4e-9) - 4e-13) if mu >= self._mu[0] and before < 1e9 else 1.0


def _panels(
    rate: float, mu: Floats, count: Floats, most: Floats, ratio: float, bound: _Excess, tolerance: float
) -> list[Nodes]:
    """One panel if it can be certified with few nodes, else both halves."""
    if len(mu) <= FEW:
        return [_exact_nodes(rate, mu, count)]
    low, high = 2 * math.log(mu[0]), 2 * math.log(mu[-1])
    wider = max(0.0, NARROW - (high - low)) / 2  # on a very narrow panel the rounding of log mu would count
    low, high = low - wider, high + wider
    found = _certified_degree(low, high, float(most.sum()), ratio, bound, tolerance)
    if found is not None and found[0] + 1 < len(mu):
        return [_chebyshev_nodes(rate, mu, count, low, high, *found)]
    if len(mu) <= MOST_BLENDED:
        found = _certified_degree(low, high, float(most.sum()), None, bound, tolerance)
        if found is not None and found[0] + 1 < 0.7 * len(mu):
            return [_interpolate_levels(rate, mu, count, low, high, *found[:2])]
    cut = int(np.searchsorted(mu, math.exp((low + high) / 4)))
    cut = min(max(cut, 1), len(mu) - 1)
    halves = (slice(None, cut), slice(cut, None))
    return [p for half in halves for p in _panels(rate, mu[half], count[:, half], most[half], ratio, bound, tolerance)]


def _certified_degree(
    low: float, high: float, steps: float, ratio: float | None, bound: _Excess, tolerance: float
) -> tuple[int, float, float] | None:
    """(degree, error, bound on |log M|) of the best certified ellipse, or None. Without `ratio`, for M itself."""
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
        excess = bound(np.sqrt(tau / cosine))
        r = float((ratio * stretch * excess).max()) if ratio is not None else 0.0
        size = -math.log1p(-r) if r <= 0.5 else math.inf
        if ratio is None:
            size = float((stretch * (1 + excess)).max()) / bound.least_psi(math.exp(low / 2))  # in units of Psi(c)
        if not size < 32:  # a larger bound would need fewer nodes, but rounding grows with it
            continue
        need = steps * 4 * size / (radius - 1) / tolerance
        degree = max(2, math.ceil(math.log(max(need, 1.0)) / math.log(radius)))
        if degree <= MOST_NODES and (best is None or degree < best[0]):
            # Rounding of log tau, in the nodes and the levels: by Cauchy |d log M / d log tau| <= size / inset.
            inset = wide - half
            moved = 24 * ULP * (1 + max(abs(low), abs(high))) * size / inset
            best = degree, steps * (4 * size * radius**-degree / (radius - 1) + moved), size
    return best


def _exact_nodes(rate: float, mu: Floats, count: Floats) -> Nodes:
    return Nodes(np.full_like(mu, rate), mu, count, np.ones(len(mu), dtype=bool), 0.0)


def _chebyshev_nodes(
    rate: float, mu: Floats, count: Floats, low: float, high: float, degree: int, error: float, size: float
) -> Nodes:
    """Weights of the interpolant summed over the steps: through the Chebyshev moments sum_t n_t T_k(y_t)."""
    y = _chebyshev_coordinates(mu, low, high)
    moments = np.zeros((len(count), degree + 1))
    run = max(64, math.isqrt(len(y)))  # sums in runs of sqrt(n): rounding grows with 2 sqrt(n), not n
    for start in range(0, len(y), CHUNK):
        part = slice(start, start + CHUNK)
        polynomials = _chebyshev_polynomials(y[part], degree)
        for first in range(0, polynomials.shape[1], run):
            piece = slice(first, first + run)
            moments += count[:, part][:, piece] @ polynomials[:, piece].T
    weight = moments @ _coefficient_matrix(degree)
    nodes = _chebyshev_mus(low, high, degree)
    # The recurrence, the table of cosines, and the sums; the coefficients add up to 12 size at most, as radius >= 1.2.
    rounding = ULP * (128 * degree**2 + 12 * (run + len(y) / run + 2)) * float(count.sum(axis=1).max()) * size
    return Nodes(np.full_like(nodes, rate), nodes, weight, np.zeros(degree + 1, dtype=bool), error + rounding)


def _interpolate_levels(
    rate: float, mu: Floats, count: Floats, low: float, high: float, degree: int, error: float
) -> Nodes:
    """The interpolant of M at each level, as a row of Lagrange polynomials."""
    nodes = _chebyshev_mus(low, high, degree)
    blend = Blend(np.arange(degree + 1), _lagrange_basis(_chebyshev_coordinates(mu, low, high), degree), count)
    nothing = np.zeros((len(count), degree + 1))
    return Nodes(np.full_like(nodes, rate), nodes, nothing, np.ones(degree + 1, dtype=bool), error, (blend,))


def _lagrange_basis(y: Floats, degree: int) -> Floats:
    """l_k(y) for the Chebyshev points cos(pi k / n): the barycentric formula, stable everywhere."""
    points = np.cos(np.pi * np.arange(degree + 1) / degree)
    weight = np.where(np.arange(degree + 1) % 2, -1.0, 1.0)
    weight[[0, -1]] /= 2
    gap = y[:, None] - points
    hit = gap == 0
    shares = weight / np.where(hit, 1.0, gap)
    basis = shares / shares.sum(axis=1, keepdims=True)
    return np.asarray(np.where(hit.any(axis=1, keepdims=True), hit.astype(np.float64), basis))


def _chebyshev_coordinates(mu: Floats, low: float, high: float) -> Floats:
    """Where log tau = 2 log mu lies between low and high, from -1 to 1."""
    return np.asarray(np.clip((2 * np.log(mu) - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0))


def _chebyshev_mus(low: float, high: float, degree: int) -> Floats:
    """mu at the Chebyshev points cos(pi j / n) of the panel."""
    return np.asarray(
        np.exp(((low + high) / 2 + (high - low) / 2 * np.cos(np.pi * np.arange(degree + 1) / degree)) / 2)
    )


def _chebyshev_polynomials(y: Floats, degree: int) -> Floats:
    """T_0 .. T_n at each y, by their recurrence."""
    found = np.ones((degree + 1, len(y)))
    found[1] = y
    for k in range(2, degree + 1):
        found[k] = 2 * y * found[k - 1] - found[k - 2]
    return found


def _coefficient_matrix(degree: int) -> Floats:
    """From values at the Chebyshev points to coefficients: a_k = (2/n) sum''_j f_j cos(pi j k / n), ends halved."""
    j = np.arange(degree + 1)
    ends = np.where((j == 0) | (j == degree), 0.5, 1.0)
    return np.asarray((2 / degree) * np.cos(np.pi * np.outer(j, j) / degree) * ends[:, None] * ends[None, :])
