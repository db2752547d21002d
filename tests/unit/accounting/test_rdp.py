"""Rényi accounting against many digits, both conversions, gathered levels, and fixed-size sampling."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st

from oracle import psi
from privet.accounting import rdp
from privet.accounting.accountant import spent
from privet.accounting.ledger import Ledger, Step
from privet.accounting.rdp import MOMENTS_ORDERS, Divergence, epsilon, epsilon_from_rdp, epsilon_from_rdp_old
from privet.errors import InvalidValue, Unsupported

DELTA = 1e-5


def constant(noise: float, rate: float, count: int, sampling="poisson") -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=sampling), count)
    return ledger


@pytest.mark.parametrize("order", [1.1, 1.5, 2.0, 7.3])
@pytest.mark.parametrize(("noise", "rate"), [(1.1, 256 / 60000), (0.5, 0.01), (4.0, 0.3)])
def test_the_divergence_is_just_above_many_digits(noise, rate, order):
    exact = float(mpmath.log(psi(noise, rate, order).real)) / (order - 1)
    found = Divergence(constant(noise, rate, 1))(order)
    assert exact <= found <= exact * (1 + 1e-9) + 1e-13


def test_rate_one_is_a_line():
    assert Divergence(constant(3.0, 1.0, 12))(5.0) == pytest.approx(5 * 12 / 18, rel=1e-10)


@pytest.mark.parametrize("order", [1.05, 3.0, 20.0])
@pytest.mark.parametrize("many_rates", [False, True])
def test_gathered_levels_cost_a_little_more_never_less(order, many_rates):
    r = np.random.default_rng(0)
    noise = r.uniform(0.7, 5.0, 600)
    rate = r.uniform(0.005, 0.02, 600) if many_rates else np.full(600, 0.01)
    ledger = Ledger()
    ledger.extend(noise_multiplier=noise, sample_rate=rate)
    exact = sum(Divergence(constant(n, q, 1))(order) for n, q in zip(noise, rate, strict=True))
    found = Divergence(ledger)(order)
    assert exact * (1 - 1e-9) <= found <= exact * (1.25 if many_rates else 1.05)


@given(order=st.floats(1.01, 500), cost=st.floats(0, 50), log_delta=st.floats(-60, -0.01))
def test_the_new_conversion_is_never_worse_than_the_old(order, cost, log_delta):
    delta = math.exp(log_delta)
    new, old = (f(order=order, rdp=cost, delta=delta) for f in (epsilon_from_rdp, epsilon_from_rdp_old))
    assert 0 <= new <= old * (1 + 1e-12)


def test_every_order_is_a_bound_and_the_search_takes_the_best():
    """Canonne, Kamath, Steinke 2020, Proposition 12, at each order, above the lower bound of the tight accountant."""
    ledger = constant(1.1, 256 / 60000, 14063)
    lower = spent(ledger, DELTA).epsilon_lower
    best = epsilon(ledger, DELTA)
    for order in (2.0, 6.0, 9.0, 12.5, 30.0):
        assert best <= epsilon(ledger, DELTA, orders=[order]) * (1 + 1e-9)
        assert lower <= epsilon(ledger, DELTA, orders=[order])
    grid = epsilon(ledger, DELTA, orders=np.linspace(5, 20, 600).tolist())
    assert best == pytest.approx(grid, rel=1e-5)


def test_the_moments_accountant_is_the_old_conversion_on_its_orders():
    ledger = constant(1.3, 256 / 60000, 3516)
    by_hand = min(epsilon_from_rdp_old(order=a, rdp=Divergence(ledger)(a), delta=DELTA) for a in MOMENTS_ORDERS)
    assert spent(ledger, DELTA, accountant="moments").epsilon == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("noise", [0.05, 0.3, 2.0, 100.0])
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.999])
def test_above_the_truth_everywhere(noise, rate):
    ledger = constant(noise, rate, 50)
    found = spent(ledger, DELTA, accountant="rdp")
    assert found.epsilon_lower is None
    assert spent(ledger, DELTA).epsilon_lower <= found.epsilon < math.inf


def wang(noise: float, rate: float, order: int) -> mpmath.mpf:
    """Wang, Balle, Kasiviswanathan 2019, Theorem 9, term by term."""
    with mpmath.workdps(40):

        def eps(j):
            return mpmath.mpf(j) / (2 * mpmath.mpf(noise) ** 2)

        second = min(4 * mpmath.expm1(eps(2)), 2 * mpmath.exp(eps(2)))
        total = 1 + mpmath.mpf(rate) ** 2 * mpmath.binomial(order, 2) * second
        for j in range(3, order + 1):
            total += 2 * mpmath.mpf(rate) ** j * mpmath.binomial(order, j) * mpmath.exp((j - 1) * eps(j))
        return mpmath.log(total) / (order - 1)


@pytest.mark.parametrize("order", [2, 3, 10, 40])
@pytest.mark.parametrize(("noise", "rate"), [(4.0, 0.01), (1.0, 0.1), (0.8, 0.5)])
def test_fixed_size_is_the_theorem_term_by_term(noise, rate, order):
    found = Divergence(constant(noise, rate, 7, "fixed-size"))(float(order))
    assert found == pytest.approx(7 * float(wang(noise, rate, order)), rel=1e-9)
    assert found <= Divergence(constant(noise, rate, 7, "fixed-size"))(order + 0.5) * (1 + 1e-12) * (order + 1) / order


def test_fixed_size_and_poisson_steps_add_up():
    both = constant(4.0, 0.01, 10, "fixed-size")
    both.add(Step(noise_multiplier=2.0, sample_rate=0.02), 5)
    apart = Divergence(constant(4.0, 0.01, 10, "fixed-size"))(8.0) + Divergence(constant(2.0, 0.02, 5))(8.0)
    assert Divergence(both)(8.0) == pytest.approx(apart, rel=1e-9)


def test_fixed_size_has_no_theorem_for_add_remove():
    assert spent(constant(4.0, 0.01, 10, "fixed-size"), DELTA, accountant="rdp", adjacency="replace-one").epsilon > 0
    with pytest.raises(Unsupported, match="one size only"):
        spent(constant(4.0, 0.01, 10, "fixed-size"), DELTA, accountant="rdp", adjacency="add-remove")


def test_an_order_of_one_or_less_is_refused():
    with pytest.raises(InvalidValue, match="order"):
        Divergence(constant(1.0, 0.1, 1))(1.0)
    assert rdp.Rdp.conversion == "new"


@pytest.mark.parametrize("order", [1.5, 2.0, 6.0])
def test_gathered_levels_are_a_bound_for_tiny_noise_too(order):
    """Phi(mu / 2) is 1 in doubles from mu = 17 on: the share between two nodes must not become 0 there."""
    noise = np.geomspace(0.02, 0.2, 300)
    ledger = Ledger()
    ledger.extend(noise_multiplier=noise, sample_rate=0.05)
    exact = sum(Divergence(constant(float(n), 0.05, 1))(order) for n in noise)
    assert exact * (1 - 1e-9) <= Divergence(ledger)(order) <= exact * 1.1
