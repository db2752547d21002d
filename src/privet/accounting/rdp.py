"""`rdp`: Rényi accounting, both conversions, dense orders. Certified from above; it has no lower bound.

The Rényi divergence of a Poisson-sampled Gaussian at order a is log Psi(a) / (a - 1), by quadrature with a proven
error (`moments`), at any real order: no series, no dropped orders.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy import special

from privet import _check
from privet.accounting.accountant import GaussianAccountant, register
from privet.accounting.guarantee import Adjacency
from privet.accounting.ledger import Floats, Ledger, Step
from privet.accounting.pld.levels import LossLevels, loss_levels, sum_by_index
from privet.accounting.pld.loss_moments import QuadratureTooCostly, tilted_moments
from privet.errors import InvalidValue, NoSolution

Conversion = Literal["new", "old"]

ORDERS: tuple[float, ...] = tuple((1 + np.geomspace(0.02, 2e4, 56)).tolist())  # the search refines between these
MOMENTS_ORDERS: tuple[float, ...] = tuple([1 + k / 10 for k in range(1, 100)] + [float(k) for k in range(12, 64)])
MOST_WORK = 3e8
GOLDEN = (math.sqrt(5) - 1) / 2
SAFE = 1e-11  # relative: quadrature and rounding of log Psi, far above both
MANY, RATES = 1000, 64  # levels taken one by one where rates differ too; rates kept apart beyond that
FEW = 96  # so many distinct levels are taken one by one


@register("rdp")
class Rdp(GaussianAccountant):
    """Rényi with the conversion of Canonne, Kamath, Steinke 2020, over all orders."""

    orders: tuple[float, ...] | None = None
    conversion: Conversion = "new"
    covers_shuffled = True

    def unsupported_reason(self, step: Step, adjacency: Adjacency) -> str | None:
        if step.sampling.name == "fixed-size":
            if adjacency == "add-remove" and step.sample_rate < 1:
                return (
                    "fixed-size sampling has a theorem for neighbours of one size only. "
                    "Use adjacency='replace-one' or 'zero-out'."
                )
            return None
        return super().unsupported_reason(step, adjacency)

    def upper(self, ledger: Ledger, delta: float) -> float:
        return epsilon(ledger, delta, orders=self.orders, conversion=self.conversion)


@register("moments")
class Moments(Rdp):
    """The moments accountant as the papers used it: the old conversion, orders 1.1 to 63."""

    orders = MOMENTS_ORDERS
    conversion = "old"


def epsilon(
    ledger: Ledger, delta: float, *, orders: Sequence[float] | None = None, conversion: Conversion = "new"
) -> float:
    """The least epsilon at `delta` over the given orders, or over all orders by a search.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
    >>> round(epsilon(ledger, 1e-5), 2)
    2.6
    """
    _check.delta(delta)
    convert = {"new": epsilon_from_rdp, "old": epsilon_from_rdp_old}[conversion]
    divergence = Divergence(ledger)
    found: dict[float, float] = {}

    def at(order: float) -> float:
        spent = divergence(order)
        found[order] = convert(order=order, rdp=spent, delta=delta) if math.isfinite(spent) else math.inf
        return found[order]

    spent_work = 0.0
    for order in orders or ORDERS:
        spent_work += divergence.work(order)
        if (at(order) > 4 * min(found.values()) and len(found) > 8) or spent_work > MOST_WORK:
            break  # the divergence only rises from here; or it is very dear, and so is every order a bound
    if not math.isfinite(min(found.values())):
        raise NoSolution("accountant='rdp' finds no finite order for this ledger. Use accountant='pld'.")
    if orders is None and spent_work < MOST_WORK:
        _refine_order(at, found)
    return min(found.values())


def _refine_order(at: Callable[[float], float], found: dict[float, float]) -> None:
    """Golden-section search around the best order so far; every order is a valid bound, so no harm if it misses."""
    tried = sorted(found)
    best = tried.index(min(found, key=lambda order: found[order]))
    low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    for _ in range(18):
        if high - low < 1e-4 * low:
            break
        left, right = high - (high - low) * GOLDEN, low + (high - low) * GOLDEN
        values = [found[o] if o in found else at(o) for o in (left, right)]
        low, high = (low, right) if values[0] <= values[1] else (left, high)


class Divergence:
    """Upper bounds on the Rényi divergence of a whole ledger, at any order > 1; inf where it is out of reach."""

    def __init__(self, ledger: Ledger) -> None:
        columns = ledger.columns()
        fixed = columns.uses("fixed-size") & (columns.sample_rate < 1)
        self._cells = _divergence_cells(loss_levels(ledger, without=fixed))
        each = np.stack((columns.noise_multiplier[fixed], columns.sample_rate[fixed]), axis=1)
        pairs, where = np.unique(each, axis=0, return_inverse=True)
        counts = np.bincount(where.ravel(), weights=columns.count[fixed])
        self._fixed = [(float(n), float(q), float(count)) for (n, q), count in zip(pairs, counts, strict=True)]

    def work(self, order: float) -> float:
        """About how many evaluations this order takes: levels times quadrature nodes."""
        top = float(self._cells.mu.max()) if len(self._cells.mu) else 0.0
        return len(self._cells.mu) * (18 + order * top) * (1.5 + 2.2 * top)

    def __call__(self, order: float) -> float:
        if not order > 1:
            raise InvalidValue(f"order={order!r} must be > 1.")
        total = _sampled_divergence(self._cells, order)
        total += sum(count * _fixed_size_divergence(noise, rate, order) for noise, rate, count in self._fixed)
        return total * (1 + SAFE)


def epsilon_from_rdp(*, order: float, rdp: float, delta: float) -> float:
    """The epsilon that follows from (order, rdp)-Rényi privacy at `delta`.

        epsilon = rdp + log(1 - 1/a) - log(delta * a) / (a - 1),   a = order > 1

    Holds for any mechanism; an upper bound at every order, so take the smallest.
    Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010v4, Proposition 12.

    >>> round(epsilon_from_rdp(order=10.0, rdp=0.5, delta=1e-5), 3)
    1.418
    """
    return max(0.0, rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def epsilon_from_rdp_old(*, order: float, rdp: float, delta: float) -> float:
    """epsilon = rdp + log(1/delta) / (a - 1). Source: Mironov 2017, arXiv:1702.07476v3, Proposition 3.

    >>> round(epsilon_from_rdp_old(order=10.0, rdp=0.5, delta=1e-5), 3)
    1.779
    """
    return max(0.0, rdp + math.log(1 / delta) / (order - 1))


# --- Poisson sampling --------------------------------------------------------------------------------
class _Cells:
    """Levels for upper bounds: each step between two nodes, or on one.

    Psi is convex in theta = Phi(mu/2) at a fixed rate, so Psi(mu_t) is at most the mixture of its neighbours, and
    since log is concave, n steps of a cell together cost at most n log of the mean mixture.
    """

    def __init__(self, rate: Floats, mu: Floats, left: Floats, right: Floats, upward: Floats, count: Floats) -> None:
        self.rate, self.mu = rate, mu  # nodes
        self.left, self.right = left.astype(np.int64), right.astype(np.int64)
        self.upward, self.count = upward, count  # mean share of the right node, number of steps
        self.gaussian = 0.0


def _divergence_cells(levels: LossLevels) -> _Cells:
    if len(levels.mu) <= (FEW if len(np.unique(levels.rate)) == 1 else MANY):
        at = np.arange(len(levels.mu), dtype=np.float64)
        cells = _Cells(levels.rate, levels.mu, at, at, np.zeros_like(at), levels.count)
    else:
        cells = _gather_levels(levels)
    cells.gaussian = levels.gaussian
    return cells


def _gather_levels(levels: LossLevels) -> _Cells:
    rates = np.unique(levels.rate)
    if len(rates) > RATES:  # Psi rises with the rate: the next of these is an upper bound
        rates = np.append(np.geomspace(rates[0], rates[-1], RATES)[:-1], rates[-1])
    taken = rates[np.searchsorted(rates, levels.rate)]
    parts: list[tuple[Floats, ...]] = []
    offset = 0
    for rate in np.unique(taken):
        here = taken == rate
        mu, count = levels.mu[here], levels.count[here]
        nodes = np.geomspace(mu.min() * (1 - 1e-15), mu.max() * (1 + 1e-15), max(12, 2 * FEW // len(rates)))
        cell = np.clip(np.searchsorted(nodes, mu) - 1, 0, len(nodes) - 2)
        share = _upper_share(nodes[cell], mu, nodes[cell + 1])
        number = sum_by_index(cell, count, len(nodes) - 1)
        upward = sum_by_index(cell, count * share, len(nodes) - 1) / np.maximum(number, 1)
        used = number > 0
        left = offset + np.flatnonzero(used).astype(np.float64)
        parts.append((np.full(len(nodes), rate), nodes, left, left + 1, upward[used], number[used]))
        offset += len(nodes)
    return _Cells(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _upper_share(left: Floats, mu: Floats, right: Floats) -> Floats:
    """The share of `right` in the mixture of both nodes that has the theta of mu; all of it where doubles cannot tell.

    theta = Phi(mu/2) up to scale: by erf, and by erfc where erf is near 1 (theta must be right to some ulps of mu).
    """
    places = (m / math.sqrt(8) for m in (left, mu, right))
    low, here, high = (np.where(left < 2, special.erf(m), -special.erfc(m)) for m in places)
    gap = high - low
    share = (here - low) / np.where(gap > 0, gap, 1.0) * (1 + 1e-10)  # rounding of the sums of many shares
    return np.asarray(np.where(gap > 1e-290, np.clip(share, 0.0, 1.0), 1.0))


def _sampled_divergence(cells: _Cells, order: float) -> float:
    """At most the Rényi divergence at `order` of all Poisson-sampled and whole-dataset steps."""
    total = order * cells.gaussian / 2
    if len(cells.count):
        try:
            log_psi = tilted_moments(cells.rate, cells.mu, order).log_psi
        except QuadratureTooCostly:
            return math.inf
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(
                np.log1p(-cells.upward) + log_psi[cells.left], np.log(cells.upward) + log_psi[cells.right]
            )
        total += float(cells.count @ np.maximum(mixed, 0.0) + 4e-15 * cells.count.sum()) / (order - 1)
    return total


# --- sampling without replacement --------------------------------------------------------------------
def _fixed_size_divergence(noise: float, rate: float, order: float) -> float:
    """Rényi divergence of a Gaussian release on a random subset of fixed size.

        (a-1) eps(a) <= log(1 + g^2 C(a,2) min(4 (e^eps(2) - 1), 2 e^eps(2))
                              + sum_(j=3..a) 2 g^j C(a,j) e^((j-1) eps(j)))

    with g the rate, eps(j) = j / (2 noise^2), a an integer >= 2. Source: Wang, Balle, Kasiviswanathan 2019,
    arXiv:1808.00087v2, Theorem 9; neighbours differ in the value of one record. Other orders take the next
    integer, which costs more.
    """
    a = max(2, math.ceil(order))
    if a > 512:
        return math.inf
    second = 1 / noise**2  # eps(2)
    few = math.log(4 * math.expm1(second)) if second < 1 else math.inf
    first = 2 * math.log(rate) + math.log(a * (a - 1) / 2) + min(few, math.log(2) + second)
    j = np.arange(3, a + 1)
    binomial = special.gammaln(a + 1) - special.gammaln(j + 1) - special.gammaln(a - j + 1)
    rest = math.log(2) + j * math.log(rate) + binomial + (j - 1) * j / (2 * noise**2)
    return float(np.logaddexp.reduce(np.concatenate(([0.0, first], rest)))) / (a - 1)
