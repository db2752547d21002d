"""Trade-off curves: G_mu, duality both ways, error sums, group privacy, and the curve of a ledger."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from privet.accounting import Ledger, Step, delta_at, gdp
from privet.accounting.tradeoff import (
    Gaussian,
    Tradeoff,
    advantage,
    delta_of,
    from_deltas,
    group_tradeoff,
    least_error_sum,
    tradeoff,
    true_positive_rate,
)
from privet.errors import InvalidValue, Unsupported

ALPHA = np.linspace(0.0, 1.0, 201)


def bu_row_two() -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
    return ledger


def test_gaussian_curve_is_the_best_threshold_test():
    """Reject above a threshold: type I = P(N(0,1) > t), type II = P(N(mu,1) < t)."""
    threshold = np.linspace(-3, 4, 50)
    errors = stats.norm.sf(threshold), stats.norm.cdf(threshold - 1.3)
    np.testing.assert_allclose(Gaussian(mu=1.3)(errors[0]), errors[1], atol=1e-12)


@given(mu=st.floats(0.01, 8), epsilon=st.floats(0, 10))
def test_duality_of_the_gaussian_curve_by_brute_force(mu, epsilon):
    """sup over a of 1 - G_mu(a) - e^eps a, on a fine grid in the natural parameter, is the closed form."""
    t = np.linspace(-10, 10 + mu, 40_001)
    brute = (stats.norm.sf(t - mu) - math.exp(epsilon) * stats.norm.sf(t)).max()
    assert delta_of(Gaussian(mu=mu), epsilon) == pytest.approx(max(brute, 0.0), abs=1e-6)


@given(epsilon=st.floats(0.01, 6), delta=st.floats(1e-9, 0.3))
def test_one_pair_to_a_curve_and_back(epsilon, delta):
    curve = from_deltas([epsilon], [delta])
    assert delta_of(curve, epsilon) == pytest.approx(delta, abs=1e-9)
    least = 2 * (1 - delta) / (1 + math.exp(epsilon))  # where the two lines meet
    assert least_error_sum(curve) == pytest.approx(least, abs=1e-8)
    assert advantage(curve) == pytest.approx(1 - least, abs=1e-8)


def test_more_pairs_never_lower_the_curve():
    few, many = from_deltas([1.0], [1e-3]), from_deltas([0.5, 1.0, 2.0], [2e-2, 1e-3, 1e-6])
    assert (many(ALPHA) >= few(ALPHA)).all()
    assert (many(ALPHA) > few(ALPHA)).any()


@pytest.mark.parametrize("curve", [Gaussian(mu=0.7), from_deltas([0.2, 1.0], [1e-2, 1e-4])])
def test_curves_are_convex_falling_symmetric_and_below_chance(curve):
    values = curve(ALPHA)
    assert (np.diff(values) <= 1e-12).all()
    assert (np.diff(values, 2) >= -1e-12).all()
    assert (values <= 1 - ALPHA + 1e-12).all()
    inside = (values > 0.01) & (values < 0.99)
    np.testing.assert_allclose(curve(values[inside]), ALPHA[inside], atol=1e-9)


def test_group_privacy_of_a_gaussian_is_a_gaussian():
    """Composing by hand what the closed form says: G_mu for three records is G_(3 mu)."""
    one = Gaussian(mu=0.4)
    by_hand = group_tradeoff(lambda a: one(a), 3)
    np.testing.assert_allclose(by_hand(ALPHA), Gaussian(mu=1.2)(ALPHA), atol=1e-9)
    assert group_tradeoff(one, 3).mu == pytest.approx(1.2)


def test_ledger_curve_is_certified_and_close_to_the_clt_where_that_is_good():
    """Bu et al.: 77.6 % for this row by the CLT at the rounded mu = 0.57; the certified value is near."""
    exact, clt = tradeoff(bu_row_two()), tradeoff(bu_row_two(), accountant="gdp")
    assert (exact.label, clt.label) == ("certified", "approximate")
    assert least_error_sum(exact) == pytest.approx(1 - delta_at(bu_row_two(), 0.0)[1], abs=1e-9)
    assert abs(least_error_sum(exact) - least_error_sum(clt)) < 0.003
    assert true_positive_rate(exact, 0.01) == pytest.approx(true_positive_rate(clt, 0.01), abs=0.005)


def test_ledger_curve_gives_back_the_deltas_it_was_made_of():
    ledger = Ledger()
    ledger.extend(noise_multiplier=np.geomspace(2.0, 1.0, 2000), sample_rate=0.01)
    curve = tradeoff(ledger)
    for epsilon in curve.epsilon[1:40:6]:
        upper = delta_at(ledger, epsilon)[1]
        assert upper * (1 - 1e-6) <= delta_of(curve, epsilon) + 1e-12 <= upper * 1.05 + 1e-11


def test_duality_far_out_where_the_best_test_almost_never_alarms():
    """At epsilon 181 the supremum lies near a = e^-181: a search from 0 to 1 missed it altogether."""
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=0.659, sample_rate=0.358), count=1900)
    curve = tradeoff(ledger)
    epsilon = curve.epsilon[len(curve.epsilon) // 3]
    assert epsilon > 100
    lower, upper = delta_at(ledger, epsilon)
    assert lower * (1 - 1e-6) <= delta_of(curve, epsilon) <= upper * 1.5 + 1e-9
    assert delta_of(curve, 5000.0) >= 0


def test_full_batch_curve_is_exactly_gaussian():
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=2.0), count=3)
    exact = Gaussian(mu=math.sqrt(3) / 2)
    curve = tradeoff(ledger)(ALPHA)
    assert (curve <= exact(ALPHA) + 1e-9).all()  # a bound from below
    np.testing.assert_allclose(curve, exact(ALPHA), atol=2e-3)
    assert gdp.delta_of_mu(exact.mu, 1.0) == pytest.approx(delta_at(ledger, 1.0)[1], rel=1e-9)


def test_empty_ledger_leaks_nothing():
    np.testing.assert_allclose(tradeoff(Ledger())(ALPHA), 1 - ALPHA)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tradeoff(bu_row_two(), accountant="rdp"), "Use 'pld' or 'gdp'"),
        (lambda: Gaussian(mu=-1.0), "mu=-1.0"),
        (lambda: Tradeoff(epsilon=(1.0,), delta=()), "must pair up"),
        (lambda: Gaussian(mu=1.0)(1.5), "between 0 and 1"),
        (lambda: group_tradeoff(Gaussian(mu=1.0), 0), "size=0"),
    ],
)
def test_bad_input_says_what_is_wrong(call, says):
    with pytest.raises(InvalidValue, match=says):
        call()


def test_replace_at_a_rate_below_one_is_refused():
    with pytest.raises(Unsupported, match="replace-one"):
        tradeoff(bu_row_two(), adjacency="replace-one")
