"""Choosing the best of several runs is a release of its own: what the whole tuning costs.

    geometric, poisson   the best of a random number of runs; the number stays secret, only the best is published
    fixed                k runs, all of which may be seen: k-fold composition
    disjoint             k runs on disjoint parts of the data, one chosen on yet another part: the dearest part counts

The random laws have Rényi theorems, so they are priced by `rdp`; a fixed number is priced by any accountant.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import optimize

from privet import _check
from privet.accounting.accountant import epoch_noises, is_truncated, refuse_unsupported, representative_steps
from privet.accounting.guarantee import Adjacency, Guarantee, Unit
from privet.accounting.ledger import Ledger, Step
from privet.accounting.pld.accountant import Pld, delta_curve
from privet.accounting.rdp import MOST_WORK, ORDERS, Divergence, Rdp, epsilon_from_rdp
from privet.errors import InvalidValue, NoSolution, Unsupported

OfOrder = Callable[[float], float]

RANDOM = ("geometric", "poisson")
LAWS = (*RANDOM, "fixed", "disjoint")
OUTWARD = 1e-12  # relative: rounding of the few operations here
GRID, ROUNDS = 8, 3  # so many orders at a time, so often, each time around the best so far


def geometric_charge(*, order: float, rdp: float, mean: float) -> float:
    """What choosing the best of a geometric number of runs adds to the Rényi divergence, at every order alike.

        2 (1 - 1/b) rdp + 2 log(mean) / b,   b = order >= 1

    from (b, rdp)-Rényi privacy of one run; any b will do, so take the least. Source: Papernot, Steinke 2022,
    arXiv:2110.03620v2, Theorem 2 at eta = 1, where gamma = 1/mean.

    >>> round(geometric_charge(order=10.0, rdp=0.1, mean=10.0), 4)
    0.6405
    """
    return 2 * ((1 - 1 / order) * rdp + math.log(mean) / order)


def geometric_rdp(*, order: float, rdp: float, charge: float, mean: float) -> float:
    """The Rényi divergence, at `order`, of the best of a geometric number of runs with this mean.

        rdp' = rdp + charge + log(mean) / (order - 1)

    with `charge` from `geometric_charge` at any order. P[K = k] = (1 - 1/mean)^(k-1) / mean, k = 1, 2, ...
    Source: as there.

    >>> round(geometric_rdp(order=10.0, rdp=0.1, charge=0.6405, mean=10.0), 4)
    0.9963
    """
    return rdp + charge + math.log(mean) / (order - 1)


def poisson_rdp(*, order: float, rdp: float, delta: float, mean: float) -> float:
    """The Rényi divergence, at `order`, of the best of a Poisson number of runs; of none, a fixed outcome.

        rdp' = rdp + mean delta + log(mean) / (order - 1)

    if one run is (order, rdp)-Rényi private and (e, delta)-private with e <= log(1 + 1/(order - 1)); mean >= 1.
    Source: Papernot, Steinke 2022, arXiv:2110.03620v2, Theorem 6.

    >>> round(poisson_rdp(order=10.0, rdp=0.1, delta=0.01, mean=10.0), 4)
    0.4558
    """
    return rdp + mean * delta + math.log(mean) / (order - 1)


def private_selection(
    ledger: Ledger, delta: float, *, law: str, mean: float, adjacency: Adjacency = "zero-out", unit: Unit = "example"
) -> Guarantee:
    """The guarantee of publishing the best of a random number of runs, each with this ledger.

    The number is drawn from `law` with this mean, in secret, whatever the runs give. Every run's score must be
    private too: from public data, or paid for in the run.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=2.0, sample_rate=256 / 60000), count=3516)
    >>> guarantee = private_selection(ledger, 1e-5, law="geometric", mean=10)
    >>> guarantee.label, guarantee.method, round(guarantee.epsilon, 2)
    ('certified', 'rdp, best of geometric(10) runs', 1.17)
    """
    _check.delta(delta)
    _check.one_of(RANDOM, law=law)
    check_mean(mean)
    refuse_unsupported(Rdp(), ledger, adjacency=adjacency, accountant="rdp")
    if is_truncated(ledger):
        raise Unsupported(
            f"trial_count_distribution={law!r} has no theorem for truncated batches. Rényi privacy is lost where a "
            "batch is cut. Use Poisson sampling, or trial_count_distribution='fixed'."
        )
    if law == "poisson" and any(Pld().unsupported_reason(step, adjacency) for step in representative_steps(ledger)):
        raise Unsupported(
            "trial_count_distribution='poisson' does not cover this ledger: it needs the delta of one run, which "
            "accountant='pld' does not know here. Use trial_count_distribution='geometric', or Poisson sampling."
        )
    epsilon_of = {"geometric": _geometric_epsilon, "poisson": _poisson_epsilon}[law]
    found = epsilon_of(ledger, delta, float(mean)) if ledger else 0.0
    sampling = " + ".join(sorted(str(kind) for kind in ledger.columns().samplings)) or "poisson"
    return Guarantee(
        epsilon=found, epsilon_lower=None, delta=delta, label="certified", method=f"rdp, best of {law}({mean:g}) runs",
        adjacency=adjacency, sampling=sampling, unit=unit, steps=ledger.steps,
    )  # fmt: skip


def check_mean(mean: float) -> None:
    """Raise unless `mean` is a mean number of runs that the theorems cover."""
    _check.positive(trials_mean=mean)
    if mean < 1:
        raise InvalidValue(f"trials_mean={mean!r} must be >= 1. It is the mean number of runs. Give 10, for example.")


def repeated_runs(ledger: Ledger, runs: int) -> Ledger:
    """The ledger of `runs` runs, one after the other.

    >>> one = Ledger()
    >>> one.add(Step(noise_multiplier=2.0, sample_rate=0.1), count=5)
    >>> repeated_runs(one, 3).steps
    15
    """
    _check.whole(trials=runs)
    whole = Ledger()
    is_shuffled = any(kind.name == "shuffled" for kind in ledger.columns().samplings)
    for step, count in _complete_epochs(ledger) if is_shuffled else ledger:
        whole.add(step, count * runs)  # the order of steps, or of whole epochs, does not matter
    return whole


def _complete_epochs(ledger: Ledger) -> Ledger:
    """Shuffled steps that cost the same, each epoch whole and of one noise: the next run begins with a new epoch."""
    first = next(iter(ledger))[0]
    columns = ledger.columns()
    if (columns.sample_rate != first.sample_rate).any() or len(columns.samplings) > 1:
        raise Unsupported(
            "trials of shuffled runs have no theorem here if the batch or the sampling changes. Give one of each."
        )
    whole = Ledger()
    for least in epoch_noises(ledger):
        whole.add(
            Step(noise_multiplier=least, sample_rate=first.sample_rate, sampling=first.sampling),
            math.ceil(1 / first.sample_rate - 1e-9),
        )
    return whole


# --- the least over the orders ------------------------------------------------------------------------
def _geometric_epsilon(ledger: Ledger, delta: float, mean: float) -> float:
    divergence = Divergence(ledger)
    at = cache(divergence)
    found_charge = _minimize_over_orders(lambda b: geometric_charge(order=b, rdp=at(b), mean=mean), divergence)[1]
    charge = min(2 * math.log(mean), found_charge)  # at order 1, one run's divergence counts for nothing

    def epsilon_at(order: float) -> float:
        rdp = geometric_rdp(order=order, rdp=at(order), charge=charge, mean=mean) * (1 + OUTWARD)
        return epsilon_from_rdp(order=order, rdp=rdp, delta=delta) if math.isfinite(rdp) else math.inf

    return _require_finite(_minimize_over_orders(epsilon_at, divergence)[1])


def _poisson_epsilon(ledger: Ledger, delta: float, mean: float) -> float:
    at = cache(Divergence(ledger))

    def epsilon_at(order: float, chance: float = 0.0) -> float:
        rdp = poisson_rdp(order=order, rdp=at(order), delta=chance, mean=mean) * (1 + OUTWARD)
        return epsilon_from_rdp(order=order, rdp=rdp, delta=delta) if math.isfinite(rdp) else math.inf

    def best(orders: list[float]) -> tuple[float, int]:
        """(epsilon, place): the least over rising orders."""
        near = np.array([-math.log1p(-1 / order) * (1 - OUTWARD) for order in reversed(orders)])
        chances = delta_curve(ledger, near)[1][::-1].tolist()
        return min((epsilon_at(order, chances[k]), k) for k, order in enumerate(orders))

    # The chance rises with the order, so the least lies at or below the order that is best without it; and at or
    # above the first that costs less without its chance than that one costs with it.
    top = _minimize_over_orders(epsilon_at, Divergence(ledger))[0]
    least = best([top])[0]
    low, high = next((a for a in ORDERS if a < top and epsilon_at(a) < least), top) - 1, top - 1
    for _ in range(ROUNDS if low < high else 0):
        grid = (1 + np.geomspace(low, high, GRID)).tolist()
        here, place = best(grid)
        least = min(least, here)
        low, high = grid[max(place - 1, 0)] - 1, grid[min(place + 1, GRID - 1)] - 1
    return _require_finite(least)


def _minimize_over_orders(value: OfOrder, divergence: Divergence) -> tuple[float, float]:
    """(order, value) of the least value found over the orders: a grid, then a search around its best.

    Every order is a bound, so a search that misses the least does no harm; nor does one that stops where it is dear.
    """
    found: dict[float, float] = {}
    work = 0.0
    for order in ORDERS:
        work += divergence.work(order)
        found[order] = value(order)
        if (found[order] > 4 * min(found.values()) and len(found) > 8) or work > MOST_WORK:
            break
    tried = list(found)
    place = tried.index(min(found, key=lambda order: found[order]))
    low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
    if work <= MOST_WORK and math.isfinite(found[tried[place]]) and low < high:
        search = optimize.minimize_scalar(value, bounds=(low, high), method="bounded", options={"maxiter": 20})
        found[float(search.x)] = float(search.fun)
    order = min(found, key=lambda order: found[order])
    return order, found[order]


def _require_finite(epsilon: float) -> float:
    if not math.isfinite(epsilon):
        raise NoSolution(
            "accountant='rdp' finds no finite order for this ledger. Use trial_count_distribution='fixed'."
        )
    return epsilon
