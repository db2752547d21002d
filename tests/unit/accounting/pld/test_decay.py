"""The decay is a lower bound on the true one: at random frequencies inside every interval, for every step of a cell."""

import numpy as np
import pytest

from oracle import log_psi
from privet.accounting.pld.decay import Decay
from privet.accounting.pld.levels import LossLevels, bin_levels
from privet.accounting.pld.loss_moments import tilt_exponent


def true_decay(levels: LossLevels, direction: str, c: float, u: np.ndarray) -> np.ndarray:
    s = tilt_exponent(direction, c)
    total = levels.gaussian * u**2 / 2
    for q, m, n in zip(levels.rate, levels.mu, levels.count, strict=True):
        found = log_psi(1 / m, q, s + 1j * np.append(0.0, u)).real
        total = total + n * (found[0] - found[1:])
    return total


def random_levels(seed: int, size: int) -> LossLevels:
    r = np.random.default_rng(seed)
    mu = np.exp(r.uniform(np.log(0.05), np.log(3), size))
    rate = np.exp(r.uniform(np.log(1e-3), np.log(0.5), size))
    return LossLevels(rate, mu, r.integers(1, 30, size).astype(float), r.choice([0.0, 0.3]))


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("cells", [1, 12, 200])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_on_whole_intervals(seed, cells, direction):
    r = np.random.default_rng(100 + seed)
    levels = random_levels(seed, 30 if cells < 30 else 5)
    c = float(np.exp(r.uniform(np.log(0.3), np.log(12))))
    decay = Decay(bin_levels(levels, cells), levels.gaussian, direction, c)
    u = np.cumprod(np.append(0.05, np.full(24, 1.4)))
    until = float(u[-1] * 1.4)
    bound = decay.lower_bounds(u, until)
    ends = np.append(u[1:], until)
    picks = np.stack([u, ends, *(r.uniform(u, ends) for _ in range(4))])
    true = true_decay(levels, direction, c, picks.ravel()).reshape(picks.shape)
    assert (bound <= true + 1e-9 * (1 + np.abs(true))).all()
    assert (bound >= 0).all()


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_the_bound_is_worth_having(direction):
    """A bound of zero would hold too: near the bulk at least a tenth of the truth is seen."""
    levels = LossLevels(np.array([0.01]), np.array([0.9]), np.array([1000.0]), 0.0)
    decay = Decay(bin_levels(levels), 0.0, direction, 4.0)
    u = np.geomspace(1.0, 30.0, 30)
    assert (decay.lower_bounds(u, 31.0) >= 0.1 * true_decay(levels, direction, 4.0, u)).all()


def test_a_gaussian_alone_decays_exactly():
    nothing = LossLevels(*(np.zeros(0) for _ in range(3)), 2.0)
    u = np.array([0.5, 1.0, 4.0])
    assert Decay(bin_levels(nothing), 2.0, "remove", 1.0).lower_bounds(u, np.inf).tolist() == (u**2).tolist()
