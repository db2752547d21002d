"""A total epsilon for all runs on a dataset: set once for a folder, and no run begins below it that would exceed it.

set_total("runs", 3.0, dataset="people-2026", plan=first_plan)
Training(model, optimizer, records, plan, out="runs/a", dataset_name="people-2026")   # checked, and registered

budget.json in the folder has each total and the runs that were counted, each with its whole plan: what has begun may be
resumed and spend it. A run whose folder is moved or removed stays counted. The sum is that of a privacy filter
(accounting/filter.py), so plans may follow what earlier runs released.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privet import _check
from privet._files import Descriptor, lock_folder, make_folder, write_new
from privet._text import format_count, shorten
from privet.accounting import Guarantee
from privet.accounting.filter import Filter
from privet.accounting.guarantee import ADJACENCIES, UNITS, Adjacency, Unit, format_bound, format_outward
from privet.errors import BudgetExceeded, InvalidValue, PrivetError, Unsupported, name_errors
from privet.ledger import reading as ledger_reading
from privet.ledger.format import Header, check_dataset, header_line, make_header
from privet.ledger.runs import OneRun, common_protection, read_runs, refuse_tuned, refuse_unproven, select_dataset
from privet.planning import Plan
from privet.planning.format_1 import from_format_1
from privet.planning.plan import content_digest

NAME, LOCK = "budget.json", "budget.lock"
FORMAT, VERSION = "privet-budget", 2
PATIENCE = 120.0  # seconds to wait while other runs begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What all runs on one dataset may cost together. `runs` has the first line of each ledger that was counted."""

    dataset: str
    epsilon: float
    delta: float
    order: float  # of the filter
    adjacency: Adjacency
    unit: Unit
    earlier: tuple[str, ...]  # runs that had begun before it was set
    runs: Mapping[str, str]

    def __post_init__(self) -> None:
        check_dataset(self.dataset)
        _check.one_of(ADJACENCIES, adjacency=self.adjacency)
        _check.one_of(UNITS, unit=self.unit)
        object.__setattr__(self, "earlier", tuple(self.earlier))  # a list, where it was read from JSON
        if not isinstance(self.runs, Mapping) or not all(isinstance(line, str) for line in self.runs.values()):
            raise InvalidValue(f"runs={shorten(repr(self.runs))} must have a line for each run.")
        self.filter.cost([])

    @property
    def filter(self) -> Filter:
        return Filter(epsilon=self.epsilon, delta=self.delta, order=self.order)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the file, where the name stands before them."""
        return {
            key: list(value) if key == "earlier" else value for key, value in asdict(self).items() if key != "dataset"
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a dataset stands: `planned` is the epsilon that its runs come to, each with its whole plan.

    `guarantee` is what holds of them all, whatever led to their plans: the total.
    """

    folder: Path
    total: Total
    runs: tuple[OneRun, ...]
    planned: float

    @property
    def guarantee(self) -> Guarantee:
        assumptions = [f"{run.name}: {said}" for run in self.runs for said in run.assumptions]
        if self.total.earlier:
            begun = f"the total was set after {format_count(len(self.total.earlier), 'run')} had begun"
            assumptions.insert(0, f"{begun}: neither it nor their plans were chosen by what they had released")
        return Guarantee(
            epsilon=self.total.epsilon, epsilon_lower=None, delta=self.total.delta, label="certified",
            method=f"a filter of Renyi order {self.total.order:.4g}", adjacency=self.total.adjacency,
            unit=self.total.unit, sampling=" + ".join(sorted({str(run.header.steps["sampling"]) for run in self.runs})),
            steps=sum(run.header.length for run in self.runs), assumptions=tuple(assumptions),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder), "dataset": self.total.dataset, "guarantee": self.guarantee.as_dict(),
            "planned": self.planned, "runs": [run.name for run in self.runs],
        }  # fmt: skip

    def __str__(self) -> str:
        count = format_count(len(self.runs), "run")
        return (
            f"{self.guarantee} for all runs on {self.total.dataset} in {self.folder}; {count} so far, whose plans "
            f"come to {format_outward(self.planned, up=True)}"
        )


# --- what is asked ----------------------------------------------------------------------------------
def set_total(folder: str | Path, epsilon: float, *, dataset: str, plan: Plan, seeded: bool = False) -> None:
    """Set the total of a dataset's runs in and below a folder, at the delta of `plan`, which is to be run first.

    Called again it must say the same. It is refused if `plan` does not fit in.

    Raises:
        BudgetExceeded: the runs that have begun, and this plan, come to more.
        InvalidValue: another total is set, or what lies in the folder cannot be counted.
        Unsupported: a run that has begun has no guarantee, or no filter covers its sampling.
    """
    _check.positive(total_epsilon=epsilon)
    check_dataset(dataset)
    place, header = Path(folder), make_header(plan, run="", steps_per_line=1, seeded=seeded, dataset=dataset)
    make_folder(place)
    with _hold_lock(place):
        known = read(place)
        total = known.get(dataset)
        if total is None:
            total = _new_total(place, epsilon, dataset=dataset, header=header)
        elif total.epsilon != epsilon:
            raise InvalidValue(
                f"total_epsilon={epsilon!r} is not the total of {dataset!r} in {str(place)!r}, {total.epsilon!r}. It "
                "is fixed before the first run, for its proof needs that. Leave it out, or give the same."
            )
        _check_fits(place, total, header)
        if dataset not in known:
            write(place, known | {dataset: total})


def _new_total(place: Path, epsilon: float, *, dataset: str, header: Header) -> Total:
    begun = select_dataset(read_runs(place), dataset)
    first = begun[0].header if begun else header
    chosen = Filter.for_first_run(
        first.planned_steps().ledger(), epsilon=epsilon, delta=header.delta, adjacency=header.adjacency
    )
    return Total(
        dataset=dataset, epsilon=epsilon, delta=header.delta, order=chosen.order, adjacency=header.adjacency,
        unit=header.unit, earlier=tuple(run.header.run for run in begun),
        runs={run.header.run: _header_text(run.header) for run in begun},
    )  # fmt: skip


def check_total(folder: str | Path, *, dataset: str, plan: Plan, seeded: bool = False) -> None:
    """Raise unless a folder has a total for a dataset, and a run of `plan` fits in."""
    total = read(Path(folder)).get(dataset)
    if total is None:
        raise InvalidValue(
            f"ledger_dir={str(folder)!r} has no total for dataset_name={dataset!r}. Nothing would be kept to. Give "
            "total_epsilon as well."
        )
    _check_fits(Path(folder), total, make_header(plan, run="", steps_per_line=1, seeded=seeded, dataset=dataset))


def read_standings(out: str | Path, dataset: str | None) -> list[Standing]:
    """Where the dataset of a run stands, for each folder above the run's that has a total for it."""
    found = []
    for place in _folders_with_totals(Path(out)):
        total = read(place).get(dataset or "")
        if total is not None:
            runs = _counted_runs(place, total)
            planned = total.filter.cost([run.planned for run in runs], adjacency=total.adjacency)
            found.append(Standing(folder=place, total=total, runs=tuple(runs), planned=planned))
    return found


def refuse_within(out: str | Path, what: str) -> None:
    """Raise if a folder above has a total, which `what` could not be counted against."""
    for place in _folders_with_totals(Path(out)):
        if read(place):
            raise Unsupported(
                f"out={str(out)!r} is below {place}, which has a total epsilon, and the cost of {what} is not added to "
                "that of runs. It would be spent beside the total. Choose a folder elsewhere, and count it yourself."
            )


# --- where a run begins -----------------------------------------------------------------------------
@contextmanager
def admit_run(out: Path, header: Header) -> Iterator[Callable[[Header], None]]:
    """Hold the totals of the folders above a run's while it begins or goes on; gives what registers its ledger.

    Raises:
        BudgetExceeded: with it the runs would come to more than a total.
        InvalidValue: it has no name for its records, so that it could not be counted.
    """
    with ExitStack() as held:
        places = [place for place in _folders_with_totals(out) if held.enter_context(_hold_lock(place))]
        wanted = [(place, total) for place in places for total in _matching_totals(place, header)]
        for place, total in wanted:
            _check_fits(place, total, header)

        def register(begun: Header) -> None:
            for place, total in wanted:
                if begun.run not in total.runs:
                    runs = {**total.runs, begun.run: _header_text(begun)}
                    write(place, read(place) | {total.dataset: replace(total, runs=runs)})

        yield register


def _matching_totals(place: Path, header: Header) -> list[Total]:
    known = read(place)
    if known and header.dataset is None:
        raise InvalidValue(
            f"dataset_name is missing. {place} has a total epsilon for {', '.join(known)}, and a run without a name "
            "could not be counted. Give its dataset a name, or choose a folder elsewhere."
        )
    return [total for name, total in known.items() if name == header.dataset]


def _folders_with_totals(out: Path) -> list[Path]:
    """The folders with totals from a run's own up, the outermost first: everybody locks them in one order."""
    own = out.resolve()
    return [place for place in reversed((own, *own.parents)) if (place / NAME).exists()]


def _hold_lock(place: Path) -> "closing[Descriptor]":
    return closing(lock_folder(place, name=LOCK, patience=PATIENCE))


# --- the sum ----------------------------------------------------------------------------------------
def _check_fits(place: Path, total: Total, header: Header) -> None:
    """Raise unless a run with this header may begin, or go on, beside all that have begun."""
    begun = _counted_runs(place, total)
    rest = [run for run in begun if run.header.run != header.run]
    same = [run for run in begun if run.header.run == header.run]  # itself where it goes on, and copies of it
    new = same or [_run_from_header(header_line(header)[0], name=f"the run on {header.dataset}", is_gone=False)]
    for run in (*rest, *new):
        refuse_unproven(run.name, run.reading)
        refuse_tuned(run.name, run.header)
    kind = common_protection([*rest, *new])
    if kind != (total.adjacency, total.unit):
        raise Unsupported(
            f"adjacency={kind[0]!r}, unit={kind[1]!r} of the plan are not those of the total of {total.dataset!r} in "
            f"{place}, {total.adjacency!r} and {total.unit!r}. Such guarantees cannot be added. Plan for those."
        )
    after = _cost(place, total, [*rest, *new])
    if after <= total.epsilon:
        return
    before, alone = _cost(place, total, rest), _cost(place, total, new)
    left = format_outward(max(0.0, total.epsilon - before), up=False, digits=4)
    said = [format_outward(value, up=True, digits=4) for value in (before, alone, after)]
    raise BudgetExceeded(
        f"total_epsilon={total.epsilon:g} of {total.dataset!r} in {place} would be exceeded: what has begun "
        f"({format_count(len(rest), 'run')}) comes to {said[0]} with its whole plans, this run costs {said[1]} "
        f"alone, and together they come to {said[2]} at delta {format_bound(total.delta, up=True)}; {left} is left. "
        "Plan a smaller epsilon, or end here."
    )


def _cost(place: Path, total: Total, runs: list[OneRun]) -> float:
    with name_errors(f"{place}: the total of {total.dataset!r} cannot be computed", kind=Unsupported):
        return total.filter.cost([run.planned for run in runs], adjacency=total.adjacency)


def _counted_runs(place: Path, total: Total) -> list[OneRun]:
    """Every run on the records: those in the folder, and those that were counted and are there no more."""
    found = select_dataset(read_runs(place), total.dataset)
    there = {run.header.run for run in found}
    gone = ((run, line.encode()) for run, line in total.runs.items() if run not in there)
    return [
        *found, *(_run_from_header(line, name=f"a run that is gone ({run[:8]})", is_gone=True) for run, line in gone)
    ]  # fmt: skip


def _run_from_header(line: bytes, *, name: str, is_gone: bool) -> OneRun:
    return OneRun(name=name, reading=ledger_reading.parse(line), stopped=is_gone, own_loop=is_gone)


def _header_text(header: Header) -> str:
    return header_line(header)[0].decode()


# --- the file ---------------------------------------------------------------------------------------
def read(folder: Path) -> dict[str, Total]:
    """The totals in a folder, by dataset; nothing if there is no file.

    Raises:
        InvalidValue: it was edited, torn, or is of another version.
    """
    file = folder / NAME
    try:
        found = json.loads(file.read_bytes())
        given = found.pop("digest")
        if content_digest(found) == given and found["format"] == FORMAT and found["version"] in (1, VERSION):
            rows = {name: from_format_1("guarantee", row) for name, row in found["datasets"].items()}
            return {name: Total(dataset=name, **row) for name, row in rows.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, PrivetError):
        pass
    raise InvalidValue(
        f"{file}: is not as it was written. What may still be spent cannot be determined. Restore a copy of it."
    )


def write(folder: Path, totals: Mapping[str, Total]) -> None:
    """Put the file there, whole or not at all."""
    rows = {name: total.as_dict() for name, total in totals.items()}
    content = {"format": FORMAT, "version": VERSION, "datasets": rows}
    write_new(
        folder / NAME, (json.dumps({**content, "digest": content_digest(content)}, allow_nan=False) + "\n").encode()
    )
