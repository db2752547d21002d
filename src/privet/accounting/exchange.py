"""Exchange: ledgers to and from files, dp_accounting events and Opacus accountant histories.

Four kinds of file are read, told apart by what is in them:

    {"format": "privet-ledger", "version": 2,
     "steps": [{"noise_multiplier": 1.1, "sample_rate": 0.004, "count": 14063}]}
    {"history": [[1.1, 0.004, 14063]], "mechanism": "rdp"}                            Opacus state_dict, as JSON
    {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.004,
     "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}}             dp_accounting event, as JSON
    noise_multiplier,sample_rate,clipping_norm,count                                  CSV; the last two optional

The JSON of events has the names of dp_accounting's own `to_named_tuple`, so neither package need be installed
to check an old run. Nothing is unpickled.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privet import _check
from privet._files import parse_json, read_text, write_file
from privet.accounting.ledger import (
    KEYS,
    SHORT,
    Ledger,
    LedgerBuilder,
    Step,
    require_integer,
    require_list,
    require_number,
)
from privet.accounting.sampling import POISSON, TruncatedPoisson
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

FORMAT, VERSION = "privet-ledger", 2
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
    wanted = "Give a JSON or CSV file in UTF-8."
    try:
        if Path(path).is_dir():
            raise InvalidValue("is a directory. Give a JSON or CSV file.")
        text = read_text(Path(path), most=MOST_BYTES, advice="Write repeated steps once with a count.", wanted=wanted)
        if "\0" in text:
            raise InvalidValue(f"byte {text.encode().index(0)} is not text. {wanted}")
        if not text.strip():
            raise InvalidValue("is empty. Give a JSON or CSV file.")
        if text.lstrip()[:1] in ("{", "["):
            return _from_json(parse_json(text, "is not a JSON number. Noise and rates must be finite."))
        return _from_csv(text)
    except RecursionError:
        raise InvalidValue(f"{path}: nested too deeply. Write repeated steps with a count.") from None
    except PrivetError as error:
        raise type(error)(f"{path}: {error}") from None


def write(ledger: Ledger, path: str | Path) -> None:
    """Write `ledger` as JSON, one line per run of equal steps."""
    rows = ",\n".join("  " + json.dumps(row) for row in to_json(ledger)["steps"])
    text = f'{{"format": "{FORMAT}", "version": {VERSION}, "steps": [\n{rows}\n]}}\n'
    try:
        write_file(Path(path), text.encode())
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be written: {error.strerror}.") from None


def _from_json(value: Any) -> Ledger:
    if isinstance(value, Mapping) and "format" in value:
        return from_json(value)
    if isinstance(value, list) or "history" in value or _CHECKPOINT in value:
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
        header = [SHORT.get(name, name) for name in header]
        for column, name in enumerate(header, 1):  # it may be a file of records by mistake: no name is shown
            if name not in KEYS or header.count(name) > 1:
                raise InvalidValue(
                    f"line 1: column {column} is not known or appears twice.{_check.suggestion(name, KEYS)} The first "
                    "line names the columns: noise_multiplier,sample_rate and perhaps clipping_norm,count,sampling."
                )
        if missing := [name for name in ("noise_multiplier", "sample_rate") if name not in header]:
            raise InvalidValue(
                f"{place}: there is no column {missing[0]!r}. The first line names the columns: "
                "noise_multiplier,sample_rate."
            )
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
    if value.get("version") not in (1, VERSION):
        raise InvalidValue(
            f"version={value.get('version')!r} must be {VERSION}. Read it with the Privet that wrote it."
        )
    rows = LedgerBuilder()
    for number, row in enumerate(require_list(value.get("steps"), "steps")):
        rows.add_row(row, f"steps[{number}]")
    return rows.ledger


def to_json(ledger: Ledger) -> dict[str, Any]:
    """`ledger` as plain values, one row per run of equal steps.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.1, sample_rate=0.01), count=3)
    >>> to_json(ledger)["steps"]
    [{'noise_multiplier': 1.1, 'sample_rate': 0.01, 'clipping_norm': 1.0, 'sampling': 'poisson', 'count': 3}]
    """
    rows = [
        {name: getattr(step, name) for name in KEYS[:3]} | {"sampling": str(step.sampling), "count": count}
        for step, count in ledger
    ]
    return {"format": FORMAT, "version": VERSION, "steps": rows}


# --- Opacus ------------------------------------------------------------------------------------------
def from_opacus(state: Mapping[str, Any] | Sequence[Any]) -> Ledger:
    """The ledger of an Opacus accountant: its `state_dict()`, its `history`, or a checkpoint that holds the former.

    Opacus accounts every step as Poisson sampling at the rate it recorded, whatever the loader did.

    >>> ledger = from_opacus({"history": [(1.1, 0.01, 500), (0.9, 0.01, 20)], "mechanism": "rdp"})
    >>> ledger.steps
    520
    """
    if isinstance(state, Mapping):
        state = state.get(_CHECKPOINT, state)
        mechanism = state.get("mechanism", "rdp") if isinstance(state, Mapping) else None
        if not isinstance(state, Mapping) or "history" not in state:
            raise InvalidValue("history is missing. Give accountant.state_dict().")
        if mechanism not in MECHANISMS:
            raise InvalidValue(f"mechanism={mechanism!r} must be one of {', '.join(MECHANISMS)}.")
        state = state["history"]
    rows = LedgerBuilder()
    for number, entry in enumerate(require_list(state, "history")):
        here = f"history[{number}]"
        if isinstance(entry, (str, Mapping)) or not isinstance(entry, Sequence) or len(entry) != 3:
            raise InvalidValue(f"{here}: must be [noise multiplier, sample rate, steps].")
        rows.add(here, noise_multiplier=entry[0], sample_rate=entry[1], count=entry[2])
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
        if history and history[-1][:2] == (step.noise_multiplier, step.sample_rate):
            count += history.pop()[2]
        history.append((step.noise_multiplier, step.sample_rate, count))
    if mechanism == "gdp" and len(history) > 1:
        raise Unsupported("mechanism='gdp' holds one noise and one rate only. Use mechanism='rdp' or 'prv'.")
    return {"history": history, "mechanism": mechanism}


# --- dp_accounting ---------------------------------------------------------------------------------
def from_dp_event(event: Any) -> Ledger:
    """The ledger of a dp_accounting `DpEvent` made of Gaussian, sampled and composed events.

    Several Gaussians on one sample are one release with noise (sum sigma^-2)^(-1/2). Repetitions of a composed
    event are gathered, since order does not change the cost. An event with sampling without replacement speaks
    of replace-one neighbours; its multipliers, written over the clip C, are halved throughout, because `noise`
    is counted over the sensitivity, then 2 C.

    Raises:
        Unsupported: an event no accountant here covers; the message names it.
    """
    return from_event_json(event_to_json(event))


def to_dp_event(ledger: Ledger, *, dataset_size: int | None = None) -> Any:
    """`ledger` as a dp_accounting `DpEvent`. Fixed-size sampling needs the number of records."""
    return event_from_json(to_event_json(ledger, dataset_size=dataset_size))


def event_to_json(event: Any) -> dict[str, Any]:
    """A `DpEvent` as plain values, named as in its `to_named_tuple` (without the module's name)."""
    fields = getattr(type(event), "__attrs_attrs__", None)
    if fields is None:
        raise InvalidValue(f"event={type(event).__name__} must be a dp_accounting DpEvent.")
    return {"class_name": type(event).__name__} | {f.name: _to_plain_value(getattr(event, f.name)) for f in fields}


def _to_plain_value(value: Any) -> Any:
    if hasattr(type(value), "__attrs_attrs__"):
        return event_to_json(value)
    return [_to_plain_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def event_from_json(value: Mapping[str, Any]) -> Any:
    """The `DpEvent` that `event_to_json` wrote, with dp_accounting's own classes."""
    try:
        from dp_accounting import dp_event
    except ImportError:
        raise MissingExtra("dp_accounting is not installed. Run: pip install dp-accounting") from None
    fields = {key: _decode_event_field(field) for key, field in value.items()}
    fields.pop("module_name", None)
    if (name := fields.pop("class_name")) not in _EVENTS:
        raise _no_theorem_error(name)
    return getattr(dp_event, name)(**fields)


def _decode_event_field(value: Any) -> Any:
    if isinstance(value, Mapping):
        return event_from_json(value)
    return [_decode_event_field(item) for item in value] if isinstance(value, list) else value


def to_event_json(ledger: Ledger, *, dataset_size: int | None = None) -> dict[str, Any]:
    """`ledger` as the JSON of a dp_accounting event.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.1))
    >>> to_event_json(ledger)
    {'class_name': 'GaussianDpEvent', 'noise_multiplier': 1.1}
    """
    scale = 2.0 if any(step.sampling.name == "fixed-size" for step, _ in ledger) else 1.0
    events = []
    for step, count in ledger:
        event = _release_event(step, scale, dataset_size)
        events.append(event if count == 1 else {"class_name": "SelfComposedDpEvent", "event": event, "count": count})
    if not events:
        return {"class_name": "NoOpDpEvent"}
    return events[0] if len(events) == 1 else {"class_name": "ComposedDpEvent", "events": events}


def _release_event(step: Step, scale: float, size: int | None) -> dict[str, Any]:
    gaussian = {"class_name": "GaussianDpEvent", "noise_multiplier": scale * step.noise_multiplier}
    if isinstance(step.sampling, TruncatedPoisson):
        return {
            "class_name": "TruncatedSubsampledGaussianDpEvent", "dataset_size": step.sampling.size,
            "sampling_probability": step.sample_rate, "truncated_batch_size": step.sampling.cap,
            "noise_multiplier": scale * step.noise_multiplier,
        }  # fmt: skip
    if step.sampling.name == "fixed-size":
        if size is None:
            raise InvalidValue(
                "dataset_size=None must be given for fixed-size sampling: the event holds numbers of examples."
            )
        _check.whole(dataset_size=size)
        batch = round(step.sample_rate * size)
        if batch < 1 or not math.isclose(batch / size, step.sample_rate, rel_tol=1e-9):
            raise InvalidValue(
                f"dataset_size={size!r} does not make sample_rate={step.sample_rate!r} a whole number of examples."
            )
        return {
            "class_name": "SampledWithoutReplacementDpEvent", "source_dataset_size": size, "sample_size": batch,
            "event": gaussian,
        }  # fmt: skip
    if step.sampling != POISSON:
        raise Unsupported(f"sampling={str(step.sampling)!r} has no dp_accounting event.")
    if step.sample_rate == 1:
        return gaussian
    return {"class_name": "PoissonSampledDpEvent", "sampling_probability": step.sample_rate, "event": gaussian}


_EVENTS = (
    "NoOpDpEvent", "GaussianDpEvent", "SelfComposedDpEvent", "ComposedDpEvent", "PoissonSampledDpEvent",
    "SampledWithoutReplacementDpEvent", "TruncatedSubsampledGaussianDpEvent",
)  # fmt: skip

_WHY = {
    "NonPrivateDpEvent": "it has no guarantee at all",
    "UnsupportedDpEvent": "it says itself that it has no description",
    "SampledWithReplacementDpEvent": "sampling with replacement has no theorem here",
    "RepeatAndSelectDpEvent": "selection among repeated runs is not a composition",
}


def _no_theorem_error(name: object) -> Unsupported:
    why = _WHY.get(str(name), "only Gaussian releases, sampled and composed, are accounted")
    return Unsupported(f"{name} is not covered: {why}. Covered: {', '.join(_EVENTS)}.")


def from_event_json(event: Mapping[str, Any]) -> Ledger:
    """The ledger of an event given as JSON; see `from_dp_event`."""
    scale = 0.5 if _contains_event(event, "SampledWithoutReplacementDpEvent") else 1.0
    rows = LedgerBuilder()
    for place, count, release in _iter_releases(event, 1, "event"):
        rows.add(place, count=count, **{**release, "noise_multiplier": scale * release["noise_multiplier"]})
    return rows.ledger


def _contains_event(value: Any, name: str) -> bool:
    if isinstance(value, Mapping):
        return value.get("class_name") == name or any(_contains_event(v, name) for v in value.values())
    return isinstance(value, list) and any(_contains_event(v, name) for v in value)


def _iter_releases(event: Any, count: int, place: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(place, count, step) for each release in an event."""
    if not isinstance(event, Mapping) or not isinstance(event.get("class_name"), str):
        raise InvalidValue(f"{place}: must be an event with a class_name.")
    name = str(event["class_name"])
    if name == "SelfComposedDpEvent":
        times = _get_integer(event, "count", place, least=0)
        if times:
            yield from _iter_releases(_get_field(event, "event", place), count * times, f"{place}.event")
    elif name == "ComposedDpEvent":
        for index, part in enumerate(require_list(_get_field(event, "events", place), f"{place}.events")):
            yield from _iter_releases(part, count, f"{place}.events[{index}]")
    elif name != "NoOpDpEvent":
        step = _step_fields(event, name, place)
        if step:
            yield place, count, step


def _step_fields(event: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    if name == "GaussianDpEvent":
        return {"noise_multiplier": _get_number(event, "noise_multiplier", place)}
    if name == "TruncatedSubsampledGaussianDpEvent":
        cap, size = (_get_integer(event, key, place) for key in ("truncated_batch_size", "dataset_size"))
        noise, rate = (_get_number(event, key, place) for key in ("noise_multiplier", "sampling_probability"))
        return {"noise_multiplier": noise, "sample_rate": rate, "sampling": TruncatedPoisson(cap=cap, size=size)}
    if name == "PoissonSampledDpEvent":
        rate, sampling = _get_number(event, "sampling_probability", place), "poisson"
    elif name == "SampledWithoutReplacementDpEvent":
        batch, size = (_get_integer(event, key, place) for key in ("sample_size", "source_dataset_size"))
        rate, sampling = batch / size, "fixed-size"
    else:
        raise Unsupported(f"{place}: {_no_theorem_error(name)}")
    combined = _combined_noise(_get_field(event, "event", place), f"{place}.event")
    return {"noise_multiplier": combined, "sample_rate": rate, "sampling": sampling} if combined is not None else {}


def _combined_noise(event: Any, place: str) -> float | None:
    """The noise of all Gaussians on one sample taken together, (sum sigma^-2)^(-1/2); None if there is none."""
    found: list[tuple[float, int]] = []
    for here, count, step in _iter_releases(event, 1, place):
        if set(step) != {"noise_multiplier"}:
            raise Unsupported(f"{here}: sampling within sampling has no theorem here. Give one rate.")
        _check.positive(**{f"{here}: noise_multiplier": step["noise_multiplier"]})
        found.append((step["noise_multiplier"], count))
    if not found:
        return None
    least = min(noise for noise, _ in found)  # factored out: squares of tiny and huge noise stay in range
    return least / math.sqrt(math.fsum(count * (least / noise) ** 2 for noise, count in found))


def _get_field(event: Mapping[str, Any], key: str, place: str) -> Any:
    if key not in event:
        raise InvalidValue(f"{place}: {event['class_name']} needs {key}.")
    return event[key]


def _get_number(event: Mapping[str, Any], key: str, place: str) -> float:
    return require_number(f"{place}: {key}", _get_field(event, key, place))


def _get_integer(event: Mapping[str, Any], key: str, place: str, *, least: int = 1) -> int:
    return require_integer(f"{place}: {key}", _get_field(event, key, place), least=least)
