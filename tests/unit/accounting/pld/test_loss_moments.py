"""The quadrature's proven error against many digits, and the moments against high precision."""

import math

import mpmath
import numpy as np
import pytest

from oracle import psi
from privet.accounting.pld.loss_moments import QuadratureTooCostly, quadrature, tilt_exponent, tilted_moments

CASES = [
    # noise, rate, z, frequency
    (1.1, 256 / 60000, 6.0, 0.0),
    (1.1, 256 / 60000, 6.0, 40.0),
    (0.5, 0.01, 3.0, 5.0),
    (0.3, 0.05, 1.5, 2.0),
    (4.0, 0.3, 9.0, 30.0),
    (1.0, 0.999, 2.0, 3.0),
    (50.0, 1e-6, 20.0, 100.0),
]


def sides(direction: str, z: float) -> float:
    return 1 + z if direction == "remove" else -z


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("noise", "rate", "z", "frequency"), CASES)
def test_the_error_of_the_quadrature_is_within_its_bound(noise, rate, z, frequency, direction):
    """The rule is summed in 40 digits, so that nothing but its own error is seen."""
    s = tilt_exponent(direction, z)
    rule = quadrature(np.array([rate]), np.array([1 / noise]), s, frequency)
    with mpmath.workdps(40):
        order, mu, q = mpmath.mpc(s, frequency), 1 / mpmath.mpf(noise), mpmath.mpf(rate)
        start, step = mpmath.mpf(float(rule.nodes[0])), mpmath.mpf(rule.step)
        x = [start + k * step for k in range(len(rule.nodes))]
        total = step * mpmath.fsum(mpmath.npdf(v) * (1 - q + q * mpmath.exp(mu * v - mu**2 / 2)) ** order for v in x)
        assert abs(total - psi(noise, rate, order, 40)) <= rule.error * psi(noise, rate, order.real, 40).real
    assert rule.error < 1e-14


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("noise", "rate", "z"), [case[:3] for case in CASES if case[3]])
def test_moments_agree_with_many_digits(noise, rate, z, direction):
    found = tilted_moments(np.array([rate]), np.array([1 / noise]), tilt_exponent(direction, z))
    s, h = mpmath.mpf(sides(direction, z)), mpmath.mpf("1e-8")
    with mpmath.workdps(40):
        below, here, above = (mpmath.log(psi(noise, rate, v, 40).real) for v in (s - h, s, s + h))
        mean, variance = (above - below) / (2 * h), (above - 2 * here + below) / h**2
    assert found.log_psi[0] == pytest.approx(float(here), rel=1e-12, abs=4e-15)
    assert found.mean[0] == pytest.approx(float(mean), rel=1e-9, abs=1e-14)
    assert found.variance[0] == pytest.approx(float(variance), rel=1e-7, abs=1e-18)
    assert found.excess[0] == pytest.approx(float(mpmath.expm1(here)), rel=1e-12, abs=4e-15)


def test_levels_far_apart_are_done_group_by_group():
    rate, mu = np.array([0.01, 0.2, 0.01, 0.5]), np.array([0.02, 8.0, 1.0, 0.1])
    together = tilted_moments(rate, mu, 3.0)
    for k in range(4):
        alone = tilted_moments(rate[k : k + 1], mu[k : k + 1], 3.0)
        assert together.log_psi[k] == pytest.approx(alone.log_psi[0], rel=1e-12, abs=4e-15)
        assert together.mean[k] == pytest.approx(alone.mean[0], rel=1e-10, abs=1e-15)


def test_psi_rises_with_the_rate_and_with_mu():
    """What bins rest on, in both directions."""
    for s in (2.5, -1.5):
        by_mu = tilted_moments(np.full(40, 0.05), np.geomspace(0.05, 5, 40), s).log_psi
        by_rate = tilted_moments(np.geomspace(1e-4, 0.9, 40), np.full(40, 1.0), s).log_psi
        assert (np.diff(by_mu) > 0).all()
        assert (np.diff(by_rate) > 0).all()


def test_too_many_nodes_is_a_clear_refusal():
    with pytest.raises(QuadratureTooCostly, match="nodes"):
        quadrature(np.array([0.01]), np.array([1e4]), 2.0, 1e6)


def test_the_exponent_of_each_direction():
    assert (tilt_exponent("remove", 2.0), tilt_exponent("add", 2.0)) == (3.0, -2.0)
    with mpmath.workdps(30):
        loss = mpmath.quad(
            lambda x: mpmath.npdf(x) * (mpmath.mpf("0.9") + mpmath.mpf("0.1") * mpmath.exp(x - 0.5)) ** -2,
            list(range(-12, 13)),
        )
    assert tilted_moments(np.array([0.1]), np.array([1.0]), -2.0).log_psi[0] == pytest.approx(math.log(loss), rel=1e-13)
