"""`privet plan`: a budget in, a certified schedule out."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check, _registry
from privet.cli.recipe_options import budget_options, recipe_in, shape_options, with_shapes
from privet.cli.shell import PATH, print_object, say_written, span, warnings_as_lines

if TYPE_CHECKING:
    from privet.planning import Plan


@click.command("plan", short_help="A budget in, a certified schedule out.")
@click.argument("recipe", required=False, type=PATH)
@budget_options
@shape_options
@click.option("--out", type=PATH, metavar="FILE", help="Write the plan (JSON).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def plan_command(*, recipe: Path | None, out: Path | None, as_json: bool, **flags: Any) -> None:
    """The noise that meets a budget, for every step, before any data is touched.

    RECIPE is a TOML file with the same keys as the options (rho_noise for --rho-noise); options win over it.

    \b
    Examples:
      privet plan --size 60000 --batch 256 --epochs 60 --epsilon 1.2 --delta 1e-5 \\
          --method dynamic --rho-noise 3.3 --rho-clip 3.3 --clip 1.0 --out plan.json
      privet plan recipe.toml --epsilon 2
      privet plan --size 60000 --batch 256 --noise 1.1 --epsilon 2 --solve steps
      privet plan --size 60000 --epochs 15 --epsilon 2 --trials-mean 10 --trials-law geometric
    """
    from privet.planning import plan

    start = time.perf_counter()
    if out is not None:
        _check.writable(out, name="--out")
    given = with_shapes(flags)
    with warnings_as_lines():
        found = plan(recipe_in(recipe, given))
        closed = _closed_form(found)
    seconds = time.perf_counter() - start
    if as_json:
        print_object(_plan_object(found, seconds, out, closed))
    else:
        _print_plan(found, seconds, closed)
    if out is not None:
        found.save(out)
    say_written(out, as_json=as_json)


def _closed_form(found: "Plan") -> "Plan | None":
    """For `proactive`: the plan with the published noise, to be shown beside the certified one."""
    from dataclasses import replace

    from privet.planning import plan

    if found.recipe.method != "proactive" or found.recipe.solve != "noise" or found.recipe.tuning is not None:
        return None
    return found if found.recipe.as_published else plan(replace(found.recipe, as_published=True, accountant=None))


def _holds(closed: "Plan") -> bool:
    return closed.certified is not None and closed.certified.epsilon <= closed.recipe.budget.epsilon


def _plan_object(found: "Plan", seconds: float, out: Path | None, closed: "Plan | None") -> dict[str, Any]:
    first, last = found.steps[0], found.steps[-1]
    said: dict[str, Any] = {
        "guarantee": found.guarantee.as_dict(),
        "certified": None if found.certified is None else found.certified.as_dict(),
        "scale": found.scale,
        "steps": len(found.steps),
        "batch": found.batch,
        "noise": [first.noise, last.noise],
        "clip": [first.clip, last.clip],
        "rate": [first.rate, last.rate],
        "shapes": found.shapes,
        "rule": found.rule,
        "recipe": found.recipe.as_dict(),
        "hash": found.hash,
        "seconds": seconds,
        "out": None if out is None else str(out),
    }
    if found.recipe.tuning is not None:
        said |= {
            "one_run": None if found.one_run is None else found.one_run.as_dict(),
            "selection_epsilon": found.selection_epsilon,
            "tuning": found.recipe.tuning.rule(found.guarantee.epsilon),
        }
    return said if closed is None else said | {"closed_form": {"noise": closed.scale, "holds": _holds(closed)}}


def _print_plan(found: "Plan", seconds: float, closed: "Plan | None") -> None:
    from privet.accounting.guarantee import WHO, printed, rounded

    recipe, steps = found.recipe, found.steps
    click.echo(str(found.guarantee))
    if found.is_unsound:
        click.echo(
            f"  guarantee none: no proof covers the clipping rule {found.rule!r} (privet methods {recipe.method})"
        )
    elif found.certified is not None and found.certified != found.guarantee:
        click.echo(f"  certified {found.certified}")
    _print_tuning(found)
    if closed is not None and closed.certified is not None:
        verdict = "holds" if _holds(closed) else "fails"
        proven = rounded(closed.certified.epsilon, up=True)
        click.echo(f"  formula   noise {closed.scale:.6g}; its condition {verdict} here: certified epsilon {proven}")
    click.echo(
        f"  noise     {span(steps[0].noise, steps[-1].noise)} ({_shown(steps.noise)}, height "
        f"{printed(found.scale, up=True)})"
    )
    click.echo(f"  clip      {span(steps[0].clip, steps[-1].clip)}, rule {found.rule}")
    epochs, who = len(steps) * steps[0].rate, WHO[recipe.budget.unit]
    each = "" if recipe.tuning is None else " in each run"
    click.echo(
        f"  releases  {len(steps)} steps of {found.batch:.6g} of {recipe.size} {who}s ({epochs:.4g} epochs){each}"
    )
    click.echo(f"  time      {seconds:.3f} s")


def _print_tuning(found: "Plan") -> None:
    if found.recipe.tuning is None:
        return
    if found.one_run is not None:
        click.echo(f"  one run   {found.one_run}")
    click.echo(f"  tuning    {found.recipe.tuning.rule(found.guarantee.epsilon)}")


def _shown(shape: str) -> str:
    return _registry.shortened(shape, 60)
