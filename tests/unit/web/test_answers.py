"""What the page shows agrees with the library, and every epsilon carries its label."""

from typing import Any

import pytest

from privet.accounting import spent
from privet.accounting.tradeoff import Gaussian, least_error_sum
from privet.planning import Plan, plan
from privet.web.answers import ahead_answer, attacker_answer, curves_answer, plan_answer
from privet.web.questions import recipe_from_controls
from web_server import CONTROLS


def labelled(value: Any) -> list[dict[str, Any]]:
    """Every object in the answer that shows an epsilon."""
    if isinstance(value, list):
        return [found for one in value for found in labelled(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if "epsilon" in value else []
    return own + [found for one in value.values() for found in labelled(one)]


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(recipe_from_controls({**CONTROLS, "method": "dynamic", "rho_noise": 3, "rho_clip": 2}))


def test_the_answer_is_the_plan(planned: Plan) -> None:
    found = plan_answer(planned, 0.1)
    assert found["guarantee"]["epsilon"] == planned.guarantee.epsilon
    assert found["steps"] == 40
    assert found["schedule"]["noise"][0] == planned.steps[0].noise_multiplier
    assert found["schedule"]["noise"][-1] == planned.steps[-1].noise_multiplier
    assert float(found["schedule"]["ends"]["noise"][1]) >= planned.steps[-1].noise_multiplier
    assert found["hash"] == planned.hash
    for name, accountant in (("clt", "gdp"), ("renyi", "rdp")):
        assert found["beside"][name]["epsilon"] == spent(planned.ledger(), 1e-5, accountant=accountant).epsilon
    assert found["beside"]["clt"]["label"] == "approximate"


@pytest.mark.parametrize("method", ["noisy-sgd", "auto-linear", "dynamic"])
@pytest.mark.parametrize("published", [True, False])
def test_every_epsilon_has_its_label_and_is_rounded_outward(method: str, published: bool) -> None:
    asked = {**CONTROLS, "method": method, "rho_noise": 2, "rho_clip": 2, "uncertified": published}
    found = labelled(plan_answer(plan(recipe_from_controls(asked)), 0.0))
    assert found
    for one in found:
        assert one["label"] in ("certified", "approximate", "claimed")
        assert float(one["shown"]) >= one["epsilon"]
        assert one["lower"] is None or float(one["shown_lower"]) <= one["lower"]


def test_an_unsound_rule_has_a_claim_and_no_curve() -> None:
    claimed = plan(recipe_from_controls({**CONTROLS, "method": "auto-linear", "uncertified": True}))
    found = plan_answer(claimed, 0.0)
    assert found["unsound"]
    assert found["certified"] is None
    assert found["guarantee"]["label"] == "claimed"
    assert found["beside"] == {"clt": None, "renyi": None}
    for answer in (curves_answer(claimed), attacker_answer(claimed)):
        assert answer["lines"] == []
        assert "No proof covers" in answer["why"]


def test_the_curves_end_at_the_guarantee_and_never_fall(planned: Plan) -> None:
    lines = {line["method"]: line for line in curves_answer(planned)["lines"]}
    assert set(lines) == {"pld", "gdp", "rdp"}
    assert lines["pld"]["label"] == "certified"
    assert lines["gdp"]["label"] == "approximate"
    assert lines["pld"]["y"][-1] == planned.guarantee.epsilon
    assert lines["pld"]["x"] == list(range(1, 41))  # every step of a short plan
    for line in lines.values():
        assert line["y"] == sorted(line["y"])


def test_the_attacker_can_do_no_more_than_is_said() -> None:
    """One full-batch release, of which the trade-off is known exactly: G_mu with mu = 1 / noise."""
    one = plan(recipe_from_controls({**CONTROLS, "batch_size": 6000, "steps": 1}))
    exact = Gaussian(mu=1 / one.peak_noise_multiplier)
    found = attacker_answer(one)
    assert found["best"]["label"] == "certified"
    hits, advantage = (float(found["best"][name]) / 100 for name in ("hits", "advantage"))
    assert 1 - float(exact(0.01)) <= hits <= 1.3 * (1 - float(exact(0.01)))
    assert 1 - least_error_sum(exact) <= advantage <= 1.01 * (1 - least_error_sum(exact))
    drawn = next(line for line in found["lines"] if line["method"] == "pld")
    assert all(y <= float(exact(x)) + 1e-12 for x, y in zip(drawn["x"], drawn["y"], strict=True))


@pytest.mark.slow
def test_the_view_ahead_has_the_plan_itself_in_its_midst() -> None:
    recipe = recipe_from_controls(CONTROLS)
    found = ahead_answer(recipe)
    assert found["batches"] == [150, 600, 2400]
    assert found["steps"] == [12, 40, 120]
    own = next(cell for cell in found["cells"] if (cell["batch_size"], cell["steps"]) == (600, 40))
    assert float(own["noise_multiplier"]) == pytest.approx(plan(recipe).peak_noise_multiplier, rel=1e-3)
    assert {cell["label"] for cell in found["cells"]} == {"certified"}
    assert any(cell["frontier"] for cell in found["cells"])
