"""The schedules of the papers are settings of our shapes. Each formula is written out here as its paper prints it,
with the paper's own index, one step at a time."""

import math

import numpy as np
import pytest

from privet.schedules import schedule_values

# Auto DP-SGD on MNIST-sized data: batch 64 of 60,000 records, so an epoch is 937.5 steps.
BATCH, SIZE, EPOCHS, SIGMA = 64, 60_000, 24, 1.5
STEPS = EPOCHS * SIZE // BATCH


def close(text, formula):
    values = schedule_values(text, len(formula))
    assert values == pytest.approx(np.array(formula), rel=1e-12)
    assert np.ptp(values) > 0.1  # a constant would not tell the conventions apart


def auto(variance):
    """sigma_i = sqrt(sigma_e^2) with e = floor(q i) in whole numbers: i B / M."""
    return [math.sqrt(variance(i * BATCH // SIZE)) for i in range(STEPS)]


def test_auto_dp_sgd_linear():
    """Table 1: sigma_e^2 = sigma_0^2 R^e, R = 0.99. Called linear, but geometric."""
    wanted = auto(lambda e: SIGMA**2 * 0.99**e)
    close(f"step:start={SIGMA},factor=0.99,every=60000/64,power=2", wanted)
    close(f"exponential:start={SIGMA},decay={-math.log(0.99)},every=937.5,power=2", wanted)


def test_auto_dp_sgd_time():
    """Table 1: sigma_e^2 = sigma_0^2 / (1 + R e), R = sigma_0 / E."""
    rate = SIGMA / EPOCHS
    close(f"time:start={SIGMA},decay={SIGMA}/{EPOCHS},every=937.5,power=2", auto(lambda e: SIGMA**2 / (1 + rate * e)))


def test_auto_dp_sgd_step():
    """Table 1: sigma_e^2 = sigma_0^2 R^floor(e / D), R = 0.5, D = 10 epochs."""
    close(f"step:start={SIGMA},factor=0.5,every=9375,power=2", auto(lambda e: SIGMA**2 * 0.5 ** (e // 10)))


def test_auto_dp_sgd_exponential():
    """Table 1: sigma_e^2 = sigma_0^2 exp(-R e), R = 0.1."""
    close(f"exponential:start={SIGMA},decay=0.1,every=937.5,power=2", auto(lambda e: SIGMA**2 * math.exp(-0.1 * e)))


def test_epochs_change_at_the_step_that_the_rate_says():
    """e = floor(q i), q = 64 / 60000: epochs have 938 and 937 steps in turn."""
    values = schedule_values("step:factor=0.5,every=60000/64", STEPS)
    changes = (np.flatnonzero(np.diff(values)) + 1).tolist()
    assert changes[:4] == [938, 1875, 2813, 3750]
    assert changes == [i for i in range(1, STEPS) if i * 64 // 60_000 != (i - 1) * 64 // 60_000]


def test_du_growing_mu():
    """Equations 11 and 13: mu_t = rho^(t/T) mu_0 and sigma_t = (C / mu_0) rho^(-t/T) for t in [T] = 1 .. T."""
    rho, mu_0, steps = 3.3, 0.8, 100
    close(f"exponential:start=1/{mu_0},end=1/{mu_0 * rho!r},grid=after", [
        1 / mu_0 * rho ** (-t / steps) for t in range(1, steps + 1)
    ])  # fmt: skip
    mu = 1 / schedule_values("exponential:end=1/3.3,grid=after", steps)
    assert mu == pytest.approx([rho ** (t / steps) for t in range(1, steps + 1)])


def test_du_sensitivity_decay():
    """Equation 14: C_t = rho_c^(-t/T) C_0 for t in [T] = 1 .. T."""
    rho, clip, steps = 2.5, 1.5, 40
    wanted = [rho ** (-t / steps) * clip for t in range(1, steps + 1)]
    close(f"{clip} * exponential:end=1/{rho},grid=after", wanted)


def test_du_dynamic():
    """Algorithm 2, line 4: the noise is (C_0 / mu_0) (rho_mu rho_c)^(-t/T): the product of the two shapes."""
    steps = 50
    close("exponential:end=1/3.3,grid=after * exponential:end=1/2,grid=after", [
        (3.3 * 2) ** (-t / steps) for t in range(1, steps + 1)
    ])  # fmt: skip


def test_wei_linear():
    """Section IV-A: C_t = C_0 (1 - gamma_1 t), t in {0, 1, ..., T - 1} (Algorithm 2, line 2)."""
    clip, gamma, steps = 4.0, 0.008, 100
    wanted = [clip * (1 - gamma * t) for t in range(steps)]
    close(f"linear:start={clip},decay={gamma}", wanted)
    close(
        f"linear:start={clip},end={clip * (1 - gamma * steps)!r},grid=before", wanted
    )  # the same by its limit at t = T


def test_wei_exponential():
    """Section IV-A: C_t = C_0 exp(-gamma_2 t), t in {0, 1, ..., T - 1}."""
    sigma, gamma, steps = 6.0, 0.02, 100
    wanted = [sigma * math.exp(-gamma * t) for t in range(steps)]
    close(f"exponential:start={sigma},decay={gamma}", wanted)
    close(f"exponential:start={sigma},end={sigma * math.exp(-gamma * steps)!r},grid=before", wanted)


def test_wei_cyclic():
    """Section IV-A: down by gamma_3 C_0* a step for V steps, up for V; then C_0* falls by 2 gamma_4 V C_0."""
    clip, V, gamma_3, gamma_4, steps = 4.0, 10, 0.03, 0.004, 95
    wanted, top, now = [], clip, clip
    for t in range(steps):
        if t > 0 and t % (2 * V) == 0:
            top -= 2 * gamma_4 * V * clip
            now = top
        wanted.append(now)
        now += top * gamma_3 * (-1 if (t // V) % 2 == 0 else 1)
    close(f"cyclic:start={clip},half={V},decay={gamma_3},fade={gamma_4}", wanted)


def test_the_three_conventions_differ():
    """The same words on three grids are three schedules; the default is closed."""
    closed, before, after = (
        schedule_values(f"exponential:end=0.3,grid={g}", 100) for g in ("closed", "before", "after")
    )
    assert np.array_equal(schedule_values("exponential:end=0.3", 100), closed)
    assert (closed[0], before[0]) == (1, 1)
    assert after[0] == pytest.approx(0.3**0.01)
    assert closed[-1] == after[-1] == pytest.approx(0.3)
    assert before[-1] == pytest.approx(0.3**0.99)
