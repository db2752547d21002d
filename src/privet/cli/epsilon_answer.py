"""How `privet epsilon` answers: lines, a table or JSON; figures; and what it says of runs."""

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._text import format_bound, format_outward
from privet.cli.common import Lines, print_lines, print_object, print_table, warnings_as_lines
from privet.cli.recipe_options import recipe_in
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.accounting import Guarantee, Ledger
    from privet.ledger.runs import OneRun
    from privet.planning.compare import Swap

BESIDE = ("pld", "gdp", "rdp")  # what a figure shows beside the chosen accountant

Answer = tuple[str, "Guarantee | str", float]  # name, guarantee or why it is refused, seconds
_SAME = "  {:<12} {:<12} {:>16} {:>8}   {}"


def answers_of(
    ledger: "Ledger", delta: float, accountant: str, assumptions: tuple[str, ...], **asked: Any
) -> list[Answer]:
    """What the accountant, or each of `all`, says, with what is assumed; `asked` is the rest that `spent` takes."""
    from privet.accounting import registry, spent
    from privet.accounting.guarantee import LABELS

    def answer(name: str) -> Answer:
        start = time.perf_counter()
        try:
            found: Guarantee | str = replace(spent(ledger, delta, accountant=name, **asked), assumptions=assumptions)
        except PrivetError as error:
            if accountant != "all":
                raise
            found = " ".join(str(error).split()).partition("does not cover this ledger: ")[2] or str(error)
        return name, found, time.perf_counter() - start

    answers = [answer(name) for name in (registry.names() if accountant == "all" else [accountant])]
    if all(isinstance(found, str) for _, found, _ in answers):
        raise Unsupported(f"no accountant covers this ledger. {answers[0][1]}")

    def rank(answer: Answer) -> tuple[int, int, float]:
        found = answer[1]
        return (1, 0, 0.0) if isinstance(found, str) else (0, LABELS.index(found.label), found.epsilon)

    return sorted(answers, key=rank)  # certified first and the tightest of them on top; what refused comes last


def answer_delta(ledger: "Ledger", at: float, adjacency: str, as_json: bool, source: "Source | None") -> None:
    from privet.accounting import delta_at

    start = time.perf_counter()
    with warnings_as_lines():
        lower, upper = delta_at(ledger, at, adjacency)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    if as_json:
        found = {
            "delta": upper, "delta_lower": lower, "epsilon": at, "label": "certified", "method": "pld",
            "adjacency": adjacency, "steps": ledger.steps, "seconds": seconds,
        }  # fmt: skip
        print_object(found | ({} if source is None else source.beside))
        return
    click.echo(
        f"delta <= {format_outward(upper, up=True)} at epsilon {format_bound(at, up=True)} "
        f"[certified: pld, true value >= {format_outward(lower, up=False)}; {adjacency}]"
    )
    click.echo(f"  training  {_format_steps(ledger)}\n  time      {seconds:.3f} s")
    print_lines([] if source is None else source.lines)


def print_answers(answers: list[Answer], accountant: str, ledger: "Ledger", delta: float) -> None:
    if accountant == "all":
        _print_table(answers, ledger, delta)
        return
    _, guarantee, seconds = answers[0]
    assert not isinstance(guarantee, str)
    click.echo(str(guarantee))
    print_lines([
        ("interval", _interval(guarantee)), ("sampling", terms(guarantee)), ("training", _format_steps(ledger)),
        ("time", f"{seconds:.3f} s"),
    ])  # fmt: skip


def terms(guarantee: "Guarantee") -> str:
    return f"{guarantee.sampling}; adjacency: {guarantee.adjacency}; unit: {guarantee.unit}"


def _interval(guarantee: "Guarantee") -> str:
    from privet.accounting.guarantee import MEANING

    upper = format_outward(guarantee.epsilon, up=True)
    if guarantee.epsilon_lower is None:
        return f"none below; {upper} is {MEANING[guarantee.label]}"
    lower = format_outward(guarantee.epsilon_lower, up=False)
    return f"{lower} to {upper} ({guarantee.label}, relative width {guarantee.width:.1e})"


def _format_steps(ledger: "Ledger") -> str:
    columns = ledger.columns()
    if not ledger.steps:
        return "no step"
    ends = (
        (n, v.min(), v.max())
        for n, v in (("noise multiplier", columns.noise_multiplier), ("sample rate", columns.sample_rate))
    )
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
        title=f"epsilon at delta {format_bound(delta, up=True)} after {_format_steps(ledger)}",
    )  # fmt: skip
    click.echo(f"  sampling  {terms(next(found for _, found, _ in answers if not isinstance(found, str)))}")


def print_json(
    answers: list[Answer], accountant: str, delta: float, figures: dict[str, Path], source: "Source | None"
) -> None:
    rows: list[dict[str, Any]] = []
    for name, found, seconds in answers:
        said = {"method": name, "refused": found} if isinstance(found, str) else found.as_dict()
        rows.append(said | {"seconds": seconds})
    drawn = {name: str(path) for name, path in figures.items()}
    first = rows[0] if accountant != "all" else {"delta": delta, "accountants": rows}
    print_object(first | drawn | ({} if source is None else source.beside))


def draw_curve(ledger: "Ledger", delta: float, accountant: str, adjacency: str, path: Path) -> None:
    import numpy as np

    from privet.accounting import epsilon_curve
    from privet.reporting.figures import save_epsilon

    if not ledger.steps:
        raise InvalidValue("steps=0: there is nothing to draw.")
    names = dict.fromkeys(([] if accountant == "all" else [accountant]) + list(BESIDE))
    curves = _try_lines(names, path, partial(epsilon_curve, ledger, delta, adjacency=adjacency))  # type: ignore[arg-type]
    columns = ledger.columns()
    starts = np.concatenate(([0.0], np.cumsum(columns.count)[:-1]))
    save_epsilon(curves, path, delta=delta, noise=columns.noise_multiplier, starts=starts)


def draw_tradeoff(ledger: "Ledger", adjacency: str, path: Path) -> None:
    from privet.accounting.tradeoff import tradeoff
    from privet.reporting.figures import save_tradeoff

    curves = _try_lines(("pld", "gdp"), path, partial(tradeoff, ledger, adjacency=adjacency))  # type: ignore[arg-type]
    if not curves:
        raise Unsupported(f"--tradeoff={str(path)!r}: no accountant has a trade-off curve for this ledger.")
    save_tradeoff(curves, path)


def _try_lines(names: Iterable[str], path: Path, make: Callable[..., Any]) -> list[Any]:
    """A line of a figure by each accountant; one that has none is told of."""
    found = []
    for name in names:
        try:
            found.append(make(accountant=name))
        except MissingExtra:
            raise
        except PrivetError as error:
            warnings.warn(f"{path} has no line for {name}: {error}", stacklevel=1)
    return found


# --- --same-epsilon-by ------------------------------------------------------------------------------
def answer_same_epsilon(source: Path, names: list[str], *, as_json: bool) -> None:
    """The noise that other accountants allow at the epsilon and delta of a plan, and what is certified of it.

    A noise that is not certified may cost more than the budget: the last column says what it costs.
    """
    from privet.planning import Plan, plan
    from privet.planning.compare import Swap, swap
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
        label, noise = row.after.guarantee.label, format_bound(row.after.peak_noise_multiplier, up=True)
        click.echo(_SAME.format(row.accountant, label, noise, f"{row.ratio:.4f}", _proven(row)))


def _proven(row: "Swap") -> str:
    """What is certified of a row, and visibly so if it is too much."""
    if row.after.certified is None or row.excess is None:
        return "none"
    found = format_outward(row.after.certified.epsilon, up=True)
    share = format_outward(100 * row.excess, up=True, digits=2)
    return found if not row.excess else f"{found}  OVER BUDGET by {share} %"


# --- where the steps come from ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A plan, a run or several: its steps, whom they protect, and what goes with the figure, in lines and in JSON."""

    kind: str
    delta: float
    adjacency: str
    unit: str
    dataset_size: int
    ledger: "Callable[[], Ledger]"  # refused where no epsilon holds for it
    assumptions: tuple[str, ...] = ()
    lines: Lines = field(default_factory=list)
    beside: dict[str, Any] = field(default_factory=dict)


def find_source(sources: Sequence[str], dataset: str | None) -> Source | None:
    """What these files and folders are; None where there is none, or the one is some other kind of ledger."""
    from privet.ledger.reading import is_run
    from privet.planning.plan import is_plan

    if len(sources) > 1 or dataset is not None or any(_holds_runs(Path(source)) for source in sources):
        return _several_runs(sources, dataset)
    if not sources:
        return None
    return (
        _one_run(sources[0]) if is_run(Path(sources[0])) else _plan(sources[0]) if is_plan(Path(sources[0])) else None
    )


def _plan(file: str) -> Source:
    from privet.planning import Plan

    plan = Plan.load(file)

    def ledger() -> "Ledger":
        if plan.is_unsound:
            raise Unsupported(
                f"{file}: no accountant covers method={plan.recipe.method!r} as published: its clipping rule "
                f"{plan.rule!r} does not bound the sensitivity. Plan without --uncertified."
            )
        if plan.recipe.tuning is not None:
            raise Unsupported(
                f"{file}: its guarantee is for {plan.recipe.tuning.name} together: {plan.guarantee}. "
                "`privet plan` shows it, and what one run costs."
            )
        return plan.ledger()

    return Source(
        kind="plan", delta=plan.recipe.budget.delta, adjacency=plan.guarantee.adjacency, unit=plan.guarantee.unit,
        dataset_size=plan.recipe.dataset_size, ledger=ledger,
    )  # fmt: skip


def _one_run(place: str) -> Source:
    """One run, going on or not."""
    from privet.ledger.runs import read, refuse_unproven

    run = read(place)
    reading, header = run.reading, run.header

    def ledger() -> "Ledger":
        refuse_unproven(place, reading)
        return reading.ledger

    whole = "no epsilon of the whole plan is certified"
    whole = whole if header.planned is None else f"the whole plan: {header.planned}"
    lines = [("charged", f"{reading.ledger.steps} of {header.length} planned steps; {whole}")]
    if header.together is not None:
        lines.append(("tuning", f"one run of several; all together: {header.together}"))
    if reading.remark is not None:
        lines.append(("stopping", reading.remark))
    lines += [("torn", note) for note in reading.notes]
    beside = {
        "planned_steps": header.length, "planned": None if header.planned is None else header.planned.as_dict(),
        "together": header.together, "stopping": reading.remark, "torn": list(reading.notes),
        "dataset": header.dataset, "assumptions": list(run.assumptions),
    }  # fmt: skip
    return Source(
        kind="run", delta=header.delta, adjacency=header.adjacency, unit=header.unit, dataset_size=header.size,
        ledger=ledger,
        assumptions=run.assumptions, lines=[*lines, *_assumption_lines(run.assumptions)], beside=beside,
    )  # fmt: skip


def _several_runs(sources: Sequence[str], dataset: str | None) -> Source:
    """The runs in these folders, those on one dataset. Their steps are what they charged, or the plan of one that its
    outputs ended early; `planned` is what they may charge in all.

    Raises:
        InvalidValue: they are on several datasets, and none was asked for; or one of them is no run.
        Unsupported: one of them has no guarantee, or cannot be added up with the others.
    """
    from privet.accounting import compose_ledgers
    from privet.ledger.reading import is_run
    from privet.ledger.runs import combine_assumptions, compose_runs, find_runs, select_dataset, single_dataset

    for source in sources:
        if not is_run(Path(source)):
            raise InvalidValue(
                f"--from={source!r} is not the folder of a run. Only runs are added up. Give each of the others alone."
            )
    found = find_runs(sources)
    chosen = single_dataset(found, dataset)
    runs = select_dataset(found, chosen)
    planned, assumptions = compose_runs(runs, planned=True), combine_assumptions(runs)
    on = "data without a name" if chosen is None else chosen
    lines = [("together", f"{len(runs)} runs on {on}; their whole plans: {planned}")]
    lines += [("run", f"{run.name}: {_state(run)}") for run in runs]
    if any(run.reading.remark is not None and not run.stopped for run in runs):
        remark = "holds if the moments to stop were fixed beforehand; if outputs decided them, the whole plans do"
        lines.append(("stopping", remark))
    lines += [("torn", f"{run.name}: {note}") for run in runs for note in run.reading.notes]
    rows = [
        {"name": run.name, "run": run.header.run, "dataset": run.header.dataset, "steps": run.reading.ledger.steps,
         "planned_steps": run.header.length, "counted_with_its_plan": run.stopped,
         "planned": None if run.header.planned is None else run.header.planned.as_dict()}
        for run in runs
    ]  # fmt: skip
    return Source(
        kind="runs", delta=planned.delta, adjacency=planned.adjacency, unit=planned.unit,
        dataset_size=max(run.header.size for run in runs), ledger=lambda: compose_ledgers(*(run.spent for run in runs)),
        assumptions=assumptions, lines=[*lines, *_assumption_lines(assumptions)],
        beside={"dataset": chosen, "planned": planned.as_dict(), "runs": rows, "assumptions": list(assumptions)},
    )  # fmt: skip


def _state(run: "OneRun") -> str:
    said = f"{run.reading.ledger.steps} of {run.header.length} steps"
    if run.stopped:
        said += ", stopped because of its outputs: its whole plan is counted"
    if run.header.dataset is None:
        said += "; no dataset name: counted as on this dataset"
    return said


def _assumption_lines(assumptions: tuple[str, ...]) -> Lines:
    from privet.ledger.assumptions import NONE

    return [("assumes", said) for said in assumptions or (NONE,)]


def _holds_runs(folder: Path) -> bool:
    """Whether runs lie below a folder that has no ledger itself."""
    from privet.ledger.reading import NAME

    return folder.is_dir() and not (folder / NAME).exists() and next(folder.rglob(NAME), None) is not None
