"""The closed form of proactive DP-SGD, read both ways, and its condition."""

import math

import pytest

from privet.accounting.accountant import spent
from privet.accounting.ledger import Ledger, Step
from privet.errors import InvalidValue, Unsupported
from privet.planning.calibrate import proactive_noise
from privet.published.accountants import Proactive, closed_form_holds, proactive_epsilon


def ledger_of(noise: float, rate: float, steps: int) -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate), steps)
    return ledger


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 2.0, 50.0])
def test_noise_and_epsilon_are_inverse(epsilon):
    noise = proactive_noise(epsilon=epsilon, delta=1e-5)
    assert proactive_epsilon(noise_multiplier=noise, delta=1e-5) == pytest.approx(epsilon)


def test_rounds_do_not_matter_to_the_claim():
    claims = {spent(ledger_of(3.7, 0.01, steps), 1e-5, accountant="proactive").epsilon for steps in (1, 100, 10**6)}
    assert len(claims) == 1
    assert spent(ledger_of(3.7, 0.01, 1), 1e-5, accountant="proactive").label == "claimed"


def test_varying_noise_is_read_at_its_least():
    ledger = ledger_of(8.0, 0.01, 10)
    ledger.add(Step(noise_multiplier=3.0, sample_rate=0.01))
    assert Proactive().bounds(ledger, 1e-5)[1] == proactive_epsilon(noise_multiplier=3.0, delta=1e-5)


def test_small_noise_is_refused_with_the_reason():
    with pytest.raises(Unsupported, match=r"above sqrt\(2\)"):
        spent(ledger_of(1.4, 0.01, 10), 1e-5, accountant="proactive")
    assert Proactive().bounds(ledger_of(1.4, 0.01, 10), 1e-5)[1] == math.inf


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "true"),
    [
        (2.0, 256 / 60000, 60000, True),
        (2.0, 600 / 60000, 60000, False),
        (2.0, 1000 / 10000, 10000, False),
        (0.1, 1.0, 1, False),
    ],
)
def test_the_condition_is_decided_by_the_certified_accountant(epsilon, rate, steps, true):
    assert closed_form_holds(ledger_of(proactive_noise(epsilon=epsilon, delta=1e-5), rate, steps), 1e-5) == true


def test_values_out_of_range_are_refused():
    with pytest.raises(InvalidValue, match="epsilon=0"):
        proactive_noise(epsilon=0.0, delta=1e-5)
