"""Composition theorems: honest about delta, safe for large ledgers, and the paper's way kept apart."""

import math

import numpy as np
import pytest

from privet.accounting import composition
from privet.accounting.composition import Advanced, Basic, Optimal
from privet.accounting.gdp import epsilon_of_mu
from privet.accounting.ledger import Ledger, Step
from privet.published.accountants import AdvancedWei, BasicWei, OptimalWei

HONEST = (Basic, Advanced, Optimal)


def constant(noise: float = 6.0, rate: float = 0.01, count: int = 10000) -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate), count)
    return ledger


def test_one_release_on_everything_is_the_exact_curve():
    exact = epsilon_of_mu(1 / 2, 1e-5)
    assert exact <= Basic().bounds(constant(2.0, 1.0, 1), 1e-5)[1] <= exact * (1 + 1e-9)


@pytest.mark.parametrize("kind", HONEST)
def test_at_rate_one_the_bound_is_above_the_exact_composition(kind):
    for noise, count in ((0.5, 3), (5.0, 40), (300.0, 10000)):
        assert kind().bounds(constant(noise, 1.0, count), 1e-5)[1] >= epsilon_of_mu(math.sqrt(count) / noise, 1e-5)
        assert kind().label(constant(noise, 1.0, count), 1e-5) == "certified"


def test_optimal_is_the_best():
    for ledger in (constant(), constant(50.0), constant(6.0, 1.0, 10), constant(1.0, 0.001, 3)):
        basic, advanced, optimal = (kind().bounds(ledger, 1e-5)[1] for kind in HONEST)
        assert optimal <= min(basic, advanced)


def test_deltas_are_added_up():
    """Advanced composition by hand, half of delta to the steps: the accountant's best split is no worse, and near."""
    steps, rate, delta, mu = 10000, 0.01, 1e-5, 1 / 6
    single = epsilon_of_mu(mu, 0.5 * delta / steps / rate)
    each = math.log1p(rate * math.expm1(single))
    by_hand = steps * each * math.tanh(each / 2) + each * math.sqrt(2 * steps * math.log(2 / delta))
    found = Advanced().bounds(constant(), delta)[1]
    assert 0.98 * by_hand < found <= by_hand


def test_amplification_is_stable():
    epsilons = np.array([1e-12, 0.5, 0.999999, 1.0, 50.0, 5000.0])
    for rate in (1e-6, 0.3, 1.0):
        found = composition.amplified_epsilon(epsilons, np.full(6, rate))
        assert found[0] == pytest.approx(rate * 1e-12)
        assert found[5] == pytest.approx(5000 + math.log(rate))
        assert (np.diff(found) > 0).all()
    assert composition.amplified_epsilon(epsilons, np.ones(6)) == pytest.approx(epsilons)


@pytest.mark.parametrize("kind", HONEST)
def test_many_different_steps_cost_a_little_more_never_less(kind, monkeypatch):
    ledger = Ledger()
    ledger.extend(noise_multiplier=np.geomspace(8, 4, 3000), sample_rate=np.geomspace(0.01, 0.02, 3000))
    exact = kind().bounds(ledger, 1e-5)[1]
    monkeypatch.setattr(composition, "MOST_DISTINCT", 100)
    assert exact <= kind().bounds(ledger, 1e-5)[1] <= 1.003 * exact


def test_the_grid_is_never_too_favourable(monkeypatch):
    monkeypatch.setattr(composition, "MOST_DISTINCT", 0)
    ledger = Ledger()
    ledger.extend(noise_multiplier=2.0 ** np.arange(-3, 4), sample_rate=[1.0, 0.5, 0.25, 0.1, 1 / 3, 0.9, 1.0])
    noise, rate, counts = composition.distinct_steps(ledger)
    assert (np.sort(noise) <= np.sort(ledger.columns().noise_multiplier)).all()
    assert (np.sort(rate) >= np.sort(ledger.columns().sample_rate)).all()
    assert (rate <= 1).all()
    assert counts.sum() == 7


def test_the_papers_way_is_a_claim():
    for kind in (BasicWei, AdvancedWei, OptimalWei):
        assert kind().label(constant(), 1e-5) == "claimed"
    assert OptimalWei().bounds(constant(), 1e-5)[1] == pytest.approx(6.740, abs=5e-4)


def test_the_papers_way_can_under_report():
    """Epsilon_0 of one step rounds to 0.000 in its tables, so a million steps with mu = 0.1 in all cost nothing."""
    ledger = constant(noise=10_000.0, rate=1.0, count=10**6)
    assert BasicWei().bounds(ledger, 1e-5)[1] == 0 < epsilon_of_mu(0.1, 1e-5) < Basic().bounds(ledger, 1e-5)[1]


def test_overflow_of_the_papers_advanced_form_is_refused():
    assert "overflows" in (
        AdvancedWei().unsupported_reason(Step(noise_multiplier=0.05, sample_rate=0.1), "zero-out") or ""
    )


@pytest.mark.slow
def test_a_million_different_steps():
    ledger = Ledger()
    ledger.extend(noise_multiplier=np.geomspace(80, 40, 10**6), sample_rate=0.001)
    assert 0 < Optimal().bounds(ledger, 1e-6)[1] < Basic().bounds(ledger, 1e-6)[1]
