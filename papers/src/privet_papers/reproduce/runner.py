"""Running rows: what is in the results folder is taken as it is, the rest is run, and a run that stopped goes on."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import privet
from privet import _check
from privet.data.files import DataFolders
from privet.data.task import Task
from privet.errors import InvalidValue, PrivetError
from privet.federated.federate import Federated
from privet.ledger.account import guarantee_of
from privet.ledger.reading import NAME as LEDGER
from privet.planning import Plan
from privet.training import metrics
from privet.training.baseline import train_plainly
from privet.training.progress import Progress
from privet.training.run import NAME as ABOUT, Run, versions
from privet.training.train import resume_run, train
from privet_papers.reproduce import choice as choosing, kinds, results
from privet_papers.reproduce.kinds import accounted
from privet_papers.reproduce.results import EXACT, Result
from privet_papers.reproduce.table_row import IN_PERCENT, Curve, Figure, Row, capped, quick
from privet_papers.reproduce.tables import shown

Mode = Literal["quick", "full"]
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A row as it is run: at its scale, for one seed (None where nothing is trained); and as the paper has it."""

    row: Row
    original: Row
    scale: str
    seed: int | None

    def __str__(self) -> str:
        return f"{self.row.key} {self.scale}" + ("" if self.seed is None else f", seed {self.seed}")


def scaled(row: Row, mode: Mode, steps: int | None = None) -> tuple[Row, str]:
    """The row as it is run in a mode, and the name of that scale: `quick`, `full`, `quick-5` for at most 5 steps.

    >>> from privet_papers.tables import rows_of
    >>> row, scale = scaled(rows_of("bu2019:table2")[0], "quick", 5)
    >>> row.task, row.steps, scale
    ('digits', 5, 'quick-5')
    """
    if not row.is_trained:
        return row, EXACT
    found = quick(row) if mode == "quick" else row
    return (found, mode) if steps is None else (capped(found, steps), f"{mode}-{steps}")


def jobs(rows: Iterable[Row], *, mode: Mode, seeds: int, steps: int | None = None) -> list[Job]:
    """What has to be there for the rows: one job for each seed of a row that trains, one for a row that accounts."""
    _check.whole(seeds=seeds)
    if steps is not None:
        _check.whole(steps=steps)
    found = []
    for row in rows:
        if row.kind != "not run":
            made, scale = scaled(row, mode, steps)
            wanted = range(seeds) if row.is_trained else (None,)
            found += [Job(row=made, original=row, scale=scale, seed=seed) for seed in wanted]
    return found


def reproduce(
    asked: Iterable[Job], *, out: Path, where: DataFolders | None = None, watch: Callable[[], Progress] | None = None,
    tell: Told = lambda _: None,
) -> Iterator[Result]:  # fmt: skip
    """The result of each job, from the folder or by running it now. A row that cannot run is told of, and left out.

    `watch` makes a watcher for each training; see privet.training.progress.

    Raises:
        KeyboardInterrupt: a run was interrupted; the same call goes on with it.
    """
    todo = list(asked)
    for number, job in enumerate(todo, start=1):
        kept = results.load(out, job.row, job.scale, job.seed)
        if kept is None:
            results.make_folder(out)
        start, is_new = time.monotonic(), False
        try:
            found = None if kept is None else _as_chosen(kept, job, out=out, where=where, tell=tell)
            if found is None:
                is_new = True
                tell(f"{job} ({number} of {len(todo)})")
                found = _run(job, out=out, where=where, watcher=watch and watch(), tell=tell)
        except PrivetError as error:
            tell(f"{job}: not run: {error}")
            continue
        except KeyboardInterrupt:
            tell(f"{job}: interrupted. The same command goes on with it.")
            raise
        if found != kept:
            results.save(out, job.row, found)
        if is_new:
            tell(f"{job}: {_said(found)} in {time.monotonic() - start:.1f} s")
        yield found


def _as_chosen(kept: Result, job: Job, *, out: Path, where: DataFolders | None, tell: Told) -> Result | None:
    """A result if it has the settings that are chosen by now, with what was tried for them: all seeds have the same.

    A search that could not leave its list goes on beyond it first. Without a file of it, the result stands.
    """
    if not job.row.choices or not _choice_file(job, out).exists():
        return kept
    now = _choice(job, out=out, where=where, tell=tell)
    return replace(kept, tried=list(now.tried)) if kept.chosen == now.chosen else None


def _said(result: Result) -> str:
    said = []
    for name, figure in result.figures.items():
        label = "" if figure.label is None else f" ({figure.label})"
        said.append(f"{name} {shown(name, figure.value)}{label}")
    return ", ".join(said) or "done"


def _run(job: Job, *, out: Path, where: DataFolders | None, watcher: Progress | None, tell: Told) -> Result:
    row = job.row
    if row.kind == "accounts":
        start = time.monotonic()
        return replace(
            _blank(job), figures=accounted(row), curve=None if row.curve is None else row.curve(row),
            seconds=round(time.monotonic() - start, 3), about={"versions": versions()},
        )  # fmt: skip
    assert job.seed is not None
    if row.kind == "attacks":
        return _attacked(job, out=out, where=where)

    choice = _choice(job, out=out, where=where, tell=tell)
    settled = replace(row, training={**row.training, **choice.chosen}, choices={})
    run = None
    if row.trace is not None:
        found = _traced(job, settled, where=where)
    elif row.kind == "baseline":
        found = _baseline(job, settled, where=where)
    elif row.kind == "federates":
        found = _federated(job, settled, out=out, where=where)
    else:
        folder = results.place(out, row, job.scale, job.seed, "")
        run = _trained(settled, None, folder, seed=job.seed, where=where, watcher=watcher)
        found = _result(job, settled, run)
    found = replace(found, chosen=choice.chosen, tried=list(choice.tried))
    return found if row.after is None else row.after(settled, found, run)


def _choice(job: Job, *, out: Path, where: DataFolders | None, tell: Told) -> choosing.Choice:
    """What the row leaves to be chosen, chosen; each candidate runs in a folder of its own."""
    row = job.row

    def measured(tried: Row, task: Task, name: str) -> float | None:
        if tried.kind == "baseline":
            return train_plainly(tried.plan(), task, seed=0, where=where).scores.measure
        folder = results.place(out, row, job.scale, None, f".{name}")
        run: Run | Federated
        if tried.kind == "federates":
            run = kinds.federated(tried, task, _free(folder, tried.fingerprint), seed=0, where=where)
        else:
            run = _trained(tried, task, folder, seed=0, where=where)
        assert run.scores is not None
        value: float | None = run.scores[f"held_out_{task.measure.name}"]
        return value

    return choosing.choice(row, file=_choice_file(job, out), train=measured, where=where, tell=tell)


def _choice_file(job: Job, out: Path) -> Path:
    return results.place(out, job.row, job.scale, None, ".choice.json")


def _blank(job: Job) -> Result:
    return Result(key=job.row.key, fingerprint=job.row.fingerprint, scale=job.scale, seed=job.seed, figures={})


# --- training ---------------------------------------------------------------------------------------


def _trained(
    row: Row, task: Task | None, folder: Path, *, seed: int, where: DataFolders | None, watcher: Progress | None = None
) -> Run:
    """The row's run in a folder of its own, begun or gone on with.

    Raises:
        KeyboardInterrupt: it was asked to stop.
    """
    plan = row.plan()
    place = _free(folder, row.fingerprint)
    if (place / ABOUT).exists():
        run = resume_run(place, task=task, where=where, watcher=watcher)
    else:
        run = train(
            plan, task, out=place, seed=seed, uncertified=plan.recipe.uncertified, where=where, watcher=watcher,
            show_private=plan.is_unsound,  # what it read off the data: there is nothing left to protect
        )  # fmt: skip
    if not run.is_over:
        raise KeyboardInterrupt
    return run


def _free(folder: Path, fingerprint: str) -> Path:
    """The folder of the run; another name if it is that of a run that a crash tore before it had begun."""
    place, tried = folder.with_name(f"{folder.name}.{fingerprint}.run"), 1
    while (place / LEDGER).exists() and not (place / ABOUT).exists():
        tried += 1
        place = folder.with_name(f"{folder.name}.{fingerprint}.run{tried}")
    return place


def _result(job: Job, row: Row, run: Run) -> Result:
    plan, scores = run.plan, run.scores
    if scores is None:
        raise InvalidValue(f"{run.folder}: has no evaluation. Nothing can be compared. Delete the folder.")
    name = run.about["measure"]["name"]
    _check_finite(str(run.folder), name, [scores[f"held_out_{name}"]])
    lines = [line for line in run.metrics if line.get(f"held_out_{name}") is not None]
    curve = _curve(name, [(line["epoch"], line[f"held_out_{name}"]) for line in lines])
    certified, claimed = _proven(plan, run)
    return replace(
        _blank(job), curve=curve, certified=certified, claimed=None if claimed is None else claimed.value,
        claimed_label="claimed" if claimed is None else str(claimed.label), delta=plan.recipe.budget.delta,
        figures={name: Figure(value=_shown(name, scores[f"held_out_{name}"]))} | accounted(job.original)
        | _reached(row, curve), steps=run.steps, planned=len(plan.steps), seconds=round(_seconds(lines), 1),
        about=_about(row, run.evaluation)
        | {"noise": [plan.steps[at].noise_multiplier for at in (0, -1)], "stopped": run.end},
    )  # fmt: skip


def _seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """The time of a run, by the median speed between two evaluations: a run that was stopped and went on waited.

    >>> _seconds([{"step": 10, "seconds": 1.0}, {"step": 20, "seconds": 2.0}, {"step": 30, "seconds": 900.0},
    ...           {"step": 40, "seconds": 901.0}])
    4.0
    """
    speeds = [
        (b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in pairwise(lines) if b["step"] > a["step"]
    ]
    found: float = median(speeds) * lines[-1]["step"] if speeds else lines[-1]["seconds"]
    return found


def _check_finite(place: str, name: str, values: Iterable[float | None]) -> None:
    if not all(value is not None and math.isfinite(value) for value in values):
        raise InvalidValue(f"{place}: {name} is not finite. The training diverged. Lower the learning rate.")


def _proven(plan: Plan, run: Run) -> tuple[tuple[float | None, float] | None, Figure | None]:
    """(what is proven of the mechanism that ran, what its method says instead, with its label)."""
    said = plan.guarantee
    claimed = Figure(value=said.epsilon, label=said.label) if said.label != "certified" else None
    if plan.is_unsound or run.non_private_preprocessing:
        return None, claimed or Figure(value=said.epsilon, label="claimed")
    # Outputs that decide the stop leave the plan's epsilon as what holds; the ledger's reading is then a claim.
    stopped = run.steps < len(plan.steps)
    proven = plan.certified if stopped else guarantee_of(run.ledger, plan)
    if stopped:
        claimed = Figure(value=guarantee_of(run.ledger, plan).epsilon, label="claimed")
    return results.proven(proven), claimed


def _baseline(job: Job, row: Row, *, where: DataFolders | None) -> Result:
    found = train_plainly(row.plan(), seed=job.seed or 0, where=where)
    name = found.scores.name
    _check_finite(row.key, name, [measure for _, measure in found.points])
    curve = _curve(name, list(found.points))
    return replace(
        _blank(job), curve=curve, steps=found.steps, planned=found.steps,
        figures={name: Figure(value=_shown(name, found.scores.measure)), **_reached(row, curve)},
        seconds=round(found.seconds, 1), about=_about(row, found.evaluation) | {"private": False},
    )  # fmt: skip


def _federated(job: Job, row: Row, *, out: Path, where: DataFolders | None) -> Result:
    folder = _free(results.place(out, job.row, job.scale, job.seed, ""), row.fingerprint)
    found = kinds.federated(row, None, folder, seed=job.seed or 0, where=where)
    lines = metrics.evaluation_lines(found.metrics)
    name = next(key.removeprefix("held_out_") for key in lines[-1] if key.startswith("held_out_") and "loss" not in key)
    curve = _curve(name, [(line["step"], line[f"held_out_{name}"]) for line in lines])
    return replace(
        _blank(job), curve=curve, certified=kinds.proven_of_rounds(found), steps=found.rounds,
        delta=found.plan.recipe.budget.delta, planned=found.planned, seconds=round(lines[-1]["seconds"], 1),
        figures={name: Figure(value=curve.y[-1])}, about=_about(row, "the held-out set") | {"unit": "client"},
    )  # fmt: skip


def _attacked(job: Job, *, out: Path, where: DataFolders | None) -> Result:
    row, folder = job.row, results.place(out, job.row, job.scale, None).parent / f"outcomes.{job.scale}"
    is_quick = job.scale.startswith("quick")
    found = kinds.attacked(row, seed=job.seed or 0, folder=folder, where=where, is_quick=is_quick)
    return replace(
        _blank(job), figures=found.figures, seconds=round(found.seconds, 1), steps=1, planned=len(row.plan().steps),
        about=_about(row, "training records: not private") | {"private": False},
    )  # fmt: skip


def _traced(job: Job, row: Row, *, where: DataFolders | None) -> Result:
    found = kinds.gradient_norms(row, seed=job.seed or 0, where=where)
    _check_finite(row.key, "the gradient", found.curve.y)
    return replace(
        _blank(job), curve=found.curve, steps=found.steps, planned=found.steps,
        certified=found.certified, delta=row.as_recipe().budget.delta, seconds=round(found.seconds, 1),
        about=_about(row, "training records, raw: not private") | {"private": False},
    )  # fmt: skip


def _about(row: Row, evaluation: str) -> dict[str, Any]:
    made_by = {"versions": versions(), "source": source()}
    return {"task": row.task, "model": row.model, "evaluation": evaluation, **made_by}


@cache
def source() -> str:
    """A hash of Privet's own code: by other code, one seed may draw other random numbers."""
    digest = hashlib.sha256()
    for package in (Path(privet.__file__).parent, Path(__file__).parent.parent):
        for file in sorted(package.rglob("*.py")):
            digest.update(f"{file.relative_to(package).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


# --- figures ----------------------------------------------------------------------------------------


def _shown(name: str, value: float) -> float:
    return 100 * value if name in IN_PERCENT else value


def _curve(name: str, points: list[tuple[float, float]]) -> Curve:
    return Curve(x=tuple(x for x, _ in points), y=tuple(_shown(name, y) for _, y in points))


def _reached(row: Row, curve: Curve) -> dict[str, Figure]:
    """`epochs to 95 %`: when the measure was first so high; left out if it never was."""
    found = {}
    for name in row.published:
        if name.startswith("epochs to "):
            goal = float(name.split()[2])
            at = next((x for x, y in zip(curve.x, curve.y, strict=True) if y >= goal), None)
            if at is not None:
                found[name] = Figure(value=at)
    return found
