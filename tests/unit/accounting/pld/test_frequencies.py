"""The frequencies left out: a blur that costs what it says, and a rest that is at least what it stands for."""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

from oracle import DIRECTIONS, one_step, three_steps, two_steps
from privet.accounting.pld import frequencies
from privet.accounting.pld.fourier import spectrum
from privet.accounting.pld.frequencies import EFFORTS, choose_frequencies, transform
from privet.accounting.pld.levels import LossLevels
from privet.accounting.pld.loss_moments import QuadratureTooCostly, tilt_exponent
from privet.accounting.pld.saddle_point import saddle_point_line


def levels_from(*releases: tuple[float, float]) -> LossLevels:
    noise, rate = np.array(releases).T
    sampled = rate < 1
    order = np.lexsort((1 / noise[sampled], rate[sampled]))
    return LossLevels(
        rate[sampled][order], 1 / noise[sampled][order], np.ones(sampled.sum()), float((noise[~sampled] ** -2).sum())
    )


def plain(rate: float, mu: float, direction: str, c: float, u: np.ndarray) -> tuple[float, np.ndarray]:
    """log Psi, and E e^(iuL) under the tilted law, by a Riemann sum so fine that its error is far below rounding."""
    s = tilt_exponent(direction, c)
    spacing = min(0.02, 1 / (float(u.max()) * mu + 1))
    x = np.arange(-12.0 - max(0.0, -s * mu), 12.0 + max(0.0, s * mu), spacing)
    losses = np.log1p(rate * np.expm1(mu * x - mu**2 / 2))
    logs = s * losses - x**2 / 2
    weights = np.exp(logs - logs.max())
    sign = 1j if direction == "remove" else -1j
    log_moment = logs.max() + math.log(weights.sum() * spacing / math.sqrt(2 * math.pi))
    return log_moment, np.array([(weights * np.exp(sign * v * losses)).sum() for v in u]) / weights.sum()


@pytest.fixture
def blurred(monkeypatch):
    """Every ledger by its blur, however fast it decays."""

    def refuse(*args):
        raise QuadratureTooCostly("not today")

    monkeypatch.setattr(frequencies, "_decay_frequencies", refuse)


@pytest.mark.parametrize("s", [1e-8, 1e-4, 0.01, 1.0, 9.0])
@pytest.mark.parametrize("x", [0.0, 0.1, 1.0, 3.0])
def test_what_the_blur_adds_to_the_payoff_is_below_its_bound(s, x):
    """0 <= E p(x + eta) - p(x) <= sqrt(s) e^(-x/2) phi(x / sqrt(s)), on both sides of the corner, x in deviations."""
    with mpmath.workdps(40):
        tau = mpmath.sqrt(s)
        for place in (tau * x, -tau * x):
            blurred = mpmath.ncdf(place / tau + tau / 2) - mpmath.exp(-place) * mpmath.ncdf(place / tau - tau / 2)
            added = blurred - max(0, 1 - mpmath.exp(-place))
            assert 0 <= added <= tau * mpmath.exp(-place / 2) * mpmath.npdf(place / tau)


def check(levels, direction, epsilon, truth, effort, width):
    found = spectrum(levels, direction, saddle_point_line(levels, direction, epsilon=epsilon), effort=effort)
    low, high = found.lower(epsilon), found.upper(epsilon)
    assert low <= math.log(truth) + 1e-7
    assert math.log(truth) - 1e-7 <= high
    assert high - low < width


@pytest.mark.parametrize("effort", range(len(EFFORTS)))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("noise", "rate", "epsilon"), [(1.0, 0.01, 0.1), (0.5, 0.3, 0.3), (2.0, 0.999, 0.5)])
def test_one_step(noise, rate, epsilon, direction, effort, blurred):
    truth = one_step(noise, rate, epsilon, direction)
    if truth > 1e-12:
        check(levels_from((noise, rate)), direction, epsilon, truth, effort, 0.1)


@pytest.mark.parametrize("effort", range(len(EFFORTS)))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("first", "second", "epsilon"),
    [((1.0, 0.01), (1.0, 0.02), 0.2), ((0.7, 0.3), (3.0, 0.1), 0.35), ((2.0, 1.0), (1.0, 0.2), 1.5)],
)
def test_two_steps(first, second, epsilon, direction, effort, blurred):
    truth = two_steps(first, second, epsilon, direction)
    if truth > 1e-9:
        check(levels_from(first, second), direction, epsilon, truth, effort, 0.1)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_three_steps(direction, blurred):
    releases = ((1.0, 0.1), (2.0, 0.3), (0.8, 0.05))
    check(levels_from(*releases), direction, 0.4, three_steps(releases, 0.4, direction), 0, 1e-5)


CASES = {
    "few": levels_from(*((noise, 0.1) for noise in (0.8, 1.0, 1.3, 1.9, 2.6))),
    "many": levels_from(*((noise, 0.02) for noise in np.linspace(1.0, 3.0, 24))),
    "rates": levels_from(*((2.0 - 0.03 * k, 0.01 + 0.001 * k) for k in range(24))),
    "with rate 1": levels_from((30.0, 1.0), *((noise, 0.05) for noise in (1.0, 1.1, 1.2))),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("name", "effort"), [(name, 1 + (name == "few")) for name in CASES])
def test_the_rest_is_at_least_what_the_next_frequencies_hold(name, effort, direction):
    """Of all frequencies left out the first are the largest: every level's transform there, by plain sums."""
    levels = CASES[name]
    line = saddle_point_line(levels, direction, delta=1e-5)
    found = choose_frequencies(levels, direction, line, effort=effort)
    u = found.h * np.arange(found.last + 1, found.last + 9)
    size = np.exp(-(levels.gaussian + found.blur) * u**2 / 2)
    for rate, mu in zip(levels.rate, levels.mu, strict=True):
        size = size * np.abs(plain(rate, mu, direction, line.c, u)[1])
    weight = 1 / np.abs((line.c + 1j * u) * (line.c + 1 + 1j * u))
    share = found.h / math.pi * size
    assert float(share @ weight) <= found.rest * (1 + 1e-9) + 1e-16
    assert float(share @ (weight + found.weight_deficit)) <= found.rest_under * (1 + 1e-9) + 1e-16
    assert found.rest_under <= 20 * found.goal


@pytest.mark.parametrize("name", CASES)
def test_most_frequencies_are_shown_to_be_dead(name, monkeypatch):
    levels = CASES[name]
    line = saddle_point_line(levels, "remove", delta=1e-5)
    short = choose_frequencies(levels, "remove", line)
    monkeypatch.setattr(frequencies, "_trial_level_count", lambda levels: 0)
    assert short.last < 0.6 * choose_frequencies(levels, "remove", line).last
    for (rate, mu), (_, values, _) in short.known.items():
        assert (rate, mu) in zip(levels.rate, levels.mu, strict=True)
        assert len(values) > short.last


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("rate", "mu", "c"), [(0.01, 0.8, 4.0), (0.3, 1.5, 1.0), (1e-3, 0.4, 30.0)])
def test_a_transform_is_within_its_error(direction, rate, mu, c):
    h, last = 0.7, 400
    log_moment, values, error = transform(rate, mu, direction, tilt_exponent(direction, c), h, last)
    j = np.arange(0, last + 1, 40)
    expected, truth = plain(rate, mu, direction, c, h * j)
    assert log_moment == pytest.approx(expected, abs=1e-12)
    assert (np.abs(values[j] - truth) <= error[j] + 1e-13).all()
    assert error.max() < 1e-11


def test_a_blur_beyond_all_numbers_is_too_hard_and_no_overflow():
    """As in the last steps of a noise that falls to 0.004: another route takes over."""
    line = SimpleNamespace(saddle=1e-9, epsilon=1e6, period=1e7, value=lambda: 1e-5)
    with pytest.raises(QuadratureTooCostly, match="wide"):
        frequencies._blur_frequencies(line, 1e-3, 1 << 11)
