"""Where curves cross a delta: the answers are on the safe side of curves of any shape."""

import math
from types import SimpleNamespace

import pytest

from privet.accounting.pld.loss_moments import QuadratureTooCostly
from privet.accounting.pld.saddle_point import invert_delta_bounds


def line(epsilon: float, c: float = 5.0) -> SimpleNamespace:
    return SimpleNamespace(epsilon=epsilon, c=c)


@pytest.mark.parametrize("start", [-0.5, 0.0, 0.3, 1.0, 40.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_smooth_curves_are_met_closely_and_safely(start, delta):
    def lower(e):
        return -1.001 - 4 * e - e**2

    def upper(e):
        return -0.999 - 4 * e - e**2

    low, high = invert_delta_bounds(lower, upper, delta, line(start))
    assert lower(low) >= math.log(delta)
    assert upper(high) <= math.log(delta)
    assert lower(low * (1 + 1e-6)) < math.log(delta)
    assert upper(high * (1 - 1e-6)) > math.log(delta)


def test_a_curve_with_a_jump_and_one_that_says_nothing():
    low, high = invert_delta_bounds(lambda e: -math.inf, lambda e: -1.0 if e < 2 else -20.0, 1e-5, line(1.0))
    assert low == 0.0
    assert 2.0 <= high <= 2.0 + 1e-9


def test_a_curve_below_from_the_start_costs_nothing():
    assert invert_delta_bounds(lambda e: -30.0 - e, lambda e: -29.0 - e, 1e-5, line(0.5)) == (0.0, 0.0)


def test_a_curve_that_never_comes_down_is_too_hard():
    with pytest.raises(QuadratureTooCostly):
        invert_delta_bounds(lambda e: -1.0, lambda e: -1.0, 1e-5, line(0.5))
