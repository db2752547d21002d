"""The methods: their shapes are their papers' formulas, their labels what is proven, their siblings sound."""

import math

import numpy as np
import pytest

from privet.accounting import gdp, spent
from privet.errors import InvalidValue, Unsupported
from privet.planning import METHODS, method, plan
from privet.planning.calibrate import proactive_noise
from privet.planning.clipping_rules import SOUND_RULES, UNSOUND_RULES
from privet.published.accountants import (
    auto_exponential,
    auto_linear,
    auto_step,
    auto_time,
    closed_form_holds,
    epsilon_of_rho,
)

BASE = {"epsilon": 1.2, "delta": 1e-5, "dataset_size": 60000, "batch_size": 600, "epochs": 30}
RHOS = {"rho_noise": 3.3, "rho_clip": 2.5}


def planned(name, **more):
    needs = {key: RHOS[key] for key in METHODS[name].needs}
    return plan(**{**BASE, "method": name, **needs, **more})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_sound_by_default(name):
    p = planned(name)
    assert (p.guarantee.label, p.guarantee.method) == ("certified", "pld")
    assert 1.2 * (1 - 1e-4) <= p.guarantee.epsilon <= 1.2
    assert p.certified == p.guarantee
    assert p.rule in SOUND_RULES
    assert not p.is_unsound


@pytest.mark.parametrize("name", METHODS)
def test_every_method_as_published_has_its_label(name):
    row, p = METHODS[name], planned(name, uncertified=True)
    assert p.guarantee.label == row.label
    assert p.guarantee.epsilon <= 1.2
    assert p.guarantee.epsilon == pytest.approx(1.2, rel=1e-4)
    assert p.is_unsound == (p.certified is None) == (row.published_rule in UNSOUND_RULES)
    if row.label != "certified":
        assert row.caveat
        assert p.guarantee.epsilon_lower is None


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_every_row_says_what_is_needed(row):
    said = row.as_dict()
    assert said["paper"]
    assert said["certified_variant"]
    assert (row.label == "certified") == (row.caveat == "")
    assert row.caveat.count(". ") == 0  # one sentence
    assert row.rule in SOUND_RULES


def test_growing_mu_is_the_published_formula():
    """Du et al. 2021, eq. 11 to 13: mu_t = rho^(t/T) mu_0 and the multiplier is (1 / mu_0) rho^(-t/T), t = 1 .. T."""
    p = planned("growing-mu", uncertified=True)
    T, mu_0 = len(p.steps), 1 / p.peak_noise_multiplier
    assert T == 3000
    wanted = [1 / mu_0 * 3.3 ** (-t / T) for t in range(1, T + 1)]
    assert p.steps.noise_multipliers == pytest.approx(np.array(wanted), rel=1e-12)
    total = 0.01 * math.sqrt(sum(math.expm1((3.3 ** (t / T) * mu_0) ** 2) for t in range(1, T + 1)))
    assert total == pytest.approx(gdp.mu_of(1.2, 1e-5), rel=1e-9)
    assert (p.steps.clipping_norms == 1).all()


def test_sensitivity_decay_is_the_published_formula():
    """Du et al. 2021, eq. 14: C_t = rho^(-t/T) C_0; mu is constant, in closed form; std C_t / mu_0."""
    p = planned("sensitivity-decay", uncertified=True, clipping_norm=1.5)
    T = len(p.steps)
    assert p.steps.clipping_norms == pytest.approx(
        np.array([1.5 * 2.5 ** (-t / T) for t in range(1, T + 1)]), rel=1e-12
    )
    q = 0.01
    assert 1 / p.peak_noise_multiplier == pytest.approx(
        math.sqrt(math.log(gdp.mu_of(1.2, 1e-5) ** 2 / (q**2 * T) + 1)), rel=1e-9
    )
    assert np.ptp(p.steps.noise_multipliers) == 0


def test_dynamic_is_both():
    """Du et al. 2021, Algorithm 2, line 4: the standard deviation is (C_0 / mu_0) (rho_mu rho_c)^(-t/T)."""
    p = planned("dynamic", clipping_norm=2.0)
    T = len(p.steps)
    wanted = [2.0 * p.peak_noise_multiplier * (3.3 * 2.5) ** (-t / T) for t in range(1, T + 1)]
    assert p.steps.noise_multipliers * p.steps.clipping_norms == pytest.approx(np.array(wanted), rel=1e-12)


def test_algorithm_1_shows_the_certified_epsilon_beside_the_approximate_one():
    p = planned("dynamic", accountant="gdp")
    assert p.guarantee.label == "approximate"
    assert p.guarantee.epsilon == pytest.approx(1.2, rel=1e-9)
    assert p.certified is not None
    assert p.certified.label == "certified"
    assert p.certified.epsilon == spent(p.ledger(), 1e-5).epsilon
    assert p.certified.epsilon_lower > 1.2  # the central limit theorem reports too little here


@pytest.mark.parametrize(
    ("epsilon", "size", "batch", "steps", "formula", "needed"),
    [
        (2.0, 60000, 256, 60000, 3.676, 2.203),
        (2.0, 60000, 600, 60000, 3.676, 4.941),
        (2.0, 10000, 1000, 10000, 3.676, 19.97),
        (0.1, 1000, 1000, 1, 15.24, 30.75),
    ],
)
def test_proactive_closed_form_and_what_is_needed(epsilon, size, batch, steps, formula, needed):
    """The abstract's sigma = sqrt(2 (eps + ln(1/delta)) / eps), and the certified noise at the same budget."""
    given = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "dataset_size": size,
        "batch_size": batch,
        "steps": steps,
        "method": "proactive",
    }
    published, sound = plan(**given, uncertified=True), plan(**given)
    assert published.peak_noise_multiplier == pytest.approx(formula, abs=5e-4 if formula < 10 else 5e-3)
    assert published.peak_noise_multiplier == pytest.approx(proactive_noise(epsilon=epsilon, delta=1e-5), rel=1e-12)
    assert sound.peak_noise_multiplier == pytest.approx(needed, rel=3e-4)
    assert published.guarantee.label == "claimed"
    assert published.certified is not None
    assert (published.certified.epsilon <= epsilon) == (needed < formula) == closed_form_holds(published.ledger(), 1e-5)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("auto-linear", auto_linear),
        ("auto-time", auto_time),
        ("auto-step", auto_step),
        ("auto-exp", auto_exponential),
    ],
)
def test_auto_dp_sgd_as_published_is_table_8(name, form):
    """The height at which the closed form of Table 8 gives the budget; R = sigma_0 / E for time decay (Table 1)."""
    p = plan(epsilon=0.3, delta=1e-5, dataset_size=60000, batch_size=64, epochs=50, method=name, uncertified=True)
    if name == "auto-time":
        assert p.steps.noise_multipliers[-1] == pytest.approx(
            p.peak_noise_multiplier / math.sqrt(1 + p.peak_noise_multiplier / 50 * 49), rel=1e-9
        )
    rho, _ = form(noise_multiplier=p.peak_noise_multiplier, sample_rate=64 / 60000, epochs=50)
    assert epsilon_of_rho(rho, 1e-5) == pytest.approx(0.3, rel=1e-9)
    assert p.guarantee.method == f"{name} closed form"


@pytest.mark.parametrize(
    ("name", "claimed"), [("auto-linear", 0.2429), ("auto-time", 0.2268), ("auto-step", 0.1874), ("auto-exp", 9.994)]
)
def test_auto_dp_sgd_claims_at_noise_one(name, claimed):
    """M = 60000, B = 64, sigma_0 = C = 1, E = 100, delta 1e-5: the claims, from plans that ask for epsilon."""
    p = plan(
        delta=1e-5, dataset_size=60000, batch_size=64, epochs=100, method=name, uncertified=True, noise_multiplier=1.0,
        solve="epsilon"
    )  # fmt: skip
    assert p.guarantee.epsilon == pytest.approx(claimed, rel=3e-4)
    assert p.certified is None


def test_wei_and_liu_as_published_is_the_moments_accountant():
    """DP-baseline, q = 0.01, sigma = 6, delta = 1e-5, 10,000 iterations: MA 0.823 in the paper's Table V."""
    given = {
        "delta": 1e-5,
        "dataset_size": 60000,
        "batch_size": 600,
        "steps": 10000,
        "noise_multiplier": 6.0,
        "solve": "epsilon",
    }
    p = plan(**given, method="dp-baseline", uncertified=True)
    assert (p.guarantee.label, p.guarantee.method) == ("claimed", "moments")
    assert p.guarantee.epsilon == pytest.approx(0.823, abs=5e-4)
    other = plan(**given, method="dp-baseline", uncertified=True, accountant="zcdp")
    assert other.guarantee.epsilon == pytest.approx(1.159, abs=5e-4)
    assert other.guarantee.label == "claimed"


def test_an_open_shape_may_be_given_and_a_fixed_one_may_not():
    p = planned("dyn-sigma", noise_multiplier="linear:end=0.2")
    assert p.shapes["noise"] == "linear:end=0.2"
    with pytest.raises(InvalidValue, match=r"noise_multiplier='linear:end=0.2' does not apply to method='dynamic'"):
        planned("dynamic", noise_multiplier="linear:end=0.2")
    with pytest.raises(InvalidValue, match=r"clipping_norm='linear:end=0.2' does not apply to method='noisy-sgd'"):
        planned("noisy-sgd", clipping_norm="linear:end=0.2")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "dynamic", "rho_noise": 3.0}, "rho_clip is missing"),
        ({"method": "noisy-sgd", "rho_noise": 3.0}, "rho_noise=3.0 does not apply to method='noisy-sgd'"),
        ({"rho_clip": 3.0}, "rho_clip=3.0 does not apply to method=None"),
        ({"uncertified": True}, "uncertified needs a method"),
        ({"method": "auto-time", "uncertified": True, "accountant": "pld"}, "its epsilon is a closed form"),
        ({"method": "auto-time", "batch_size": "256 * linear:end=2", "epochs": None, "steps": 9}, "once in an epoch"),
    ],
)
def test_what_a_method_cannot_take(more, words):
    with pytest.raises(InvalidValue, match=words):
        plan(**{**BASE, **more})


def test_an_unknown_method_is_named():
    with pytest.raises(InvalidValue, match="Did you mean 'growing-mu'"):
        method("growing_mu")


def test_an_unsound_rule_stays_unsound_with_options():
    with pytest.raises(Unsupported, match="has no guarantee"):
        plan(epsilon=2.0, dataset_size=1000, batch_size=100, epochs=2, rule="own_norm:scale=0.5")
    p = plan(
        epsilon=2.0,
        dataset_size=1000,
        batch_size=100,
        epochs=2,
        method="noisy-sgd",
        rule="own_norm:scale=0.5",
        uncertified=True,
    )
    assert p.is_unsound
    assert p.certified is None
    assert p.guarantee.label == "claimed"
