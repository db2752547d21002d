"""The fine quadrature: its sum is within its error of the moment, at frequencies up to the one it was made for."""

import numpy as np
import pytest

from privet.accounting.pld.loss_moments import fine_quadrature, quadrature, tilt_exponent

CASES = [
    ("remove", 0.01, 0.8, 4.0, 300.0), ("add", 0.01, 0.8, 15.0, 300.0), ("remove", 0.3, 1.5, 1.0, 60.0),
    ("add", 0.004, 0.4, 40.0, 900.0), ("remove", 1e-3, 2.0, 2.0, 500.0), ("remove", 0.05, 0.1, 20.0, 400.0),
]  # fmt: skip


def plain(rate: float, mu: float, s: float, u: float) -> complex:
    """Psi(s + iu) by a Riemann sum so fine that its error is far below rounding."""
    spacing = min(0.01, 1 / (abs(u) * mu + 1))
    x = np.arange(-16.0, 16.0 + max(0.0, s * mu), spacing)
    losses = np.log1p(rate * np.expm1(mu * x - mu**2 / 2))
    return complex(spacing * np.exp(s * losses - x**2 / 2 + 1j * u * losses).sum() / np.sqrt(2 * np.pi))


def summed(rate, mu, s, rule, u):
    x = rule.nodes
    losses = np.log1p(rate * np.expm1(mu * x - mu**2 / 2))
    return rule.step * (np.exp(s * losses - x**2 / 2 + 1j * u * losses)).sum() / np.sqrt(2 * np.pi)


@pytest.mark.parametrize(("direction", "rate", "mu", "c", "top"), CASES)
def test_the_sum_is_within_its_error(direction, rate, mu, c, top):
    s = tilt_exponent(direction, c)
    rule = fine_quadrature(rate, mu, s, top)
    at_c = plain(rate, mu, s, 0.0).real
    assert rule.error <= 1e-13
    for u in (0.0, 0.31 * top, top):
        truth = plain(rate, mu, s, u)
        assert abs(summed(rate, mu, s, rule, u) - truth) <= (rule.error + 1e-12) * at_c


@pytest.mark.parametrize(("direction", "rate", "mu", "c", "top"), CASES)
def test_it_takes_fewer_nodes_than_the_plain_rule(direction, rate, mu, c, top):
    s = tilt_exponent(direction, c)
    assert len(fine_quadrature(rate, mu, s, top).nodes) < len(
        quadrature(np.array([rate]), np.array([mu]), s, top).nodes
    )


def test_it_takes_far_fewer_where_few_are_hit():
    """In the direction `add` the tilt keeps to where w is small, and there it hardly turns."""
    s = tilt_exponent("add", 1700.0)
    assert 20 * len(fine_quadrature(1e-3, 0.25, s, 1e5).nodes) < len(
        quadrature(np.array([1e-3]), np.array([0.25]), s, 1e5).nodes
    )


def test_a_wider_spacing_would_be_wrong():
    """The error is no idle promise: a few times the spacing and the sum is off by far more."""
    rule = fine_quadrature(0.3, 1.5, 2.0, 60.0)
    truth = plain(0.3, 1.5, 2.0, 60.0)
    every = type(rule)(rule.nodes[::3], 3 * rule.step, rule.error)
    assert abs(summed(0.3, 1.5, 2.0, every, 60.0) - truth) > 1e6 * rule.error
