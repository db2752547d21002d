"""The certified accountant: closed forms, goldens by integration, two routes, and the cases that break others."""

import itertools
import json
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from oracle import DIRECTIONS, bracket, counted, epsilon_where, inverted, one_step, three_steps, two_steps
from privet.accounting.accountant import spent
from privet.accounting.ledger import Ledger, Step
from privet.accounting.pld import frequencies
from privet.accounting.pld.accountant import delta_at, directed_delta
from privet.accounting.pld.levels import loss_levels
from privet.accounting.pld.loss_moments import QuadratureTooCostly
from privet.errors import InvalidValue, Unsupported

DELTA = 1e-5


def constant(noise: float, rate: float, count: int) -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate), count)
    return ledger


def varying(noise, rate) -> Ledger:
    ledger = Ledger()
    ledger.extend(noise_multiplier=noise, sample_rate=rate)
    return ledger


def interval(ledger: Ledger, delta: float = DELTA) -> tuple[float, float]:
    guarantee = spent(ledger, delta)
    assert guarantee.label == "certified"
    assert guarantee.epsilon_lower is not None
    return guarantee.epsilon_lower, guarantee.epsilon


# --- closed forms and integration --------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.5, 0.3), (5.0, 0.999), (0.3, 1e-4), (0.1, 0.5)])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_one_step_equals_the_integral(noise, rate, delta):
    """At the bounds themselves: delta(lower) >= delta >= delta(upper), in the worse direction."""
    low, high = interval(constant(noise, rate, 1), delta)
    if not high:
        assert max(one_step(noise, rate, 0.0, side) for side in DIRECTIONS) <= delta * (1 + 1e-9)
        return
    assert max(one_step(noise, rate, low * (1 - 1e-12), side) for side in DIRECTIONS) >= delta * (1 - 1e-9)
    assert max(one_step(noise, rate, high * (1 + 1e-12), side) for side in DIRECTIONS) <= delta * (1 + 1e-9)
    assert high - low <= 1e-9 * high


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.4, 0.02), (3.0, 0.9)])
def test_delta_of_one_step_equals_the_integral(noise, rate, direction, epsilon):
    low, high = directed_delta(loss_levels(constant(noise, rate, 1)), direction, epsilon)
    truth = one_step(noise, rate, epsilon, direction)
    assert low - 1e-16 <= truth * (1 + 1e-10)
    assert truth * (1 - 1e-10) <= high + 1e-16


@pytest.mark.parametrize(("noise", "count"), [(2.0, 1), (20.0, 100), (0.5, 7), (300.0, 10**6), (0.02, 1)])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_rate_one_equals_exact_gdp(noise, count, delta):
    low, high = interval(constant(noise, 1.0, count), delta)
    with mpmath.workdps(60):
        mu = mpmath.sqrt(count) / mpmath.mpf(noise)

        def exact(e: mpmath.mpf) -> mpmath.mpf:
            tail = mpmath.erfc((e / mu + mu / 2) / mpmath.sqrt(2)) / 2
            return mpmath.erfc((e / mu - mu / 2) / mpmath.sqrt(2)) / 2 - mpmath.exp(e) * tail

        assert exact(mpmath.mpf(low)) >= delta * (1 - mpmath.mpf("1e-30")) or low == 0
        assert exact(mpmath.mpf(high)) <= delta
    assert high - low <= 1e-10 * max(high, 1e-9)


@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-2])
@pytest.mark.parametrize(
    ("first", "second"),
    [((1.0, 0.01), (1.0, 0.01)), ((2.0, 0.1), (0.7, 0.02)), ((0.6, 0.5), (4.0, 0.999)), ((1.5, 1.0), (0.8, 0.05))],
)
def test_two_steps_equal_the_double_integral(first, second, delta):
    low, high = interval(varying([first[0], second[0]], [first[1], second[1]]), delta)
    truth = max(epsilon_where(lambda e, d=d: two_steps(first, second, e, d), delta) for d in DIRECTIONS)
    assert low - 1e-7 <= truth <= high + 1e-7
    assert high - low <= 1e-3 * high


@pytest.mark.slow
@pytest.mark.parametrize("releases", [((1.0, 0.1), (2.0, 0.3), (0.8, 0.05)), ((1.0, 0.01),) * 3])
def test_three_steps_equal_the_triple_integral(releases):
    """At both ends of the interval: delta there is above, and below, what was asked for."""
    low, high = interval(varying(*np.array(releases).T))
    assert max(three_steps(releases, low, d) for d in DIRECTIONS) >= DELTA * (1 - 1e-4)
    assert max(three_steps(releases, high, d) for d in DIRECTIONS) <= DELTA * (1 + 1e-4)
    assert high - low <= 1e-3 * high


def test_the_direction_add_can_be_the_worse_one():
    """Few steps, a large delta, rate near 1: an accountant of one direction would under-report or over-report."""
    levels = loss_levels(constant(1.0, 0.5, 3))
    for direction in DIRECTIONS:
        low, high = directed_delta(levels, direction, 0.3)
        truth = three_steps(((1.0, 0.5),) * 3, 0.3, direction)
        assert low - 1e-9 <= truth <= high + 1e-9


# --- many steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (1.3, 256 / 60000, 3516, 1e-5),
        (1.1, 256 / 60000, 14063, 1e-5),
        (6.0, 0.01, 10000, 1e-5),
        (1.0, 0.02, 1500, 1e-4),
    ],
)
def test_constant_schedules_agree_with_gil_pelaez(noise, rate, steps, delta):
    low, high = interval(constant(noise, rate, steps), delta)
    assert low - 1e-6 <= inverted({(noise, rate): steps}, delta) <= high + 1e-6
    assert high - low <= 1e-6 * high


def test_a_dynamic_schedule_agrees_with_gil_pelaez_level_by_level():
    noise, rate = np.repeat(3.0 * (1 / 3) ** (np.arange(60) / 60), 8), np.full(480, 0.04)
    low, high = interval(varying(noise, rate))
    assert low - 1e-6 <= inverted(counted(noise, rate), DELTA, panels=160) <= high + 1e-6
    assert high - low <= 1e-5 * high


@pytest.mark.parametrize(
    ("first", "last", "rate", "steps", "width"),
    [(2.0, 0.6, 256 / 60000, 14063, 1e-5), (4.0, 0.4, 0.01, 10000, 1e-5)],
)
def test_ten_thousand_different_steps_are_narrow(first, last, rate, steps, width):
    low, high = interval(varying(first * (last / first) ** (np.arange(steps) / (steps - 1)), rate))
    assert high - low <= width * high


@pytest.mark.prove
@pytest.mark.parametrize(("first", "last", "rate", "steps"), [(2.0, 0.6, 256 / 60000, 14063), (4.0, 1.0, 0.01, 10000)])
def test_ten_thousand_different_steps_agree_with_gil_pelaez(first, last, rate, steps):
    noise = np.repeat(first * (last / first) ** np.linspace(0, 1, steps // 20), 20)  # the oracle takes each level alone
    low, high = interval(varying(noise, rate))
    assert low - 1e-5 <= inverted(counted(noise, np.full(len(noise), rate)), DELTA, panels=320) <= high + 1e-5


# --- two routes of our own ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ledger",
    [
        constant(1.0, 0.01, 1000),
        varying([0.8] * 40 + [2.0] * 500, 0.02),
        varying([2.0] * 300 + [30.0] * 5, [0.01] * 300 + [1.0] * 5),
        constant(1.1, 256 / 60000, 14063),
        pytest.param(varying(np.linspace(3.0, 1.0, 900), 0.02), marks=pytest.mark.prove),
    ],
    ids=["constant", "two levels", "with rate 1", "long", "many levels"],
)
def test_the_blur_agrees_with_the_decay(ledger, monkeypatch):
    """All frequencies until a blur ends them, by FFT, against few that a bound on the steps ends."""

    def refuse(*args, **kwargs):
        raise QuadratureTooCostly("not today")

    fast = interval(ledger)
    monkeypatch.setattr(frequencies, "_decay_frequencies", refuse)
    sturdy = interval(ledger)
    assert sturdy != fast
    assert max(fast[0], sturdy[0]) <= min(fast[1], sturdy[1])
    assert sturdy[1] - sturdy[0] <= 1e-5 * sturdy[1]


# --- short schedules of different steps ---------------------------------------------------------------


def geometric(steps: int, first: float, last: float) -> np.ndarray:
    return first * (last / first) ** (np.arange(steps) / (steps - 1))


SHORT = {
    "20, rate 1e-3": (geometric(20, 4.0, 0.8), 1e-3, 1e-5),
    "20, loud": (geometric(20, 6.0, 2.0), 0.01, 1e-5),
    "50": (geometric(50, 2.0, 0.5), 0.01, 1e-5),
    "300": (geometric(300, 4.5, 1.36), 2048 / 60000, 1e-5),
    "300, quiet": (geometric(300, 2.0, 0.5), 0.03, 1e-5),
    "300, growing batch": (geometric(300, 2.4, 0.8), geometric(300, 0.017, 0.07), 1e-5),
    "300, delta 1e-12": (geometric(300, 2.0, 0.7), 0.01, 1e-12),
    "1000, rate 1e-3": (geometric(1000, 4.0, 0.8), 1e-3, 1e-5),
    "up and down": (1.5 + np.sin(np.arange(150) / 7.3), 0.02, 1e-5),
    "noise 0.3": (geometric(10, 0.6, 0.3), 0.01, 1e-5),
    "noise 50": (geometric(100, 50.0, 30.0), 0.05, 1e-5),
    "with rate 1": (np.append(geometric(60, 2.0, 0.8), [20.0, 30.0]), np.append(np.full(60, 0.02), [1.0, 1.0]), 1e-5),
    "3, all different": (np.array([1.0, 1.5, 0.6]), np.array([0.05, 0.2, 0.01]), 1e-5),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_schedules_are_narrow(name):
    noise, rate, delta = SHORT[name]
    low, high = interval(varying(noise, rate), delta)
    assert high - low <= 5e-5 * high


@pytest.mark.parametrize("name", ["noise 0.3", "3, all different", "20, rate 1e-3"])
def test_short_schedules_lie_in_the_slow_bracket(name):
    noise, rate, delta = SHORT[name]
    low, high = interval(varying(noise, rate), delta)
    least, most = bracket(counted(noise, np.broadcast_to(rate, noise.shape)), delta, 1 << 16)
    assert low <= most
    assert least <= high
    assert most - least <= 0.05 * most


@pytest.mark.prove
@pytest.mark.parametrize(
    "name", ["20, rate 1e-3", "20, loud", "50", "300, growing batch", "up and down", "with rate 1"]
)
def test_short_schedules_lie_in_a_fine_bracket(name):
    noise, rate, delta = SHORT[name]
    low, high = interval(varying(noise, rate), delta)
    least, most = bracket(counted(noise, np.broadcast_to(rate, noise.shape)), delta, 1 << 18)
    assert low <= most
    assert least <= high
    assert most - least <= 0.02 * most


@pytest.mark.prove
@pytest.mark.parametrize("name", ["20, loud", "50", "with rate 1"])
def test_short_schedules_agree_with_dp_accounting(name):
    """Its pessimistic and optimistic estimates enclose the truth, so each meets our interval from its side."""
    from dp_accounting.pld import privacy_loss_distribution as peer

    noise, rate, delta = SHORT[name]
    for pessimistic in (True, False):
        total = peer.identity(1e-4, pessimistic)
        for sigma, q in zip(noise, np.broadcast_to(rate, noise.shape), strict=True):
            one = peer.from_gaussian_mechanism(
                float(sigma),
                sampling_prob=float(q),
                value_discretization_interval=1e-4,
                pessimistic_estimate=pessimistic,
            )
            total = total.compose(one)
        epsilon = total.get_epsilon_for_delta(delta)
        low, high = interval(varying(noise, rate), delta)
        assert (epsilon >= low) if pessimistic else (epsilon <= high)
        assert epsilon == pytest.approx(high, rel=0.02)


# --- hard cases ---------------------------------------------------------------------------------------

r = np.random.default_rng(0)
HARD = {
    "noise 0.3": (constant(0.3, 0.01, 100), 1e-5),
    "noise 50": (constant(50.0, 0.01, 1000), 1e-5),
    "noise 0.02": (constant(0.02, 0.01, 100), 1e-5),
    "noise 0.02, 10000 steps": (constant(0.02, 0.01, 10_000), 1e-5),
    "noise 1e6": (constant(1e6, 0.01, 10), 1e-5),
    "noise 1e-4": (constant(1e-4, 0.01, 10), 1e-5),
    "delta 1e-12": (constant(1.1, 0.01, 1000), 1e-12),
    "delta 1e-300": (constant(1.0, 0.01, 100), 1e-300),
    "delta 0.5": (constant(1.0, 0.1, 100), 0.5),
    "delta 0.999": (constant(1.0, 0.01, 100), 0.999),
    "2 steps": (constant(1.0, 0.01, 2), 1e-5),
    "3 steps": (constant(1.0, 0.01, 3), 1e-5),
    "2 steps, noise 0.05": (constant(0.05, 0.01, 2), 1e-5),
    "1e6 steps": (constant(1.0, 0.001, 10**6), 1e-5),
    "1e6 steps, noise 5": (constant(5.0, 0.001, 10**6), 1e-5),
    "mu above 30": (constant(0.03, 0.001, 50), 1e-5),
    "mu 100, rate 0.5": (constant(0.01, 0.5, 3), 1e-5),
    "rate 0.999": (constant(1.0, 0.999, 10), 1e-5),
    "rate 0.999, 1000 steps": (constant(1.0, 0.999, 1000), 1e-5),
    "rate 1e-6": (constant(1.0, 1e-6, 10**5), 1e-5),
    "rate 1e-6, delta 1e-9": (constant(1.0, 1e-6, 10**5), 1e-9),
    "rate 1e-6, noise 0.1": (constant(0.1, 1e-6, 1000), 1e-5),
    "two levels": (varying([0.5] * 10 + [3.0] * 1000, 0.01), 1e-5),
    "up and down": (varying(1.5 + np.sin(np.arange(3000) / 30), 0.01), 1e-5),
    "many rates": (varying(r.uniform(0.8, 3, 3000), r.uniform(1e-3, 0.05, 3000)), 1e-5),
    "three decades of noise": (varying(np.geomspace(0.05, 50, 2000), 0.01), 1e-5),
    "rate 1 among others": (varying(r.uniform(1, 30, 500), np.where(np.arange(500) % 50, 0.01, 1.0)), 1e-5),
    "noise falls to 0.007": (varying(np.exp(-0.05 * np.arange(100)), 0.01), 1e-5),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_cases_give_an_interval(name):
    ledger, delta = HARD[name]
    low, high = interval(ledger, delta)
    assert math.isfinite(high)
    assert 0 <= low <= high
    plain = Ledger()  # never more than without sampling
    plain.extend(noise_multiplier=ledger.columns().noise_multiplier, sample_rate=1.0)
    if len(plain) == len(ledger):
        assert high <= interval(plain, delta)[1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("noise 50", 1e-6), ("delta 1e-12", 1e-4), ("1e6 steps", 1e-4), ("two levels", 1e-6), ("up and down", 1e-4),
        ("many rates", 1e-4), ("rate 1 among others", 1e-4), ("2 steps", 1e-3), ("3 steps", 1e-3), ("rate 0.999", 1e-4),
        ("noise 0.3", 1e-2), ("noise 0.02", 1e-2), ("mu above 30", 1e-2),
    ],
)  # fmt: skip
def test_hard_cases_are_narrow(name, width):
    low, high = interval(*HARD[name])
    assert high - low <= width * high


@pytest.mark.parametrize("name", ["noise 0.3", "rate 0.999", "rate 1e-6, noise 0.1", "two levels"])
def test_hard_cases_lie_in_the_slow_bracket(name):
    ledger, delta = HARD[name]
    low, high = interval(ledger, delta)
    least, most = bracket({(step.noise_multiplier, step.sample_rate): count for step, count in ledger}, delta)
    assert low <= most
    assert least <= high
    assert most - least <= 0.02 * most


LIMITED = """
import json, re, resource, sys
import numpy as np
from privet.accounting import Ledger, spent
name, noise, rate, delta = sys.argv[1], *map(json.loads, sys.argv[2:])
r = np.random.default_rng(1)
noises = {"wide": np.geomspace(50, 0.05, 10**4), "million": np.linspace(4, 1, 10**6), "rates": r.uniform(0.5, 9, 10**4),
          "constant": np.full(10**5, noise)}[name]
ledger = Ledger()
ledger.extend(noise_multiplier=noises, sample_rate=r.uniform(1e-6, 0.2, 10**4) if name == "rates" else rate)
found = spent(ledger, delta)
try:  # of this program alone: on Linux ru_maxrss is at least that of the process that started it
    kilobytes = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
except OSError:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([found.epsilon_lower, found.epsilon, kilobytes / 2**20]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "noise", "rate", "delta"),
    [("wide", 0, 0.01, 1e-5), ("million", 0, 0.001, 1e-5), ("rates", 0, 0, 1e-5), ("constant", 1.0, 1e-6, 1e-5)],
)
def test_the_worst_stay_within_a_gigabyte(name, noise, rate, delta):
    command = [sys.executable, "-W", "error", "-c", LIMITED, name, *map(str, (noise, rate, delta))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    low, high, gigabytes = json.loads(done.stdout)
    assert 0 <= low <= high < math.inf
    assert gigabytes < 1


# --- delta at epsilon, and refusals -------------------------------------------------------------------


@pytest.mark.parametrize("ledger", [constant(1.1, 256 / 60000, 14063), constant(1.0, 0.2, 2), constant(3.0, 1.0, 5)])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_delta_and_epsilon_are_inverse(ledger, delta):
    low, high = interval(ledger, delta)
    assert delta_at(ledger, high)[0] <= delta * (1 + 1e-9)
    if low > 0:
        assert delta_at(ledger, low)[1] >= delta * (1 - 1e-9)


def test_delta_falls_with_epsilon():
    ledger = constant(1.0, 0.02, 500)
    found = [delta_at(ledger, epsilon) for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(0 <= low <= high <= 1 for low, high in found)
    assert all(after[0] <= before[1] for before, after in itertools.pairwise(found))
    assert found[-1][1] < 1e-5 < found[0][0]


def test_delta_refuses_what_epsilon_refuses():
    with pytest.raises(InvalidValue, match="epsilon"):
        delta_at(constant(1.0, 0.1, 2), -1.0)
    with pytest.raises(Unsupported, match="replace-one"):
        delta_at(constant(1.0, 0.1, 2), 1.0, adjacency="replace-one")


def test_shuffled_batches_cost_one_gaussian_per_epoch():
    shuffled = Ledger()
    shuffled.extend(noise_multiplier=[2.0, 3.0, 5.0, 4.0], sample_rate=0.5, sampling="shuffled")
    whole = varying([2.0, 4.0], 1.0)
    assert spent(shuffled, DELTA).epsilon == pytest.approx(interval(whole)[1], rel=1e-12)
