"""The lattice: masses that are laws, and bounds that hold against integration for one, two and three steps."""

import math

import numpy as np
import pytest

from oracle import one_step, three_steps, two_steps
from privet.accounting.aim import line_for
from privet.accounting.lattice import compose, optimistic, pessimistic
from privet.accounting.levels import Levels

DIRECTIONS = ("remove", "add")


def levels_from(*releases: tuple[float, float]) -> Levels:
    noise, rate = np.array(releases).T
    sampled = rate < 1
    return Levels(rate[sampled], 1 / noise[sampled], np.ones(sampled.sum()), float((noise[~sampled] ** -2).sum()))


def check(levels, direction, epsilon, truth, quick):
    line = line_for(levels, direction, epsilon=epsilon)
    low = compose(levels, direction, line=line, upper=False, quick=quick).log_delta(epsilon)
    high = compose(levels, direction, line=line, upper=True, quick=quick).log_delta(epsilon)
    assert low <= math.log(truth) + 1e-7
    assert math.log(truth) - 1e-7 <= high
    assert quick or high - low < 2e-3


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("noise", "rate", "epsilon"), [(1.0, 0.01, 0.1), (0.5, 0.3, 0.3), (2.0, 0.999, 0.5), (0.3, 1e-3, 0.0005)]
)
def test_one_step(noise, rate, epsilon, direction, quick):
    levels = levels_from((noise, rate))
    truth = one_step(noise, rate, epsilon, direction)
    if truth > 1e-12:
        check(levels, direction, epsilon, truth, quick)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("first", "second", "epsilon"),
    [((1.0, 0.01), (1.0, 0.02), 0.2), ((0.7, 0.3), (3.0, 0.1), 0.35), ((2.0, 1.0), (1.0, 0.2), 1.5)],
)
def test_two_steps(first, second, epsilon, direction, quick):
    truth = two_steps(first, second, epsilon, direction)
    if truth > 1e-9:
        check(levels_from(first, second), direction, epsilon, truth, quick)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_three_steps(direction):
    releases = ((1.0, 0.1), (2.0, 0.3), (0.8, 0.05))
    check(levels_from(*releases), direction, 0.4, three_steps(releases, 0.4, direction), False)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "mu"), [(0.01, 1.0), (0.5, 3.0), (1.0, 0.5), (0.999, 10.0)])
@pytest.mark.parametrize("spacing", [0.3, 1e-2])
def test_one_rounded_step_costs_more_and_one_merged_step_less(rate, mu, direction, spacing):
    line = line_for(Levels(np.array([0.01]), np.array([mu]), np.array([3.0]), mu**2), direction, delta=1e-5)
    up = pessimistic(rate, mu, direction, line, spacing)
    down = optimistic(rate, mu, direction, line, spacing)
    assert min(up.mass.min(), down.mass.min()) >= 0
    assert up.mass.sum() + up.lost >= 1 - 1e-12
    assert 1 - 1e-9 <= down.mass.sum() <= 1
    for epsilon in (0.05, 0.5, 2.0):
        truth = one_step(1 / mu, rate, epsilon, direction)
        above, below = (
            float(step.mass @ np.maximum(0.0, -np.expm1(np.minimum(epsilon - step.points * spacing + step.offset, 0))))
            for step in (up, down)
        )
        assert below - 1e-15 <= truth <= above + up.lost + 1e-15


def test_far_out_nothing_overflows():
    levels = levels_from((0.02, 0.01), (0.02, 0.01))
    line = line_for(levels, "remove", delta=1e-5)
    with np.errstate(over="ignore", under="ignore"):
        low = compose(levels, "remove", line=line, upper=False)
        high = compose(levels, "remove", line=line, upper=True)
    for epsilon in (0.0, 1.0, line.epsilon, 3 * line.epsilon, 1e5):
        assert low.log_delta(epsilon) <= high.log_delta(epsilon) <= 0
