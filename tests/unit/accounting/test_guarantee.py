"""Guarantees: printed bounds are still bounds, and values that cannot be are refused."""

import json
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from privet.accounting.guarantee import LABELS, MEANING, Budget, Guarantee
from privet.errors import InvalidValue


def guarantee(**changes) -> Guarantee:
    usual = {"epsilon": 2.0, "epsilon_lower": 1.5, "delta": 1e-5, "label": "certified", "method": "pld"}
    return Guarantee(**usual | changes)


@given(st.floats(1e-12, 1e9), st.floats(0, 1))
def test_what_is_printed_still_encloses(upper, share):
    text = str(guarantee(epsilon=upper, epsilon_lower=upper * share))
    shown = text.removeprefix("epsilon <= ").partition(" ")[0]
    assert Decimal(upper) <= Decimal(shown) <= Decimal(upper) * Decimal("1.00001")
    lower = text.partition("true value >= ")[2].partition(";")[0]
    assert Decimal(lower) <= Decimal(upper * share)


@pytest.mark.parametrize(
    ("delta", "label", "words"),
    [
        (1e-5, "certified", "at delta 1e-05 "),
        (1.2345641e-5, "certified", "at delta 1.23457e-05 "),
        (1.2345641e-5, "claimed", "at delta 1.23457e-05 "),
        (1.2345671e-5, "empirical", "at delta 1.23456e-05 "),
    ],
)
def test_delta_is_printed_on_the_safe_side_too(delta, label, words):
    assert words in str(guarantee(delta=delta, label=label))


def test_each_label_says_what_it_means():
    assert set(MEANING) == set(LABELS)
    signs = {label: str(guarantee(label=label)).split()[1] for label in LABELS}
    assert signs == {"certified": "<=", "approximate": "~", "claimed": "claimed", "empirical": ">="}


def test_the_text_names_everything_the_number_rests_on():
    text = str(guarantee(adjacency="add-remove", sampling="poisson", unit="client"))
    for word in ("1e-05", "certified", "pld", "poisson", "add-remove", "client", "1.5"):
        assert word in text
    assert "true value" not in str(guarantee(epsilon_lower=None))


def test_width_is_relative():
    assert guarantee().width == pytest.approx(0.25)
    assert guarantee(epsilon_lower=None).width is None
    assert guarantee(epsilon=0.0, epsilon_lower=0.0).width == 0


def test_as_dict_is_plain():
    assert json.loads(json.dumps(guarantee().as_dict()))["epsilon"] == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": float("nan")},
        {"epsilon": -1.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"label": "sure"},
        {"adjacency": "x"},
    ],
)
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(InvalidValue):
        guarantee(**changes)


@pytest.mark.parametrize(
    "changes", [{"epsilon": 0.0}, {"epsilon": float("inf")}, {"delta": 2.0}, {"unit": "house"}, {"adjacency": "friend"}]
)
def test_a_budget_that_cannot_be_is_refused(changes):
    with pytest.raises(InvalidValue):
        Budget(**{"epsilon": 1.0, "delta": 1e-5} | changes)


def test_a_lower_bound_is_printed_rounded_down():
    assert str(guarantee(label="empirical", epsilon=1.23456789, epsilon_lower=None)).startswith("epsilon >= 1.23456 ")
    assert str(guarantee(label="certified", epsilon=1.23456789, epsilon_lower=None)).startswith("epsilon <= 1.23457 ")
