"""What the page may ask, and how the same is written elsewhere."""

import tomllib
from typing import Any

import pytest

from privet.errors import InvalidValue
from privet.planning import METHODS, Recipe, plan
from privet.web.questions import MOST_STEPS, recipe_from_controls, recipe_to_command, recipe_to_toml
from typed import answer
from web_server import CONTROLS


def test_text_from_an_address_is_the_same_question() -> None:
    assert recipe_from_controls({key: str(value) for key, value in CONTROLS.items()}) == recipe_from_controls(CONTROLS)


@pytest.mark.parametrize("method", ["dynamic", "noisy-sgd", "auto-linear"])
@pytest.mark.parametrize("published", [True, False])
def test_the_toml_and_the_command_make_the_same_plan(method: str, published: bool) -> None:
    asked = {
        **CONTROLS,
        "method": method,
        "rho_noise": 2.5,
        "rho_clip": 1.7,
        "clipping_norm": 0.3,
        "uncertified": published,
    }
    recipe = recipe_from_controls(asked)
    assert Recipe.of(**tomllib.loads(recipe_to_toml(recipe))) == recipe
    line = recipe_to_command(recipe).removeprefix("privet ").removesuffix(" --out plan.json")
    assert answer(line)["hash"] == plan(recipe).hash


def test_a_rho_that_the_method_does_not_need_is_left_aside() -> None:
    assert recipe_from_controls({**CONTROLS, "rho_noise": 3.0}).rho_noise is None
    assert (
        recipe_from_controls({**CONTROLS, "method": "growing-mu", "rho_noise": 3.0, "rho_clip": 2.0}).rho_noise == 3.0
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": True}, "epsilon=True must be a finite number"),
        ({"epsilon": "nan"}, "must be a finite number"),
        ({"epsilon": -1}, "epsilon=-1 must be from 0.01 to 50"),
        ({"delta": 1e-300}, "delta=1e-300 must be from 1e-12"),
        ({"clipping_norm": 1e300}, "clipping_norm=1e+300 must be from"),
        ({"method": "dynamic", "rho_noise": 1e6, "rho_clip": 2}, "rho_noise=1e+06 must be from 1 to 100"),
        ({"epsilon": [1]}, "must be a finite number"),
        ({"epsilon": "9" * 10_000}, "must be a finite number"),
        ({"dataset_size": 1.5}, "dataset_size=1.5 must be a whole number"),
        ({"dataset_size": None}, "size is missing"),
        ({"batch_size": 1e6}, "must be at most dataset_size"),
        ({"steps": MOST_STEPS + 1}, f"must be at most {MOST_STEPS}"),
        ({"steps": None, "epochs": 1e5}, f"must be at most {MOST_STEPS}"),
        ({"delta": 0.01}, "must be below 1/dataset_size"),
        ({"method": "no-such"}, "is not known"),
        ({"method": ["dynamic"]}, "is not known"),
        ({"adjacency": {}}, "is not known"),
        ({"uncertified": "perhaps"}, "must be true or false"),
        ({"<script>": 1}, "is not a control"),
        ({"noise_multiplier": "table:/etc/passwd"}, "'noise_multiplier' is not a control"),
        ({"clipping_norm": "os:system"}, "must be a finite number"),
        ({"accountant": "os:system"}, "'accountant' is not a control"),
        ({"rule": "os:system"}, "'rule' is not a control"),
        ({"training": {"task": "x"}}, "'training' is not a control"),
    ],
)
def test_what_cannot_be_right_is_refused_in_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue) as found:
        recipe_from_controls({**CONTROLS, **change})
    assert words in str(found.value)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize("given", [None, 3, "x", [1, 2]])
def test_only_an_object_is_a_question(given: Any) -> None:
    with pytest.raises(InvalidValue, match="JSON object"):
        recipe_from_controls(given)


def test_every_method_of_the_papers_can_be_chosen() -> None:
    for name in METHODS:
        assert recipe_from_controls({**CONTROLS, "method": name, "rho_noise": 2, "rho_clip": 2}).method == name
