"""A ledger boiled down for the numerical accountants: distinct (rate, mu) levels with how often each occurs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privet.accounting.accountant import epoch_noises
from privet.accounting.ledger import Bools, Floats, Ints, Ledger
from privet.accounting.pld.loss_moments import Tilted, tilt_exponent, tilted_moments


@dataclass(frozen=True, slots=True)
class LossLevels:
    """Distinct sampled steps (rate < 1), and the whole-dataset steps (rate 1) as one Gaussian of mu^2 = `gaussian`."""

    rate: Floats
    mu: Floats
    count: Floats
    gaussian: float

    @property
    def steps(self) -> float:
        """Sampled steps, the rate-1 Gaussian apart."""
        return float(self.count.sum())

    def select(self, chosen: Bools) -> "LossLevels":
        """Just the chosen levels."""
        return LossLevels(self.rate[chosen], self.mu[chosen], self.count[chosen], self.gaussian)

    def drop_empty(self) -> "LossLevels":
        """Just the levels that occur."""
        return self.select(self.count > 0)


def loss_levels(ledger: Ledger, without: Bools | None = None) -> LossLevels:
    """Equal steps together, whatever their order; rows marked `without` left out.

    Shuffled epochs enter as Gaussians without amplification.
    """
    columns = ledger.columns()
    shuffled = columns.uses("shuffled")
    full = (columns.sample_rate == 1) & ~shuffled
    gaussian = float((columns.count[full] / columns.noise_multiplier[full] ** 2).sum())
    # A shuffled record takes part once in each epoch, at worst where the noise is least: exact GDP, zero-out.
    gaussian += sum(1 / least**2 for least in epoch_noises(ledger)) if shuffled.any() else 0.0
    sampled = ~full & ~shuffled
    if without is not None:
        sampled &= ~without
    rate, mu, where = _distinct_levels(columns.sample_rate[sampled], 1 / columns.noise_multiplier[sampled])
    return LossLevels(rate, mu, sum_by_index(where, columns.count[sampled], len(mu)), gaussian)


def prefix_levels(ledger: Ledger, steps: Ints) -> list[LossLevels]:
    """The levels of the first steps[i] releases, for each i; all on the distinct levels of the whole ledger."""
    columns = ledger.columns()
    if columns.uses("shuffled").any():
        whole = loss_levels(ledger)
        parts = [loss_levels(ledger.first(int(n))) for n in steps]
        return parts if not len(whole.mu) else [_align_levels(part, whole) for part in parts]
    sampled = columns.sample_rate < 1
    rate, mu, where = _distinct_levels(columns.sample_rate[sampled], 1 / columns.noise_multiplier[sampled])
    ends = np.cumsum(columns.count)
    found = []
    for n in steps:
        taken = np.clip(n - (ends - columns.count), 0, columns.count).astype(np.float64)
        gaussian = float((taken[~sampled] / columns.noise_multiplier[~sampled] ** 2).sum())
        found.append(LossLevels(rate, mu, sum_by_index(where, taken[sampled], len(mu)), gaussian))
    return found


def _distinct_levels(rate: Floats, mu: Floats) -> tuple[Floats, Floats, Ints]:
    """Distinct (rate, mu) pairs in order, and which of them each entry is."""
    if len(rate) and (rate == rate[0]).all():  # one rate: a plain sort is several times faster
        values, where = np.unique(mu, return_inverse=True)
        return np.full_like(values, rate[0]), values, where.ravel()
    pairs, where = np.unique(np.stack((rate, mu), axis=1), axis=0, return_inverse=True)
    return pairs[:, 0], pairs[:, 1], where.ravel()


def _align_levels(part: LossLevels, whole: LossLevels) -> LossLevels:
    """`part` written on the levels of `whole`."""
    place = {pair: i for i, pair in enumerate(zip(whole.rate.tolist(), whole.mu.tolist(), strict=True))}
    count = np.zeros(len(whole.mu))
    for pair, n in zip(zip(part.rate.tolist(), part.mu.tolist(), strict=True), part.count, strict=True):
        count[place[pair]] = n
    return LossLevels(whole.rate, whole.mu, count, part.gaussian)


@dataclass(frozen=True, slots=True)
class BinnedLevels:
    """Levels gathered into cells: every step of a cell has its rate and mu between the cell's corners."""

    rate_low: Floats
    rate_high: Floats
    low: Floats
    high: Floats
    middle: Floats
    count: Floats

    def log_moment(self, direction: str, z: float) -> float:
        """An upper bound on sum_t log E[e^(z L_t)]: Psi rises with the rate and with mu, so take the top corner."""
        top = tilted_moments(self.rate_high, self.high, tilt_exponent(direction, z))  # type: ignore[arg-type]
        # Rounding: a relative part, and some ulps for each step (the sum is near 1 where log Psi is near 0).
        return float(self.count @ top.log_psi) * (1 + 1e-11) + 1e-14 * float(self.count.sum())

    def middle_moments(self, direction: str, z: float) -> Tilted:
        """Moments at the middle of each cell: an estimate, for choosing parameters only."""
        return tilted_moments(self.rate_high, self.middle, tilt_exponent(direction, z))  # type: ignore[arg-type]


def bin_levels(levels: LossLevels, most: int = 96) -> BinnedLevels:
    """At most about `most` cells (exact levels if there are no more than that)."""
    if len(levels.mu) <= most:
        return BinnedLevels(levels.rate, levels.rate, levels.mu, levels.mu, levels.mu, levels.count)
    rate_cell = _cell_indices(levels.rate, 16)
    mu_cell = _cell_indices(levels.mu, max(6, most // (int(rate_cell.max()) + 1)))
    _, where = np.unique(rate_cell * (mu_cell.max() + 1) + mu_cell, return_inverse=True)
    size = int(where.max()) + 1
    count = sum_by_index(where, levels.count, size)
    square = sum_by_index(where, levels.count * levels.mu**2, size)
    return BinnedLevels(
        rate_low=_extreme_by_cell(np.minimum, where, levels.rate, size),
        rate_high=_extreme_by_cell(np.maximum, where, levels.rate, size),
        low=_extreme_by_cell(np.minimum, where, levels.mu, size),
        high=_extreme_by_cell(np.maximum, where, levels.mu, size),
        middle=np.sqrt(square / count),
        count=count,
    )


def sum_by_index(where: Ints, weights: ArrayLike, size: int) -> Floats:
    """The sum of the weights that go to each of `size` places."""
    return np.bincount(where, weights=weights, minlength=size).astype(np.float64)


def _cell_indices(values: Floats, most: int) -> Ints:
    """The number of the geometric cell each value falls in; distinct values keep their own cell if they are few."""
    distinct = np.unique(values)
    if len(distinct) <= most:
        return np.searchsorted(distinct, values)
    edges = np.geomspace(distinct[0], distinct[-1], most + 1)[1:-1]
    return np.searchsorted(edges, values)


def _extreme_by_cell(ufunc: np.ufunc, where: Ints, values: Floats, size: int) -> Floats:
    found = np.full(size, np.inf if ufunc is np.minimum else 0.0)
    ufunc.at(found, where, values)
    return found
