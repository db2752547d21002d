"""Gaussian DP against high-precision arithmetic, and the accountant's labels and bounds."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st

from privet.accounting.gdp import (
    Gdp,
    clt_mu,
    delta_of_mu,
    epsilon_of_mu,
    epsilons_of_mu,
    extended_clt_mu,
    mu_of,
    round_outward,
)
from privet.accounting.ledger import Ledger, Step
from privet.errors import InvalidValue

MUS = (1e-6, 1e-3, 0.1, 0.499, 0.5, 1.0, 4.78, 30.0, 100.0)
DELTAS = (1e-300, 1e-100, 1e-12, 1e-5, 0.01, 0.5)


def exact_delta(mu: float, epsilon: mpmath.mpf) -> mpmath.mpf:
    """The slow, obvious way, in 80 digits."""

    def phi(z: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-z / mpmath.sqrt(2)) / 2

    m = mpmath.mpf(mu)
    return phi(-epsilon / m + m / 2) - mpmath.exp(epsilon) * phi(-epsilon / m - m / 2)


@pytest.mark.parametrize(("mu", "delta"), list(itertools.product(MUS, DELTAS)))
def test_outward_rounding_encloses_the_exact_epsilon(mu, delta):
    epsilon = epsilon_of_mu(mu, delta)
    with mpmath.workdps(80):
        if not epsilon:
            assert exact_delta(mu, mpmath.mpf(0)) <= delta
            return
        low, high = round_outward(epsilon, mu)
        assert exact_delta(mu, mpmath.mpf(high)) < delta < exact_delta(mu, mpmath.mpf(low))
    assert delta_of_mu(mu, epsilon) == pytest.approx(delta, rel=1e-9)
    assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-9)


@given(mu=st.floats(1e-6, 300), epsilon=st.floats(0, 1e4))
def test_delta_is_a_probability_and_falls_with_epsilon(mu, epsilon):
    delta = delta_of_mu(mu, epsilon)
    assert 0 <= delta <= 1
    assert delta_of_mu(mu, epsilon * 1.1 + 0.1) <= delta


@given(log_mu=st.floats(-14, 6), log_delta=st.floats(-690, -0.1))
def test_epsilon_is_never_nan(log_mu, log_delta):
    assert 0 <= epsilon_of_mu(math.exp(log_mu), math.exp(log_delta)) < math.inf


def test_a_large_delta_costs_nothing():
    total_variation = math.erf(0.7 / math.sqrt(8))
    assert epsilon_of_mu(0.7, total_variation * (1 + 1e-9)) == 0
    assert epsilon_of_mu(0.7, total_variation * (1 - 1e-9)) > 0
    assert epsilon_of_mu(0.0, 1e-5) == 0


def test_arrays_give_the_single_values():
    mus, deltas = np.meshgrid(MUS, DELTAS)
    expected = [epsilon_of_mu(m, d) for m, d in zip(mus.ravel(), deltas.ravel(), strict=True)]
    assert epsilons_of_mu(mus, deltas).ravel() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [{"mu": -1.0, "delta": 0.1}, {"mu": 1.0, "delta": 0.0}, {"mu": 1.0, "delta": 1.0}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(InvalidValue, match="must"):
        epsilon_of_mu(**bad)


def test_equal_steps_give_the_plain_limit():
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=1.1, sample_rate=0.01), 500)
    assert extended_clt_mu(ledger) == pytest.approx(clt_mu(noise_multiplier=1.1, sample_rate=0.01, steps=500))


def test_the_limit_under_reports_and_says_so():
    """MNIST, noise 0.7, 45 epochs: 5.07 by the limit, 5.640 in truth."""
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=0.7, sample_rate=256 / 60000), 10547)
    lower, epsilon = Gdp().bounds(ledger, 1e-5)
    assert lower is None
    assert epsilon < 5.64
    assert Gdp().label(ledger, 1e-5) == "approximate"


def test_whole_dataset_steps_are_exact():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[2.0, 4.0, 4.0])
    lower, upper = Gdp().bounds(ledger, 1e-5)
    assert lower <= epsilon_of_mu(math.sqrt(0.375), 1e-5) <= upper
    assert upper - lower < 1e-10
    assert Gdp().label(ledger, 1e-5) == "certified"


def test_shuffled_batches_count_the_least_noise_of_each_epoch():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[4.0, 2.0, 4.0, 4.0, 4.0], sample_rate=0.5, sampling="shuffled")
    lower, upper = Gdp().bounds(ledger, 1e-5)
    assert lower is None  # the record's place in an epoch is random: less may leak
    assert upper == pytest.approx(epsilon_of_mu(math.sqrt(1 / 4 + 1 / 16 + 1 / 16), 1e-5))
    assert Gdp().label(ledger, 1e-5) == "certified"
    assert "zero-out" in (Gdp().unsupported_reason(next(iter(ledger))[0], "add-remove") or "")


def test_overflow_is_refused_with_a_reason():
    assert "overflows" in (Gdp().unsupported_reason(Step(noise_multiplier=0.03, sample_rate=0.5), "zero-out") or "")
    assert Gdp().unsupported_reason(Step(noise_multiplier=0.03), "zero-out") is None
