"""zCDP: the theorem at rate 1, the published rule below, and which is which."""

import pytest

from privet.accounting.gdp import epsilon_of_mu
from privet.accounting.ledger import Ledger, Step
from privet.published.accountants import Zcdp, epsilon_of_rho, rho_of


def test_a_whole_dataset_gaussian_has_half_its_squared_mu():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[1.0, 2.0])
    assert rho_of(ledger) == pytest.approx(0.5 + 0.125)
    assert Zcdp().label(ledger, 1e-5) == "certified"


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_certified_value_is_above_the_exact_curve(mu, delta):
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=1 / mu))
    lower, upper = Zcdp().bounds(ledger, delta)
    assert lower is None
    assert upper >= epsilon_of_mu(mu, delta)


def test_the_sampled_rule_is_only_claimed():
    """Rate 0.01, noise 0.5, 100 steps: the rule says 1.397, the truth is 6.476."""
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=0.5, sample_rate=0.01), 100)
    assert Zcdp().bounds(ledger, 1e-5)[1] == pytest.approx(1.397, abs=5e-4)
    assert Zcdp().label(ledger, 1e-5) == "claimed"


def test_one_sampled_step_makes_the_whole_ledger_claimed():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[2.0, 2.0], sample_rate=[1.0, 0.5])
    assert rho_of(ledger) == pytest.approx(1 / 8 + 1 / 16)
    assert Zcdp().label(ledger, 1e-5) == "claimed"


def test_nothing_costs_nothing():
    assert epsilon_of_rho(0.0, 1e-5) == 0
