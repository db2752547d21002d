"""What `privet epsilon` says beside the figure of a run, or of several runs on the same records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet.accounting import Guarantee, Ledger
    from privet.training.runs import OneRun

Lines = list[tuple[str, str]]


class Beside(Protocol):
    """What goes with a figure."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figure assumes of the loops that made the runs, and of how these were chosen."""

    def lines(self) -> Lines:
        """For people: name and text."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class One:
    """One run, going on or not."""

    run: "OneRun"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.run.assumptions

    def lines(self) -> Lines:
        reading = self.run.reading
        header, charged = reading.header, f"{reading.ledger.steps} of {reading.header.length} planned steps"
        no_plan = "no epsilon of the whole plan is certified"
        found = [
            ("charged", f"{charged}; {no_plan if header.planned is None else f'the whole plan: {header.planned}'}")
        ]
        if header.together is not None:
            found.append(("tuning", f"one run of several; all together: {header.together}"))
        if reading.remark is not None:
            found.append(("stopping", reading.remark))
        return [*found, *(("torn", note) for note in reading.notes), *_assumed(self.assumptions)]

    def as_dict(self) -> dict[str, Any]:
        reading = self.run.reading
        planned = None if reading.header.planned is None else reading.header.planned.as_dict()
        return {
            "planned_steps": reading.header.length, "planned": planned, "together": reading.header.together,
            "stopping": reading.remark, "torn": list(reading.notes), "dataset": reading.header.dataset,
            "assumptions": list(self.assumptions),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """Runs on the same records. The figure beside is of what they charged; `planned` of all that they may charge."""

    runs: "Sequence[OneRun]"
    dataset: str | None
    planned: "Guarantee"

    @property
    def assumptions(self) -> tuple[str, ...]:
        from privet.training.runs import assumptions_together

        return assumptions_together(self.runs)

    def ledger(self) -> "Ledger":
        """What they charged; of a run that its outputs ended early, its plan."""
        from privet.accounting import joined

        return joined(*(run.spent for run in self.runs))

    def lines(self) -> Lines:
        on = "records without a name" if self.dataset is None else self.dataset
        found = [("together", f"{len(self.runs)} runs on {on}; their whole plans: {self.planned}")]
        found += [("run", f"{run.name}: {_state(run)}") for run in self.runs]
        if any(run.reading.remark is not None and not run.stopped for run in self.runs):
            remark = "holds if the moments to stop were fixed beforehand; if outputs decided them, the whole plans do"
            found.append(("stopping", remark))
        found += [("torn", f"{run.name}: {note}") for run in self.runs for note in run.reading.notes]
        return [*found, *_assumed(self.assumptions)]

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {"name": run.name, "run": run.header.run, "dataset": run.header.dataset, "steps": run.reading.ledger.steps,
             "planned_steps": run.header.length, "counted_with_its_plan": run.stopped,
             "planned": None if run.header.planned is None else run.header.planned.as_dict()}
            for run in self.runs
        ]  # fmt: skip
        return {
            "dataset": self.dataset, "planned": self.planned.as_dict(), "runs": rows,
            "assumptions": list(self.assumptions),
        }  # fmt: skip


def _state(run: "OneRun") -> str:
    said = f"{run.reading.ledger.steps} of {run.header.length} steps"
    if run.stopped:
        said += ", ended by its outputs: its whole plan is counted"
    if run.header.dataset is None:
        said += "; without a name for its records: counted as on these"
    return said


def _assumed(assumptions: tuple[str, ...]) -> Lines:
    from privet.training.assumptions import NONE

    return [("assumes", said) for said in assumptions or (NONE,)]


def several_of(sources: Sequence[str], dataset: str | None) -> Several | None:
    """The runs in these folders, those on one dataset; None where there is one source that is not a folder of runs.

    Raises:
        InvalidValue: they are on several datasets, and none was asked for; or one of them is no run.
        Unsupported: one of them has no guarantee, or cannot be added up with the others.
    """
    from privet.training.ledger_reading import is_run
    from privet.training.runs import named, on_dataset, only_dataset, together

    folders = [source for source in sources if _holds_runs(Path(source))]
    if len(sources) < 2 and not folders and dataset is None:
        return None
    for source in sources:
        if not is_run(Path(source)):
            raise InvalidValue(
                f"--from={source!r} is not the folder of a run. Only runs are added up. Give each of the others alone."
            )
    found = named(sources)
    chosen = only_dataset(found, dataset)
    runs = on_dataset(found, chosen)
    return Several(runs=runs, dataset=chosen, planned=together(runs, planned=True))


def _holds_runs(folder: Path) -> bool:
    """Whether runs lie below a folder that has no ledger itself."""
    from privet.training.ledger_reading import NAME

    return folder.is_dir() and not (folder / NAME).exists() and next(folder.rglob(NAME), None) is not None
