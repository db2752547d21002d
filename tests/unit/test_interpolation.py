"""The proven error of the interpolation really bounds it: nodes against every level taken by itself."""

import numpy as np
import pytest

from oracle import log_psi
from privet.accounting.interpolation import FEW, compress
from privet.accounting.levels import Levels
from privet.accounting.moments import exponent


def levels_between(low: float, high: float, rate: float, size: int = 240, seed: int = 1) -> Levels:
    r = np.random.default_rng(seed)
    mu = np.sort(np.exp(r.uniform(np.log(low), np.log(high), size)))
    return Levels(np.full(size, rate), mu, r.integers(1, 50, size).astype(float), 0.0)


def summed(rate, mu, weight, direction, z):
    s = exponent(direction, z[0].real) + 1j * z.imag * (1 if direction == "remove" else -1)
    return sum(w * log_psi(1 / m, q, s) for q, m, w in zip(rate, mu, weight, strict=True))


@pytest.mark.parametrize("tolerance", [1e-1, 1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize(
    ("low", "high", "rate", "direction", "c", "top"),
    [
        (0.5, 1.6, 256 / 60000, "remove", 3.0, 12.0),
        (0.5, 1.6, 256 / 60000, "add", 3.0, 12.0),
        (0.25, 2.5, 0.01, "remove", 1.2, 4.0),
        (0.05, 0.3, 0.1, "add", 8.0, 60.0),
        (0.9, 1.0, 0.02, "remove", 4.0, 20.0),
    ],
)
def test_the_nodes_stand_for_all_levels_within_the_error(low, high, rate, direction, c, top, tolerance):
    levels = levels_between(low, high, rate)
    nodes = compress(levels, levels.count[None, :], direction=direction, c=c, top=top, tolerance=tolerance)
    assert len(nodes.mu) < len(levels.mu)
    z = c + 1j * np.append(np.random.default_rng(2).uniform(0, top, 12), [0.0, top])
    direct = summed(levels.rate, levels.mu, levels.count, direction, z)
    found = summed(nodes.rate, nodes.mu, nodes.weight[0], direction, z)
    rounding = 1e-15 * float(levels.count.sum() + np.abs(nodes.weight).sum())
    turn = np.round((direct - found).imag / (2 * np.pi)) * 2j * np.pi  # a log is known up to whole turns
    assert (np.abs(direct - found - turn) <= nodes.error + rounding).all()
    assert nodes.error <= 20 * tolerance + 1e-11 * levels.steps  # the rest is rounding
    assert nodes.weight[0].sum() == pytest.approx(levels.count.sum(), rel=1e-9)


def test_few_levels_stand_for_themselves():
    levels = levels_between(0.5, 1.0, 0.01, size=FEW)
    nodes = compress(levels, levels.count[None, :], direction="remove", c=2.0, top=10.0)
    assert nodes.exact.all()
    assert nodes.error == 0
    assert nodes.mu.tolist() == levels.mu.tolist()


def test_each_rate_is_its_own_group():
    one, two = levels_between(0.5, 1.5, 0.01), levels_between(0.5, 1.5, 0.02, seed=3)
    both = Levels(*(np.concatenate((getattr(one, n), getattr(two, n))) for n in ("rate", "mu", "count")), 0.0)
    nodes = compress(both, both.count[None, :], direction="remove", c=2.0, top=6.0)
    assert set(nodes.rate) == {0.01, 0.02}
    for rate, part in ((0.01, one), (0.02, two)):
        assert nodes.weight[0, nodes.rate == rate].sum() == pytest.approx(part.count.sum(), rel=1e-9)


def test_several_ledgers_share_the_nodes():
    """Each with its own counts: the same as each by itself."""
    levels = levels_between(0.5, 1.6, 0.01)
    counts = np.stack((levels.count, np.where(np.arange(240) < 150, levels.count, 0.0)))
    nodes = compress(levels, counts, direction="remove", c=3.0, top=8.0, tolerance=1e-6)
    z = 3.0 + 1j * np.linspace(0.0, 8.0, 9)
    for weight, count in zip(nodes.weight, counts, strict=True):
        direct = summed(levels.rate, levels.mu, count, "remove", z)
        found = summed(nodes.rate, nodes.mu, weight, "remove", z)
        assert (np.abs(direct - found) <= nodes.error + 1e-10).all()
