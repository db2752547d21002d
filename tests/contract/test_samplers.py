"""What every sampler promises, run over every sampling that is registered: which batches may be drawn, and how often.

Each statistical test states how often a right sampler fails it, and rejects a wrong one; seeds are fixed.
"""

import math

import numpy as np
import pytest
from scipy import stats

from privet.accounting import Ledger, Step, spent
from privet.accounting.sampling import Poisson, registry, sampling
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.samplers import Sampler, _drawings as drawings, register

SIZE, RATE, LENGTH = 200, 0.1, 2000
CAP = 26  # overflows in about one batch of fifteen
ALARM = 1e-6
OPTIONS = {"truncated-poisson": f":cap={CAP},size={SIZE}"}

every_sampling = pytest.mark.parametrize("name", registry.names())


def batches(name, seed=0, rate=RATE, length=LENGTH, size=SIZE):
    steps = PlannedSteps(length=length, sample_rate=rate, sampling=sampling(name + OPTIONS.get(name, "")))
    return [batch.numpy() for batch in Sampler(dataset_size=size, steps=steps, randomness=seeded(seed))]


@every_sampling
@pytest.mark.parametrize("rate", [0.02, RATE, 0.5, 1.0])
def test_a_batch_has_records_that_exist_in_order_and_none_twice(name, rate):
    found = batches(name, rate=rate, length=200)
    assert len(found) == 200
    for batch in found:
        assert batch.dtype == np.int64
        assert (np.diff(batch) > 0).all()
        assert len(batch) == 0 or 0 <= batch[0] <= batch[-1] < SIZE


@every_sampling
def test_a_seed_gives_the_same_batches_and_another_gives_others(name):
    first, again, other = batches(name, 1), batches(name, 1), batches(name, 2)
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@every_sampling
def test_sizes_are_those_of_the_sampling(name):
    """Exact, or each with a chance of 1e-12 or more under independent coins: 2,000 batches fail that once in 1e8."""
    sizes = np.array([len(batch) for batch in batches(name)])
    law = stats.binom(SIZE, RATE)
    if "poisson" not in name:
        assert set(sizes.tolist()) == {round(SIZE * RATE)}
        return
    assert law.ppf(1e-12) <= sizes.min()
    assert sizes.max() <= law.isf(1e-12)
    assert len(set(sizes.tolist())) > 10, "sizes must vary"
    assert (sizes <= CAP).all() == (name == "truncated-poisson")


def chi_square(found, size=SIZE):
    """sum_i (c_i - mean)^2 / (mean (1 - q)) over records: near chi-square with n - 1 degrees, or below it."""
    counts = np.bincount(np.concatenate(found), minlength=size)
    mean = counts.mean()
    return float(((counts - mean) ** 2).sum() / (mean * (1 - mean / len(found))))


@every_sampling
def test_no_record_is_drawn_more_often_than_another(name):
    """Fails once in a million; where each epoch has every record, counts are equal and it never fails."""
    assert chi_square(batches(name, 3)) <= stats.chi2.isf(ALARM, df=SIZE - 1)


@every_sampling
def test_records_are_drawn_as_often_as_the_rate_says(name):
    """Fails once in a million; a sampling that is cut to a cap draws a little less, by a sum that is known."""
    total = sum(map(len, batches(name, 4)))
    law = stats.binom(SIZE, RATE)
    lost = sum((k - CAP) * law.pmf(k) for k in range(CAP + 1, SIZE)) if name == "truncated-poisson" else 0.0
    room = float(stats.norm.isf(ALARM / 2)) * math.sqrt(LENGTH * SIZE * RATE * (1 - RATE))
    assert abs(total - LENGTH * (SIZE * RATE - lost)) <= room


def pairs(found, size=SIZE):
    """sum_ij (r_ij - mean)^2 T over pairs of records, r their correlation over T batches: near chi-square, or below."""
    there = np.zeros((len(found), size))
    for row, batch in zip(there, found, strict=True):
        row[batch] = 1
    r = np.corrcoef(there.T)[np.triu_indices(size, 1)]
    return float(((r - r.mean()) ** 2).sum() * len(found)), len(r) - 1


@every_sampling
def test_no_two_records_come_together_more_often_than_others(name):
    """Fails once in a million. In an epoch a pair meets once or never, which spreads its count by 7 % more."""
    found, degrees = pairs(batches(name, 6))
    if name == "shuffled":
        meet, epochs = (SIZE * RATE - 1) / (SIZE - 1), LENGTH * RATE
        found /= epochs * meet * (1 - meet) / (LENGTH * (RATE * (1 - RATE)) ** 2)
    assert found <= stats.chi2.isf(ALARM, df=degrees)


def test_records_that_always_come_together_are_caught():
    couples = [np.union1d(batch, batch[batch == 7] + 1) for batch in batches("poisson", 6)]
    couples = [batch[(batch != 8) | np.isin(7, batch)] for batch in couples]
    found, degrees = pairs(couples)
    assert found > stats.chi2.isf(ALARM, df=degrees)


def test_a_sampling_of_somebody_else_has_no_theorem_and_no_sampling_is_drawn_twice():
    """Whatever it is called: a name proves nothing."""

    class Other(Poisson):
        pass

    ledger = Ledger()
    ledger.add(Step(noise_multiplier=2.0, sample_rate=0.01, sampling=Other()))
    for accountant in ("pld", "rdp", "gdp", "basic"):
        with pytest.raises(Unsupported, match="has no theorem"):
            spent(ledger, 1e-5, accountant=accountant)
    with pytest.raises(InvalidValue, match="is drawn already"):
        register(Poisson)(Other)


WRONG = {
    "beyond the last": lambda found, _: np.append(found, SIZE),
    "below zero": lambda found, _: np.append([-1], found),
    "twice": lambda found, _: np.sort(np.append(found, found[:1])),
    "not in order": lambda found, _: found[::-1].copy(),
    "no indices": lambda found, _: found.astype(np.int32),
    "too many": lambda found, _: np.arange(SIZE),
    "none": lambda found, _: found[:0],
}


@every_sampling
@pytest.mark.parametrize("way", WRONG)
def test_a_batch_that_cannot_be_is_refused(name, way, monkeypatch):
    """Of fixed sizes and under a cap as well; a right batch is refused less than once in 1e11."""
    kind = type(sampling(name + OPTIONS.get(name, "")))
    drawing = drawings[kind]
    draw = drawing.batches

    def wrong(*given):
        return (WRONG[way](found, given) for found in draw(*given))

    monkeypatch.setattr(type(drawing), "batches", lambda _, *given: wrong(*given))
    with pytest.raises(InvalidValue, match="drew what it cannot draw"):
        batches(name, 7, rate=0.2, length=5)


@pytest.mark.parametrize("way", ["the first half a fifth too often", "one record left out", "the first ones of a cap"])
def test_a_sampler_that_favours_some_records_is_caught(way):
    right = batches("poisson", 3)
    if way == "one record left out":
        wrong = [batch[batch != 7] for batch in right]
    elif way == "the first ones of a cap":
        wrong = [batch[:20] for batch in right]
    else:
        more = batches("poisson", 5, rate=RATE / 5, size=SIZE // 2)
        wrong = [np.union1d(a, b) for a, b in zip(right, more, strict=True)]
    assert chi_square(right) <= stats.chi2.isf(ALARM, df=SIZE - 1) < chi_square(wrong)
