"""Plans in files: JSON that is whole, of this version, unedited, and says what is recomputed."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privet._files import MIB, read_file, read_json, read_start
from privet._text import one_line, shorten
from privet.accounting import Guarantee
from privet.errors import InvalidValue, PrivetError

FORMAT, VERSION = "privet-plan", 1
MOST_BYTES = 64 * MIB
AGREE = 1e-6  # how far a stored epsilon may be from the recomputed one: machines round exponentials differently
AGAIN = "Make the plan again."


def plan_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def is_plan(path: Path) -> bool:
    """Whether a file says of itself that it is a plan, whole or torn."""
    return f'"format": "{FORMAT}"'.encode() in read_start(path, 200)


def parse_plan_file(path: Path) -> Any:
    """The JSON of a file, or one line that says what is wrong with it."""
    try:
        content = read_file(path, most=MOST_BYTES, advice=f"A plan keeps shapes, not lists. {AGAIN}")
        return read_json(content.decode("utf-8"), f"is not a number JSON has. A plan's numbers are finite. {AGAIN}")
    except FileNotFoundError:
        raise InvalidValue("there is no such file. Make one with `privet plan --out`.") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"byte {error.start} is not text. Give a plan in JSON.") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidValue(f"{place}: not JSON: {error.msg}. The file is torn or edited. {AGAIN}") from None
    except OSError as error:
        raise InvalidValue(f"cannot be read: {error.strerror}. Give a plan in JSON.") from None
    except ValueError as error:
        if isinstance(error, PrivetError):
            raise
        raise InvalidValue(f"not JSON that can be read: {one_line(error).split(';')[0]}. {AGAIN}") from None


def check_table(name: str, found: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    """Raise unless the table has these keys and no other."""
    for key in keys:
        if key not in found:
            raise InvalidValue(f"{name} has no {key!r}. The file was edited or is of another version. {AGAIN}")
    for key in found:
        if key not in keys:
            raise InvalidValue(f"{name} has {shorten(str(key))!r}, which is not known. The file was edited. {AGAIN}")


def get_table(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = found[key]
    if not isinstance(inner, Mapping):
        raise InvalidValue(f"{key} must be a table. The file was edited. {AGAIN}")
    return inner


def check_stored_guarantee(name: str, ours: Guarantee | None, stored: Any) -> Guarantee | None:
    """The stored guarantee, if it says what was recomputed (`ours`)."""
    if ours is None or stored is None:
        if ours is not stored:
            raise InvalidValue(f"{name}={shorten(str(stored))} does not follow from the steps: {ours}. {AGAIN}")
        return None
    if not isinstance(stored, Mapping):
        raise InvalidValue(f"{name} must be a table. The file was edited. {AGAIN}")
    fields = ours.to_file_table()
    check_table(name, stored, tuple(fields))
    for key, value in fields.items():
        if not (_nearly_equal(value, stored[key]) if key in ("epsilon", "epsilon_lower") else value == stored[key]):
            raise InvalidValue(
                f"{name}.{key}={shorten(str(stored[key]))} does not follow from the steps, which give {value}. "
                f"The plan was edited, or made by another version. {AGAIN}"
            )
    # The file's number is kept, for a plan has one hash on every machine; but none below what is proven to be spent.
    if ours.epsilon_lower is not None and stored["epsilon"] < ours.epsilon_lower:
        raise InvalidValue(
            f"{name}.epsilon={stored['epsilon']} is below {ours.epsilon_lower}, which the steps spend at least. {AGAIN}"
        )
    return Guarantee(**stored)


def _nearly_equal(ours: Any, stored: Any) -> bool:
    if ours is None or stored is None or isinstance(stored, bool) or not isinstance(stored, (int, float)):
        return ours is stored
    return math.isclose(ours, stored, rel_tol=AGREE, abs_tol=1e-12)


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, in one spelling."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
