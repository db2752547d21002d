"""Levels and cells: nothing is lost, and every step lies between the corners of its cell."""

import math

import numpy as np
import pytest

from privet.accounting.ledger import Ledger, Step
from privet.accounting.pld.levels import LossLevels, bin_levels, loss_levels
from privet.accounting.pld.loss_moments import tilt_exponent, tilted_moments


def many(seed: int = 0, size: int = 700) -> LossLevels:
    r = np.random.default_rng(seed)
    return LossLevels(r.uniform(1e-3, 0.2, size), r.uniform(0.1, 2, size), r.integers(1, 9, size).astype(float), 0.0)


def test_equal_steps_meet_whatever_their_order():
    there, back = Ledger(), Ledger()
    noise, rate = np.array([1.0, 2.0, 1.0, 3.0, 2.0]), np.array([0.1, 0.1, 0.1, 0.2, 0.3])
    there.extend(noise_multiplier=noise, sample_rate=rate)
    back.extend(noise_multiplier=noise[::-1], sample_rate=rate[::-1])
    first, second = loss_levels(there), loss_levels(back)
    for name in ("rate", "mu", "count"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()
    assert sorted(zip(first.rate, first.mu, first.count, strict=True)) == [
        (0.1, 0.5, 1), (0.1, 1.0, 2), (0.2, 1 / 3, 1), (0.3, 0.5, 1),
    ]  # fmt: skip


def test_whole_dataset_steps_are_one_gaussian():
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=2.0), 8)
    ledger.add(Step(noise_multiplier=1.0, sample_rate=0.1), 5)
    ledger.add(Step(noise_multiplier=0.5), 1)
    levels = loss_levels(ledger)
    assert levels.gaussian == pytest.approx(8 / 4 + 4)
    assert levels.steps == 5


def test_shuffled_epochs_count_their_least_noise_once():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[4.0, 2.0, 3.0, 5.0, 5.0, 5.0], sample_rate=1 / 3, sampling="shuffled")
    levels = loss_levels(ledger)
    assert levels.gaussian == pytest.approx(1 / 4 + 1 / 25)
    assert not len(levels.mu)


def test_marked_rows_are_left_out():
    ledger = Ledger()
    ledger.extend(noise_multiplier=[1.0, 2.0, 3.0], sample_rate=0.1)
    assert loss_levels(ledger, without=np.array([False, True, False])).mu.tolist() == [1 / 3, 1.0]


def test_few_levels_stay_exact():
    levels = many(size=50)
    bins = bin_levels(levels)
    assert bins.low is levels.mu or bins.low.tolist() == bins.high.tolist() == levels.mu.tolist()
    assert bins.count.tolist() == levels.count.tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [12, 32, 96])
def test_cells_hold_every_step(seed, most):
    levels = many(seed)
    bins = bin_levels(levels, most)
    assert bins.count.sum() == levels.count.sum()
    assert (bins.low <= bins.middle * (1 + 1e-12)).all()
    assert (bins.middle <= bins.high * (1 + 1e-12)).all()
    # A matching exists: cell by cell, the levels inside its corners are at least as many as it counts.
    inside = (
        (bins.low[:, None] <= levels.mu)
        & (levels.mu <= bins.high[:, None])
        & (bins.rate_low[:, None] <= levels.rate)
        & (levels.rate <= bins.rate_high[:, None])
    )
    assert inside.any(axis=0).all()
    assert (inside @ levels.count >= bins.count).all()
    assert math.isclose(float(bins.count @ bins.middle**2), float(levels.count @ levels.mu**2), rel_tol=1e-9)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_the_moment_of_the_cells_is_an_upper_bound(direction):
    levels = many()
    exact = float(levels.count @ tilted_moments(levels.rate, levels.mu, tilt_exponent(direction, 3.0)).log_psi)
    bound = bin_levels(levels).log_moment(direction, 3.0)
    assert exact <= bound <= 4 * exact
