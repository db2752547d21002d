"""How `privet epsilon` answers: lines, a table or JSON; figures; and what it says of runs."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._text import format_bound, format_outward
from privet.cli.common import print_object, print_table, warnings_as_lines
from privet.cli.recipe_options import recipe_in
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.accounting import EpsilonCurve, Guarantee, Ledger
    from privet.ledger.runs import OneRun
    from privet.planning.noise_swap import Swap

BESIDE = ("pld", "gdp", "rdp")  # what a figure shows beside the chosen accountant

Answer = tuple[str, "Guarantee | str", float]  # name, guarantee or why it is refused, seconds
Lines = list[tuple[str, str]]
_SAME = "  {:<12} {:<12} {:>16} {:>8}   {}"


def answers_of(
    ledger: "Ledger", delta: float, accountant: str, relation: str, size: int | None, unit: str,
    assumptions: tuple[str, ...] = (),
) -> list[Answer]:  # fmt: skip
    """What each accountant says, with what is assumed."""
    found = _answers(ledger, delta, accountant, {"relation": relation, "size": size, "unit": unit})
    return [
        (name, one if isinstance(one, str) else replace(one, assumptions=assumptions), seconds)
        for name, one, seconds in found
    ]


def _answers(ledger: "Ledger", delta: float, accountant: str, asked: dict[str, Any]) -> list[Answer]:
    from privet.accounting import registry, spent
    from privet.accounting.guarantee import LABELS

    if accountant != "all":
        start = time.perf_counter()
        found = spent(ledger, delta, accountant=accountant, **asked)
        return [(accountant, found, time.perf_counter() - start)]
    answers: list[Answer] = []
    for name in registry.names():
        start = time.perf_counter()
        try:
            answer: Guarantee | str = spent(ledger, delta, accountant=name, **asked)
        except PrivetError as error:
            answer = " ".join(str(error).split()).partition("does not cover this ledger: ")[2] or str(error)
        answers.append((name, answer, time.perf_counter() - start))
    if all(isinstance(answer, str) for _, answer, _ in answers):
        raise Unsupported(f"no accountant covers this ledger. {answers[0][1]}")

    def rank(answer: Answer) -> tuple[int, int, float]:
        found = answer[1]
        return (1, 0, 0.0) if isinstance(found, str) else (0, LABELS.index(found.label), found.epsilon)

    return sorted(answers, key=rank)  # certified first and the tightest of them on top; what refused comes last


def answer_delta(ledger: "Ledger", at: float, relation: str, as_json: bool, beside: "Beside | None") -> None:
    from privet.accounting import delta_at

    start = time.perf_counter()
    with warnings_as_lines():
        lower, upper = delta_at(ledger, at, relation)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    if as_json:
        found = {
            "delta": upper, "delta_lower": lower, "epsilon": at, "label": "certified", "method": "pld",
            "relation": relation, "steps": ledger.steps, "seconds": seconds,
        }  # fmt: skip
        print_object(found | ({} if beside is None else beside.as_dict()))
        return
    click.echo(
        f"delta <= {format_outward(upper, up=True)} at epsilon {format_bound(at, up=True)} "
        f"[certified: pld, true value >= {format_outward(lower, up=False)}; {relation}]"
    )
    click.echo(f"  training  {_described(ledger)}\n  time      {seconds:.3f} s")
    print_beside(beside)


def print_answers(answers: list[Answer], accountant: str, ledger: "Ledger", delta: float) -> None:
    if accountant == "all":
        _print_table(answers, ledger, delta)
        return
    _, guarantee, seconds = answers[0]
    assert not isinstance(guarantee, str)
    click.echo(str(guarantee))
    click.echo(f"  interval  {_interval(guarantee)}")
    click.echo(f"  sampling  {terms(guarantee)}")
    click.echo(f"  training  {_described(ledger)}")
    click.echo(f"  time      {seconds:.3f} s")


def print_beside(beside: "Beside | None") -> None:
    for name, text in () if beside is None else beside.lines():
        click.echo(f"  {name:<10}{text}")


def terms(guarantee: "Guarantee") -> str:
    return f"{guarantee.sampling}; adjacency: {guarantee.relation}; unit: {guarantee.unit}"


def _interval(guarantee: "Guarantee") -> str:
    from privet.accounting.guarantee import MEANING

    upper = format_outward(guarantee.epsilon, up=True)
    if guarantee.epsilon_lower is None:
        return f"none below; {upper} is {MEANING[guarantee.label]}"
    lower = format_outward(guarantee.epsilon_lower, up=False)
    return f"{lower} to {upper} ({guarantee.label}, relative width {guarantee.width:.1e})"


def _described(ledger: "Ledger") -> str:
    columns = ledger.columns()
    if not ledger.steps:
        return "no step"
    ends = ((n, v.min(), v.max()) for n, v in (("noise multiplier", columns.noise), ("sample rate", columns.rate)))
    spans = [f"{name} {low:.6g}" + (f" to {high:.6g}" if high > low else "") for name, low, high in ends]
    return f"{ledger.steps} steps, {', '.join(spans)}"


def _print_table(answers: list[Answer], ledger: "Ledger", delta: float) -> None:
    from privet.accounting.guarantee import MEANING

    rows = []
    for name, found, seconds in answers:
        if isinstance(found, str):
            rows.append([name, "refused", "", "", f"{seconds:.3f}", found])
            continue
        lower = "" if found.epsilon_lower is None else format_outward(found.epsilon_lower, up=False)
        upper = format_outward(found.epsilon, up=True)
        rows.append([name, found.label, lower, upper, f"{seconds:.3f}", MEANING[found.label]])
    print_table(
        ("method", "label", "lower", "epsilon", "seconds", "what the label means"), rows, left=2, width=120,
        title=f"epsilon at delta {format_bound(delta, up=True)} after {_described(ledger)}",
    )  # fmt: skip
    click.echo(f"  sampling  {terms(next(found for _, found, _ in answers if not isinstance(found, str)))}")


def print_json(
    answers: list[Answer], accountant: str, delta: float, figures: dict[str, Path], beside: "Beside | None"
) -> None:
    rows: list[dict[str, Any]] = []
    for name, found, seconds in answers:
        said = {"method": name, "refused": found} if isinstance(found, str) else found.as_dict()
        rows.append(said | {"seconds": seconds})
    drawn = {name: str(path) for name, path in figures.items()}
    first = rows[0] if accountant != "all" else {"delta": delta, "accountants": rows}
    print_object(first | drawn | ({} if beside is None else beside.as_dict()))


def draw_curve(ledger: "Ledger", delta: float, accountant: str, relation: str, path: Path) -> None:
    import numpy as np

    from privet.accounting import epsilon_curve
    from privet.reporting.figures import save_epsilon

    if not ledger.steps:
        raise InvalidValue("steps=0: there is nothing to draw.")
    curves: list[EpsilonCurve] = []
    for name in dict.fromkeys(([] if accountant == "all" else [accountant]) + list(BESIDE)):
        try:
            curves.append(epsilon_curve(ledger, delta, accountant=name, relation=relation))  # type: ignore[arg-type]
        except MissingExtra:
            raise
        except PrivetError as error:
            warnings.warn(f"{path} has no line for {name}: {error}", stacklevel=1)
    columns = ledger.columns()
    starts = np.concatenate(([0.0], np.cumsum(columns.count)[:-1]))
    save_epsilon(curves, path, delta=delta, noise=columns.noise, starts=starts)


def draw_tradeoff(ledger: "Ledger", relation: str, path: Path) -> None:
    from privet.accounting.tradeoff import tradeoff
    from privet.reporting.figures import save_tradeoff

    curves = []
    for name in ("pld", "gdp"):
        try:
            curves.append(tradeoff(ledger, accountant=name, relation=relation))  # type: ignore[arg-type]
        except PrivetError as error:
            warnings.warn(f"{path} has no line for {name}: {error}", stacklevel=1)
    if not curves:
        raise Unsupported(f"--tradeoff={str(path)!r}: no accountant has a trade-off curve for this ledger.")
    save_tradeoff(curves, path)


# --- --same-epsilon-by ------------------------------------------------------------------------------
def answer_same_epsilon(source: Path, names: list[str], *, as_json: bool) -> None:
    """The noise that other accountants allow at the epsilon and delta of a plan, and what is certified of it.

    A noise that is not certified may cost more than the budget: the last column says what it costs.
    """
    from privet.planning import Plan, plan
    from privet.planning.noise_swap import Swap, swap
    from privet.planning.plan import is_plan
    from privet.planning.pricing import PricedRecipe

    with warnings_as_lines():
        before = Plan.load(source) if is_plan(source) else plan(recipe_in(source, {}))
        own = PricedRecipe(before.recipe).accountant
        same = Swap(before=before, after=before)
        found = [same, *(swap(before, accountant=name) for name in names if name != own)]
    if as_json:
        epsilon, delta = before.guarantee.epsilon, before.guarantee.delta
        print_object(
            {"epsilon": epsilon, "delta": delta, "hash": before.hash, "rows": [row.as_dict() for row in found]}
        )
        return
    click.echo(f"the plan: {before.guarantee}")
    click.echo(_SAME.format("accountant", "label", "noise multiplier", "ratio", "certified epsilon at that noise"))
    for row in found:
        label, noise = row.after.guarantee.label, format_bound(row.after.scale, up=True)
        click.echo(_SAME.format(row.accountant, label, noise, f"{row.ratio:.4f}", _proven(row)))


def _proven(row: "Swap") -> str:
    """What is certified of a row, and visibly so if it is too much."""
    if row.after.certified is None or row.excess is None:
        return "none"
    found = format_outward(row.after.certified.epsilon, up=True)
    share = format_outward(100 * row.excess, up=True, digits=2)
    return found if not row.excess else f"{found}  OVER BUDGET by {share} %"


# --- runs ------------------------------------------------------------------------------------------
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
        from privet.ledger.runs import combine_assumptions

        return combine_assumptions(self.runs)

    def ledger(self) -> "Ledger":
        """What they charged; of a run that its outputs ended early, its plan."""
        from privet.accounting import compose_ledgers

        return compose_ledgers(*(run.spent for run in self.runs))

    def lines(self) -> Lines:
        on = "data without a name" if self.dataset is None else self.dataset
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
        said += ", stopped because of its outputs: its whole plan is counted"
    if run.header.dataset is None:
        said += "; no dataset name: counted as on this dataset"
    return said


def _assumed(assumptions: tuple[str, ...]) -> Lines:
    from privet.ledger.assumptions import NONE

    return [("assumes", said) for said in assumptions or (NONE,)]


Beside = One | Several  # what goes with a figure


def several_of(sources: Sequence[str], dataset: str | None) -> Several | None:
    """The runs in these folders, those on one dataset; None where there is one source that is not a folder of runs.

    Raises:
        InvalidValue: they are on several datasets, and none was asked for; or one of them is no run.
        Unsupported: one of them has no guarantee, or cannot be added up with the others.
    """
    from privet.ledger.reading import is_run
    from privet.ledger.runs import compose_runs, find_runs, select_dataset, single_dataset

    if len(sources) < 2 and dataset is None and not any(_holds_runs(Path(source)) for source in sources):
        return None
    for source in sources:
        if not is_run(Path(source)):
            raise InvalidValue(
                f"--from={source!r} is not the folder of a run. Only runs are added up. Give each of the others alone."
            )
    found = find_runs(sources)
    chosen = single_dataset(found, dataset)
    runs = select_dataset(found, chosen)
    return Several(runs=runs, dataset=chosen, planned=compose_runs(runs, planned=True))


def _holds_runs(folder: Path) -> bool:
    """Whether runs lie below a folder that has no ledger itself."""
    from privet.ledger.reading import NAME

    return folder.is_dir() and not (folder / NAME).exists() and next(folder.rglob(NAME), None) is not None
