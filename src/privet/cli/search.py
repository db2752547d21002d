"""`privet search`: the parameters of a shape that the utility estimate likes best, at a fixed budget."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli.recipe_options import budget_options, profile_of, profile_options, recipe_in, words_of
from privet.cli.shell import PATH, integer, number, print_object, progress, say_written, span, warnings_as_lines

if TYPE_CHECKING:
    from privet.planning.search import Best, Trial

SHOWN = 8  # rows of the table


@click.command("search", short_help="The best parameters of a shape, by an estimate, at a fixed budget.")
@click.argument("recipe", required=False, type=PATH)
@budget_options
@click.option("--method", metavar="NAME", help="A method of the papers; see `privet methods`.")
@click.option("--over", metavar="NAMES", default="rho-noise,rho-clip", show_default=True,
              help="What to search: rho-noise, rho-clip, steps, batch; with limits as steps=100..5000.")  # fmt: skip
@click.option("--most", type=integer, default=150, show_default=True, help="At most so many candidates.")
@profile_options
@click.option("--out", type=PATH, metavar="FILE", help="Write the plan that is found (JSON).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def search_command(*, recipe: Path | None, over: str, most: int, out: Path | None, as_json: bool, **flags: Any) -> None:
    """The certified plan whose utility estimate is best, over some of rho, steps and batch.

    RECIPE is a TOML file as for `privet plan`; options win over it. What is given is where the search starts. The
    estimate is no measurement: it says what to try first. It does not charge for time, so give steps a limit.

    \b
    Examples:
      privet search --epsilon 1.2 --size 60000 --batch 256 --epochs 60 --delta 1e-5 \\
          --method dynamic --over rho-noise,rho-clip --out plan.json
      privet search recipe.toml --over batch=64..2048
    """
    from privet.planning.search import search

    start = time.perf_counter()
    if out is not None:
        _check.writable(out, name="--out")
    profile, limits = profile_of(flags), _limits(over)
    with warnings_as_lines(), progress("searching") as tell:
        found = search(recipe_in(recipe, flags), over=limits, profile=profile, most=most, progress=tell)
    seconds = time.perf_counter() - start
    if as_json:
        print_object(_object(found, seconds, out))
    else:
        _print(found, seconds)
    if out is not None:
        found.plan.save(out)
    say_written(out, as_json=as_json)


def _limits(over: str) -> dict[str, tuple[float, float] | None]:
    """`rho-noise,steps=100..5000` as names and limits."""
    found: dict[str, tuple[float, float] | None] = {}
    for word in words_of("--over", over):
        name, equals, text = (part.strip() for part in word.partition("="))
        low, dots, high = text.partition("..")
        if equals and not dots:
            raise click.UsageError(f"--over {word!r} must read name=least..largest, for example steps=100..5000.")
        found[name.replace("-", "_")] = (number(low), number(high)) if equals else None
    return found


# --- the answer -------------------------------------------------------------------------------------


def _object(found: "Best", seconds: float, out: Path | None) -> dict[str, Any]:
    return {
        "found": dict(found.values),
        "at_the_edge": list(found.edges),
        "guarantee": found.plan.guarantee.as_dict(),
        "utility": found.utility.as_dict(),
        "recipe": found.recipe.as_dict(),
        "scale": found.plan.scale,
        "steps": len(found.plan.steps),
        "batch": found.plan.batch,
        "hash": found.plan.hash,
        "trials": [trial.as_dict() for trial in found.trials],
        "seconds": seconds,
        "out": None if out is None else str(out),
    }


def _print(found: "Best", seconds: float) -> None:
    from privet.accounting.guarantee import WHO

    steps, who = found.plan.steps, WHO[found.recipe.budget.unit]
    click.echo(str(found.plan.guarantee))
    click.echo(f"  found     {_shown(found.values)}")
    click.echo(f"  utility   {found.utility.utility:.4f} (estimate)")
    click.echo(f"  noise     {span(steps[0].noise, steps[-1].noise)}; clip {span(steps[0].clip, steps[-1].clip)}")
    click.echo(f"  releases  {len(steps)} steps of {found.plan.batch:.6g} of {found.recipe.size} {who}s")
    click.echo(f"  tried     {len(found.trials)}, certified {sum(t.certified for t in found.trials)}; {seconds:.1f} s")
    for name in found.edges:
        click.echo(f"  note      {name.replace('_', '-')} is at its limit: the best may lie beyond it")
    _print_trials(found.trials)


def _print_trials(trials: "tuple[Trial, ...]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from privet.accounting.guarantee import printed

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in trials[0].values:
        table.add_column(name.replace("_", "-"), justify="right")
    for name in ("noise height", "utility (estimate)", "noise is"):
        table.add_column(name, justify="right")
    for trial in trials[:SHOWN]:
        noise = "" if trial.noise is None else printed(trial.noise, up=True, digits=5)
        numbers = [noise, "" if trial.utility is None else f"{trial.utility:.5g}"]
        said = "certified" if trial.certified else "refused" if trial.refused else "a guess"
        table.add_row(*(f"{value:.6g}" for value in trial.values.values()), *numbers, said)
    Console(width=None if sys.stdout.isatty() else 100, highlight=False, markup=False).print(table)
    if len(trials) > SHOWN:
        click.echo(f"and {len(trials) - SHOWN} more (--json has all)")


def _shown(values: Any) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value:.6g}" for name, value in values.items())
