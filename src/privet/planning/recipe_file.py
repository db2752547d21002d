"""Recipes in files: TOML, its [budget] unfolded, and flags that win over it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet import _check, _registry
from privet.errors import InvalidValue, PrivetError

VERSION = 1
MOST_BYTES = 16 * 2**20
BUDGET = ("epsilon", "delta", "unit", "relation")
GIVEN = {"noise": ("noise",), "steps": ("steps", "epochs"), "batch": ("batch", "rate"), "epsilon": ("epsilon",)}


def overridden(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table with flags on top. A flag replaces what says the same (steps: epochs), and so does `solve`."""
    merged = dict(table)
    flags = {key: value for key, value in overrides.items() if value is not None}
    if "solve" in flags and flags["solve"] != merged.get("solve", "noise"):
        for key in GIVEN.get(str(flags["solve"]), ()):
            merged.pop(key, None)
    for group in GIVEN.values():
        if any(key in flags for key in group):
            for key in group:
                merged.pop(key, None)
    return merged | flags


def read_table(path: Path) -> dict[str, Any]:
    """The flat keys of a TOML file, its [budget] unfolded and its numbers written as text read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidValue(f"is more than {MOST_BYTES // 2**20} MiB. A recipe is a page of text.")
        text = path.read_bytes().decode("utf-8-sig")
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except FileNotFoundError:
        raise InvalidValue("there is no such file.") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"byte {error.start} is not text. Give a TOML file in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"not TOML: {_registry.one_line(error)}. Correct it.") from None
    except RecursionError:
        raise InvalidValue("nested too deeply. A recipe has flat keys.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, PrivetError):
            raise
        raise InvalidValue(f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return _unfolded(table)


def _unfolded(table: dict[str, Any]) -> dict[str, Any]:
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
    for key in ("epsilon", "delta", "rate", "epochs", "rho_noise", "rho_clip"):
        if isinstance(merged.get(key), str):  # a fraction, such as "256/60000"
            merged[key] = _registry.value(merged[key])
    return merged
