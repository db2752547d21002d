"""`privet ahead`: the noise of a fixed budget against rounds and batch, and what more rounds would cost."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _registry
from privet.cli.recipe_options import recipe_in
from privet.cli.shell import PATH, integer, number, print_object, say_written, warnings_as_lines

if TYPE_CHECKING:
    from privet.planning import Plan, Recipe
    from privet.planning.ahead import Cell, Frontier
    from privet.planning.more import Outlook

MOST_VALUES = 1000


def whole_numbers(text: str) -> list[int]:
    """Whole numbers, `64,256`, or a range in equal ratios, `64:4096:4`."""
    return list(dict.fromkeys(integer(found) for found in _values(text, whole=True)))


def numbers(text: str) -> list[float]:
    """Numbers, `0.5,1`, or a range in equal ratios, `1:100:5`."""
    return list(dict.fromkeys(number(found) for found in _values(text, whole=False)))


def _values(text: str, *, whole: bool) -> list[str]:
    if ":" not in text:
        return text.split(",")
    parts = text.split(":")
    if len(parts) != 3:
        raise click.BadParameter(f"{text!r} is not a list such as 64,256 or a range first:last:count such as 64:4096:4")
    first, last, count = number(parts[0]), number(parts[1]), integer(parts[2])
    if not 0 < first <= last or count > MOST_VALUES:
        raise click.BadParameter(f"{text!r} must rise from above 0, with at most {MOST_VALUES} values")
    ratios = [math.log(last / first) * k / max(1, count - 1) for k in range(count)]
    found = [min(last, first * math.exp(ratio)) for ratio in ratios]
    return [repr(round(value) if whole else value) for value in found]


@click.command("ahead", short_help="Noise against rounds and batch at a fixed budget; what more rounds cost.")
@click.argument("file", required=False, type=PATH)
@click.option("--epsilon", type=number, help="The budget.")
@click.option("--delta", type=number, help="The delta of the budget. Default: 1 / (10 size).")
@click.option("--size", type=integer, help="Number of records n (public).")
@click.option("--batches", type=whole_numbers, metavar="LIST", help="Batch sizes: 64,256,1024 or 64:4096:4.")
@click.option("--steps", type=whole_numbers, metavar="LIST", help="Numbers of rounds: 100,1000 or 100:100000:7.")
@click.option("--epochs", type=numbers, metavar="LIST", help="In place of --steps: T = ceil(epochs * size / batch).")
@click.option("--method", metavar="NAME", help="A method of the papers; see `privet methods`.")
@click.option("--rho-noise", type=number, help="First noise over last noise, for growing-mu and dynamic.")
@click.option("--rho-clip", type=number, help="First clip over last clip, for sensitivity-decay and dynamic.")
@click.option("--noise-schedule", metavar="SHAPE", help="Shape of the noise; see `privet schedules`.")
@click.option("--clip", type=number, help="Clip C, the bound on one record's share. Default: 1.")
@click.option("--relation", metavar="NAME", help="Neighbouring datasets: zero-out (default), add-remove or replace.")
@click.option("--unit", metavar="NAME", help="Whom a record stands for: example (default), client or user.")
@click.option("--more", type=whole_numbers, metavar="LIST", help="What so many more rounds of the plan FILE cost.")
@click.option("--within", type=number, help="With --more: the larger epsilon that the whole run must keep.")
@click.option("--plot", type=PATH, metavar="FILE", help="Draw the view (.png, .svg, .pdf) or write it (.csv).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def ahead_command(
    *,
    file: Path | None,
    batches: list[int] | None,
    steps: list[int] | None,
    epochs: list[float] | None,
    more: list[int] | None,
    within: float | None,
    plot: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """How much noise a budget asks for, for every number of rounds and batch size, before any data is touched.

    FILE is a plan (JSON) or a recipe (TOML): the view lies around its rounds and batch, and options win over it. With
    --more, FILE is a plan, and the question is what more rounds of it would cost.

    \b
    Examples:
      privet ahead --size 60000 --epsilon 2 --delta 1e-5 --plot ahead.png
      privet ahead --size 60000 --epsilon 2 --batches 64,256,1024 --epochs 1:100:5
      privet ahead plan.json --more 500,1000,2000 --within 3
    """
    start = time.perf_counter()
    grid = {"batches": batches, "steps": steps, "epochs": epochs}
    if more is None and within is not None:
        raise click.UsageError("--within needs --more, the rounds that it is about.")
    if more is not None:
        given = {"plot": plot, **grid, **flags}
        _more(file, more, within, [name for name, value in given.items() if value is not None], as_json, start)
        return
    flags["noise"] = flags.pop("noise_schedule")
    if plot is not None:
        from privet.reporting.figures import check_path

        check_path(plot, option="--plot")
    with warnings_as_lines():
        found = _found(file, flags, grid)
    seconds = time.perf_counter() - start
    if as_json:
        print_object(found.as_dict() | {"seconds": seconds, "plot": None if plot is None else str(plot)})
    else:
        _print_view(found, seconds)
    if plot is not None:
        from privet.reporting.plan_figures import save_frontier

        save_frontier(found, plot)
    say_written(plot, as_json=as_json)


# --- the view ---------------------------------------------------------------------------------------


def _found(file: Path | None, flags: dict[str, Any], grid: dict[str, Any]) -> "Frontier":
    from rich.console import Console
    from rich.progress import Progress

    from privet.planning import ahead

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("calibrating", total=None)
        show = lambda done, total: bar.update(task, completed=done, total=total)  # noqa: E731
        if file is None:
            return ahead(**{key: value for key, value in flags.items() if value is not None}, **grid, progress=show)
        return ahead(_recipe(file, flags, grid), **grid, progress=show)


def _recipe(file: Path, flags: dict[str, Any], grid: dict[str, Any]) -> "Recipe":
    """The recipe in a plan or a TOML file, with the flags on top; the grid stands in for what the file leaves out."""
    from privet.planning import Plan, Recipe
    from privet.planning.plan_file import is_plan
    from privet.planning.recipe_file import overridden

    first = {"batch": grid["batches"], "steps": grid["steps"], "epochs": grid["epochs"]}
    given = {key: value for key, value in flags.items() if value is not None}
    given |= {key: values[0] for key, values in first.items() if values}
    if is_plan(file):
        return Recipe.of(**overridden(Plan.load(file).recipe.as_dict(), given))
    return recipe_in(file, given)


def _print_view(found: "Frontier", seconds: float) -> None:
    from privet.accounting.guarantee import WHO

    budget = found.budget
    shown = next(cell.guarantee for cell in found.cells if cell.guarantee is not None)
    click.echo(
        f"noise for epsilon {budget.epsilon:g} at delta {budget.delta:g} [{shown.label}: {shown.method}; "
        f"{shown.sampling}, {budget.relation}, per {budget.unit}], {found.size} {WHO[budget.unit]}s"
        + (f", {found.method}" if found.method else "")
    )
    names = ("rounds", "batch", "epochs", "noise", "std", "signal", f"closed form {found.closed_noise:.4g}")
    widths = (9, 8, 8, 16 if any(_moves(cell) for cell in found.cells) else 8, 10, 7, 0)
    click.echo("  " + _line(names, widths))
    for cell in sorted(found.cells, key=lambda cell: (cell.steps, cell.batch)):
        click.echo(("* " if cell.frontier else "  ") + _line(_words(cell), widths))
    click.echo("  *            frontier: as many rounds or more, noise within 5 % of the least, the least work")
    click.echo("  std          noise * clip / batch: the noise in a coordinate of the averaged gradient")
    click.echo("  signal       how far the run stands out of its noise; a run on full batches has 100 %")
    click.echo("  closed form  van Dijk et al. 2021, claimed for any rounds: the certified epsilon at that noise")
    click.echo(f"  time         {seconds:.3f} s")


def _words(cell: "Cell") -> tuple[str, ...]:
    from privet.accounting.guarantee import rounded

    place = (str(cell.steps), f"{cell.batch:g}", f"{cell.epochs:.4g}")
    closed = ""
    if cell.closed is not None:
        closed = f"{'holds' if cell.holds else 'fails'}, {rounded(cell.closed.epsilon, up=True, digits=4)}"
    if cell.noise is None or cell.noise_last is None:
        return (*place, "none", "", "", "; ".join(filter(None, (closed, _registry.shortened(cell.why, 90)))))
    noise = rounded(cell.noise, up=True, digits=5)
    if _moves(cell):
        noise += f" to {rounded(cell.noise_last, up=True, digits=5)}"
    return (*place, noise, f"{cell.std:.3g}", f"{100 * (cell.signal or 0):.0f} %", closed)


def _moves(cell: "Cell") -> bool:
    return cell.noise != cell.noise_last


def _line(words: tuple[str, ...], widths: tuple[int, ...]) -> str:
    """Columns aligned on the right; the last one hangs on the left."""
    return "  ".join(word.rjust(width) for word, width in zip(words, widths, strict=True)).rstrip()


# --- more rounds ------------------------------------------------------------------------------------


def _more(
    file: Path | None, rounds: list[int], within: float | None, given: list[str], as_json: bool, start: float
) -> None:
    from privet.planning import Plan, more

    if file is None:
        raise click.UsageError("--more needs a plan, such as plan.json from `privet plan --out plan.json`.")
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} has no place beside --more: the plan says the rest.")
    plan = Plan.load(file)
    found = more(plan, rounds, within=within)
    seconds = time.perf_counter() - start
    if as_json:
        print_object(found.as_dict() | {"seconds": seconds})
        return
    _print_more(plan, found, seconds)


def _print_more(plan: "Plan", found: "Outlook", seconds: float) -> None:
    from privet.accounting.guarantee import rounded

    click.echo(f"{found.planned} after the {len(plan.steps)} rounds planned")
    names: tuple[str, ...] = ("more", "rounds", f"epsilon at noise {found.last.noise:.5g}")
    names += () if found.epsilon is None else (f"noise for epsilon <= {found.epsilon:g}",)
    widths = (9, 9, 26, 26)[: len(names)]
    click.echo(_line(names, widths))
    for row in found.rows:
        low = row.guarantee.epsilon_lower
        interval = rounded(row.guarantee.epsilon, up=True)
        interval = f"<= {interval}" if low is None else f"{rounded(low, up=False)} to {interval}"
        words: tuple[str, ...] = (str(row.rounds), str(row.guarantee.steps), interval)
        if found.epsilon is not None:
            words += (row.why if row.noise is None else rounded(row.noise, up=True, digits=5),)
        click.echo(_line(words, widths))
    click.echo(f"  all {found.planned.label}: {found.planned.method}, for the whole run, the planned rounds included")
    if found.most is not None:
        click.echo(f"  at most {found.most} more rounds at noise {found.last.noise:.5g} stay within {found.epsilon:g}")
    click.echo("  choose a row before you look at results; at the plan's noise the longest row covers a later choice")
    click.echo(f"  time {seconds:.3f} s")
