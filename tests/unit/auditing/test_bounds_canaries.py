"""Limits on the number of right guesses: a linear program as the oracle, and mechanisms that reach them."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

from privet.accounting.gdp import delta_of_mu
from privet.accounting.tradeoff import Gaussian, from_deltas
from privet.auditing.bounds import curve_p_value, epsilon_bound, is_rejected, mu_bound, pair_p_value
from privet.auditing.one_run import GuessCount, best_against_curve, canaries_to_reject, guess_options
from privet.errors import InvalidValue

EPSILONS = (0.0, 0.5, 1.0, 2.0)


def by_linear_program(deltas: list[float], m: int, r: int, v: int) -> float:
    """The largest P[W >= v] over all laws of W that satisfy every inequality, with no recursion."""
    i = np.arange(r + 1)
    rows, limits = [], []
    for j in range(1, r + 1):
        right, wrong = np.where(i >= j, i / m, 0), np.where(i >= j - 1, (r - i) / m, 0)
        for eps, delta in zip(EPSILONS, deltas, strict=True):
            rows += [right - math.exp(eps) * wrong, right - math.exp(-eps) * wrong]
            limits += [delta, 1 - math.exp(-eps) * (1 - delta)]
    found = linprog(-(i >= v).astype(float), A_ub=rows, b_ub=limits, A_eq=[np.ones(r + 1)], b_eq=[1], bounds=(0, 1))
    return -float(found.fun)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("m", "r", "v"), [(20, 20, 15), (20, 8, 7), (30, 30, 24), (30, 10, 10), (12, 1, 1)])
def test_the_recursion_is_the_linear_program(mu: float, m: int, r: int, v: int) -> None:
    deltas = [delta_of_mu(mu, eps) for eps in EPSILONS]
    found = curve_p_value(from_deltas(EPSILONS, deltas), canaries=m, guesses=r, right=v)
    exact = by_linear_program(deltas, m, r, v)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-6) + 1e-12


def test_without_privacy_loss_guesses_are_coins() -> None:
    exact = float(stats.binom.sf(69, 100, 0.5))
    assert exact <= curve_p_value(Gaussian(mu=0.0), canaries=100, guesses=100, right=70) <= 1.1 * exact
    assert pair_p_value(canaries=100, guesses=100, right=70, epsilon=0, delta=0) == pytest.approx(exact)


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_randomised_response_nearly_reaches_both_limits(eps: float) -> None:
    """It guesses each coin with chance e^eps / (1 + e^eps), independently. The curve's limit is a bit above."""
    exact = float(stats.binom.sf(94, 100, 1 / (1 + math.exp(-eps))))
    assert pair_p_value(canaries=100, guesses=100, right=95, epsilon=eps, delta=0) == pytest.approx(exact)
    found = curve_p_value(from_deltas([eps], [0.0]), canaries=100, guesses=100, right=95)
    assert exact <= found <= 1.15 * exact


def test_telling_all_with_a_small_chance_stays_within_both_limits() -> None:
    """(0, delta)-privacy allows to tell every coin with chance delta: P[W = r] >= delta, whatever r."""
    assert curve_p_value(from_deltas([0.0], [0.01]), canaries=500, guesses=500, right=500) >= 0.01
    assert pair_p_value(canaries=500, guesses=500, right=500, epsilon=0.0, delta=0.01) >= 0.01


def test_limits_move_the_right_way() -> None:
    def p(mu: float, right: int, m: int = 200) -> float:
        return curve_p_value(Gaussian(mu=mu), canaries=m, guesses=100, right=right)

    assert p(0.5, 90) < p(0.7, 90)
    assert p(0.5, 92) < p(0.5, 90)
    assert p(0.5, 0) == 1
    assert is_rejected(Gaussian(mu=0.5), canaries=200, guesses=100, right=90, significance=p(0.5, 90) * 1.001)
    assert not is_rejected(Gaussian(mu=0.5), canaries=200, guesses=100, right=90, significance=p(0.5, 90) * 0.999)


def test_bounds_are_where_rejection_ends() -> None:
    seen = {"canaries": 1000, "guesses": 200, "right": 195}
    eps, mu = epsilon_bound(**seen, delta=1e-5, significance=0.01), mu_bound(**seen, significance=0.01)
    assert pair_p_value(**seen, epsilon=eps, delta=1e-5) <= 0.01 < pair_p_value(**seen, epsilon=eps + 0.01, delta=1e-5)
    assert curve_p_value(Gaussian(mu=mu), **seen) <= 0.01 < curve_p_value(Gaussian(mu=mu + 0.01), **seen)
    assert epsilon_bound(canaries=10, guesses=10, right=5, delta=0.0, significance=0.01) == 0


def test_the_bounds_of_one_long_run() -> None:
    """5,000 canaries at a true epsilon of 8 (mu 1.666, delta 1e-5): about 3.5 directly, at 95 %."""
    guesses = GuessCount(count=500, both=True)
    right = guesses.expected_correct(1.666, 5000)
    assert epsilon_bound(canaries=5000, guesses=500, right=right, delta=1e-5, significance=0.05) == pytest.approx(
        3.5, abs=0.1
    )


def test_guesses_take_the_ends() -> None:
    scores, coins = np.array([5.0, 4, 3, 2, 1, 0]), np.array([True, True, False, True, False, False])
    assert GuessCount(count=4, both=True).count_correct(scores, coins) == 4
    assert GuessCount(count=3, both=False).count_correct(scores, coins) == 2
    assert GuessCount(count=6, both=True).count_correct(scores, coins) == 4
    assert GuessCount(count=1, both=True).count_correct(scores, coins) == 1


@pytest.mark.parametrize("guesses", guess_options(20_000))
def test_as_many_are_right_as_expected(guesses: GuessCount) -> None:
    g = np.random.default_rng(1)
    coins = g.random(20_000) < 0.5
    right = guesses.count_correct(g.normal(size=20_000) + 1.2 * coins, coins)
    spread = math.sqrt(guesses.count) * 0.5
    assert abs(right - guesses.expected_correct(1.2, 20_000)) < 4.5 * spread + 1


def test_more_canaries_see_smaller_mistakes() -> None:
    curve = Gaussian(mu=1.0)
    assert not best_against_curve(curve, mu=2.0, canaries=500, significance=1e-3)[1]
    needed = canaries_to_reject(1.0, mu=2.0, significance=1e-3, start=500)
    assert needed is not None
    assert best_against_curve(curve, mu=2.0, canaries=needed, significance=1e-3)[1]
    assert canaries_to_reject(1.0, mu=1.0, significance=1e-3, start=2**17) is None


@pytest.mark.parametrize(("m", "r", "v"), [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, 5, -1)])
def test_counts_must_fit(m: int, r: int, v: int) -> None:
    for call in (
        lambda: curve_p_value(Gaussian(mu=1.0), canaries=m, guesses=r, right=v),
        lambda: pair_p_value(canaries=m, guesses=r, right=v, epsilon=1.0, delta=0.0),
    ):
        with pytest.raises(InvalidValue):
            call()
