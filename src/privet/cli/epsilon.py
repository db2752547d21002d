"""`privet epsilon`: what a run costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli import epsilon_answer as answer
from privet.cli import epsilon_source as find
from privet.cli.epsilon_runs import Beside, One, Several, several_of
from privet.cli.shell import PATH, Place, integer, number, say_written, warnings_as_lines

if TYPE_CHECKING:
    from privet.planning import Plan
    from privet.training.runs import OneRun


@click.command("epsilon", short_help="What a run costs: epsilon with its label.")
@click.option("--rate", type=number, help="Chance q that a record takes part in a step, e.g. 256/60000.")
@click.option("--batch", type=number, help="Expected batch size; with --size it gives the rate.")
@click.option("--size", type=integer, help="Number of records n (public). Also checks that delta is below 1/n.")
@click.option("--noise", type=number, help="Noise multiplier sigma: standard deviation over sensitivity.")
@click.option("--noise-schedule", metavar="SHAPE", help="Shape that multiplies --noise over the steps; "
              "see `privet schedules`.")  # fmt: skip
@click.option("--steps", type=integer, help="Number of steps T.")
@click.option("--epochs", type=number, help="In place of --steps: T = ceil(epochs / rate).")
@click.option("--from", "sources", type=Place(), metavar="FILE", multiple=True,
              help="A run's folder, a plan, a ledger, an Opacus history or a dp_accounting event (JSON), "
              "or a CSV. Several runs, or a folder of runs: what they cost together.")  # fmt: skip
@click.argument("more", nargs=-1, type=Place(), metavar="")
@click.option("--dataset-name", metavar="NAME", help="Of several runs, those on these records.")
@click.option(
    "--delta", type=number, help="The delta of the guarantee, below 1/size; for a run its plan's if left out."
)
@click.option("--epsilon", "at", type=number, help="In place of --delta: the delta at this epsilon.")
@click.option("--accountant", default="pld", show_default=True, metavar="NAME",
              help="A method, `all` for all of them side by side, or your own as my.module:Class.")  # fmt: skip
@click.option("--relation", metavar="NAME", help="Neighbouring datasets: zero-out (default), add-remove or replace.")
@click.option("--sampling", default="poisson", show_default=True, metavar="NAME",
              help="poisson, truncated-poisson:cap=C,size=N, fixed-size or shuffled.")  # fmt: skip
@click.option("--curve", type=PATH, metavar="FILE", help="Draw epsilon over the steps (.png, .svg, .pdf or .csv).")
@click.option("--tradeoff", type=PATH, metavar="FILE",
              help="Draw what an attacker can achieve at best (.png, .svg, .pdf or .csv).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def epsilon_command(
    *,
    sources: tuple[str, ...],
    more: tuple[str, ...],
    dataset_name: str | None,
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
      privet epsilon --from runs/a runs/b runs/c
    """
    if more and not sources:
        raise click.UsageError(f"Got an unexpected argument ({more[0]}). Give runs behind --from.")
    several = several_of((*sources, *more), dataset_name)
    source = sources[0] if sources else None
    run = find.run_of(source) if several is None else None
    planned = find.plan_of(source) if run is None and several is None else None
    if delta is None and at is None:  # a plan or a run has its own
        delta = _own_delta(several, run, planned)
    figures = {name: path for name, path in (("curve", curve), ("tradeoff", tradeoff)) if path is not None}
    _check_question(delta=delta, at=at, accountant=accountant, figures=bool(figures))
    for name, path in figures.items():
        _check_figure(f"--{name}", path)
    beside: Beside | None = several or (None if run is None else One(run=run))
    if several is not None:
        ledger = find.ledger_together(several, relation, steps)
        relation, unit = several.planned.relation, several.planned.unit
        size = size or max(one.header.size for one in several.runs)
    elif run is not None:
        ledger, relation, unit = find.spent_ledger(run, source, relation, steps), run.header.relation, run.header.unit
        size = size or run.header.size
    elif planned is not None:
        ledger = find.planned_ledger(planned, source, relation, steps)
        relation, unit = planned.guarantee.relation, planned.guarantee.unit
        size = size or planned.recipe.size
    else:
        ledger = find.ledger_of(source, size, steps)
        relation, unit = relation or ("replace" if find.fixed_size(ledger) else "zero-out"), "example"
    if at is not None:
        answer.answer_delta(ledger, at, relation, as_json, beside)
        return
    assert delta is not None
    with warnings_as_lines():
        answers = answer.answers_of(
            ledger, delta, accountant, relation, size, unit, () if beside is None else beside.assumptions
        )
    if as_json:
        answer.print_json(answers, accountant, delta, figures, beside)
    else:
        answer.print_answers(answers, accountant, ledger, delta)
        answer.print_beside(beside)
    with warnings_as_lines():
        if curve is not None:
            answer.draw_curve(ledger, delta, accountant, relation, curve)
        if tradeoff is not None:
            answer.draw_tradeoff(ledger, relation, tradeoff)
    say_written(*figures.values(), as_json=as_json)


def _own_delta(several: Several | None, run: "OneRun | None", planned: "Plan | None") -> float | None:
    if several is not None:
        return several.planned.delta
    return run.header.delta if run is not None else planned.recipe.budget.delta if planned is not None else None


def _check_question(*, delta: float | None, at: float | None, accountant: str, figures: bool) -> None:
    if (delta is None) == (at is None):
        raise click.UsageError("Give --delta, or --epsilon to ask for the delta there: one of the two.")
    if delta is not None:
        _check.delta(delta)
    if at is None:
        return
    _check.non_negative(epsilon=at)
    if accountant != "pld" or figures:
        raise click.UsageError("--epsilon is answered by --accountant pld only, and without --curve or --tradeoff.")


def _check_figure(option: str, path: Path) -> None:
    from privet.reporting.figures import check_path

    check_path(path, option=option)
