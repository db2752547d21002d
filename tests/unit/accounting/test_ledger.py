"""Ledgers: equal neighbours are one row, prefixes are exact, and bad values name their step."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from privet.accounting.ledger import Ledger, Step
from privet.accounting.sampling import POISSON, Shuffled
from privet.errors import InvalidValue

rows = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 3.5]), st.sampled_from([0.1, 1.0]), st.integers(1, 4)), min_size=1, max_size=12
)


def one_by_one(ledger: Ledger) -> list[Step]:
    return [step for step, count in ledger for _ in range(count)]


def build(given_rows) -> Ledger:
    ledger = Ledger()
    for noise, rate, count in given_rows:
        ledger.add(Step(noise_multiplier=noise, sample_rate=rate), count)
    return ledger


def test_equal_neighbours_are_stored_once():
    ledger = Ledger()
    for noise in (1.0, 1.0, 2.0, 1.0):
        ledger.add(Step(noise_multiplier=noise, sample_rate=0.1))
    assert [count for _, count in ledger] == [2, 1, 1]
    assert (ledger.steps, len(ledger), bool(ledger), bool(Ledger())) == (4, 4, True, False)


@given(rows)
def test_extending_is_adding_one_by_one(given_rows):
    added = build(given_rows)
    steps = one_by_one(added)
    extended = Ledger()
    extended.extend(noise_multiplier=[s.noise_multiplier for s in steps], sample_rate=[s.sample_rate for s in steps])
    assert extended == added
    assert extended.steps == sum(count for *_, count in given_rows)


@given(rows, st.data())
def test_a_prefix_is_the_first_steps(given_rows, data):
    ledger = build(given_rows)
    steps = data.draw(st.integers(0, ledger.steps))
    assert one_by_one(ledger.first(steps)) == one_by_one(ledger)[:steps]


@given(rows, st.data())
def test_a_prefix_is_a_ledger_of_its_own(given_rows, data):
    ledger = build(given_rows)
    before = one_by_one(ledger)
    ledger.first(data.draw(st.integers(0, ledger.steps))).add(Step(noise_multiplier=9.0))
    assert one_by_one(ledger) == before


def test_more_than_there_is_is_refused():
    with pytest.raises(InvalidValue, match="steps=5 is more than the 4"):
        build([(1.0, 0.1, 4)]).first(5)


def test_columns_are_the_rows():
    ledger = build([(1.0, 0.1, 4), (2.0, 1.0, 1)])
    ledger.add(Step(noise_multiplier=2.0, sample_rate=0.5, sampling="shuffled"), 3)
    columns = ledger.columns()
    assert columns.noise_multiplier.tolist() == [1.0, 2.0, 2.0]
    assert columns.sample_rate.tolist() == [0.1, 1.0, 0.5]
    assert columns.count.tolist() == [4, 1, 3]
    assert [columns.samplings[kind] for kind in columns.sampling_index] == [POISSON, POISSON, Shuffled()]


def test_clip_is_kept_and_splits_rows():
    ledger = Ledger()
    ledger.extend(noise_multiplier=1.0, sample_rate=0.1, clipping_norm=[1.0, 1.0, 2.0])
    assert [(step.clipping_norm, count) for step, count in ledger] == [(1.0, 2), (2.0, 1)]


def test_nothing_added_is_nothing():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[])
    assert ledger == Ledger()
    assert ledger != "ledger"


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"noise_multiplier": [1.0, np.nan, 2.0]}, "noise_multiplier=nan at step 1"),
        ({"noise_multiplier": [1.0, 1.0, 0.0]}, "noise_multiplier=0.0 at step 2"),
        ({"noise_multiplier": np.inf}, "noise_multiplier=inf at step 0"),
        ({"noise_multiplier": [1.0, 1.0], "sample_rate": [0.5, 1.5]}, "sample_rate=1.5 at step 1"),
        ({"noise_multiplier": 1.0, "clipping_norm": -1.0}, "clipping_norm=-1.0 at step 0"),
    ],
)
def test_a_bad_value_names_its_step(values, match):
    with pytest.raises(InvalidValue, match=match):
        Ledger().extend(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": 1.0, "sample_rate": 0.0},
        {"noise_multiplier": 1.0, "sample_rate": 1.1},
        {"noise_multiplier": 1.0, "clipping_norm": 0.0},
    ],
)
def test_a_step_that_cannot_be_is_refused(values):
    with pytest.raises(InvalidValue):
        Step(**values)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_is_a_whole_number(count):
    with pytest.raises(InvalidValue, match="count"):
        Ledger().add(Step(noise_multiplier=1.0), count)
