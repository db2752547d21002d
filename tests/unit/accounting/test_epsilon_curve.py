"""Epsilon over a run: certified at every point, rising, and ending where `spent` does."""

import numpy as np
import pytest

from privet.accounting.accountant import spent
from privet.accounting.epsilon_curve import epsilon_curve
from privet.accounting.ledger import Ledger, Step
from privet.errors import InvalidValue, Unsupported

DELTA = 1e-5


def dynamic(steps: int, first: float = 3.0, last: float = 1.0, rate: float = 0.01) -> Ledger:
    ledger = Ledger()
    ledger.extend(noise_multiplier=first * (last / first) ** (np.arange(steps) / steps), sample_rate=rate)
    return ledger


@pytest.mark.parametrize(
    "ledger", [dynamic(1500), dynamic(40, rate=0.2), dynamic(5)], ids=["long", "short", "five steps"]
)
def test_every_point_encloses_the_truth(ledger):
    curve = epsilon_curve(ledger, DELTA, points=8)
    assert curve.label == "certified"
    assert curve.steps[-1] == ledger.steps
    assert (np.diff(curve.steps) > 0).all()
    assert (np.diff(curve.upper) >= 0).all()
    assert (np.diff(curve.lower) >= 0).all()
    for steps, low, high in zip(curve.steps, curve.lower, curve.upper, strict=True):
        exact = spent(ledger.first(int(steps)), DELTA)
        assert low <= exact.epsilon * (1 + 1e-12)
        assert exact.epsilon_lower <= high * (1 + 1e-12)
        assert high <= 1.2 * exact.epsilon + 1e-3
    assert (curve.upper[-1], curve.lower[-1]) == (exact.epsilon, exact.epsilon_lower)


def test_the_stairs_hold_between_the_computed_steps_too():
    ledger = Ledger()
    ledger.extend(noise_multiplier=np.linspace(40, 10, 60), sample_rate=1.0)  # full batches: exact, and quick to price
    steps, low, high = epsilon_curve(ledger, DELTA, points=7).step_points()
    assert (steps[0], steps[-1]) == (0, 60)
    for n in range(1, 60):
        exact = spent(ledger.first(n), DELTA)
        assert np.interp(n + 1e-9, steps, low) <= exact.epsilon
        assert exact.epsilon_lower <= np.interp(n - 1e-9, steps, high)
    points = np.flatnonzero(np.diff(steps))
    assert (high[points] == high[points + 1]).all()  # flat between two steps: no line below the bound


def test_a_short_run_has_as_many_points_as_are_asked_for():
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=30.0, sample_rate=1.0), 400)
    curve = epsilon_curve(ledger, DELTA, points=50)
    assert len(curve.steps) >= 50
    assert np.diff(curve.steps).max() <= 9


@pytest.mark.parametrize("accountant", ["rdp", "gdp", "zcdp"])
def test_other_accountants_have_a_curve_too(accountant):
    ledger = dynamic(200)
    curve = epsilon_curve(ledger, DELTA, points=5, accountant=accountant)
    assert curve.method == accountant
    assert curve.upper[-1] == spent(ledger, DELTA, accountant=accountant).epsilon
    assert (np.diff(curve.upper) >= 0).all()


def test_whole_dataset_and_capped_and_shuffled_steps_have_a_curve():
    whole, capped, shuffled = Ledger(), Ledger(), Ledger()
    whole.extend(noise_multiplier=[20.0, 15.0, 10.0], sample_rate=1.0)
    capped.add(Step(noise_multiplier=1.0, sample_rate=0.01, sampling="truncated-poisson:cap=200,size=10000"), 30)
    shuffled.extend(noise_multiplier=np.linspace(20, 10, 12), sample_rate=0.25, sampling="shuffled")
    for ledger in (whole, capped, shuffled):
        curve = epsilon_curve(ledger, DELTA, points=4)
        assert curve.upper[-1] == spent(ledger, DELTA).epsilon
        assert (np.diff(curve.upper) >= 0).all()


def test_an_empty_ledger_and_no_theorem_are_refused():
    with pytest.raises(InvalidValue, match="empty"):
        epsilon_curve(Ledger(), DELTA)
    with pytest.raises(InvalidValue, match="points"):
        epsilon_curve(dynamic(5), DELTA, points=0)
    with pytest.raises(Unsupported):
        epsilon_curve(dynamic(5), DELTA, adjacency="replace-one")
