"""Every figure of golden.toml: published values to their printed digits, true values inside our interval."""

import math
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from scipy import optimize, special

from privet.accounting.accountant import spent
from privet.accounting.gdp import clt_mu, epsilon_of_mu
from privet.accounting.ledger import Ledger, Step
from privet.accounting.rdp import MOMENTS_ORDERS, epsilon as renyi
from privet.planning.calibrate import proactive_noise
from privet.published.accountants import auto_exponential, auto_linear, auto_step, auto_time, epsilon_of_rho

Row = dict[str, Any]
ROWS: list[Row] = tomllib.loads((Path(__file__).parent / "golden.toml").read_text(encoding="utf-8"))["row"]

# The orders behind Auto DP-SGD's noise multipliers (those of the TensorFlow Privacy release it used).
ORDERS = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *map(float, range(5, 64)), 128.0, 256.0, 512.0]
GIVEN = {"moments": MOMENTS_ORDERS}
FORMS = {"linear": auto_linear, "time": auto_time, "step": auto_step, "exponential": auto_exponential}


def name_of(row: Row) -> str:
    who = row["paper"].split(",")[0].strip('"').split(":")[0]
    return f"{row['kind']}-{row.get('accountant', '')}-{who}-{row['place']}".replace(" ", "_")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_figure(row: Row) -> None:
    CHECKS[row["kind"]](row)


def epsilon(row: Row) -> None:
    """Epsilon of a ledger: equal to the printed digits, or the printed true value inside a narrow interval."""
    guarantee = spent(ledger_of(row), row["inputs"]["delta"], accountant=row["accountant"])
    if row["direction"] == "equal":
        assert_printed(guarantee.epsilon, row)
        return
    if row["direction"] == "above":
        above(row, guarantee.epsilon)
        return
    assert guarantee.label == "certified"
    assert guarantee.epsilon_lower is not None
    assert guarantee.epsilon_lower - slack(row) <= float(row["value"]) <= guarantee.epsilon + slack(row)
    assert guarantee.epsilon - guarantee.epsilon_lower <= 1e-3 * guarantee.epsilon


def above(row: Row, found: float) -> None:
    """The figure at its own orders, to the printed digits; all orders together give no more, and no less than true."""
    delta = row["inputs"]["delta"]
    at_orders = renyi(ledger_of(row), delta, orders=GIVEN[row["orders"]], conversion="new")
    assert_printed(at_orders, row)
    truth = spent(ledger_of(row), delta, accountant="pld").epsilon_lower
    assert truth is not None
    assert truth <= found <= at_orders


def mu_by_clt(row: Row) -> None:
    assert_printed(clt(row), row)


def epsilon_by_clt(row: Row) -> None:
    assert_printed(epsilon_of_mu(clt(row), row["inputs"]["delta"]), row)


def least_error_sum(row: Row) -> None:
    """Least type I + type II error, in percent: 2 Phi(-mu/2) for mu-GDP, 2 (1 - delta)/(1 + e^epsilon) for DP."""
    if row["accountant"] == "gdp":
        least = 2 * special.ndtr(-row["inputs"]["mu"] / 2)
    else:
        delta = row["inputs"]["delta"]
        least = 2 * (1 - delta) / (1 + math.exp(spent(ledger_of(row), delta, accountant=row["accountant"]).epsilon))
    assert_printed(100 * least, row)


def noise_swap(row: Row) -> None:
    """The noise at which the central limit theorem gives the epsilon of the moments accountant."""
    inputs = row["inputs"]
    target = spent(ledger_of(row), inputs["delta"], accountant="moments").epsilon

    def excess(noise: float) -> float:
        mu = clt_mu(noise_multiplier=noise, sample_rate=rate_of(row), steps=inputs["epochs"] / rate_of(row))
        return epsilon_of_mu(mu, inputs["delta"]) - target

    assert_printed(optimize.brentq(excess, 0.4, 2.0), row)


def closed_form(row: Row) -> None:
    inputs = dict(row["inputs"])
    form, delta = FORMS[inputs.pop("form")], inputs.pop("delta")
    rho, _ = form(**{**inputs, "sample_rate": rate_of(row)})
    assert_printed(epsilon_of_rho(rho, delta), row)


def noise_for_epsilon(row: Row) -> None:
    """Half a unit less noise than printed costs more than epsilon, half a unit more costs less."""
    inputs = row["inputs"]
    less, more = (ledger_of(row, noise=float(row["value"]) + side * slack(row)) for side in (-1, +1))
    if row["accountant"] == "rdp":
        costs = [renyi(ledger, inputs["delta"], orders=ORDERS, conversion="new") for ledger in (less, more)]
    else:
        costs = [spent(ledger, inputs["delta"], accountant=row["accountant"]).epsilon for ledger in (less, more)]
    assert costs[0] >= inputs["epsilon"] >= costs[1]


def noise_of_closed_form(row: Row) -> None:
    assert_printed(proactive_noise(**row["inputs"]), row)


CHECKS: dict[str, Callable[[Row], None]] = {
    "epsilon": epsilon,
    "clt-mu": mu_by_clt,
    "clt-epsilon": epsilon_by_clt,
    "least-error-sum": least_error_sum,
    "noise-swap": noise_swap,
    "closed-form": closed_form,
    "noise": noise_for_epsilon,
    "proactive-noise": noise_of_closed_form,
}


def ledger_of(row: Row, noise: float | None = None) -> Ledger:
    inputs, ledger = row["inputs"], Ledger()
    ledger.add(
        Step(noise_multiplier=noise or inputs["noise_multiplier"], sample_rate=rate_of(row)), count=inputs["steps"]
    )
    return ledger


def rate_of(row: Row) -> float:
    return float(Fraction(row["inputs"]["sample_rate"]))


def clt(row: Row) -> float:
    """The published tables take epochs / rate steps, unrounded."""
    inputs = row["inputs"]
    return clt_mu(
        noise_multiplier=inputs["noise_multiplier"], sample_rate=rate_of(row), steps=inputs["epochs"] / rate_of(row)
    )


def half_unit(printed: str) -> float:
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def slack(row: Row) -> float:
    return row.get("tolerance", half_unit(row["value"])) * (1 + 1e-9)


def assert_printed(found: float, row: Row) -> None:
    assert found == pytest.approx(float(row["value"]), rel=0, abs=slack(row))
