"""Batches of indices: the right records, bound to the plan that was priced. tests/statistical has their law."""

import math
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from privet.accounting import Ledger, Step, sampling as accounting
from privet.accounting.accountant import epoch_noises
from privet.accounting.sampling import FixedSize, Poisson, Sampling, Shuffled, TruncatedPoisson
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded
from privet.planning import Plan, plan
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.samplers import Sampler, poisson_indices, sampler

KINDS = (Poisson(), TruncatedPoisson(cap=40, size=300), FixedSize(), Shuffled())


def drawn(kind: Sampling, *, size: int = 300, rate: float = 0.1, length: int = 25, seed: int = 0, **more: str):
    steps = PlannedSteps(length=length, sample_rate=rate, sampling=kind, **more)
    return [batch.numpy() for batch in Sampler(dataset_size=size, steps=steps, randomness=seeded(seed))]


def test_every_sampling_an_accountant_knows_can_be_drawn():
    assert {kind.name for kind in KINDS} == set(accounting.registry.names())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_fresh_coins_do_not_repeat(kind):
    fresh = Sampler(dataset_size=300, steps=PlannedSteps(length=25, sample_rate=0.1, sampling=kind))
    assert fresh.noise_is_secret
    assert not all(map(torch.equal, fresh, fresh))
    assert not Sampler(
        dataset_size=3, steps=PlannedSteps(length=1, sample_rate=0.5), randomness=seeded(0)
    ).noise_is_secret


# --- Poisson ----------------------------------------------------------------------------------------


@given(size=st.integers(0, 500), rate=st.floats(1e-12, 1.0), seed=st.integers(0, 2**40))
def test_poisson_gives_a_set_of_records_at_any_rate(size, rate, seed):
    found = poisson_indices(size, rate, np.random.default_rng(seed))
    assert found.dtype == np.int64
    assert np.array_equal(found, np.unique(found))
    assert ((found >= 0) & (found < size)).all()
    if rate == 1:
        assert len(found) == size


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-20, 2.0**-53])
def test_tiny_rates_neither_overflow_nor_warn(rate):
    assert poisson_indices(10**12, rate, np.random.default_rng(0)).size == 0


def test_a_rate_just_below_one_is_not_one_record_short():
    assert poisson_indices(1000, 1 - 2.0**-53, np.random.default_rng(0)).tolist() == list(range(1000))


class Saying:
    """A generator that says these numbers in turn, each for a whole block."""

    def __init__(self, *values: float) -> None:
        self.values = cycle(values)

    def random(self, count: int) -> np.ndarray:
        return np.full(count, next(self.values))


def test_a_tiny_rate_is_decided_by_finer_draws_than_one_double():
    """At rate 2^-60 doubles alone would know gaps that are multiples of 128."""
    assert poisson_indices(1000, 2.0**-60, Saying(0.0, 0.51)).tolist() == list(range(65, 1000, 66))


def test_more_records_than_expected_are_all_found():
    """Gap zero every time: the block of draws is far too short, and is extended until the dataset ends."""
    assert poisson_indices(1000, 0.01, Saying(0.0)).tolist() == list(range(1000))


def test_the_largest_draw_ends_the_batch():
    assert poisson_indices(1000, 0.5, Saying(1 - 2.0**-53)).tolist() == list(range(53, 1000, 54))


@pytest.mark.parametrize("rate", [0.001, 0.3, 0.7])
@pytest.mark.parametrize("k", [0, 1, 7, 400])
def test_a_gap_starts_where_its_chance_says(rate, k):
    """P[gap >= k] = (1 - rate)^k: the first index is k just above that quantile, and k - 1 just below."""
    quantile = -math.expm1(k * math.log1p(-rate))
    if quantile < 1 - 1e-9:
        assert poisson_indices(1000, rate, Saying(quantile * (1 + 1e-12) + 1e-300))[0] == k
        if k:
            assert poisson_indices(1000, rate, Saying(quantile * (1 - 1e-9)))[0] == k - 1


def test_the_rate_may_change_at_every_step():
    found = drawn(Poisson(), size=10_000, rate=0.9, length=3, batch_schedule="table:1,0.1,0.01")
    assert [round(len(batch), -2) for batch in found] == [9000, 900, 100]


def test_an_empty_batch_is_a_step():
    found = list(Sampler(dataset_size=10, steps=PlannedSteps(length=50, sample_rate=1e-6), randomness=seeded(0)))
    assert len(found) == 50
    assert all(batch.shape == (0,) and batch.dtype == torch.int64 for batch in found)
    assert len(list(Sampler(dataset_size=0, steps=PlannedSteps(length=3, sample_rate=0.5)))) == 3


# --- the others -------------------------------------------------------------------------------------


def test_a_cap_cuts_and_changes_nothing_below_it():
    loose = drawn(TruncatedPoisson(cap=300, size=300))
    tight = drawn(TruncatedPoisson(cap=28, size=300))
    assert all(map(np.array_equal, loose, drawn(Poisson())))
    assert max(map(len, loose)) > 28 == max(map(len, tight))
    for before, after in zip(loose, tight, strict=True):
        assert np.isin(after, before).all()
        assert len(after) == min(28, len(before))


def test_a_cap_is_for_at_most_its_number_of_records():
    with pytest.raises(InvalidValue, match=r"records=301 must be at most 300.*Plan with the larger size"):
        drawn(TruncatedPoisson(cap=28, size=300), size=301)


@pytest.mark.parametrize(
    ("size", "rate", "batch"), [(60000, 256 / 60000, 256), (100, 0.29, 29), (7, 1.0, 7), (10, 0.39, 3)]
)
def test_fixed_sizes_never_exceed_the_rate(size, rate, batch):
    assert [len(found) for found in drawn(FixedSize(), size=size, rate=rate, length=4)] == [batch] * 4


def test_fixed_size_batches_of_nothing_are_refused():
    with pytest.raises(InvalidValue, match="less than one"):
        drawn(FixedSize(), size=9, rate=0.1)


@pytest.mark.parametrize(
    ("size", "rate"), [(60, 0.1), (98, 1 / 49), (60000, 256 / 60000), (10, 0.35), (7, 1.0), (3, 0.1), (0, 0.5)]
)
def test_shuffled_epochs_hold_every_record_once(size, rate):
    ledger = Ledger()
    length = round(1 / rate + 0.5 - 1e-9)
    ledger.add(Step(noise_multiplier=1.0, sample_rate=rate, sampling=Shuffled()), 3 * length)
    assert len(epoch_noises(ledger)) == 3  # the accountant counts the same epochs
    found = drawn(Shuffled(), size=size, rate=rate, length=3 * length)
    for begin in range(0, 3 * length, length):
        epoch = found[begin : begin + length]
        assert np.sort(np.concatenate(epoch)).tolist() == list(range(size))
        assert np.ptp([len(batch) for batch in epoch]) <= 1


def test_shuffled_epochs_differ_and_the_last_may_be_cut_short():
    found = drawn(Shuffled(), rate=0.1, length=25)
    assert not np.array_equal(found[0], found[10])
    assert len(np.unique(np.concatenate(found[20:]))) == 150


def test_a_shuffled_run_is_taken_up_between_epochs_only():
    steps = PlannedSteps(length=25, sample_rate=0.1, sampling=Shuffled())
    assert len(list(Sampler(dataset_size=300, steps=steps, start=20))) == 5
    assert len(list(Sampler(dataset_size=300, steps=steps, start=25))) == 0
    with pytest.raises(InvalidValue, match=r"start=13 lies inside a shuffled epoch, steps 10 to 19.*start at 20"):
        Sampler(dataset_size=300, steps=steps, start=13)
    uneven = PlannedSteps(
        length=8, sample_rate=0.5, sampling=Shuffled(), batch_schedule="table:1,1,0.5,0.5,0.5,0.5,1,1"
    )
    assert [len(batch) for batch in Sampler(dataset_size=8, steps=uneven)] == [4, 4, 2, 2, 2, 2, 4, 4]
    with pytest.raises(InvalidValue, match="steps 2 to 5"):
        Sampler(dataset_size=8, steps=uneven, start=4)


def test_a_rate_that_changes_within_an_epoch_is_refused():
    with pytest.raises(InvalidValue, match="within a shuffled epoch"):
        drawn(Shuffled(), size=8, rate=0.5, length=4, batch_schedule="table:1,0.5,1,1")


def test_a_trillion_steps_cost_nothing_until_they_are_drawn():
    for kind in KINDS:
        many = Sampler(dataset_size=300, steps=PlannedSteps(length=10**12, sample_rate=0.1, sampling=kind), start=10)
        assert len(next(iter(many))) <= 300
        assert len(many) == 10**12 - 10


# --- the plan ---------------------------------------------------------------------------------------

PLAN = plan(epsilon=2.0, delta=1e-3, dataset_size=300, batch_size=30, steps=25)


def for_budget(**changes: str) -> Plan:
    """The same plan for another unit or relation; what it costs does not matter here."""
    return replace(PLAN, recipe=replace(PLAN.recipe, budget=replace(PLAN.recipe.budget, **changes)))


def test_the_sampler_of_a_plan_follows_its_steps():
    made = sampler(PLAN, records=300, start=5, randomness=seeded(0))
    assert made.steps is PLAN.steps
    assert made.sampling == PLAN.steps[0].sampling
    assert len(made) == len(list(made)) == 20


@pytest.mark.parametrize(
    "steps",
    [
        PlannedSteps(
            length=25, sample_rate=0.1, peak_noise_multiplier=PLAN.peak_noise_multiplier, sampling=FixedSize()
        ),
        PlannedSteps(length=25, sample_rate=0.11, peak_noise_multiplier=PLAN.peak_noise_multiplier),
        PlannedSteps(length=26, sample_rate=0.1, peak_noise_multiplier=PLAN.peak_noise_multiplier),
        PlannedSteps(
            length=25, sample_rate=0.1, peak_noise_multiplier=PLAN.peak_noise_multiplier, batch_schedule="linear:end=2"
        ),
    ],
)
def test_another_sampler_than_the_plans_is_refused(steps):
    sampler(PLAN, records=300).check(PLAN)
    with pytest.raises(InvalidValue, match=r"not the plan's.*The guarantee would not hold"):
        Sampler(dataset_size=300, steps=steps).check(PLAN)


def test_a_public_size_is_checked_and_a_private_one_is_not():
    with pytest.raises(InvalidValue, match="examples=299 must be the plan's dataset_size=300"):
        sampler(PLAN, records=299)
    private = for_budget(adjacency="add-remove")
    for records in (0, 299, 301):
        assert len(list(sampler(private, records=records))) == 25


def test_a_plan_for_users_does_not_sample_records():
    with pytest.raises(InvalidValue, match=r"unit='user'.*user_sampler"):
        sampler(for_budget(unit="user"), records=300)


def test_wrong_arguments_say_so():
    steps = PlannedSteps(length=25, sample_rate=0.1)
    with pytest.raises(InvalidValue, match="start=26 must be at most steps=25"):
        Sampler(dataset_size=300, steps=steps, start=26)
    with pytest.raises(InvalidValue, match="dataset_size=-1"):
        Sampler(dataset_size=-1, steps=steps)

    class Mine(Sampling):
        name = "mine"

        def __str__(self) -> str:
            return "mine"

    with pytest.raises(Unsupported, match="sampling='mine' cannot be drawn"):
        Sampler(dataset_size=3, steps=PlannedSteps(length=1, sample_rate=0.1, sampling=Mine()))
