"""Exchange: ledgers to and from files, dp_accounting events and Opacus accountant histories.

Four kinds of file are read, told apart by what is in them:

    {"format": "privet-ledger", "version": 1, "steps": [{"noise": 1.1, "rate": 0.004, "count": 14063}]}
    {"history": [[1.1, 0.004, 14063]], "mechanism": "rdp"}                            Opacus state_dict, as JSON
    {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.004,
     "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}}             dp_accounting event, as JSON
    noise,rate,clip,count                                                             CSV; clip and count optional

The JSON of events has the names of dp_accounting's own `to_named_tuple`, so neither package need be installed
to check an old run. Nothing is unpickled.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privet import _check
from privet._files import parse_json, read_text, write_file
from privet.accounting.dp_events import (
    KEYS,
    LedgerBuilder,
    event_from_json,
    event_to_json,
    from_dp_event,
    from_event_json,
    require_list,
    to_dp_event,
    to_event_json,
)
from privet.accounting.ledger import Ledger
from privet.accounting.sampling import POISSON
from privet.errors import InvalidValue, PrivetError, Unsupported

__all__ = [
    "event_from_json", "event_to_json", "from_dp_event", "from_event_json", "from_json", "from_opacus", "read",
    "to_dp_event", "to_event_json", "to_json", "to_opacus", "write",
]  # fmt: skip

FORMAT, VERSION = "privet-ledger", 1
MOST_BYTES = 64 * 2**20
MECHANISMS = ("rdp", "gdp", "prv")
_CHECKPOINT = "privacy_accountant_state_dict"


# --- files -------------------------------------------------------------------------------------------
def read(path: str | Path) -> Ledger:
    """The ledger in a file of any of the four kinds.

    Raises:
        InvalidValue: the file is missing or broken; one line names the file and the place in it.
        Unsupported: the file holds a mechanism that no accountant here covers.
    """
    try:
        text = _read_text(Path(path))
        if text.lstrip()[:1] in ("{", "["):
            return _from_json(parse_json(text, "is not a JSON number. Noise and rates must be finite."))
        return _from_csv(text)
    except RecursionError:
        raise InvalidValue(f"{path}: nested too deeply. Write repeated steps with a count.") from None
    except PrivetError as error:
        raise type(error)(f"{path}: {error}") from None


def write(ledger: Ledger, path: str | Path) -> None:
    """Write `ledger` as JSON, one line per run of equal steps."""
    rows = ",\n".join("  " + json.dumps(row) for row in _ledger_rows(ledger))
    text = f'{{"format": "{FORMAT}", "version": {VERSION}, "steps": [\n{rows}\n]}}\n'
    try:
        write_file(Path(path), text.encode())
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be written: {error.strerror}.") from None


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise InvalidValue("is a directory. Give a JSON or CSV file.")
    wanted = "Give a JSON or CSV file in UTF-8."
    text = read_text(path, most=MOST_BYTES, advice="Write repeated steps once with a count.", wanted=wanted)
    if "\0" in text:
        raise InvalidValue(f"byte {text.encode().index(0)} is not text. {wanted}")
    if not text.strip():
        raise InvalidValue("is empty. Give a JSON or CSV file.")
    return text


def _from_json(value: Any) -> Ledger:
    if isinstance(value, list):
        return from_opacus(value)
    if "format" in value:
        return from_json(value)
    if "history" in value or _CHECKPOINT in value:
        return from_opacus(value)
    if "class_name" in value:
        return from_event_json(value)
    raise InvalidValue(
        f"none of the forms known here, with keys {', '.join(map(repr, list(value)[:5])) or 'none'}. A ledger has "
        "'format', an Opacus history has 'history', a dp_accounting event has 'class_name'."
    )


def _from_csv(text: str) -> Ledger:
    lines = csv.reader(io.StringIO(text), strict=True)
    rows = LedgerBuilder()
    place = "line 1"
    try:
        header = [name.strip().lower() for name in next(lines)]
        _check_columns(header)
        for cells in lines:
            if not "".join(cells).strip():
                continue
            place = f"line {lines.line_num}"
            if len(cells) != len(header):
                raise InvalidValue(f"{place}: {len(cells)} values under {len(header)} columns.")
            named = zip(header, cells, strict=True)
            rows.add_row({name: _parse_cell(name, cell, place) for name, cell in named}, place)
    except csv.Error as error:
        raise InvalidValue(f"line {lines.line_num}: not CSV: {error}.") from None
    return rows.ledger


def _check_columns(header: Sequence[str]) -> None:
    for place, name in enumerate(header, 1):  # it may be a file of records by mistake: no name is shown
        if name not in KEYS or header.count(name) > 1:
            raise InvalidValue(
                f"line 1: column {place} is not known or appears twice.{_check.suggestion(name, KEYS)} "
                "The first line names the columns: noise,rate and perhaps clip,count,sampling."
            )
    for name in ("noise", "rate"):
        if name not in header:
            raise InvalidValue(f"line 1: there is no column {name!r}. The first line names the columns: noise,rate.")


def _parse_cell(name: str, cell: str, place: str) -> Any:
    if name == "sampling":
        return cell.strip()
    try:
        return int(cell) if name == "count" else float(cell)
    except ValueError:
        kind = "whole number" if name == "count" else "number"
        raise InvalidValue(f"{place}: {name}={cell.strip()[:40]!r} must be a {kind}.") from None


# --- our own JSON ------------------------------------------------------------------------------------
def from_json(value: Mapping[str, Any]) -> Ledger:
    """The ledger in the parsed JSON of `to_json`."""
    if value.get("format") != FORMAT:
        raise InvalidValue(f"format={value.get('format')!r} must be {FORMAT!r}.")
    if value.get("version") != VERSION:
        raise InvalidValue(
            f"version={value.get('version')!r} must be {VERSION}. Read it with the Privet that wrote it."
        )
    rows = LedgerBuilder()
    for number, row in enumerate(require_list(value.get("steps"), "steps")):
        rows.add_row(row, f"steps[{number}]")
    return rows.ledger


def to_json(ledger: Ledger) -> dict[str, Any]:
    """`ledger` as plain values, one row per run of equal steps.

    >>> from privet.accounting.ledger import Step
    >>> ledger = Ledger()
    >>> ledger.add(Step(noise=1.1, rate=0.01), count=3)
    >>> to_json(ledger)["steps"]
    [{'noise': 1.1, 'rate': 0.01, 'clip': 1.0, 'sampling': 'poisson', 'count': 3}]
    """
    return {"format": FORMAT, "version": VERSION, "steps": list(_ledger_rows(ledger))}


def _ledger_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    for step, count in ledger:
        yield {
            "noise": step.noise, "rate": step.rate, "clip": step.clip, "sampling": str(step.sampling), "count": count,
        }  # fmt: skip


# --- Opacus ------------------------------------------------------------------------------------------
def from_opacus(state: Mapping[str, Any] | Sequence[Any]) -> Ledger:
    """The ledger of an Opacus accountant: its `state_dict()`, its `history`, or a checkpoint that holds the former.

    Opacus accounts every step as Poisson sampling at the rate it recorded, whatever the loader did.

    >>> ledger = from_opacus({"history": [(1.1, 0.01, 500), (0.9, 0.01, 20)], "mechanism": "rdp"})
    >>> ledger.steps
    520
    """
    place = "history"
    if isinstance(state, Mapping):
        state = state.get(_CHECKPOINT, state)
        mechanism = state.get("mechanism", "rdp") if isinstance(state, Mapping) else None
        if not isinstance(state, Mapping) or "history" not in state:
            raise InvalidValue("history is missing. Give accountant.state_dict().")
        if mechanism not in MECHANISMS:
            raise InvalidValue(f"mechanism={mechanism!r} must be one of {', '.join(MECHANISMS)}.")
        state = state["history"]
    rows = LedgerBuilder()
    for number, entry in enumerate(require_list(state, place)):
        here = f"{place}[{number}]"
        if isinstance(entry, (str, Mapping)) or not isinstance(entry, Sequence) or len(entry) != 3:
            raise InvalidValue(f"{here}: must be [noise multiplier, sample rate, steps].")
        rows.add(here, noise=entry[0], rate=entry[1], count=entry[2])
    return rows.ledger


def to_opacus(ledger: Ledger, *, mechanism: str = "rdp") -> dict[str, Any]:
    """`ledger` as the `state_dict` of an Opacus accountant; give it to `load_state_dict`. The clips are left out."""
    _check.one_of(MECHANISMS, mechanism=mechanism)
    history: list[tuple[float, float, int]] = []
    for step, count in ledger:
        if step.sampling != POISSON:
            raise Unsupported(
                f"sampling={str(step.sampling)!r} cannot be written as an Opacus history, which is "
                "Poisson sampling only."
            )
        if history and history[-1][:2] == (step.noise, step.rate):
            count += history.pop()[2]
        history.append((step.noise, step.rate, count))
    if mechanism == "gdp" and len(history) > 1:
        raise Unsupported("mechanism='gdp' holds one noise and one rate only. Use mechanism='rdp' or 'prv'.")
    return {"history": history, "mechanism": mechanism}
