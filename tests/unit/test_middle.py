"""The middle frequencies: the rough rule errs by no more than it says, and the bound is above the true sum."""

import math

import numpy as np
import pytest

from privet.accounting.levels import Levels
from privet.accounting.middle import ROUGH, middle, rough
from privet.accounting.moments import TooHard, exponent


def law(rate: float, mu: float, s: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tilted law of x on a fine grid, and the loss there: plain Riemann sums, nothing shared with the library."""
    losses = np.log1p(rate * np.expm1(mu * x - mu**2 / 2))
    weights = np.exp(s * losses - x**2 / 2)
    return weights / weights.sum(), losses


def transform(rate, mu, direction, c, u):
    x = np.arange(-14.0, max(14.0, 14.0 + exponent(direction, c) * mu), 5e-4)
    weights, losses = law(rate, mu, exponent(direction, c), x)
    return np.array([abs((weights * np.exp(1j * v * losses)).sum()) for v in np.atleast_1d(u)])


CASES = [("remove", 0.01, 0.8, 4.0), ("add", 0.01, 0.8, 15.0), ("remove", 0.3, 1.5, 1.0), ("add", 0.004, 0.4, 40.0)]


@pytest.mark.parametrize(("direction", "rate", "mu", "c"), CASES)
@pytest.mark.parametrize("frequency", [5.0, 60.0, 400.0])
def test_the_rough_rule_is_within_its_error(direction, rate, mu, c, frequency):
    s = exponent(direction, c)
    rule = rough(np.array([rate]), np.array([mu]), s, frequency)
    weights, losses = law(rate, mu, s, rule.nodes)
    u = np.linspace(0.0, frequency, 23)
    found = np.array([abs((weights * np.exp(1j * v * losses)).sum()) for v in u])
    assert rule.error == pytest.approx(ROUGH, rel=1e-6)
    assert (np.abs(found - transform(rate, mu, direction, c, u)) <= 2.1 * rule.error).all()  # and Psi, once more


@pytest.mark.parametrize(("direction", "rate", "mu", "c"), CASES)
def test_the_bound_is_above_the_sum_of_all_steps(direction, rate, mu, c):
    """Three levels, 30 steps each: the true product is far below the bound, one step's transform is not."""
    mus = mu * np.array([0.9, 1.0, 1.1])
    levels = Levels(np.full(3, rate), mus, np.full(3, 30.0), 0.0)
    h, first, last = 3.0, 4, 40
    u = h * np.arange(first + 1, last + 1)
    sizes = np.prod([transform(rate, m, direction, c, u) ** 30 for m in mus], axis=0)
    bound = middle(levels, direction, c, h, first, last)
    assert h / math.pi * float((sizes / u**2).sum()) <= bound <= h / math.pi * float((1 / u**2).sum()) * (1 + 1e-6)
    one = Levels(np.array([rate]), np.array([mu]), np.ones(1), 0.0)
    true = h / math.pi * float((transform(rate, mu, direction, c, u) / u**2).sum())
    assert true <= middle(one, direction, c, h, first, last) <= true * (1 + 3 * ROUGH) + 3 * ROUGH / u[0]


def test_whole_dataset_steps_help():
    levels = Levels(np.array([0.01]), np.array([0.5]), np.array([20.0]), 0.0)
    with_gaussian = Levels(levels.rate, levels.mu, levels.count, 0.5)
    assert middle(with_gaussian, "remove", 3.0, 1.0, 4, 20) < 1e-3 * middle(levels, "remove", 3.0, 1.0, 4, 20)


def test_too_much_work_is_left_to_another_route():
    levels = Levels(np.array([0.01]), np.array([0.5]), np.array([20.0]), 0.0)
    with pytest.raises(TooHard, match="evaluations"):
        middle(levels, "remove", 3.0, 1.0, 4, 20, work=10)
