"""Calibration: near the target, never above it, and quick."""

import math

import pytest

from privet.accounting import Ledger, Step, gdp, spent
from privet.errors import NoSolution, Unsupported
from privet.planning.calibrate import (
    MOST_PEAK,
    calibrate,
    clt_height,
    largest_affordable,
    pld_epsilon_at,
    raise_until_met,
)
from privet.schedules import schedule_values


def shaped(text: str, steps: int, rate: float, peak: float = 1.0) -> Ledger:
    ledger = Ledger()
    ledger.extend(noise_multiplier=peak * schedule_values(text, steps), sample_rate=rate)
    return ledger


@pytest.mark.parametrize("power", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("start", [1e-6, 0.5, 1.0, 1e5])
def test_a_power_law_is_met_from_anywhere(power, start):
    tries = []

    def cost(peak):
        tries.append(peak)
        return 3 * peak**-power

    found = calibrate(cost, epsilon=0.7, start=start)
    assert 0.7 * (1 - 1e-4) <= 3 * found**-power <= 0.7
    assert len(tries) <= 12


def test_a_curve_with_a_jump_ends_on_the_private_side():
    found = calibrate(lambda peak: 3.0 if peak < 2 else 0.5, epsilon=1.0)
    assert 2 <= found <= 2 * (1 + 1e-12)


def test_a_cost_of_zero_or_none_is_no_trouble():
    assert calibrate(lambda peak: max(0.0, 2 - peak), epsilon=0.01, start=50) == pytest.approx(1.99, abs=1e-5)

    def refusing(peak):
        if peak**2 <= 2:
            raise Unsupported("too little noise")
        return 1 / (peak**2 - 2)

    assert calibrate(refusing, epsilon=1.0, start=0.01) == pytest.approx(math.sqrt(3), rel=1e-4)


def test_what_is_always_refused_says_why():
    def refusing(peak):
        raise Unsupported("no theorem")

    with pytest.raises(Unsupported, match="no theorem"):
        calibrate(refusing, epsilon=1.0)


def test_out_of_reach():
    with pytest.raises(NoSolution, match="even noise x1048576 costs 2"):
        calibrate(lambda peak: 2.0, epsilon=1.0)
    with pytest.raises(NoSolution, match="needs no noise"):
        calibrate(lambda peak: 0.1 / (1 + peak), epsilon=1.0)


@pytest.mark.parametrize("text", ["constant", "exponential:end=0.3", "linear:end=4", "cyclic:half=10,decay=0.05"])
@pytest.mark.parametrize(("rate", "delta", "epsilon"), [(0.01, 1e-5, 0.5), (0.02, 1e-6, 4.0), (1.0, 1e-5, 2.0)])
def test_the_height_of_a_shape_meets_the_budget(text, rate, delta, epsilon):
    ledger = shaped(text, 2000, rate)
    start = clt_height(ledger, epsilon=epsilon, delta=delta)
    peak = calibrate(pld_epsilon_at(ledger, delta), epsilon=epsilon, start=start)
    found = spent(shaped(text, 2000, rate, peak), delta).epsilon
    assert epsilon * (1 - 1.01e-4) <= found <= epsilon * (1 + 1e-12)


def test_the_extended_clt_is_solved_exactly():
    """Du et al. 2021, eq. 12: mu_tot^2 = p^2 sum_t (exp((rho^(t/T) mu_0)^2) - 1), here with mu_0 = 1 / peak."""
    rho, steps, rate = 3.3, 200, 0.01
    ledger = shaped(f"exponential:end=1/{rho},grid=after", steps, rate)
    mu_0 = 1 / clt_height(ledger, epsilon=1.2, delta=1e-5)
    total = sum(math.expm1((rho ** (t / steps) * mu_0) ** 2) for t in range(1, steps + 1))
    assert rate * math.sqrt(total) == pytest.approx(gdp.mu_of(1.2, 1e-5), rel=1e-10)


def test_constant_mu_has_the_closed_form():
    """Du et al. 2021: with constant mu, mu_0 = sqrt(log(mu_tot^2 / (p^2 T) + 1))."""
    rate, steps = 256 / 60000, 14063
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=1.0, sample_rate=rate), steps)
    mu_0 = math.sqrt(math.log(gdp.mu_of(2.32, 1e-5) ** 2 / (rate**2 * steps) + 1))
    assert 1 / clt_height(ledger, epsilon=2.32, delta=1e-5) == pytest.approx(mu_0, rel=1e-12)


def test_exact_moves_up_by_ulps_only():
    assert raise_until_met(lambda peak: 2 / peak, epsilon=2 / 3, peak=3 * (1 - 1e-15)) == pytest.approx(3, rel=1e-14)
    with pytest.raises(NoSolution):
        raise_until_met(lambda peak: 1.0, epsilon=0.5, peak=1.0)


@pytest.mark.parametrize("answer", [1, 2, 7, 100, 12345, 10**9])
@pytest.mark.parametrize("start", [1, 1000, 10**10])
def test_the_largest_whole_number(answer, start):
    calls = []

    def cost(n):
        calls.append(n)
        return math.sqrt(n) if n < 10**11 else math.inf

    assert largest_affordable(cost, epsilon=math.sqrt(answer + 0.5), most=10**12, start=start) == answer
    assert len(calls) <= 60


def test_no_whole_number_or_all_of_them():
    assert largest_affordable(lambda n: 5.0, epsilon=1.0, most=10**6) == 0
    assert largest_affordable(lambda n: 0.0, epsilon=1.0, most=10**6) == 10**6
    assert MOST_PEAK == 2**20
