"""The Fourier sum: lower <= truth <= upper, on good lines and on bad ones."""

import dataclasses

import mpmath
import numpy as np
import pytest

from privet.accounting.pld.fourier import Spectrum, spectra, spectrum
from privet.accounting.pld.levels import LossLevels
from privet.accounting.pld.loss_moments import QuadratureTooCostly
from privet.accounting.pld.saddle_point import saddle_point_line

DIRECTIONS = ("remove", "add")


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.log(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)))


def both(found: Spectrum, epsilon: float) -> tuple[float, float]:
    return found.lower(epsilon), found.upper(epsilon)


def one_level(noise: float, rate: float, count: int) -> LossLevels:
    return LossLevels(np.array([rate]), np.array([1 / noise]), np.array([float(count)]), 0.0)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_gaussian_lies_between_the_bounds(mu, delta, direction):
    levels = LossLevels(*(np.zeros(0) for _ in range(3)), mu**2)
    line = saddle_point_line(levels, direction, delta=delta)
    found = spectrum(levels, direction, line)
    for shift in (-0.3, 0.0, 0.3):
        epsilon = line.epsilon + shift / line.c
        lower, upper = both(found, epsilon)
        assert lower <= gaussian_log_delta(mu, epsilon) <= upper
    lower, upper = both(found, line.epsilon)
    assert upper - lower < 1e-6


@pytest.mark.parametrize("shorter", [1.0, 1.5, 2.5, 4.0])
@pytest.mark.parametrize("number", range(5))
def test_a_bad_line_widens_the_interval_and_never_breaks_it(number, shorter):
    """Another c, or a period so short that aliases weigh in: the bounds must show it."""
    levels = LossLevels(*(np.zeros(0) for _ in range(3)), 1.44)
    line = saddle_point_line(levels, "remove", delta=1e-5)
    bad = dataclasses.replace(line, c=line.moments[number][0], period=line.period / shorter)
    found = spectrum(levels, "remove", bad)
    for epsilon in (line.epsilon - 0.5, line.epsilon, line.epsilon + 0.5):
        lower, upper = both(found, epsilon)
        assert lower <= gaussian_log_delta(1.2, epsilon) <= upper


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_another_line_gives_the_same_delta(direction):
    """Contours may be moved: different c, same delta. An error in K at any one of them would show."""
    levels = LossLevels(np.array([0.01, 0.02]), np.array([0.9, 0.5]), np.array([900.0, 2000.0]), 0.1)
    line = saddle_point_line(levels, direction, delta=1e-6)
    intervals = []
    for c, _ in line.moments[:6]:
        moved = dataclasses.replace(line, c=c, period=2 * line.period)
        intervals.append(both(spectrum(levels, direction, moved), line.epsilon))
    assert max(low for low, _ in intervals) <= min(high for _, high in intervals)
    assert min(high - low for low, high in intervals) < 1e-7


def test_ledgers_that_share_a_line_get_what_they_get_alone():
    rate, mu = np.full(3, 0.01), np.array([0.5, 0.8, 1.0])
    large = LossLevels(rate, mu, np.array([900.0, 800.0, 700.0]), 0.05)
    small = LossLevels(rate, mu, np.array([900.0, 800.0, 500.0]), 0.04)
    line = saddle_point_line(large, "remove", delta=1e-5)
    together = spectra(large, [large, small], "remove", line)
    alone = spectrum(small, "remove", saddle_point_line(small, "remove", delta=1e-5))
    shared, own = both(together[1], line.epsilon), both(alone, line.epsilon)
    assert shared[0] <= own[1]
    assert own[0] <= shared[1]
    assert both(together[1], line.epsilon)[1] < both(together[0], line.epsilon)[0]


def test_too_much_work_is_left_to_another_route():
    levels = one_level(1.0, 0.01, 1000)
    with pytest.raises(QuadratureTooCostly, match="frequencies"):
        spectrum(levels, "remove", saddle_point_line(levels, "remove", delta=1e-5), work=10)
