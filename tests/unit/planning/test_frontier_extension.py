"""What more rounds of a plan would cost."""

import json

import pytest

from privet.accounting import spent
from privet.errors import InvalidValue, Unsupported
from privet.planning import Plan, extend_rounds, plan

GIVEN = {"delta": 1e-5, "dataset_size": 1000, "batch_size": 100}


@pytest.fixture(scope="module")
def p() -> Plan:
    return plan(epsilon=2.0, steps=1000, unit="client", **GIVEN)


def test_rounds_at_the_last_noise_are_a_longer_run(p):
    found = extend_rounds(p, [500, 100])
    assert [row.rounds for row in found.rows] == [100, 500]
    assert found.planned == p.guarantee
    for row in found.rows:
        longer = plan(
            noise_multiplier=p.peak_noise_multiplier, steps=1000 + row.rounds, solve="epsilon", unit="client", **GIVEN
        )
        assert row.guarantee == longer.guarantee
        assert row.guarantee.label == "certified"
        assert row.guarantee.unit == "client"
        assert (row.noise_multiplier, row.within) == (None, None)
    assert found.most is None


def test_the_noise_that_stays_within_a_larger_epsilon(p):
    found = extend_rounds(p, [100, 1000], within=2.5)
    few, many = found.rows
    assert few.noise_multiplier < p.peak_noise_multiplier < many.noise_multiplier
    for row in found.rows:
        assert 2.5 * (1 - 1e-4) <= row.within.epsilon <= 2.5
        ledger = p.ledger()
        ledger.add(type(p.steps[0])(noise_multiplier=row.noise_multiplier, sample_rate=0.1), row.rounds)
        assert spent(ledger, 1e-5, unit="client") == row.within


def test_the_most_rounds_that_fit_are_the_most(p):
    most = extend_rounds(p, [1], within=2.5).most
    inside, outside = extend_rounds(p, [most, most + 1]).rows
    assert inside.guarantee.epsilon <= 2.5 < outside.guarantee.epsilon


def test_none_fit_if_one_is_too_many():
    p = plan(epsilon=2.0, steps=1, delta=1e-5, dataset_size=1000, batch_size=1000)
    found = extend_rounds(p, [1], within=2.1)
    assert found.most == 0
    assert found.rows[0].guarantee.epsilon > 2.1
    assert found.rows[0].noise_multiplier > p.peak_noise_multiplier


def test_more_shuffled_rounds_begin_a_new_epoch():
    """Ten steps are an epoch: five more than five are not free, for they are of another permutation."""
    half = plan(noise_multiplier=1.0, steps=5, solve="epsilon", sampling="shuffled", **GIVEN)
    whole = plan(noise_multiplier=1.0, steps=20, solve="epsilon", sampling="shuffled", **GIVEN)
    assert extend_rounds(half, [5]).rows[0].guarantee.epsilon == pytest.approx(whole.guarantee.epsilon)


def test_a_schedule_goes_on_as_it_ended():
    p = plan(epsilon=2.0, steps=1500, noise_multiplier="exponential:end=0.5", clipping_norm="linear:end=0.5", **GIVEN)
    found = extend_rounds(p, [10])
    assert found.last == p.steps[-1]
    ledger = p.ledger()
    ledger.add(p.steps[-1], 10)
    assert found.rows[0].guarantee == spent(ledger, 1e-5)
    assert json.loads(json.dumps(found.as_dict()))["last"]["sampling"] == "poisson"


def test_a_plan_by_a_formula_is_certified_here():
    p = plan(epsilon=2.0, steps=1000, accountant="gdp", **GIVEN)
    assert p.guarantee.label == "approximate"
    assert extend_rounds(p, [10]).planned == p.certified
    assert extend_rounds(p, [10]).rows[0].guarantee.label == "certified"


def test_a_plan_that_only_renyi_covers_keeps_its_accountant():
    p = plan(epsilon=2.0, steps=20, accountant="rdp", sampling="fixed-size", adjacency="replace-one", **GIVEN)
    found = extend_rounds(p, [50], within=4.0)
    assert found.rows[0].guarantee.method == "rdp"
    assert found.rows[0].guarantee.epsilon > p.guarantee.epsilon
    assert found.rows[0].within.epsilon <= 4.0


@pytest.mark.parametrize(
    ("rounds", "within", "words"),
    [
        ([], None, "must be a list"),
        ("500", None, "must be a list"),
        (500, None, "must be a list"),
        ([0], None, "more=0 must be a whole number"),
        ([1.5], None, "more=1.5 must be a whole number"),
        ([10**12], None, "must keep the steps within"),
        ([1], 1.9, "which the planned rounds spend already"),
        ([1], 0.0, "within=0.0 must be finite and > 0"),
        ([1], float("nan"), "within=nan"),
    ],
)
def test_bad_input_is_named(p, rounds, within, words):
    with pytest.raises(InvalidValue, match=words):
        extend_rounds(p, rounds, within=within)


def test_what_has_no_price_is_refused():
    unsound = plan(epsilon=2.0, steps=100, method="auto-linear", uncertified=True, **GIVEN)
    with pytest.raises(Unsupported, match="has no guarantee"):
        extend_rounds(unsound, [1])
    tuned = plan(epsilon=2.0, steps=100, trials=3, **GIVEN)
    with pytest.raises(Unsupported, match="charges for several runs"):
        extend_rounds(tuned, [1])
