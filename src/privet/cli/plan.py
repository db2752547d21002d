"""`privet plan`: a budget in, a certified plan out; `--explore` and `--optimize` for what to plan."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet._text import format_bound, format_outward, shorten
from privet.cli import common
from privet.cli.common import PATH, integer, number, option_group, span
from privet.cli.recipe_options import JSON, option, plan_options, profile_options, recipe_in, value_or_list, with_shapes

if TYPE_CHECKING:
    from privet.planning import Plan

EXPLORE = (
    option("--explore", is_flag=True, help="Show the noise for many numbers of steps and batch sizes. --steps and "
           "--epochs may then be lists: 100,1000 or 100:100000:7 (first, last, count)."),
    option("--batches", type=value_or_list(integer), metavar="LIST", help="Batch sizes: 64,256,1024 or 64:4096:4."),
    option("--more", type=value_or_list(integer), metavar="LIST",
           help="What this many more steps of the plan in RECIPE cost."),
    option("--within", type=number, help="With --more: the larger epsilon that the whole run must stay within."),
    option("--plot", type=PATH, metavar="FILE", help="Draw the view (.png, .svg, .pdf) or write it (.csv)."),
)  # fmt: skip
OPTIMIZE = (
    option("--optimize", is_flag=True, help="Find the parameters of a schedule that an estimate of utility prefers."),
    option("--over", metavar="NAMES", help="What is varied: rho-noise, rho-clip, steps, batch; with limits as "
           "steps=100..5000. Default: rho-noise,rho-clip."),
    option("--most", type=integer, help="Largest number of candidates. Default: 150."),
)  # fmt: skip
WIDTH = 18  # of the words below a plan
_EXPLORE = ("batches", "more", "within", "plot")
_OPTIMIZE = ("over", "most", "profile", "dimension", "half_life")


@click.command("plan", cls=common.GroupedCommand, short_help="Find the noise multiplier that meets a privacy budget.")
@click.argument("recipe", required=False, type=PATH)
@partial(plan_options, lists=True)
@partial(option_group, options=EXPLORE, heading="Explore (with --explore)")
@partial(option_group, options=OPTIMIZE, heading="Optimize (with --optimize)")
@profile_options
@click.option("--out", type=PATH, metavar="FILE", help="Write the plan (JSON).")
@JSON
def plan_command(
    *, recipe: Path | None, explore: bool, optimize: bool, out: Path | None, as_json: bool, **flags: Any
) -> None:
    """Find the noise multiplier of every training step that meets a privacy budget, before any data is read.

    RECIPE is a TOML file with the same keys as the options (rho_noise for --rho-noise); options win over it. With
    --explore it may also be a plan (JSON): the view is then around its steps and batch size.

    \b
    Examples:
      privet plan --size 60000 --batch 256 --epochs 60 --epsilon 1.2 --delta 1e-5 \\
          --method dynamic --rho-noise 3.3 --rho-clip 3.3 --clip 1.0 --out plan.json
      privet plan recipe.toml --epsilon 2
      privet plan --size 60000 --batch 256 --noise 1.1 --epsilon 2 --solve steps
      privet plan --size 60000 --epochs 15 --epsilon 2 --trials-mean 10 --trials-law geometric
      privet plan --explore --size 60000 --epsilon 2 --batches 64,256,1024 --epochs 1:100:5
      privet plan --explore plan.json --more 500,1000,2000 --within 3
      privet plan --optimize recipe.toml --over batch=64..2048
    """
    _check_mode(flags, explore=explore, optimize=optimize)
    searched = {name: flags.pop(name) for name in _OPTIMIZE}
    explored = {name: flags.pop(name) for name in _EXPLORE}
    if explore:
        from privet.cli.explore import print_frontier

        if out is not None:
            raise click.UsageError("--out cannot be combined with --explore: it makes no plan. Leave one of them out.")
        print_frontier(recipe, flags, **explored, as_json=as_json)
        return
    for name in ("steps", "epochs"):
        if isinstance(flags[name], list):
            raise click.UsageError(f"--{name} takes one value. A list needs --explore.")
    if out is not None:
        _check.writable(out, name="--out")
    given = with_shapes(flags)
    if optimize:
        from privet.cli.explore import print_best

        print_best(recipe, given, searched, out=out, as_json=as_json)
    else:
        _plan(recipe, given, out=out, as_json=as_json)


def _check_mode(flags: dict[str, Any], *, explore: bool, optimize: bool) -> None:
    if explore and optimize:
        raise click.UsageError("--explore and --optimize are both given. Give one of them.")
    for wanted, is_given, names in (("--explore", explore, _EXPLORE), ("--optimize", optimize, _OPTIMIZE)):
        for name in names:
            if flags[name] is not None and not is_given:
                raise click.UsageError(f"--{name.replace('_', '-')} needs {wanted}.")


def _plan(recipe: Path | None, given: dict[str, Any], *, out: Path | None, as_json: bool) -> None:
    from privet.planning import plan

    start = time.perf_counter()
    with common.warnings_as_lines():
        found = plan(recipe_in(recipe, given))
        closed = _closed_form(found)
    seconds = time.perf_counter() - start
    if as_json:
        common.print_object(_plan_object(found, seconds, out, closed))
    else:
        _print_plan(found, seconds, closed)
    if out is not None:
        found.save(out)
    common.say_written(out, as_json=as_json)


def _closed_form(found: "Plan") -> "Plan | None":
    """For `proactive`: the plan with the published noise, to be shown beside the certified one."""
    from dataclasses import replace

    from privet.planning import plan

    if found.recipe.method != "proactive" or found.recipe.solve != "noise" or found.recipe.tuning is not None:
        return None
    return found if found.recipe.uncertified else plan(replace(found.recipe, uncertified=True, accountant=None))


def _holds(closed: "Plan") -> bool:
    return closed.certified is not None and closed.certified.epsilon <= closed.recipe.budget.epsilon


def _plan_object(found: "Plan", seconds: float, out: Path | None, closed: "Plan | None") -> dict[str, Any]:
    first, last = found.steps[0], found.steps[-1]
    said: dict[str, Any] = {
        "guarantee": found.guarantee.as_dict(),
        "certified": None if found.certified is None else found.certified.as_dict(),
        "peak_noise_multiplier": found.peak_noise_multiplier,
        "steps": len(found.steps), "batch_size": found.batch_size,
        "noise_multiplier": [first.noise_multiplier, last.noise_multiplier],
        "clipping_norm": [first.clipping_norm, last.clipping_norm],
        "sample_rate": [first.sample_rate, last.sample_rate], "shapes": found.shapes, "rule": found.rule,
        "recipe": found.recipe.as_dict(), "hash": found.hash, "seconds": seconds,
        "out": None if out is None else str(out),
    }  # fmt: skip
    if found.recipe.tuning is not None:
        said |= {
            "one_run": None if found.one_run is None else found.one_run.as_dict(),
            "selection_epsilon": found.selection_epsilon,
            "tuning": found.recipe.tuning.rule(found.guarantee.epsilon),
        }
    return (
        said
        if closed is None
        else said | {"closed_form": {"noise_multiplier": closed.peak_noise_multiplier, "holds": _holds(closed)}}
    )


def _print_plan(found: "Plan", seconds: float, closed: "Plan | None") -> None:
    click.echo(str(found.guarantee))
    lines = []
    if found.is_unsound:
        lines.append(("guarantee", f"none: no proof covers the clipping rule {found.rule!r} "
                      f"(see `privet list methods {found.recipe.method}`)"))  # fmt: skip
    elif found.certified is not None and found.certified != found.guarantee:
        lines.append(("certified", str(found.certified)))
    if found.recipe.tuning is not None:
        lines += [] if found.one_run is None else [("one run", str(found.one_run))]
        lines.append(("tuning", found.recipe.tuning.rule(found.guarantee.epsilon)))
    if closed is not None and closed.certified is not None:
        verdict = "holds" if _holds(closed) else "fails"
        proven = format_outward(closed.certified.epsilon, up=True)
        said = f"noise multiplier {closed.peak_noise_multiplier:.6g}; its condition {verdict} here"
        lines.append(("closed form", f"{said}: certified epsilon {proven}"))
    lines += describe_plan(found)
    common.print_lines([*lines, ("time", f"{seconds:.3f} s")], WIDTH)


def describe_plan(found: "Plan") -> list[tuple[str, str]]:
    recipe, steps = found.recipe, found.steps
    shape = shorten(steps.noise_schedule, 60)
    shape = shape if shape == "constant" else f"{format_bound(found.peak_noise_multiplier, up=True)} x {shape}"
    each = "" if recipe.tuning is None else " in each run"
    return [
        ("noise multiplier", f"{span(steps[0].noise_multiplier, steps[-1].noise_multiplier)} ({shape})"),
        ("clipping norm", f"{span(steps[0].clipping_norm, steps[-1].clipping_norm)}, rule {found.rule}"),
        ("training", f"{len(steps)} steps, expected batch size {found.batch_size:.6g}, {recipe.dataset_size:,} "
         f"{recipe.budget.unit}s ({len(steps) * steps[0].sample_rate:.4g} epochs){each}"),
    ]  # fmt: skip
