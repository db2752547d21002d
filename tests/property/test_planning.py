"""Plans on random recipes: in the budget by an independent count, deterministic, monotone, the same after a file."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from oracle import bracket, counted
from privet.accounting import spent
from privet.planning import Plan, plan

DELTA = 1e-5
shapes = st.sampled_from(
    ["constant", "exponential:end=0.4", "linear:end=2", "cosine:end=0.5", "cyclic:half=5,decay=0.05"]
)
coarse = st.sampled_from(["constant", "step:factor=0.8,every=20", "constant until 0.5 then 0.6", "2 until 0.3 then 3"])
epsilons = st.floats(math.log(0.3), math.log(6)).map(math.exp)
rates = st.floats(math.log(0.01), math.log(0.1)).map(math.exp)
lengths = st.integers(1500, 3000)


def planned(shape: str, epsilon: float, rate: float, steps: int, **more) -> Plan:
    noise = {} if shape == "constant" else {"noise_multiplier": shape}
    return plan(epsilon=epsilon, delta=DELTA, dataset_size=1000, sample_rate=rate, steps=steps, **noise, **more)


@settings(max_examples=8)
@given(coarse, epsilons, rates, st.integers(20, 60))
def test_an_independent_count_stays_within_the_budget(shape, epsilon, rate, steps):
    """The naive lattice of the oracle shares no code with the library; its bracket is some thousandths wide."""
    p = planned(shape, epsilon, rate, steps)
    low, high = bracket(counted(p.steps.noise_multipliers.tolist(), p.steps.sample_rates.tolist()), DELTA, 1 << 15)
    assert low <= epsilon
    assert high <= epsilon * (1 + 2e-3) + 1e-6
    assert high >= p.guarantee.epsilon_lower


@settings(max_examples=25)
@given(shapes, epsilons, rates, lengths)
def test_near_the_target_and_never_above(shape, epsilon, rate, steps):
    p = planned(shape, epsilon, rate, steps)
    assert epsilon * (1 - 1e-4) <= p.guarantee.epsilon <= epsilon
    assert spent(p.ledger(), DELTA).epsilon <= epsilon


@settings(max_examples=12)
@given(shapes, epsilons, rates, lengths)
def test_the_same_recipe_gives_the_same_plan(shape, epsilon, rate, steps):
    one, other = (planned(shape, epsilon, rate, steps) for _ in range(2))
    assert one == other
    assert one.hash == other.hash


@settings(max_examples=15)
@given(shapes, epsilons, rates, lengths, st.floats(1.001, 3))
def test_more_budget_never_means_more_noise(shape, epsilon, rate, steps, factor):
    poor, rich = (planned(shape, budget, rate, steps) for budget in (epsilon, epsilon * factor))
    assert rich.peak_noise_multiplier < poor.peak_noise_multiplier


@settings(max_examples=15)
@given(shapes, epsilons, rates, lengths, st.integers(0, 3))
def test_a_file_changes_nothing(tmp_path_factory, shape, epsilon, rate, steps, number):
    p = planned(shape, epsilon, rate, steps, training={"task": f"task {number}"})
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    p.save(file)
    assert Plan.load(file) == p
    assert Plan.load(file).hash == p.hash


@settings(max_examples=10)
@given(epsilons, st.floats(1.0, 5.0), st.integers(10, 200))
def test_steps_that_fit_are_the_most(epsilon, noise, batch):
    p = plan(
        epsilon=epsilon, delta=DELTA, dataset_size=1000, batch_size=batch, noise_multiplier=noise + 5, solve="steps"
    )
    more = plan(
        delta=DELTA,
        dataset_size=1000,
        batch_size=batch,
        noise_multiplier=noise + 5,
        steps=len(p.steps) + 1,
        solve="epsilon",
    )
    assert p.guarantee.epsilon <= epsilon < more.guarantee.epsilon


@settings(max_examples=10)
@given(epsilons, rates, lengths)
def test_solving_back_finds_the_noise(epsilon, rate, steps):
    found = planned("constant", epsilon, rate, steps)
    back = plan(
        delta=DELTA,
        dataset_size=1000,
        sample_rate=rate,
        steps=steps,
        noise_multiplier=found.peak_noise_multiplier,
        solve="epsilon",
    )
    assert back.guarantee.epsilon == pytest.approx(found.guarantee.epsilon, rel=1e-9)
