"""What every noise mechanism promises, run over every one that is registered: linear, as declared, and charged.

Each statistical test states how often a right mechanism fails it, and rejects a wrong one; seeds are fixed.
"""

import ast
import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import privet
from privet import plan
from privet.accounting import Ledger, Step
from privet.accounting.ledger import Gaussian
from privet.errors import InvalidValue, Unsupported
from privet.ledger.account import Charge, InMemory, issue_uncharged
from privet.noise.mechanism import Sums, mechanism_names, register, resolve_mechanism
from privet.noise.randomness import seeded
from privet.noise.release import IndependentGaussian, Releaser

ALARM = 1e-6
STD, DIVISOR, STEPS, ENTRIES = 1.7, 6.0, 5, 4000
SPECS = {Gaussian: Gaussian()}  # one of each kind

every_mechanism = pytest.mark.parametrize(
    ("kind", "secure"), [(kind, secure) for kind in mechanism_names() for secure in (False, True)], ids=str
)


def noised(mechanism, sums, randomness, *, std=STD):
    """What steps on these sums give away."""
    state, found = mechanism.init({"w": sums[0]}), []
    for number, total in enumerate(sums):
        job = [Sums(values={"w": total.clone()}, std=std, noise=2.0)]
        charge = issue_uncharged(Step(noise_multiplier=2.0, clipping_norm=std / 2.0))
        noisy, state = mechanism.privatize(job, charge, state, randomness, divisor=DIVISOR)
        assert len(noisy) == 1, number
        found.append(noisy[0].values["w"].double())
    return torch.stack(found)


def on_the_grid(shape, seed):
    """Whole numbers of cells of any grid, so that secure noise rounds nothing."""
    return torch.randint(-50, 50, shape, generator=torch.Generator().manual_seed(seed)).double() / 8


@every_mechanism
def test_with_one_randomness_outputs_differ_by_the_difference_of_the_sums(kind, secure):
    """To the last digits of a double: noise does not look at what it hides."""
    one, other = (on_the_grid((STEPS, 50), seed) for seed in (1, 2))
    first, second = (noised(resolve_mechanism(SPECS[kind], secure_noise=secure), s, seeded(5)) for s in (one, other))
    torch.testing.assert_close(first - second, (one - other) / DIVISOR, rtol=0, atol=1e-14)


def covariance_is(noise, declared):
    """Whether rows of noise, (steps, entries), have this covariance: Wishart, so each statistic is chi-square."""
    white = np.linalg.solve(np.linalg.cholesky(declared), noise)
    n = white.shape[1]
    low, high = stats.chi2(n).ppf([ALARM / 2, 1 - ALARM / 2])
    gram = white @ white.T
    off = gram[np.triu_indices(len(gram), 1)] / np.sqrt(n)  # normal
    return bool((low <= np.diag(gram)).all() and (np.diag(gram) <= high).all()) and bool(
        (np.abs(off) <= stats.norm.isf(ALARM / 2)).all()
    )


@every_mechanism
def test_on_zero_sums_the_noise_has_the_declared_covariance_over_steps(kind, secure):
    """Fails less than once in 60,000: fifteen statistics, each once in a million. Wrong ones are caught."""
    mechanism = resolve_mechanism(SPECS[kind], secure_noise=secure)
    drawn = noised(mechanism, [torch.zeros(ENTRIES)] * STEPS, seeded(6)).numpy() * DIVISOR / STD
    assert covariance_is(drawn, mechanism.covariance(STEPS))
    assert not covariance_is(drawn * 0.9, mechanism.covariance(STEPS))
    assert not covariance_is(np.roll(drawn, 1, 0) + drawn, 2 * mechanism.covariance(STEPS))  # each step in two


@every_mechanism
def test_the_sums_stay_as_they_are(kind, secure):
    total = torch.ones(7)
    job = [Sums(values={"w": total}, std=STD, noise=2.0)]
    resolve_mechanism(SPECS[kind], secure_noise=secure).privatize(
        job, issue_uncharged(Step(noise_multiplier=2.0)), None, seeded(1), divisor=DIVISOR
    )
    assert torch.equal(total, torch.ones(7))


@every_mechanism
def test_a_secret_state_is_taken_up_again(kind, secure):
    mechanism = resolve_mechanism(SPECS[kind], secure_noise=secure)
    state = mechanism.init({"w": torch.zeros(3)})
    assert str(mechanism.load_secret(mechanism.save_secret(state))) == str(state)


# --- charges -------------------------------------------------------------------------------------------


@every_mechanism
def test_a_charge_pays_for_one_release(kind, secure):
    mechanism, charge = resolve_mechanism(SPECS[kind], secure_noise=secure), issue_uncharged(Step(noise_multiplier=2.0))
    job = [Sums(values={"w": torch.zeros(3)}, std=STD, noise=2.0)]
    mechanism.privatize(job, charge, None, seeded(1), divisor=DIVISOR)
    with pytest.raises(InvalidValue, match="has had its noise"):
        mechanism.privatize(job, charge, None, seeded(1), divisor=DIVISOR)


@every_mechanism
def test_a_charge_for_another_kind_of_noise_pays_for_none(kind, secure):
    class Other(Gaussian):
        pass

    job = [Sums(values={"w": torch.zeros(3)}, std=STD, noise=2.0)]
    with pytest.raises(InvalidValue, match="is not that of step=0"):
        resolve_mechanism(SPECS[kind], secure_noise=secure).privatize(
            job, issue_uncharged(Step(noise_multiplier=2.0, mechanism=Other())), None, seeded(1), divisor=DIVISOR
        )


def test_a_charge_comes_from_an_account_alone():
    with pytest.raises(InvalidValue, match="not made by hand"):
        Charge(object(), 0, Step(noise_multiplier=1.0), 1.0)
    p = plan(delta=1e-5, dataset_size=100, batch_size=10, steps=2, noise_multiplier=2.0, solve="epsilon")
    charge = InMemory(p).charge(0)
    assert (charge.number, charge.step, charge.clip) == (0, p.steps[0], p.steps[0].clipping_norm)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidValue, match="no copies"):
            copied(charge)


@pytest.mark.parametrize(
    ("name", "files"), [("issue", {"account.py", "distributed.py"}), ("issue_uncharged", {"release.py"})]
)
def test_charges_are_made_in_few_places(name, files):
    """Accounts make those of a ledger; the only other ones are of `release`, whose caller charges."""
    source = Path(privet.__file__).parent
    calls = {
        file.name
        for file in source.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }
    assert calls == files


def test_a_releaser_takes_the_noise_from_the_charge():
    assert "step" not in Releaser.__annotations__


def test_a_mechanism_that_nobody_draws_or_prices_is_refused():
    class Other(Gaussian):
        pass

    with pytest.raises(Unsupported, match="cannot be drawn"):
        resolve_mechanism(Other())
    with pytest.raises(InvalidValue, match="is drawn already"):
        register(Gaussian)(IndependentGaussian)
    with pytest.raises(Unsupported, match="has no theorem"):
        Ledger().add(Step(noise_multiplier=1.0, mechanism=Other()))


def test_the_default_is_not_written():
    assert repr(Step(noise_multiplier=1.0)) == repr(Step(noise_multiplier=1.0, mechanism=Gaussian()))
    assert "mechanism" not in repr(Step(noise_multiplier=1.0))
