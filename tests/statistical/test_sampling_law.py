"""The law of the samplers. Each test states how often a right sampler fails it, and rejects a wrong one.

Seeds are fixed, so a test that passes keeps passing; with fresh seeds it would fail as often as stated.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privet.accounting.sampling import FixedSize, Poisson, Sampling, Shuffled, TruncatedPoisson
from privet.noise.randomness import seeded
from privet.planning import plan
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.samplers import Sampler
from privet.sampling.users import bound_contributions, user_sampler

Batches = list[NDArray[np.int64]]
ALARM = 1e-6  # how often one statistic raises a false alarm
TOTAL = 250_000  # records drawn in a test of the law


def within(value: float, law: Any) -> bool:
    """Whether `value` lies between the ALARM / 2 quantiles of `law`."""
    return bool(law.ppf(ALARM / 2) <= value <= law.isf(ALARM / 2))


def fits(counts: NDArray[np.int64], expected: NDArray[np.float64] | float, spread: float = 1.0, lost: int = 0) -> bool:
    """Pearson's chi-square; `spread` is a count's variance over its expectation."""
    value = float(((counts - expected) ** 2 / (spread * expected)).sum())
    return value <= stats.chi2.isf(ALARM, df=counts.size - lost)


# --- what makes a sampler Poisson -------------------------------------------------------------------


def right_total(batches: Batches, size: int, rate: float) -> bool:
    return within(sum(map(len, batches)), stats.binom(size * len(batches), rate))


def right_spread_of_sizes(batches: Batches, size: int, rate: float) -> bool:
    """sum (b - n q)^2 / (n q (1 - q)) is near chi-square with one degree for each batch: n q is 60 or more."""
    sizes = np.array([len(batch) for batch in batches])
    return within(float(((sizes - size * rate) ** 2).sum() / (size * rate * (1 - rate))), stats.chi2(len(batches)))


def right_places(batches: Batches, size: int, rate: float) -> bool:
    """Every twentieth of the dataset is drawn equally often: a sum of independent coins each."""
    counts = np.histogram(np.concatenate(batches), bins=20, range=(0, size))[0]
    return fits(counts, size / 20 * rate * len(batches), spread=1 - rate)


def right_gaps(batches: Batches, size: int, rate: float) -> bool:
    """Gaps between neighbours are independent and geometric; the first n q / 2 of a batch, which are always there."""
    kept = int(size * rate / 2)
    gaps = np.concatenate([np.diff(batch[: kept + 1], prepend=-1)[:kept] for batch in batches]) - 1
    edges = np.unique(stats.geom(rate, loc=-1).ppf(np.linspace(0, 1, 13)[1:-1]))
    chances = np.diff(stats.geom(rate, loc=-1).cdf(np.concatenate(([-1], edges, [np.inf]))))
    counts = np.bincount(np.searchsorted(edges, gaps), minlength=len(chances))
    return fits(counts, gaps.size * chances, lost=1)


def right_echo(batches: Batches, size: int, rate: float) -> bool:
    """Batches that follow each other share n q^2 records on average: no memory from step to step."""
    shared = sum(
        np.intersect1d(a, b, assume_unique=True).size for a, b in zip(batches[::2], batches[1::2], strict=True)
    )
    return within(shared, stats.binom(size * (len(batches) // 2), rate**2))


CHECKS = (right_total, right_spread_of_sizes, right_places, right_gaps, right_echo)


def failed(batches: Batches, size: int, rate: float) -> set[Callable[..., bool]]:
    return {check for check in CHECKS if not check(batches, size, rate)}


def drawn(kind: Sampling, *, size: int, rate: float, length: int, seed: int) -> Batches:
    steps = PlannedSteps(length=length, sample_rate=rate, sampling=kind)
    return [batch.numpy() for batch in Sampler(dataset_size=size, steps=steps, randomness=seeded(seed))]


SETTINGS = [(1_000_000, 1e-4), (60_000, 256 / 60_000), (10_000, 0.03), (2_000, 0.3), (500, 0.5), (500, 0.9)]


@pytest.mark.parametrize(("size", "rate"), SETTINGS)
def test_poisson_is_independent_coins(size, rate):
    """Five statistics, each fails once in a million."""
    length = 2 * round(TOTAL / (2 * size * rate))
    assert failed(drawn(Poisson(), size=size, rate=rate, length=length, seed=1), size, rate) == set()


def test_the_oracle_passes_too():
    """A coin for each record, the slow way."""
    numbers = np.random.default_rng(0)
    coins = [np.flatnonzero(numbers.random(2_000) < 0.3) for _ in range(416)]
    assert failed(coins, 2_000, 0.3) == set()


SIZE, RATE, LENGTH = 10_000, 0.03, 834


def coins(rate: float) -> Batches:
    return drawn(Poisson(), size=SIZE, rate=rate, length=LENGTH, seed=2)


def in_pairs() -> Batches:
    """Neighbours come together: the right rate for each record, but not independent."""
    half = drawn(Poisson(), size=SIZE // 2, rate=RATE, length=LENGTH, seed=2)
    return [np.sort(np.concatenate((2 * batch, 2 * batch + 1))) for batch in half]


def lagging() -> Batches:
    """Every other batch takes a tenth of its records from the one before."""
    found = coins(RATE)
    for j in range(1, LENGTH, 2):
        found[j] = np.union1d(found[j][len(found[j]) // 10 :], found[j - 1][: len(found[j]) // 10])
    return found


WRONG = {
    "fixed sizes": (drawn(FixedSize(), size=SIZE, rate=RATE, length=LENGTH, seed=2), right_spread_of_sizes),
    "shuffled": (drawn(Shuffled(), size=SIZE, rate=RATE, length=LENGTH, seed=2), right_spread_of_sizes),
    "cut to a cap": (
        drawn(TruncatedPoisson(cap=320, size=SIZE), size=SIZE, rate=RATE, length=LENGTH, seed=2),
        right_spread_of_sizes,
    ),
    "2 % too often": (coins(1.02 * RATE), right_total),
    "2 % too seldom": (coins(0.98 * RATE), right_total),
    "the last records left out": ([batch[batch < 0.98 * SIZE] for batch in coins(RATE)], right_places),
    "neighbours in pairs": (in_pairs(), right_gaps),
    "a tenth kept from the last batch": (lagging(), right_echo),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sampler_is_caught(name):
    """The right one passes all five (each fails once in a million); a wrong one fails the test made for it."""
    batches, check = WRONG[name]
    assert check in failed(batches, SIZE, RATE)


# --- the others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FixedSize(), Shuffled(), TruncatedPoisson(cap=60, size=1000)], ids=str)
def test_no_record_is_favoured(kind):
    """Each of 1000 records is drawn as often as any other; fails once in a million.

    Counts vary less than independent ones with exact sizes, so the test is on the safe side there.
    """
    batches = drawn(kind, size=1000, rate=0.06, length=1200, seed=3)
    counts = np.bincount(np.concatenate(batches), minlength=1000)
    assert fits(counts, counts.mean())
    if isinstance(kind, TruncatedPoisson):  # known wrong: the cap keeps the first ones
        firsts = np.concatenate([b[:60] for b in drawn(Poisson(), size=1000, rate=0.06, length=1200, seed=3)])
        assert not fits(np.bincount(firsts, minlength=1000), len(firsts) / 1000)


def test_a_permutation_of_every_epoch_is_uniform():
    """Which of 5 batches record i falls into, 2,000 epochs: a table that fits, failing once in a million."""
    batches = drawn(Shuffled(), size=50, rate=0.2, length=10_000, seed=4)
    table = np.stack([sum(np.bincount(b, minlength=50) for b in batches[j::5]) for j in range(5)])
    assert fits(table, 400.0)
    again = np.stack([5 * np.bincount(np.concatenate(batches[j : 2000 + j : 5]), minlength=50) for j in range(5)])
    assert not fits(again, 400.0)  # known wrong: every permutation used five times


# --- users ------------------------------------------------------------------------------------------

PEOPLE = np.repeat(np.arange(40), np.arange(40) % 7 + 1)  # user u has u mod 7 + 1 records


def test_users_are_coins_and_their_records_take_turns():
    """Poisson over users whatever they own, and uniform over a user's records; each fails once in a million."""
    p = plan(delta=1e-2, unit="user", dataset_size=40, sample_rate=1.0, steps=1, noise_multiplier=1.0, solve="epsilon")
    p = replace(p, steps=PlannedSteps(length=2000, sample_rate=0.5))  # what it costs does not matter here
    records = np.concatenate([batch.numpy() for batch in user_sampler(p, users=PEOPLE, randomness=seeded(5))])
    by_user, by_record = np.bincount(PEOPLE[records]), np.bincount(records)
    assert fits(by_user, 1000.0, spread=0.5)
    each = 1000 / np.bincount(PEOPLE)[PEOPLE]
    assert fits(by_record, each)
    coins_for_records = np.concatenate(drawn(Poisson(), size=len(PEOPLE), rate=0.5, length=2000, seed=5))
    assert not fits(
        np.bincount(PEOPLE[coins_for_records]), 1000.0, spread=0.5
    )  # known wrong: who owns more, comes more


def test_what_is_kept_of_a_user_is_uniform():
    """2 of 7 records, 1,000 times; fails once in a million. The first two are a wrong choice."""
    ids, numbers = [0] * 7, seeded(6)
    counts = np.bincount(
        np.concatenate([bound_contributions(ids, most=2, randomness=numbers).numpy() for _ in range(1000)])
    )
    assert fits(counts, 2000 / 7)
    assert not fits(np.array([1000, 1000, 0, 0, 0, 0, 0]), 2000 / 7)
