"""A ledger boiled down for the numerical accountants: distinct (rate, mu) levels with how often each occurs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.accounting.base import epochs_of
from privet.accounting.ledger import Ledger
from privet.accounting.moments import Tilted, exponent, tilted

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Levels:
    """Distinct sampled steps (rate < 1), and the whole-dataset steps (rate 1) as one Gaussian of mu^2 = `gaussian`."""

    rate: Floats
    mu: Floats
    count: Floats
    gaussian: float

    @property
    def steps(self) -> float:
        """Sampled steps, the rate-1 Gaussian apart."""
        return float(self.count.sum())


def levels_of(ledger: Ledger, without: NDArray[np.bool_] | None = None) -> Levels:
    """Equal steps together, whatever their order; rows marked `without` left out.

    Shuffled epochs enter as Gaussians without amplification.
    """
    columns = ledger.columns()
    shuffled = np.isin(columns.kind, [k for k, s in enumerate(columns.samplings) if s.name == "shuffled"])
    full = (columns.rate == 1) & ~shuffled
    # A shuffled record takes part once in each epoch, in the noisiest case for it: exact GDP, zero-out.
    gaussian = float((columns.count[full] / columns.noise[full] ** 2).sum())
    gaussian += sum(1 / least**2 for least in epochs_of(ledger)) if shuffled.any() else 0.0
    sampled = ~full & ~shuffled
    if without is not None:
        sampled &= ~without
    pairs = np.stack((columns.rate[sampled], 1 / columns.noise[sampled]), axis=1)
    if len(pairs) > 1 and (pairs[:, 0] == pairs[0, 0]).all():  # one rate: a plain sort is several times faster
        mu, where = np.unique(pairs[:, 1], return_inverse=True)
        distinct = np.stack((np.full_like(mu, pairs[0, 0]), mu), axis=1)
    else:
        distinct, where = np.unique(pairs, axis=0, return_inverse=True)
    count = np.bincount(where.ravel(), weights=columns.count[sampled], minlength=len(distinct))
    return Levels(distinct[:, 0], distinct[:, 1], count, gaussian)


@dataclass(frozen=True, slots=True)
class Bins:
    """Levels gathered into cells: every step of a cell has its rate and mu between the cell's corners."""

    rate_low: Floats
    rate_high: Floats
    low: Floats
    high: Floats
    middle: Floats
    count: Floats

    def log_moment(self, direction: str, z: float) -> float:
        """An upper bound on sum_t log E[e^(z L_t)]: Psi rises with the rate and with mu, so take the top corner."""
        top = tilted(self.rate_high, self.high, exponent(direction, z))  # type: ignore[arg-type]
        return float(self.count @ top.log_psi)

    def middle_moments(self, direction: str, z: float) -> Tilted:
        """Moments at the middle of each cell: an estimate, for choosing parameters only."""
        return tilted(self.rate_high, self.middle, exponent(direction, z))  # type: ignore[arg-type]


def binned(levels: Levels, most: int = 96) -> Bins:
    """At most about `most` cells (exact levels if there are no more than that)."""
    if len(levels.mu) <= most:
        return Bins(levels.rate, levels.rate, levels.mu, levels.mu, levels.mu, levels.count)
    rate_cell = _cells(levels.rate, 16)
    mu_cell = _cells(levels.mu, max(6, most // (int(rate_cell.max()) + 1)))
    _, where = np.unique(rate_cell * (mu_cell.max() + 1) + mu_cell, return_inverse=True)
    size = int(where.max()) + 1
    count = np.bincount(where, weights=levels.count, minlength=size)
    square = np.bincount(where, weights=levels.count * levels.mu**2, minlength=size)
    return Bins(
        rate_low=_extreme(np.minimum, where, levels.rate, size),
        rate_high=_extreme(np.maximum, where, levels.rate, size),
        low=_extreme(np.minimum, where, levels.mu, size),
        high=_extreme(np.maximum, where, levels.mu, size),
        middle=np.sqrt(square / count),
        count=count,
    )


def _cells(values: Floats, most: int) -> NDArray[np.int64]:
    """The number of the geometric cell each value falls in; distinct values keep their own cell if they are few."""
    distinct = np.unique(values)
    if len(distinct) <= most:
        return np.searchsorted(distinct, values)
    edges = np.geomspace(distinct[0], distinct[-1], most + 1)[1:-1]
    return np.searchsorted(edges, values)


def _extreme(ufunc: np.ufunc, where: NDArray[np.int64], values: Floats, size: int) -> Floats:
    found = np.full(size, np.inf if ufunc is np.minimum else 0.0)
    ufunc.at(found, where, values)
    return found
