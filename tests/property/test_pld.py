"""The certified accountant on random schedules: inside a slow bracket, and with the properties of the truth."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oracle import DIRECTIONS, bracket, counted, epsilon_where, two_steps
from privet.accounting.accountant import spent
from privet.accounting.ledger import Ledger, Step
from privet.accounting.pld import frequencies
from privet.accounting.pld.loss_moments import QuadratureTooCostly

DELTA = 1e-5

noises = st.floats(np.log(0.5), np.log(20)).map(np.exp)
rates = st.floats(np.log(1e-3), np.log(0.5)).map(np.exp)
levels = st.tuples(noises, rates, st.integers(1, 60))
schedules = st.lists(levels, min_size=1, max_size=4)
deltas = st.floats(np.log(1e-7), np.log(0.05)).map(np.exp)


def ledger_of(rows) -> Ledger:
    ledger = Ledger()
    for noise, rate, count in rows:
        ledger.add(Step(noise_multiplier=float(noise), sample_rate=float(rate)), count)
    return ledger


def interval(ledger: Ledger, delta: float = DELTA) -> tuple[float, float]:
    found = spent(ledger, float(delta))
    assert found.epsilon_lower is not None
    assert 0 <= found.epsilon_lower <= found.epsilon < np.inf
    return found.epsilon_lower, found.epsilon


def overlap(one: tuple[float, float], other: tuple[float, float], slack: float = 0.0) -> bool:
    return max(one[0], other[0]) <= min(one[1], other[1]) + slack


@settings(max_examples=12)
@given(schedules, deltas)
def test_inside_the_bracket_of_a_naive_lattice(rows, delta):
    slow = bracket(counted(*zip(*((n, q) for n, q, k in rows for _ in range(k)), strict=True)), delta, 1 << 15)
    found = interval(ledger_of(rows), delta)
    assert overlap(found, slow)
    assert found[1] <= slow[1] + 2e-3 * found[1] + 1e-6
    assert found[0] >= slow[0] - 2e-3 * found[1] - 1e-6


@pytest.mark.prove
@settings(max_examples=40)
@given(schedules, deltas)
def test_inside_the_bracket_of_a_fine_naive_lattice(rows, delta):
    slow = bracket(counted(*zip(*((n, q) for n, q, k in rows for _ in range(k)), strict=True)), delta, 1 << 17)
    found = interval(ledger_of(rows), delta)
    assert overlap(found, slow)
    assert found[1] <= slow[1] + 1e-3 * found[1] + 1e-6
    assert found[0] >= slow[0] - 1e-3 * found[1] - 1e-6


@settings(max_examples=10)
@given(noises, rates, noises, rates, deltas)
def test_two_steps_are_the_double_integral(noise, rate, other_noise, other_rate, delta):
    first, second = (float(noise), float(rate)), (float(other_noise), float(other_rate))
    truth = max(epsilon_where(lambda e, d=d: two_steps(first, second, e, d), delta) for d in DIRECTIONS)
    low, high = interval(ledger_of([(*first, 1), (*second, 1)]), delta)
    assert low <= truth * (1 + 1e-5) + 1e-7
    assert truth * (1 - 1e-5) - 1e-7 <= high


@settings(max_examples=6)
@given(st.lists(st.tuples(noises, rates, st.integers(100, 3000)), min_size=1, max_size=3))
def test_the_two_routes_agree(rows):
    def refuse(*args, **kwargs):
        raise QuadratureTooCostly("not today")

    fast = interval(ledger_of(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frequencies, "_decay_frequencies", refuse)
        sturdy = interval(ledger_of(rows))
    assert overlap(fast, sturdy)


@settings(max_examples=10)
@given(schedules, st.floats(1.001, 3))
def test_more_noise_never_costs_more(rows, factor):
    """Of the truth, so of intervals: the lower bound of the quieter run is not above the upper of the louder."""
    before = interval(ledger_of(rows))
    after = interval(ledger_of([(noise * factor, rate, count) for noise, rate, count in rows]))
    assert after[0] <= before[1]
    assert after[1] <= before[1] * (1 + 1e-3) + 1e-6


@settings(max_examples=8)
@given(schedules, levels)
def test_more_steps_never_cost_less(rows, extra):
    assert interval(ledger_of(rows))[0] <= interval(ledger_of([*rows, extra]))[1]


@settings(max_examples=8)
@given(schedules, deltas, st.floats(1.1, 100))
def test_a_larger_delta_never_costs_more(rows, delta, factor):
    ledger = ledger_of(rows)
    strict, loose = interval(ledger, delta / factor), interval(ledger, delta)
    assert loose[0] <= strict[1]
    assert loose[1] <= strict[1] * (1 + 1e-3) + 1e-6


@settings(max_examples=10)
@given(schedules, st.randoms(use_true_random=False))
def test_the_order_of_steps_and_how_they_were_added_do_not_matter(rows, random):
    """Counting ten is adding ten times, in any order: the very same numbers."""
    each = [(noise, rate, 1) for noise, rate, count in rows for _ in range(count)]
    random.shuffle(each)
    assert interval(ledger_of(each)) == pytest.approx(interval(ledger_of(rows)), rel=1e-10)


@settings(max_examples=8)
@given(schedules)
def test_sampling_less_never_costs_more(rows):
    rarer = ledger_of([(noise, rate / 2, count) for noise, rate, count in rows])
    assert interval(rarer)[0] <= interval(ledger_of(rows))[1]
