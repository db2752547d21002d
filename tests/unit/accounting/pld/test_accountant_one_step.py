"""One sampled release in closed form, against many digits, where doubles cancel or overflow."""

import mpmath as mp
import numpy as np
import pytest

from privet.accounting.pld.accountant import one_step_delta, one_step_epsilon


def exact(rate: float, mu: float, epsilon: float, direction: str) -> mp.mpf:
    """The hockey-stick divergence by its definition, in 60 digits (Gaussian tails by mpmath)."""
    with mp.workdps(60):
        q, m, e = mp.mpf(rate), mp.mpf(mu), mp.mpf(epsilon)
        above = mp.ncdf  # P(N(0,1) < x)
        if direction == "remove":  # P = (1-q) N(0,1) + q N(mu,1) is more than e^eps Q for x > t
            if mp.exp(e) - 1 + q <= 0:
                return 1 - mp.exp(e)
            t = (mp.log((mp.exp(e) - 1 + q) / q) + m**2 / 2) / m
            return (1 - q) * above(-t) + q * above(m - t) - mp.exp(e) * above(-t)
        left = 1 - mp.exp(e) * (1 - q)
        if left <= 0:
            return mp.mpf(0)
        t = (mp.log(left / (mp.exp(e) * q)) + m**2 / 2) / m  # Q-mixture is small for x < t
        return above(t) - mp.exp(e) * ((1 - q) * above(t) + q * above(t - m))


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_delta_encloses_the_truth_everywhere(direction):
    r = np.random.default_rng(5)
    for _ in range(400):
        rate, mu = float(r.uniform(1e-4, 1)), float(np.exp(r.uniform(np.log(1e-3), np.log(40))))
        epsilon = float(r.choice([r.uniform(0, 1), r.uniform(0, 3 * mu**2 + 1), r.uniform(-1, 0)]))
        low, high = one_step_delta(rate, mu, epsilon, direction)
        truth = exact(rate, mu, epsilon, direction)
        assert low <= truth <= high, (rate, mu, epsilon)
        assert high - low <= 1e-9 * high + 1e-280


@pytest.mark.parametrize(
    ("rate", "mu", "epsilon"), [(0.4826, 38.7, 1496.0), (1e-3, 0.001, 1e-7), (0.9, 60.0, 2000.0), (0.01, 30.0, 800.0)]
)
def test_far_out_and_close_in(rate, mu, epsilon):
    """A clamp of the exponent at 700 and a cancelling logarithm were wrong by 1e82 and by 1e-7 here."""
    low, high = one_step_delta(rate, mu, epsilon, "remove")
    assert low <= exact(rate, mu, epsilon, "remove") <= high


def test_epsilon_encloses_the_truth_also_where_delta_is_nearly_the_rate():
    r = np.random.default_rng(6)
    for _ in range(200):
        rate, mu = float(r.uniform(1e-3, 1)), float(np.exp(r.uniform(np.log(0.05), np.log(15))))
        delta = rate * float(r.choice([r.uniform(0.9, 1), 10 ** r.uniform(-12, -1)]))
        low, high = one_step_epsilon(rate, mu, delta)
        assert low <= high
        assert low == 0 or exact(rate, mu, low, "remove") >= mp.mpf(delta)
        assert exact(rate, mu, high, "remove") <= mp.mpf(delta)
