"""Recipes as people write them: TOML, its [budget] unfolded, flags that win over it, and flat keywords."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet import _check, _registry, _text
from privet._files import read_file
from privet.accounting import Budget
from privet.errors import InvalidValue, PrivetError

VERSION = 1
MOST_BYTES = 16 * 2**20
BUDGET = ("epsilon", "delta", "unit", "relation")
NO_LIMIT = 1.7976931348623157e308  # the epsilon of a budget when epsilon is what is asked for
GIVEN = {"noise": ("noise",), "steps": ("steps", "epochs"), "batch": ("batch", "rate"), "epsilon": ("epsilon",)}


def override(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table with flags on top. A flag replaces what says the same (steps: epochs), and so does `solve`."""
    merged = dict(table)
    flags = {key: value for key, value in overrides.items() if value is not None}
    if "solve" in flags and flags["solve"] != merged.get("solve", "noise"):
        for key in GIVEN.get(str(flags["solve"]), ()):
            merged.pop(key, None)
    for group in (*GIVEN.values(), ("trials", "trials_mean")):
        if any(key in flags for key in group):
            for key in group:
                merged.pop(key, None)
    return merged | flags


def read_table(path: Path) -> dict[str, Any]:
    """The flat keys of a TOML file, its [budget] unfolded and its numbers written as text read."""
    try:
        text = read_file(path, most=MOST_BYTES, advice="A recipe is a page of text.").decode("utf-8-sig")
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except FileNotFoundError:
        raise InvalidValue("there is no such file.") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"byte {error.start} is not text. Give a TOML file in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"not TOML: {_text.one_line(error)}. Correct it.") from None
    except RecursionError:
        raise InvalidValue("nested too deeply. A recipe has flat keys.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, PrivetError):
            raise
        raise InvalidValue(f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return _flatten_table(table)


def _flatten_table(table: dict[str, Any]) -> dict[str, Any]:
    table.pop("about", None)  # for people
    version = table.pop("version", VERSION)
    if version != VERSION:
        raise InvalidValue(f"version={version!r} must be {VERSION}. Use the Privet it was written for.")
    budget = table.pop("budget", {})
    if not isinstance(budget, Mapping):
        raise InvalidValue(f"budget={budget!r} must be a table. Write [budget] with epsilon and delta below it.")
    for key in budget:
        if key not in BUDGET:
            raise InvalidValue(
                f"budget.{key} is not known.{_check.suggestion(key, BUDGET)} Known: {', '.join(BUDGET)}."
            )
        if key in table:
            raise InvalidValue(f"{key} is given twice, in [budget] and above it. Keep one.")
    merged = table | dict(budget)
    for key in ("epsilon", "delta", "rate", "epochs", "rho_noise", "rho_clip", "trials_mean"):
        if isinstance(merged.get(key), str):  # a fraction, such as "256/60000"
            merged[key] = _registry.parse_value(merged[key])
    return merged


# --- flat keywords ----------------------------------------------------------------------------------
def check_keys(given: Mapping[str, Any], known: list[str]) -> None:
    """Raise at the first key that a recipe does not have; the nearest one is named."""
    for key in given:
        if key not in known:
            hint = _check.suggestion(key.replace("-", "_"), known, cutoff=0.5)
            raise InvalidValue(f"{_text.shorten(key)!r} is not known in a recipe.{hint} Known: {', '.join(known)}.")


def require_size(given: Mapping[str, Any], unit: str = "example") -> Any:
    if given.get("size") is None:
        raise InvalidValue(f"size is missing. It is the public number of {unit}s. Give size=60000, for example.")
    return given["size"]


def take_budget(given: dict[str, Any]) -> Budget:
    """The budget in flat keywords, which it takes out of them."""
    wanted = {key: given.pop(key) for key in BUDGET if key in given}
    if given.get("solve") == "epsilon":
        if "epsilon" in wanted:
            raise InvalidValue(
                f"solve='epsilon' asks for epsilon, but epsilon={wanted['epsilon']!r} is given. Leave it out."
            )
        wanted["epsilon"] = NO_LIMIT
    elif "epsilon" not in wanted:
        raise InvalidValue("epsilon is missing. It is the budget. Give epsilon=1, for example, or solve='epsilon'.")
    if "delta" not in wanted:
        _check.whole(size=require_size(given, str(wanted.get("unit", "example"))))
        wanted["delta"] = 1 / (10 * given["size"])
    return Budget(**wanted)


def to_plain_table(table: Any) -> dict[str, Any]:
    """The training table as plain values that JSON can hold."""
    if not isinstance(table, Mapping):
        raise InvalidValue(f"training={table!r} must be a table. Write [training] and keys below it.")
    try:
        kept: dict[str, Any] = json.loads(json.dumps(dict(table), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(
            f"training: {_text.one_line(error)}. Use numbers, words, true, false, lists and tables."
        ) from None
    return kept
