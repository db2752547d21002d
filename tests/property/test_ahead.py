"""The plan-ahead view on random budgets: in the budget by an independent count, monotone in rounds and batch."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from oracle import bracket
from privet.planning import ahead, extend_rounds, plan

DELTA, SIZE = 1e-5, 1000
NEAR = 3e-4  # calibration stops within 1e-4 of the budget; noise moves at most about as much
epsilons = st.floats(math.log(0.3), math.log(6)).map(math.exp)
batches = st.integers(20, 400)
rounds = st.integers(1000, 20_000)


@pytest.mark.slow
@settings(max_examples=3)
@given(epsilons, st.integers(20, 100), st.integers(300, 1000))
def test_an_independent_count_stays_within_the_budget(epsilon, batch, steps):
    """The naive lattice of the oracle shares no code with the library; its bracket is a thousandth wide."""
    for cell in ahead(epsilon=epsilon, delta=DELTA, dataset_size=SIZE, batches=[batch], steps=[steps]).cells:
        low, high = bracket({(cell.noise_multiplier, cell.batch_size / SIZE): steps}, DELTA, 1 << 15)
        assert low <= epsilon
        assert high <= epsilon * (1 + 1e-3) + 1e-6
        assert high >= cell.guarantee.epsilon_lower


@pytest.mark.slow
@settings(max_examples=5)
@given(epsilons, batches, rounds, st.integers(1, 20_000))
def test_more_rounds_never_need_less_noise(epsilon, batch, steps, extra):
    few, many = ahead(
        epsilon=epsilon, delta=DELTA, dataset_size=SIZE, batches=[batch], steps=[steps, steps + extra]
    ).cells
    assert many.noise_multiplier >= few.noise_multiplier * (1 - NEAR)
    assert many.closed.epsilon >= few.closed.epsilon


@pytest.mark.slow
@settings(max_examples=5)
@given(epsilons, batches, st.floats(1.01, 2.5), rounds)
def test_a_larger_batch_needs_more_noise_and_leaves_less_in_the_average(epsilon, batch, factor, steps):
    small, large = ahead(
        epsilon=epsilon, delta=DELTA, dataset_size=SIZE, batches=[batch, batch * factor], steps=[steps]
    ).cells
    assert large.noise_multiplier >= small.noise_multiplier * (1 - NEAR)
    assert large.std <= small.std * (1 + NEAR)
    assert large.signal >= small.signal * (1 - NEAR)


@pytest.mark.slow
@settings(max_examples=3)
@given(epsilons, batches, st.integers(1000, 3000), st.integers(1, 3000), st.floats(1.05, 2))
def test_more_rounds_of_a_plan(epsilon, batch, steps, extra, factor):
    p = plan(epsilon=epsilon, delta=DELTA, dataset_size=SIZE, batch_size=batch, steps=steps)
    few, many = extend_rounds(p, [extra, 2 * extra], within=epsilon * factor).rows
    assert p.guarantee.epsilon < few.guarantee.epsilon < many.guarantee.epsilon
    assert few.noise_multiplier <= many.noise_multiplier * (1 + NEAR)
    assert max(few.within.epsilon, many.within.epsilon) <= epsilon * factor
