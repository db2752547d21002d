"""What the page asks: its controls as a recipe, the same as TOML, and the command line that gives the same plan.

Every control is a number or a word of a fixed list. A schedule's spelling could name a file or a class to import, so
none is taken from a request.
"""

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from privet._text import shorten
from privet.accounting.guarantee import ADJACENCIES
from privet.errors import InvalidValue
from privet.planning import METHODS, Recipe, method

NUMBERS = (
    "epsilon", "delta", "dataset_size", "batch_size", "epochs", "steps", "rho_noise", "rho_clip", "clipping_norm",
)  # fmt: skip
WHOLE = ("dataset_size", "steps")
WORDS: dict[str, tuple[str, ...]] = {"method": tuple(METHODS), "adjacency": ADJACENCIES}
CONTROLS = (*NUMBERS, *WORDS, "uncertified")
MOST_STEPS = 200_000  # what is planned while someone waits
# Beyond these an answer may take minutes, and nobody trains there.
REACH: dict[str, tuple[float, float]] = {
    "epsilon": (0.01, 50), "delta": (1e-12, 0.1), "dataset_size": (1, 1e9), "batch_size": (1, 1e9),
    "epochs": (1e-6, 1e5),
    "rho_noise": (1, 100), "rho_clip": (1, 100), "clipping_norm": (1e-6, 1e6),
}  # fmt: skip


def recipe_from_controls(given: Any) -> Recipe:
    """The recipe that the controls describe; numbers may be text, as they are in an address.

    >>> recipe_from_controls({"epsilon": 1.2, "dataset_size": 60000, "batch_size": "256", "epochs": 60}).count
    14063

    Raises:
        InvalidValue: a control is not known or out of its range, or the run is too long to plan at once.
    """
    if not isinstance(given, Mapping):
        raise InvalidValue("the request must be a JSON object of controls. Send {'epsilon': 1.2, ...}.")
    unknown = [key for key in given if key not in CONTROLS]
    if unknown:
        raise InvalidValue(f"{shorten(str(unknown[0]), 40)!r} is not a control. Use {', '.join(CONTROLS)}.")
    asked = {key: _parse_control(key, value) for key, value in given.items() if value is not None and value != ""}
    needs = method(asked["method"]).needs if "method" in asked else ()
    # The page keeps both rhos while the method changes; one that the method does not need is left aside.
    kept = {key: value for key, value in asked.items() if not key.startswith("rho_") or key in needs}
    if "dataset_size" not in kept:
        raise InvalidValue("dataset_size is missing. The sample rate depends on it. Give the number of examples.")
    recipe = Recipe.of(**kept)
    _check_reach(recipe)
    return recipe


def recipe_to_toml(recipe: Recipe) -> str:
    """The recipe as a TOML file that `privet plan` reads.

    >>> controls = {"epsilon": 1.2, "delta": 1e-5, "dataset_size": 60000, "epochs": 60, "method": "noisy-sgd"}
    >>> print(recipe_to_toml(recipe_from_controls(controls)))
    # privet plan recipe.toml --out plan.json
    epsilon = 1.2
    delta = 1e-05
    adjacency = "zero-out"
    dataset_size = 60000
    batch_size = 256
    epochs = 60
    clipping_norm = 1
    method = "noisy-sgd"
    <BLANKLINE>
    """
    lines = [f"{key} = {_toml_value(value)}" for key, value in _control_values(recipe).items()]
    return "\n".join(["# privet plan recipe.toml --out plan.json", *lines, ""])


def recipe_to_command(recipe: Recipe) -> str:
    """The command line that makes the same plan.

    >>> recipe = recipe_from_controls({"epsilon": 1.2, "delta": 1e-5, "dataset_size": 60000, "epochs": 60})
    >>> recipe_to_command(recipe).partition(" --dataset-size ")[0]
    'privet plan --epsilon 1.2 --delta 1e-05 --adjacency zero-out'
    """
    words = ["privet", "plan"]
    for key, value in _control_values(recipe).items():
        words.append(f"--{key.replace('_', '-')}")
        if value is not True:
            words.append(value if isinstance(value, str) else _toml_value(value))
    return shlex.join([*words, "--out", "plan.json"])


def _control_values(recipe: Recipe) -> dict[str, Any]:
    order = ("epsilon", "delta", "adjacency", *NUMBERS[2:], "method", "uncertified")
    said = recipe.as_dict()
    return {key: said[key] for key in order if said.get(key) not in (None, False)}


def _toml_value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value)  # a text, a number and a truth are written in TOML as in JSON


# --- one control ------------------------------------------------------------------------------------
def _parse_control(key: str, value: Any) -> Any:
    if key in WORDS:
        if value not in WORDS[key]:
            raise InvalidValue(f"{key}={shorten(repr(value), 40)} is not known. Use {', '.join(WORDS[key])}.")
        return value
    if key == "uncertified":
        if value not in (True, False, "true", "false"):
            raise InvalidValue(f"uncertified={shorten(repr(value), 40)} must be true or false.")
        return value in (True, "true")
    number = _parse_number(value)
    if number is None or (key in WHOLE and not number.is_integer()):
        kind = "a whole number" if key in WHOLE else "a finite number"
        raise InvalidValue(f"{key}={shorten(repr(value), 40)} must be {kind}. Give one such as 256.")
    least, most = REACH.get(key, (-math.inf, math.inf))
    if not least <= number <= most:
        raise InvalidValue(
            f"{key}={number:g} must be from {least:g} to {most:g} on this page, which answers at once. For other "
            "values use `privet plan`."
        )
    return int(number) if key in WHOLE else number


def _parse_number(value: Any) -> float | None:
    is_long = isinstance(value, str) and len(value) > 40
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or is_long:
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _check_reach(recipe: Recipe) -> None:
    if recipe.count is not None and recipe.count > MOST_STEPS:
        raise InvalidValue(
            f"steps={recipe.count} must be at most {MOST_STEPS} on this page, which answers at once. Use fewer "
            "epochs or a larger batch, or plan with `privet plan`."
        )
    if recipe.budget.delta >= 1 / recipe.dataset_size:
        raise InvalidValue(
            f"delta={recipe.budget.delta:g} must be below 1/dataset_size={1 / recipe.dataset_size:g}. Otherwise one "
            "whole example may be published. Use a smaller delta."
        )
