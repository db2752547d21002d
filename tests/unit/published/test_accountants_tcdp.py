"""tCDP: when the label is `certified`, and what the published closed forms compute."""

import math

import numpy as np
import pytest

from privet.accounting.ledger import Ledger, Step
from privet.accounting.sampling import FixedSize
from privet.errors import InvalidValue
from privet.published.accountants import (
    Tcdp,
    auto_exponential,
    auto_linear,
    auto_step,
    auto_time,
    lemma_3_holds,
    tcdp_of,
)


def sampled(noise: float, rate: float, count: int, sampling: str = "fixed-size") -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=sampling), count)
    return ledger


def test_lemmas_by_hand():
    rho, omega = tcdp_of(sampled(4.0, 0.01, 10))
    assert rho == pytest.approx(10 * 13 * 0.01**2 / 32)
    assert omega == pytest.approx(math.log(100) * 32 / 4)


@pytest.mark.parametrize(
    ("ledger", "delta", "label"),
    [
        (sampled(20.0, 0.01, 10000), 1e-5, "certified"),
        (sampled(20.0, 0.01, 10000, "poisson"), 1e-5, "claimed"),  # lemma 4 is about samples of a fixed size
        (sampled(2.0, 0.01, 10000), 1e-2, "claimed"),  # rho = 0.125 > 0.1
        (sampled(20.0, 0.2, 10000), 1e-2, "claimed"),  # rate > 0.1
        (sampled(4.0, 0.01, 10), 1e-5, "claimed"),  # delta below exp(-(omega - 1)^2 rho)
        (sampled(0.5, 1.0, 10), 1e-5, "certified"),
    ],
)
def test_label_follows_the_conditions(ledger, delta, label):
    assert Tcdp().label(ledger, delta) == label


def test_lemma_3_at_its_edge():
    assert lemma_3_holds(0.1, 11.0, math.exp(-9.99))
    assert not lemma_3_holds(0.1, 11.0, math.exp(-10.01))
    assert not lemma_3_holds(0.1, 0.5, 0.99)  # no order above 1


def test_fixed_size_needs_replace():
    step = Step(noise_multiplier=20.0, sample_rate=0.01, sampling=FixedSize())
    assert Tcdp().unsupported_reason(step, "replace-one") is None
    assert "replace-one" in (Tcdp().unsupported_reason(step, "zero-out") or "")


def epochs(noise_squared) -> Ledger:
    ledger = Ledger()
    ledger.extend(noise_multiplier=np.sqrt(noise_squared), sample_rate=0.001)
    return ledger


@pytest.mark.parametrize(
    ("form", "variance", "factor"),
    [
        (auto_linear(noise_multiplier=2.0, sample_rate=0.001, epochs=100), 4.0 * 0.99 ** np.arange(100), 1.0),
        (auto_time(noise_multiplier=2.0, sample_rate=0.001, epochs=100), 4.0 / (1 + 0.02 * np.arange(100)), 1.0),
        (
            auto_time(noise_multiplier=3.0, sample_rate=0.001, epochs=2),
            9.0 / (1 + 1.5 * np.arange(2)),
            1.0,
        ),  # R above 1
        (
            auto_exponential(noise_multiplier=2.0, sample_rate=0.001, epochs=100),
            4.0 * np.exp(-0.1 * np.arange(100)),
            1.0,
        ),
        (
            auto_step(noise_multiplier=2.0, sample_rate=0.001, epochs=100),
            4.0 * 0.5 ** (np.arange(100) // 10),
            100.0,
        ),  # D^2 too little
    ],
    ids=["linear", "time", "short-time", "exponential", "step"],
)
def test_closed_forms_are_the_lemmas_over_epochs(form, variance, factor):
    rho, omega = tcdp_of(epochs(variance))
    assert form[0] * factor == pytest.approx(rho)
    assert form[1] == pytest.approx(omega)


def test_closed_forms_scale_with_the_clip():
    one, two = (auto_linear(noise_multiplier=2.0, sample_rate=0.001, epochs=100, clipping_norm=c) for c in (1.0, 2.0))
    assert two == (pytest.approx(4 * one[0]), pytest.approx(one[1] / 4))


def test_closed_forms_check_their_input():
    with pytest.raises(InvalidValue, match="decay=1"):
        auto_linear(noise_multiplier=1.0, sample_rate=0.01, epochs=10, decay=1.0)
