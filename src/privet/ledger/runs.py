"""Several runs on the same records: found, none left out, and what they cost together.

Which records a run is on is told by the name that its ledger has, never by looking at them. A run without a name may be
on any records, so it is counted as one on those that are asked for.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privet.accounting import Guarantee, Ledger, compose_ledgers, spent
from privet.accounting.guarantee import Adjacency, Unit
from privet.errors import InvalidValue, PrivetError, Unsupported
from privet.ledger import reading as ledger_reading
from privet.ledger.assumptions import NOT_RECORDED
from privet.ledger.format import Header
from privet.ledger.reading import FEDERATION, METRICS, RUN, TUNING, WEIGHTS, Reading
from privet.planning.clipping_rules import is_unsound

BEFOREHAND = (
    "no run, nor its plan, was chosen by what earlier runs released (a total that is set before the first run needs no "
    "such assumption: privet train --total-epsilon)"
)
_LEFT = (RUN, ledger_reading.COUNT_NAME, WEIGHTS, METRICS)  # what a run leaves beside its ledger
_OTHER = {FEDERATION: "a federation", TUNING: "a tuning"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """One run among others: what its ledger says, and by which name it is shown."""

    name: str
    reading: Reading
    stopped: bool  # its outputs may have ended it before its plan was spent: then only the plan's epsilon holds
    own_loop: bool  # whether it was made by a loop of the user's own, as far as is known

    @property
    def header(self) -> Header:
        return self.reading.header

    @property
    def spent(self) -> Ledger:
        """What its guarantee is about: the steps that are charged, or the plan where outputs ended it early."""
        return self.planned if self.stopped else self.reading.ledger

    @property
    def planned(self) -> Ledger:
        """All that it may ever charge."""
        return self.header.planned_steps().ledger()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its guarantee assumes of its loop."""
        if self.reading.loop is not None:
            return self.reading.loop.assumptions()
        return (NOT_RECORDED,) if self.own_loop else ()  # nothing was written down of a loop of the user's own


# --- finding ----------------------------------------------------------------------------------------
def read(path: str | Path, *, name: str | None = None) -> OneRun:
    """The run in a folder, or of a ledger.

    Raises:
        InvalidValue: there is none, or its ledger is damaged.
    """
    place, reading = Path(path), ledger_reading.read_ledger(path)
    folder = place if place.is_dir() else place.parent
    is_ours = place.is_dir() or place.name == ledger_reading.NAME
    left = reading.ledger.steps < reading.header.length
    return OneRun(
        name=str(path) if name is None else name, reading=reading,
        own_loop=not (is_ours and any((folder / file).exists() for file in (RUN, FEDERATION))),
        stopped=left and is_ours and (folder / RUN).exists() and _has_end(folder / RUN),
    )  # fmt: skip


def _has_end(file: Path) -> bool:
    """Whether run.json says that something ended the run; one that cannot be read is taken to, for that costs most."""
    try:
        return json.loads(file.read_bytes())["end"] is not None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return True


def find_runs(paths: Sequence[str]) -> list[OneRun]:
    """The runs in these folders, and in the folders of runs among them.

    Raises:
        InvalidValue: one of them is no run, or is damaged.
        Unsupported: one of them is a federation or a tuning.
    """
    found: dict[Path, OneRun] = {}
    for path in paths:
        place = Path(path)
        if place.is_dir() and not (place / ledger_reading.NAME).exists():
            found |= {Path(run.name).resolve(): run for run in read_runs(place)}
            continue
        folder = place if place.is_dir() else place.parent
        for file, what in _OTHER.items():
            if (folder / file).exists():
                raise _not_counted_error(folder, what)
        found[folder.resolve() if place.name == ledger_reading.NAME else place.resolve()] = read(place)
    return list(found.values())


def read_runs(folder: str | Path) -> list[OneRun]:
    """Every run in a folder and below it, in order of their places. What cannot be counted is refused, never skipped.

    Raises:
        InvalidValue: a ledger is damaged or gone, a folder cannot be read, or a link leads outside.
        Unsupported: a federation or a tuning lies there.
    """
    return [read(place) for place in find_run_folders(Path(folder))]


def find_run_folders(root: Path) -> Iterator[Path]:
    """The folders with a ledger, as `runs_in` finds them; no ledger is read."""
    for path, folders, files in os.walk(root, onerror=_raise_unreadable):
        here = Path(path)
        folders.sort()
        for file, what in _OTHER.items():
            if file in files:
                raise _not_counted_error(here, what)
        for place in (here / name for name in folders):
            if place.is_symlink() and not place.resolve().is_relative_to(root.resolve()):
                raise InvalidValue(
                    f"{place}: is a link to {place.resolve()}. Runs behind it would not be counted. Move them here, or "
                    "take it away."
                )
        if ledger_reading.NAME in files:
            yield here
            continue
        left = [name for name in _LEFT if name in files]
        if left and not (here != root and (here.parent / ledger_reading.NAME).exists()):  # best/ has weights alone
            raise InvalidValue(
                f"{here}: has {left[0]} of a run, and no {ledger_reading.NAME}. What it spent cannot be determined. "
                "Restore the ledger, or move the folder away and count its plan yourself."
            )


def _raise_unreadable(error: OSError) -> None:
    raise InvalidValue(
        f"{error.filename}: cannot be read: {error.strerror}. A run in it would not be counted. Make it readable, or "
        "move it away."
    ) from None


def _not_counted_error(folder: Path, what: str) -> Unsupported:
    return Unsupported(
        f"{folder}: is {what}, whose cost is not added to that of runs. Left out, the sum would be too small. Keep it "
        "in another folder, and add its epsilon and delta yourself."
    )


def select_dataset(runs: Sequence[OneRun], dataset: str | None) -> list[OneRun]:
    """The runs on these records: those of that name, and those without a name, which may be on any."""
    return [run for run in runs if dataset is None or run.header.dataset in (dataset, None)]


def single_dataset(runs: Sequence[OneRun], dataset: str | None = None) -> str | None:
    """The one name among the runs; None if none has one.

    Raises:
        InvalidValue: they have several, or none that was asked for.
    """
    names = sorted({run.header.dataset for run in runs if run.header.dataset is not None})
    if dataset is not None and dataset not in names and all(run.header.dataset for run in runs):
        raise InvalidValue(
            f"dataset_name={dataset!r} is not the name of a run here; there are {', '.join(names)}. Give one of them."
        )
    if dataset is None and len(names) > 1:
        raise InvalidValue(
            f"dataset_name is missing: the runs are on {', '.join(names)}. What they cost adds up for each by itself. "
            f"Give --dataset-name {names[0]}, for example."
        )
    return dataset if dataset is not None else names[0] if names else None


# --- cost -------------------------------------------------------------------------------------------
def refuse_unproven(name: str, reading: Reading) -> None:
    """Raise if the run has no guarantee, so that no epsilon holds for it, nor for what it is part of."""
    header = reading.header
    if header.seeded:
        raise Unsupported(
            f"{name}: is not private: its noise came from a seed and can be drawn again, so no epsilon holds for it. "
            "Train without --seed."
        )
    if not header.sound:
        why = "something was read off the records without noise, before the first step"
        if is_unsound(header.rule):
            why = f"its clipping rule {header.rule!r} does not bound the sensitivity"
        raise Unsupported(f"{name}: no accountant covers the run: {why}. Train without --uncertified.")
    if reading.loop is not None and reading.loop.void_text:
        raise Unsupported(f"{name}: guarantee: none, {reading.loop.void_text}. No epsilon holds for it. Train anew.")


def refuse_tuned(name: str, header: Header) -> None:
    """Raise if the run is one of several that are charged as a whole."""
    if header.together is not None:
        raise Unsupported(
            f"{name}: is one run of several that a plan charges together: {header.together}. What one of them costs "
            "says nothing of the others. Add that epsilon and its delta yourself."
        )


def common_protection(runs: Sequence[OneRun]) -> tuple[Adjacency, Unit]:
    """What all these runs protect: their one relation and unit.

    Raises:
        Unsupported: they have several.
    """
    first = runs[0]
    for run in runs:
        ours, theirs = ((one.header.adjacency, one.header.unit) for one in (first, run))
        if ours != theirs:
            raise Unsupported(
                f"{run.name}: protects each {theirs[1]} under {theirs[0]}, and {first.name} each {ours[1]} under "
                f"{ours[0]}. Such guarantees cannot be added. Compute each kind separately."
            )
    return first.header.adjacency, first.header.unit


def compose_runs(
    runs: Sequence[OneRun], *, delta: float | None = None, accountant: str = "pld", planned: bool = False
) -> Guarantee:
    """What runs on the same records cost together: of what they charged, or of all that they may still charge.

    A run that its outputs ended early counts with its plan. Without `delta` it is the smallest of theirs.

    Raises:
        Unsupported: one of them has no guarantee, they protect different things, or no theorem covers the sum.
    """
    for run in runs:
        refuse_unproven(run.name, run.reading)
        refuse_tuned(run.name, run.header)
    adjacency, unit = common_protection(runs)
    least = min(run.header.delta for run in runs) if delta is None else delta
    whole = compose_ledgers(*(run.planned if planned else run.spent for run in runs))
    found = _price_ledger(whole, least, accountant, adjacency=adjacency, unit=unit)
    return replace(found, assumptions=combine_assumptions(runs))


def _price_ledger(ledger: Ledger, delta: float, accountant: str, **kind: Any) -> Guarantee:
    """By the accountant; rdp covers what pld refuses."""
    try:
        return spent(ledger, delta, accountant=accountant, **kind)
    except PrivetError:
        if accountant == "pld":
            with contextlib.suppress(PrivetError):
                return spent(ledger, delta, accountant="rdp", **kind)
        raise


def combine_assumptions(runs: Sequence[OneRun]) -> tuple[str, ...]:
    """What the sum assumes: that plans were fixed beforehand, and what each run assumes, by its name."""
    each = tuple(f"{run.name}: {said}" for run in runs for said in run.assumptions)
    return (BEFOREHAND, *each) if len(runs) > 1 else each
