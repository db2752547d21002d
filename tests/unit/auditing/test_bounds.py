"""Limits on error rates, and what follows from them."""

import math

import numpy as np
import pytest
from scipy import stats

from privet.accounting.tradeoff import Gaussian, from_deltas
from privet.auditing.bounds import (
    Errors,
    Threshold,
    choose_tests,
    equivalent_mu,
    has_power,
    samples_to_distinguish,
    upper_limit,
)
from privet.errors import InvalidValue


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (3, 50), (49, 50), (500, 1000)])
def test_the_limit_is_where_so_few_are_as_rare_as_the_alarm(count: int, trials: int) -> None:
    """Clopper and Pearson by definition: P[Binomial(n, limit) <= count] = alarm."""
    limit = float(upper_limit(count, trials, 1e-3))
    assert stats.binom.cdf(count, trials, limit) == pytest.approx(1e-3, rel=1e-6)
    assert limit > count / trials


def test_nothing_is_known_if_all_were_wrong() -> None:
    assert upper_limit(50, 50, 1e-3) == 1


@pytest.mark.parametrize("significance", [0.0, 1.0, math.nan])
def test_an_alarm_is_a_chance(significance: float) -> None:
    with pytest.raises(InvalidValue, match="significance"):
        upper_limit(1, 10, significance)


def errors(a: float, b: float) -> Errors:
    return Errors(false_alarm=a, miss=b, seen_false_alarm=a, seen_miss=b)


def test_the_gaussian_reading_of_a_gaussian_test() -> None:
    """A test on the curve G_1.3 reads 1.3, and rejects whatever is smaller and nothing that is larger."""
    found = errors(0.2, float(Gaussian(mu=1.3)(0.2)))
    assert found.mu == pytest.approx(1.3)
    assert found.rejects(Gaussian(mu=1.29))
    assert not found.rejects(Gaussian(mu=1.31))


def test_the_direct_bound_is_that_of_randomised_response() -> None:
    """Randomised response at epsilon has both errors 1 / (1 + e^eps): the bound is exact, and delta lowers it."""
    wrong = 1 / (1 + math.exp(2.0))
    assert errors(wrong, wrong).epsilon(0.0) == pytest.approx(2.0)
    assert errors(wrong, wrong).epsilon(0.1) < 2.0
    assert errors(0.5, 0.6).epsilon(1e-5) == 0.0
    assert not errors(wrong, wrong).rejects(from_deltas([2.01], [0.0]))
    assert errors(wrong, wrong).rejects(from_deltas([1.99], [0.0]))


def test_either_direction_counts() -> None:
    assert errors(0.001, 0.9).epsilon(0.0) == pytest.approx(math.log(0.1 / 0.001))
    assert errors(0.9, 0.001).epsilon(0.0) == errors(0.001, 0.9).epsilon(0.0)


def test_the_feature_that_tells_is_chosen() -> None:
    g = np.random.default_rng(0)
    without, with_ = g.normal(size=(2, 500, 3))
    with_[:, 1] -= 3.0
    best, _ = choose_tests(without, with_, curve=Gaussian(mu=1.0), delta=1e-5, significance=1e-3)
    assert (best.feature, best.sign) == (1, -1.0)
    assert best.errors(without, with_, 1e-3).mu > 2


def test_a_threshold_counts_both_errors() -> None:
    test = Threshold(feature=0, sign=1.0, value=0.5)
    found = test.errors(np.array([[0.0], [1.0], [0.2], [0.3]]), np.array([[1.0], [1.0], [0.5], [2.0]]), 0.1)
    assert (found.seen_false_alarm, found.seen_miss) == (0.25, 0.25)


def test_a_curve_is_like_its_mu() -> None:
    assert equivalent_mu(Gaussian(mu=0.7)) == pytest.approx(0.7)
    assert samples_to_distinguish(1.0, 1.5) == 1000
    assert samples_to_distinguish(1.0, 1.0) == 10**12


@pytest.mark.parametrize(("claimed", "samples", "significance", "seen"), [
    (1.0, 2000, 1e-3, True), (1.0, 100, 1e-3, False), (1.0, 2000, 1e-30, False),
    (5.0, 2000, 1e-3, False), (10.0, 2000, 1e-3, False), (4.0, 20000, 1e-3, True),
])  # fmt: skip
def test_what_samples_would_see(claimed: float, samples: int, significance: float, seen: bool) -> None:
    """1.5 times the claim; of 1,000 tests without an error, the limits still read no more than mu 4.86."""
    assert has_power(claimed, 1.5 * claimed, samples=samples, significance=significance) == seen
