"""How often audits accuse the innocent, on mechanisms whose law is exactly the claim, and how often they see more.

Each test states its own chance of failing with a fresh seed.
"""

import math

import numpy as np
import pytest
from scipy import stats

from privet.accounting import Ledger, Step
from privet.accounting.tradeoff import Curve, Gaussian, from_deltas, tradeoff
from privet.auditing.bounds import choose_tests, curve_p_value, is_rejected, pair_p_value, samples_to_distinguish
from privet.auditing.one_run import GuessCount, best_against_curve

ALARM = 0.05  # of the audits under test; large, so that it can be counted
RARE = 1e-6  # of these tests


def too_many(count: int, trials: int, rate: float) -> bool:
    """Whether so many alarms out of `trials` are rarer than RARE at this rate."""
    return stats.binom.sf(count - 1, trials, rate) < RARE


def rejections(
    shift: float, claim: float, *, samples: int, rounds: int, significance: float = ALARM, extra: int = 2
) -> int:
    """Step audits of N(0, 1) against N(shift, 1) under the claim G_claim, features without news among them."""
    g, curve, count = np.random.default_rng(5), Gaussian(mu=claim), 0
    half = samples // 2
    for _ in range(rounds):
        without, with_ = g.normal(size=(2, samples, 1 + extra))
        with_[:, 0] += shift
        test, _ = choose_tests(without[:half], with_[:half], curve=curve, delta=1e-5, significance=significance)
        count += test.errors(without[half:], with_[half:], significance).rejects(curve)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_a_step_that_reaches_its_claim_is_rarely_accused(mu: float) -> None:
    """150 audits of exactly the claim; fails once in a million if the alarm is kept. Clopper-Pearson is on the safe
    side, so the rate is in fact far below the alarm."""
    assert not too_many(rejections(mu, mu, samples=400, rounds=150), 150, ALARM)


def test_a_step_that_gives_away_more_is_seen() -> None:
    """At the sample size that is said to decide, and alarm 1e-3, most audits do; at a tenth of it few do."""
    enough = samples_to_distinguish(1.0, 2.0)
    assert rejections(2.0, 1.0, samples=enough, rounds=40, significance=1e-3, extra=0) >= 20
    assert rejections(2.0, 1.0, samples=enough // 10, rounds=40, significance=1e-3, extra=0) <= 20


def test_choosing_and_testing_on_the_same_samples_would_accuse_the_innocent() -> None:
    """Why samples are halved: without new ones, and without limits on the rates, half of the audits are wrong."""
    g, curve, count = np.random.default_rng(6), Gaussian(mu=1.0), 0
    for _ in range(60):
        without, with_ = g.normal(size=(2, 200, 1))
        with_ += 1.0
        test, _ = choose_tests(without, with_, curve=curve, delta=1e-5, significance=ALARM)
        seen = test.errors(without, with_, ALARM)
        count += seen.seen_miss < float(curve(seen.seen_false_alarm))
    assert count > 30


# --- one run --------------------------------------------------------------------------------------------


def least_rejected(curve: Curve, *, canaries: int, guesses: int) -> int:
    """The least number of right guesses that rejects the curve; one more than there are if none does."""
    return next(
        (v for v in range(guesses + 1)
         if is_rejected(curve, canaries=canaries, guesses=guesses, right=v, significance=ALARM)), guesses + 1,
    )  # fmt: skip


@pytest.mark.parametrize("mu", [0.5, 1.5])
@pytest.mark.parametrize("guesses", [GuessCount(count=40, both=True), GuessCount(count=20, both=False)])
def test_gaussian_canaries_are_rarely_accused(mu: float, guesses: GuessCount) -> None:
    """Each canary's release is N(0, 1) or N(mu, 1): exactly G_mu. 2,000 runs of 200 canaries."""
    g, count = np.random.default_rng(7), 0
    worst = least_rejected(Gaussian(mu=mu), canaries=200, guesses=guesses.count)
    for _ in range(2000):
        coins = g.random(200) < 0.5
        count += guesses.count_correct(g.normal(size=200) + mu * coins, coins) >= worst
    assert not too_many(count, 2000, ALARM)


def test_a_sampled_step_is_rarely_accused() -> None:
    """One step at rate 0.5 and noise 0.5: the curve is that of `pld`, the scores are likelihood ratios."""
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=0.5, sample_rate=0.5))
    curve, guesses, g, count = tradeoff(ledger), GuessCount(count=60, both=True), np.random.default_rng(8), 0
    worst = least_rejected(curve, canaries=200, guesses=60)
    for _ in range(2000):
        coins = g.random(200) < 0.5
        x = 0.5 * g.normal(size=200) + (coins & (g.random(200) < 0.5))
        count += guesses.count_correct(x, coins) >= worst
    assert not too_many(count, 2000, ALARM)


@pytest.mark.parametrize("delta", [0.02, 0.2])
def test_a_mechanism_that_tells_all_now_and_then_is_rarely_accused(delta: float) -> None:
    """(0, delta): with chance delta every coin is told. All guesses are right together: no law is further from
    independent guesses. The p-values must not be below the truth."""
    exact = delta + (1 - delta) * float(stats.binom.sf(79, 100, 0.5))
    assert curve_p_value(from_deltas([0.0], [delta]), canaries=100, guesses=100, right=80) >= exact
    assert pair_p_value(canaries=100, guesses=100, right=80, epsilon=0.0, delta=delta) >= exact


def test_guesses_that_share_their_luck_are_rarely_accused() -> None:
    """One Gaussian noise for all canaries, in the sum of all: G_mu for each, and the guesses go right together.

    Every canary moves one number by mu. All that can be told is whether more are in than out: 4,000 runs."""
    g, mu, m = np.random.default_rng(9), 1.0, 50
    worst = least_rejected(Gaussian(mu=mu), canaries=m, guesses=m)
    coins = g.random((4000, m)) < 0.5
    total = mu * coins.sum(1) + g.normal(size=4000)
    right = np.where(total > mu * m / 2, coins.sum(1), m - coins.sum(1))
    assert not too_many(int((right >= worst).sum()), 4000, ALARM)


def test_a_run_with_a_quarter_of_its_noise_is_seen() -> None:
    """Claim G_1, truth G_4, 1,000 canaries, alarm 1e-3: all of 50 runs."""
    g, curve = np.random.default_rng(10), Gaussian(mu=1.0)
    guesses, seen = best_against_curve(curve, mu=4.0, canaries=1000, significance=1e-3)
    assert seen
    for _ in range(50):
        coins = g.random(1000) < 0.5
        right = guesses.count_correct(g.normal(size=1000) + 4.0 * coins, coins)
        assert is_rejected(curve, canaries=1000, guesses=guesses.count, right=right, significance=1e-3)
    assert math.isclose(guesses.expected_correct(4.0, 1000) / guesses.count, 1.0, abs_tol=0.1)
