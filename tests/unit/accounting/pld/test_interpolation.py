"""The proven error of the interpolation really bounds it: nodes against every level taken by itself."""

import numpy as np
import pytest

from oracle import log_psi
from privet.accounting.pld.interpolation import FEW, compress
from privet.accounting.pld.levels import LossLevels
from privet.accounting.pld.loss_moments import tilt_exponent


def levels_between(low: float, high: float, rate: float, size: int = 240, seed: int = 1) -> LossLevels:
    r = np.random.default_rng(seed)
    mu = np.sort(np.exp(r.uniform(np.log(low), np.log(high), size)))
    return LossLevels(np.full(size, rate), mu, r.integers(1, 50, size).astype(float), 0.0)


def summed(rate, mu, weight, direction, z):
    s = tilt_exponent(direction, z[0].real) + 1j * z.imag * (1 if direction == "remove" else -1)
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
    """The product of all moments, in units of its value at z = c, is off by e^error - 1 at most."""
    levels = levels_between(low, high, rate)
    nodes = compress(levels, levels.count[None, :], direction=direction, c=c, top=top, tolerance=tolerance)
    assert len(nodes.mu) < len(levels.mu)
    z = c + 1j * np.append(np.random.default_rng(2).uniform(0, top, 12), [0.0, top])
    direct = summed(levels.rate, levels.mu, levels.count, direction, z)
    found = together(nodes, 0, direction, z)
    rounding = 1e-14 * float(levels.count.sum() + np.abs(nodes.weight).sum())
    at_c = direct[-2].real
    assert (np.abs(np.exp(direct - at_c) - np.exp(found - at_c)) <= np.expm1(nodes.error) + rounding).all()
    assert nodes.error <= 20 * tolerance + 1e-11 * levels.steps  # the rest is rounding
    assert steps_of(nodes, 0) == pytest.approx(levels.count.sum(), rel=1e-9)


def together(nodes, ledger, direction, z):
    """sum_k weight_k log M(z; mu_k), and the logarithms of the blends."""
    total = summed(nodes.rate, nodes.mu, nodes.weight[ledger], direction, z)
    for blend in nodes.blends:
        each = [summed(nodes.rate[[k]], nodes.mu[[k]], np.ones(1), direction, z) for k in blend.nodes]
        total = total + blend.count[ledger] @ np.log(blend.basis @ np.exp(np.array(each)))
    return total


def steps_of(nodes, ledger, rate=None):
    """How many steps the nodes stand for: Lagrange polynomials add up to 1."""
    here = np.ones(len(nodes.rate), dtype=bool) if rate is None else nodes.rate == rate
    blended = sum(float(b.count[ledger].sum()) for b in nodes.blends if here[b.nodes].all())
    return nodes.weight[ledger, here].sum() + blended


def test_both_kinds_of_interpolation_are_used_and_lagrange_polynomials_add_up_to_one():
    levels = levels_between(0.25, 2.5, 0.01)
    few = compress(levels, levels.count[None, :], direction="remove", c=1.2, top=40.0)
    assert few.blends  # far frequencies, so log M cannot be bounded
    for blend in few.blends:
        np.testing.assert_allclose(blend.basis.sum(axis=1), 1.0, atol=1e-12)
    assert not compress(levels, levels.count[None, :], direction="add", c=3.0, top=2.0).blends


def test_few_levels_stand_for_themselves():
    levels = levels_between(0.5, 1.0, 0.01, size=FEW)
    nodes = compress(levels, levels.count[None, :], direction="remove", c=2.0, top=10.0)
    assert nodes.exact.all()
    assert nodes.error == 0
    assert nodes.mu.tolist() == levels.mu.tolist()


def test_each_rate_is_its_own_group():
    one, two = levels_between(0.5, 1.5, 0.01), levels_between(0.5, 1.5, 0.02, seed=3)
    both = LossLevels(*(np.concatenate((getattr(one, n), getattr(two, n))) for n in ("rate", "mu", "count")), 0.0)
    nodes = compress(both, both.count[None, :], direction="remove", c=2.0, top=6.0)
    assert set(nodes.rate) == {0.01, 0.02}
    for rate, part in ((0.01, one), (0.02, two)):
        assert steps_of(nodes, 0, rate) == pytest.approx(part.count.sum(), rel=1e-9)


def test_several_ledgers_share_the_nodes():
    """Each with its own counts: the same as each by itself."""
    levels = levels_between(0.5, 1.6, 0.01)
    counts = np.stack((levels.count, np.where(np.arange(240) < 150, levels.count, 0.0)))
    nodes = compress(levels, counts, direction="remove", c=3.0, top=8.0, tolerance=1e-6)
    z = 3.0 + 1j * np.linspace(0.0, 8.0, 9)
    for ledger, count in enumerate(counts):
        direct, found = summed(levels.rate, levels.mu, count, "remove", z), together(nodes, ledger, "remove", z)
        at_c = direct[0].real
        assert (np.abs(np.exp(direct - at_c) - np.exp(found - at_c)) <= np.expm1(nodes.error) + 1e-10).all()
