"""`spent`: truncated Poisson, shuffled epochs, the delta warning, and refusals that help."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy import stats

from privet.accounting.accountant import (
    compose_ledgers,
    epoch_noises,
    overflow_probability,
    representative_steps,
    spent,
    to_poisson,
)
from privet.accounting.ledger import Ledger, Step
from privet.accounting.pld.accountant import delta_at
from privet.accounting.sampling import TruncatedPoisson
from privet.accounting.tradeoff import tradeoff
from privet.errors import InvalidValue, Unsupported

DELTA = 1e-5
SIZE, RATE, STEPS = 10_000, 0.01, 200


def ledger_of(sampling="poisson", noise: float = 1.0, rate: float = RATE, count: int = STEPS) -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=sampling), count)
    return ledger


def capped(cap: int, count: int = STEPS) -> Ledger:
    return ledger_of(TruncatedPoisson(cap=cap, size=SIZE), count=count)


# --- truncated Poisson --------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [165, 180, 250])
def test_the_overflow_is_charged_to_delta(cap):
    """delta' = delta + (1 + e^eps) T P[Bin(n, q) > cap], solved for the delta that is left."""
    chance = STEPS * stats.binom.sf(cap, SIZE, RATE)
    found = spent(capped(cap), DELTA)
    assert chance <= overflow_probability(capped(cap)) <= chance * 1.001
    left = DELTA - (1 + math.exp(found.epsilon)) * chance
    needed = spent(ledger_of(), left)
    assert needed.epsilon_lower <= found.epsilon
    assert found.epsilon <= needed.epsilon * (1 + 1e-6)
    assert found.sampling == f"truncated-poisson:cap={cap},size={SIZE}"


def test_a_smaller_cap_costs_more_and_a_large_one_nothing():
    costs = [spent(capped(cap), DELTA).epsilon for cap in (160, 170, 200, SIZE)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(spent(ledger_of(), DELTA).epsilon, rel=1e-9)


def test_the_lower_bound_of_a_capped_run_stays_below_the_plain_one():
    plain, cut = spent(ledger_of(), DELTA), spent(capped(165), DELTA)
    if cut.epsilon_lower is not None:
        assert cut.epsilon_lower <= plain.epsilon <= cut.epsilon


def two_records() -> tuple[Ledger, Callable[[float], float], Callable[[float], float]]:
    """Gradients -1 and +1 at rate 1/2, one at most in the batch; the neighbour lacks the second. Its two laws beyond x.

    A batch that holds both keeps either: the record that is there pushes the other one out, which no sum shows.
    """
    beyond = stats.norm.sf
    ledger = ledger_of("truncated-poisson:cap=1,size=2", rate=0.5, count=1)
    return (
        ledger,
        lambda x: 0.25 * beyond(x) + 0.375 * beyond(x, -1) + 0.375 * beyond(x, 1),
        lambda x: 0.5 * beyond(x) + 0.5 * beyond(x, -1),
    )


def test_what_a_cut_reveals_is_in_delta_and_in_the_curve():
    ledger, there, gone = two_records()
    curve = tradeoff(ledger, adjacency="add-remove")
    for x in (0.0, 0.5, 1.0, 1.68, 2.0, 3.0):  # a test that alarms beyond x
        assert curve(gone(x)) <= 1 - there(x)
        for epsilon in (0.0, 0.3, 0.5, 1.0):
            assert there(x) - math.exp(epsilon) * gone(x) <= delta_at(ledger, epsilon, "add-remove")[1]


def test_delta_epsilon_and_curve_of_a_capped_run_agree():
    ledger, plain = capped(140, count=1), ledger_of(count=1)
    epsilon = spent(ledger, 1e-3).epsilon
    lower, upper = delta_at(ledger, epsilon)
    assert upper == pytest.approx(1e-3, rel=1e-4)
    assert 0 < lower < delta_at(plain, epsilon)[0] < upper
    curve = tradeoff(ledger)
    assert curve.delta[1] == pytest.approx(delta_at(ledger, curve.epsilon[1])[1], rel=1e-9)


def test_a_cap_that_overflows_too_often_is_refused():
    with pytest.raises(Unsupported, match="larger cap"):
        spent(capped(120), DELTA)
    with pytest.raises(Unsupported, match=r"no delta below 1 at epsilon=1.0. Use a larger cap"):
        delta_at(capped(100, count=1), 1.0)
    with pytest.raises(Unsupported, match=r"no delta below 1 at epsilon=0.0. Use a larger cap"):
        tradeoff(capped(90, count=1))
    with pytest.raises(Unsupported, match="Use 'pld'"):
        tradeoff(capped(140, count=1), accountant="gdp")


def test_a_cap_above_the_size_cuts_nothing():
    assert overflow_probability(capped(2 * SIZE)) == 0
    assert spent(capped(2 * SIZE, count=1), DELTA) == replace(
        spent(ledger_of(count=1), DELTA), sampling=f"truncated-poisson:cap={2 * SIZE},size={SIZE}"
    )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_every_accountant_of_gaussians_takes_the_cap(accountant):
    plain, cut = (spent(ledger, DELTA, accountant=accountant).epsilon for ledger in (ledger_of(), capped(170)))
    assert plain < cut < 1.2 * plain


def test_as_poisson_keeps_everything_else():
    ledger = capped(170)
    ledger.add(Step(noise_multiplier=2.0, sample_rate=0.5, sampling="shuffled"), 2)
    assert [(s.sampling.name, n) for s, n in to_poisson(ledger)] == [("poisson", STEPS), ("shuffled", 2)]


# --- shuffled epochs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rate", "expected"),
    [
        ([4.0, 2.0, 3.0], 1 / 3, [2.0]),
        ([4.0, 2.0, 3.0, 9.0], 1 / 3, [2.0, 9.0]),  # an epoch begun counts
        ([5.0] * 10, 0.4, [5.0] * 4),  # ceil(1 / 0.4) = 3 steps an epoch
        ([7.0, 6.0], 1.0, [7.0, 6.0]),
    ],
)
def test_an_epoch_counts_its_least_noise(noise, rate, expected):
    ledger = Ledger()
    ledger.extend(noise_multiplier=noise, sample_rate=rate, sampling="shuffled")
    assert epoch_noises(ledger) == expected


def test_a_rate_that_changes_within_an_epoch_is_refused():
    ledger = Ledger()
    ledger.extend(noise_multiplier=1.0, sample_rate=[0.25, 0.25, 0.5], sampling="shuffled")
    with pytest.raises(InvalidValue, match="within a shuffled epoch"):
        epoch_noises(ledger)


def test_a_shuffled_epoch_ends_with_its_run():
    """All other records blank, a run of one step at rate 1/2 takes a record by a fair coin; two runs toss two."""
    one, coins = ledger_of("shuffled", rate=0.5, count=1), ledger_of(rate=0.5, count=2)
    assert spent(compose_ledgers(one, one), DELTA).epsilon >= spent(coins, DELTA).epsilon_lower
    run = Ledger()
    run.extend(noise_multiplier=[9.0, 3.0, 8.0, 7.0, 6.0], sample_rate=1 / 3, sampling="shuffled")
    run.add(Step(noise_multiplier=4.0))  # a step of another kind does not end the epoch
    assert epoch_noises(compose_ledgers(run)) == epoch_noises(run) == [3.0, 6.0]
    assert epoch_noises(compose_ledgers(run, one, run)) == [3.0, 6.0, 1.0, 3.0, 6.0]  # the rate may change between runs
    assert compose_ledgers(ledger_of(), ledger_of()) == ledger_of(count=2 * STEPS)


def test_shuffling_is_never_cheaper_than_poisson():
    shuffled, poisson = (spent(ledger_of(kind, noise=5.0), DELTA).epsilon for kind in ("shuffled", "poisson"))
    assert shuffled > poisson


# --- warnings and refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(("delta", "warns"), [(1e-4, True), (2e-4, True), (9.9e-5, False), (1e-5, False)])
def test_a_delta_of_one_over_n_draws_a_warning(delta, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spent(ledger_of(), delta, dataset_size=SIZE)
    assert bool(caught) == warns
    if warns:
        assert "1/(10 dataset_size)=1e-05" in str(caught[0].message)


@pytest.mark.parametrize(
    "options",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"adjacency": "cousin"},
        {"unit": "house"},
        {"dataset_size": 0},
    ],
)
def test_what_cannot_be_is_refused(options):
    given = {"delta": DELTA} | options
    with pytest.raises(InvalidValue):
        spent(ledger_of(), given.pop("delta"), **given)


def test_an_unknown_accountant_is_refused_with_a_hint():
    with pytest.raises(InvalidValue, match="pld"):
        spent(ledger_of(), DELTA, accountant="pdl")


@pytest.mark.parametrize(
    ("sampling", "rate", "adjacency", "match"),
    [
        ("fixed-size", 0.1, "zero-out", "accountant='rdp'"),
        ("poisson", 0.1, "replace-one", "adjacency='zero-out'"),
        ("shuffled", 0.1, "add-remove", "adjacency='zero-out'"),
    ],
)
def test_a_refusal_names_a_way_out(sampling, rate, adjacency, match):
    with pytest.raises(Unsupported, match=match):
        spent(ledger_of(sampling, rate=rate), DELTA, adjacency=adjacency)


def test_one_bad_step_among_many_is_found():
    ledger = ledger_of()
    ledger.extend(noise_multiplier=[2.0, 3.0, 4.0], sample_rate=0.5)
    ledger.add(Step(noise_multiplier=3.0, sample_rate=0.5, sampling="fixed-size"))
    with pytest.raises(Unsupported, match="fixed-size"):
        spent(ledger, DELTA)


def test_representatives_cover_each_kind():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[1.0, 2.0, 3.0, 4.0], sample_rate=[0.1, 0.2, 1.0, 1.0])
    ledger.add(Step(noise_multiplier=5.0, sample_rate=0.1, sampling="shuffled"))
    found = {(step.sampling.name, step.sample_rate == 1) for step in representative_steps(ledger)}
    assert found == {("poisson", False), ("poisson", True), ("shuffled", False)}


def test_the_guarantee_says_what_it_is_about():
    found = spent(ledger_of(), DELTA, unit="client", adjacency="add-remove")
    assert (found.unit, found.adjacency, found.sampling, found.steps) == ("client", "add-remove", "poisson", STEPS)
    assert found.epsilon == spent(ledger_of(), DELTA).epsilon
