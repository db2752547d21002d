"""`privet epsilon`: what a run costs."""

import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli.shell import OUT, check_scheduled, integer, number, print_object, warnings_as_lines
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

if TYPE_CHECKING:
    from privet.accounting import EpsilonCurve, Guarantee, Ledger
    from privet.planning import Plan
    from privet.training.ledger_reading import Reading

BESIDE = ("pld", "gdp", "rdp")  # what a figure shows beside the chosen accountant


@click.command("epsilon", short_help="What a run costs: epsilon with its label.")
@click.option("--rate", type=number, help="Chance q that a record takes part in a step, e.g. 256/60000.")
@click.option("--batch", type=number, help="Expected batch size; with --size it gives the rate.")
@click.option("--size", type=integer, help="Number of records n (public). Also checks that delta is below 1/n.")
@click.option("--noise", type=number, help="Noise multiplier sigma: standard deviation over sensitivity.")
@click.option("--noise-schedule", metavar="SHAPE", help="Shape that multiplies --noise over the steps; "
              "see `privet schedules`.")  # fmt: skip
@click.option("--steps", type=integer, help="Number of steps T.")
@click.option("--epochs", type=number, help="In place of --steps: T = ceil(epochs / rate).")
@click.option("--from", "source", type=click.Path(), metavar="FILE",
              help="A run's folder, a plan, a ledger, an Opacus history or a dp_accounting event (JSON), "
              "or a CSV.")  # fmt: skip
@click.option(
    "--delta", type=number, help="The delta of the guarantee, below 1/size; for a run its plan's if left out."
)
@click.option("--epsilon", "at", type=number, help="In place of --delta: the delta at this epsilon.")
@click.option("--accountant", default="pld", show_default=True, metavar="NAME",
              help="A method, `all` for all of them side by side, or your own as my.module:Class.")  # fmt: skip
@click.option("--relation", metavar="NAME", help="Neighbouring datasets: zero-out (default), add-remove or replace.")
@click.option("--sampling", default="poisson", show_default=True, metavar="NAME",
              help="poisson, truncated-poisson:cap=C,size=N, fixed-size or shuffled.")  # fmt: skip
@click.option("--curve", type=OUT, metavar="FILE", help="Draw epsilon over the steps (.png, .svg, .pdf or .csv).")
@click.option("--tradeoff", type=OUT, metavar="FILE",
              help="Draw what an attacker can achieve at best (.png, .svg, .pdf or .csv).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def epsilon_command(
    *,
    source: str | None,
    delta: float | None,
    at: float | None,
    accountant: str,
    relation: str | None,
    size: int | None,
    curve: Path | None,
    tradeoff: Path | None,
    as_json: bool,
    **steps: Any,
) -> None:
    """What a run costs: epsilon at delta, as an interval, with the label that says what is proven.

    \b
    Examples:
      privet epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5
      privet epsilon --size 60000 --batch 256 --epochs 60 --delta 1e-5 \\
          --noise 2.0 --noise-schedule exponential:end=0.3 --accountant all --curve epsilon.png --tradeoff attacker.png
      privet epsilon --from opacus.json --delta 1e-5 --json
      privet epsilon --from runs/a
    """
    run = _run_of(source)
    planned = _plan_of(source) if run is None else None
    if delta is None and at is None:  # a plan or a run has its own
        delta = run.header.delta if run is not None else planned.recipe.budget.delta if planned is not None else None
    figures = {name: path for name, path in (("curve", curve), ("tradeoff", tradeoff)) if path is not None}
    _check_question(delta=delta, at=at, accountant=accountant, figures=bool(figures))
    for name, path in figures.items():
        check_figure(f"--{name}", path)
    if run is not None:
        ledger, relation, unit = _spent_ledger(run, source, relation, steps), run.header.relation, run.header.unit
    elif planned is not None:
        ledger = _planned_ledger(planned, source, relation, steps)
        relation, unit = planned.guarantee.relation, planned.guarantee.unit
    else:
        ledger = _ledger_of(source, size, steps)
        relation, unit = relation or ("replace" if _fixed_size(ledger) else "zero-out"), "example"
    if at is not None:
        _answer_delta(ledger, at, relation, as_json, run)
        return
    assert delta is not None
    with warnings_as_lines():
        answers = _answers(ledger, delta, accountant, relation, size, unit)
        if curve is not None:
            _draw_curve(ledger, delta, accountant, relation, curve)
        if tradeoff is not None:
            _draw_tradeoff(ledger, relation, tradeoff)
    if as_json:
        _print_json(answers, accountant, delta, figures, run)
    else:
        _print(answers, accountant, ledger, delta)
        _print_run(run)
        for path in figures.values():
            click.echo(f"wrote {path}")


# --- privet epsilon: the question --------------------------------------------------------------------


def _check_question(*, delta: float | None, at: float | None, accountant: str, figures: bool) -> None:
    if (delta is None) == (at is None):
        raise click.UsageError("Give --delta, or --epsilon to ask for the delta there: one of the two.")
    if delta is not None:
        _check.between(0, 1, delta=delta)
    if at is None:
        return
    _check.non_negative(epsilon=at)
    if accountant != "pld" or figures:
        raise click.UsageError("--epsilon is answered by --accountant pld only, and without --curve or --tradeoff.")


def check_figure(option: str, path: Path) -> None:
    from privet.reporting.drawing import check_path

    check_path(path, option=option)


def _plan_of(source: str | None) -> "Plan | None":
    """The plan in a file, if it says that it is one; else the file is some other kind of ledger."""
    if source is None:
        return None
    from privet.planning.plan_file import is_plan

    if not is_plan(Path(source)):
        return None
    from privet.planning import Plan

    return Plan.load(source)


def _planned_ledger(planned: "Plan", source: str | None, relation: str | None, given: dict[str, Any]) -> "Ledger":
    """The ledger of a plan; refused if no proof covers its clipping rule, or another relation is asked for."""
    _check_nothing_beside(given)
    if relation is not None and relation != planned.guarantee.relation:
        raise Unsupported(
            f"--relation={relation!r} is not the plan's, {planned.guarantee.relation!r}. Its noise counts for that. "
            "Leave it out."
        )
    if planned.is_unsound:
        raise Unsupported(
            f"{source}: no accountant covers method={planned.recipe.method!r} as published: its clipping rule "
            f"{planned.rule!r} bounds nothing that is charged. Plan without --as-published."
        )
    if planned.recipe.tuning is not None:
        raise Unsupported(
            f"{source}: its guarantee is for {planned.recipe.tuning.name} together: {planned.guarantee}. "
            "`privet plan` shows it, and what one run costs."
        )
    return planned.ledger()


def _run_of(source: str | None) -> "Reading | None":
    """What a run has spent, if the source is the folder or the ledger of one; it may be going on."""
    if source is None:
        return None
    from privet.training.ledger_reading import is_run, read

    return read(source) if is_run(Path(source)) else None


def _spent_ledger(run: "Reading", source: str | None, relation: str | None, given: dict[str, Any]) -> "Ledger":
    """The ledger of a run; refused if its noise hides nothing, or another relation is asked for."""
    _check_nothing_beside(given)
    if relation is not None and relation != run.header.relation:
        raise Unsupported(
            f"--relation={relation!r} is not the run's, {run.header.relation!r}. Its noise counts for that. "
            "Leave it out."
        )
    if run.header.seeded:
        raise Unsupported(
            f"{source}: is not private: its noise came from a seed and can be drawn again, so no epsilon holds for it. "
            "Train without --seed."
        )
    if not run.header.sound:
        raise Unsupported(
            f"{source}: no accountant covers the run: its clipping rule {run.header.rule!r} bounds nothing that is "
            "charged. Train without --as-published."
        )
    return run.ledger


def _check_nothing_beside(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and (name, value) != ("sampling", "poisson"):
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be given with --from: the file says it.")


def _ledger_of(source: str | None, size: int | None, given: dict[str, Any]) -> "Ledger":
    """The ledger a user described, from a file or from the options."""
    from privet.accounting import Ledger, exchange

    if source is not None:
        _check_nothing_beside(given)
        return exchange.read(source)
    rate = _rate_of(given["rate"], given["batch"], size)
    _check.rate(rate=rate)
    steps = _steps_of(given["steps"], given["epochs"], rate)
    noise, shape = given["noise"], given["noise_schedule"]
    if noise is None and shape is None:
        raise click.UsageError("Give --noise, the noise multiplier (or --noise-schedule, or --from FILE).")
    if noise is not None:
        _check.positive(noise=noise)
    ledger = Ledger()
    _charge(ledger, 1.0 if noise is None else noise, shape, steps, rate, given["sampling"])
    return ledger


def _charge(ledger: "Ledger", noise: float, shape: str | None, steps: int, rate: float, sampling: str) -> None:
    from privet.accounting import Step
    from privet.accounting.sampling import sampling as sampling_of

    chosen = sampling_of(sampling)
    if shape is None:
        ledger.add(Step(noise=noise, rate=rate, sampling=chosen), steps)
        return
    from privet.schedules import values_of

    check_scheduled(steps)
    ledger.extend(noise=noise * values_of(shape, steps), rate=rate, sampling=chosen)


def _rate_of(rate: float | None, batch: float | None, size: int | None) -> float:
    if (rate is None) == (batch is None):
        raise click.UsageError("Give --rate, or --batch with --size (or --from FILE): one of them.")
    if rate is not None:
        return rate
    assert batch is not None
    if size is None:
        raise click.UsageError("--batch needs --size, the number of records.")
    _check.positive(batch=batch)
    if batch > size:
        raise InvalidValue(f"batch={batch:g} must be at most size={size}. A record takes part at most once in a step.")
    return batch / size


def _steps_of(steps: int | None, epochs: float | None, rate: float) -> int:
    if (steps is None) == (epochs is None):
        raise click.UsageError("Give --steps or --epochs: one of the two.")
    if steps is not None:
        return steps
    assert epochs is not None
    _check.positive(epochs=epochs)
    from privet.planning.recipe import steps_of

    return steps_of(epochs, rate)


def _fixed_size(ledger: "Ledger") -> bool:
    return any(kind.name == "fixed-size" for kind in ledger.columns().samplings)


# --- privet epsilon: the answer ----------------------------------------------------------------------

Answer = tuple[str, "Guarantee | str", float]  # name, guarantee or why it is refused, seconds


def _answers(
    ledger: "Ledger", delta: float, accountant: str, relation: str, size: int | None, unit: str
) -> list[Answer]:
    from privet.accounting import registry, spent

    asked: dict[str, Any] = {"relation": relation, "size": size, "unit": unit}
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
    return sorted(answers, key=_rank)


def _rank(answer: Answer) -> tuple[int, int, float]:
    """Certified first and the tightest of them on top; what refused comes last."""
    from privet.accounting.guarantee import LABELS

    found = answer[1]
    return (1, 0, 0.0) if isinstance(found, str) else (0, LABELS.index(found.label), found.epsilon)


def _answer_delta(ledger: "Ledger", at: float, relation: str, as_json: bool, run: "Reading | None") -> None:
    from privet.accounting import delta_at
    from privet.accounting.guarantee import rounded

    start = time.perf_counter()
    with warnings_as_lines():
        lower, upper = delta_at(ledger, at, relation)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    if as_json:
        print_object({"delta": upper, "delta_lower": lower, "epsilon": at, "label": "certified", "method": "pld",
                       "relation": relation, "steps": ledger.steps, "seconds": seconds} | _run_json(run))  # fmt: skip
        return
    click.echo(
        f"delta <= {rounded(upper, up=True)} at epsilon {at:g} "
        f"[certified: pld, true value >= {rounded(lower, up=False)}; {relation}]"
    )
    click.echo(f"  releases  {_described(ledger)}\n  time      {seconds:.3f} s")
    _print_run(run)


def _print(answers: list[Answer], accountant: str, ledger: "Ledger", delta: float) -> None:
    if accountant == "all":
        _print_table(answers, ledger, delta)
        return
    _, guarantee, seconds = answers[0]
    assert not isinstance(guarantee, str)
    click.echo(str(guarantee))
    click.echo(f"  interval  {_interval(guarantee)}")
    click.echo(f"  sampling  {guarantee.sampling}; neighbours: {guarantee.relation}; unit: {guarantee.unit}")
    click.echo(f"  releases  {_described(ledger)}")
    click.echo(f"  time      {seconds:.3f} s")


def _print_run(run: "Reading | None") -> None:
    if run is None:
        return
    planned = (
        "no epsilon of the whole plan is certified"
        if run.header.planned is None
        else f"the whole plan: {run.header.planned}"
    )
    click.echo(f"  charged   {run.ledger.steps} of {run.header.length} planned steps; {planned}")
    if run.header.together is not None:
        click.echo(f"  tuning    one run of several; all together: {run.header.together}")
    if run.remark is not None:
        click.echo(f"  stopping  {run.remark}")
    for note in run.notes:
        click.echo(f"  torn      {note}")


def _run_json(run: "Reading | None") -> dict[str, Any]:
    if run is None:
        return {}
    planned = None if run.header.planned is None else run.header.planned.as_dict()
    return {
        "planned_steps": run.header.length, "planned": planned, "together": run.header.together,
        "stopping": run.remark, "torn": list(run.notes),
    }  # fmt: skip


def _interval(guarantee: "Guarantee") -> str:
    from privet.accounting.guarantee import MEANING, rounded

    upper = rounded(guarantee.epsilon, up=True)
    if guarantee.epsilon_lower is None:
        return f"none below; {upper} is {MEANING[guarantee.label]}"
    lower = rounded(guarantee.epsilon_lower, up=False)
    return f"{lower} to {upper} ({guarantee.label}, relative width {guarantee.width:.1e})"


def _described(ledger: "Ledger") -> str:
    columns = ledger.columns()
    if not ledger.steps:
        return "no step"
    spans = [
        f"{name} {low:.6g}" + (f" to {high:.6g}" if high > low else "")
        for name, low, high in (
            ("noise", columns.noise.min(), columns.noise.max()),
            ("rate", columns.rate.min(), columns.rate.max()),
        )
    ]
    return f"{ledger.steps} steps, {', '.join(spans)}"


def _print_table(answers: list[Answer], ledger: "Ledger", delta: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from privet.accounting.guarantee import MEANING, rounded

    table = Table(title=f"epsilon at delta {delta:g} after {_described(ledger)}", title_justify="left",
                  title_style="bold", box=box.SIMPLE_HEAD)  # fmt: skip
    for name in ("method", "label"):
        table.add_column(name, no_wrap=True)
    for name in ("lower", "epsilon", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what the label means")
    for name, found, seconds in answers:
        if isinstance(found, str):
            table.add_row(name, "refused", "", "", f"{seconds:.3f}", found)
            continue
        lower = "" if found.epsilon_lower is None else rounded(found.epsilon_lower, up=False)
        table.add_row(name, found.label, lower, rounded(found.epsilon, up=True), f"{seconds:.3f}", MEANING[found.label])
    Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False).print(table)


def _print_json(
    answers: list[Answer], accountant: str, delta: float, figures: dict[str, Path], run: "Reading | None"
) -> None:
    rows: list[dict[str, Any]] = []
    for name, found, seconds in answers:
        said = {"method": name, "refused": found} if isinstance(found, str) else found.as_dict()
        rows.append(said | {"seconds": seconds})
    drawn = {name: str(path) for name, path in figures.items()}
    print_object((rows[0] if accountant != "all" else {"delta": delta, "accountants": rows}) | drawn | _run_json(run))


# --- privet epsilon: the figure ---------------------------------------------------------------------


def _draw_curve(ledger: "Ledger", delta: float, accountant: str, relation: str, path: Path) -> None:
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


def _draw_tradeoff(ledger: "Ledger", relation: str, path: Path) -> None:
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
