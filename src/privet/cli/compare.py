"""`privet compare`: plans of one budget side by side."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli.epsilon_answer import terms
from privet.cli.recipe_options import budget_options, profile_of, profile_options, recipe_in, words_of
from privet.cli.shell import PATH, print_object, say_written, span, warnings_as_lines

if TYPE_CHECKING:
    from privet.accounting import Guarantee
    from privet.planning import Plan, Recipe
    from privet.planning.compare import Comparison, Row

NOTHING = "–"


@click.command("compare", short_help="Plans of one budget side by side.")
@click.argument("files", nargs=-1, type=PATH)
@click.option("--methods", metavar="NAMES", help="Methods with commas between them; see `privet methods`.")
@budget_options
@click.option("--as-published", is_flag=True, default=None, help="The papers' own rules, formulas and labels.")
@profile_options
@click.option("--plot", type=PATH, metavar="FILE", help="Draw the plans over the steps (.png, .svg, .pdf or .csv).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def compare_command(
    *, files: tuple[Path, ...], methods: str | None, plot: Path | None, as_json: bool, **flags: Any
) -> None:
    """Plans side by side: noise, clip, what they cost by three accountants, and an estimate of what they learn.

    FILES are plans (JSON) or recipes (TOML), shown as they are. --methods adds one plan for each method, all with the
    budget and the run that the options describe; rho goes to the methods that need it.

    \b
    Examples:
      privet compare --epsilon 1.2 --size 60000 --batch 256 --epochs 60 --delta 1e-5 \\
          --methods noisy-sgd,growing-mu,dynamic --rho-noise 3.3 --rho-clip 3.3 --plot compare.png
      privet compare plan.json recipe.toml
    """
    start = time.perf_counter()
    _check_question(files, methods, plot, flags)
    profile = profile_of(flags)
    with warnings_as_lines():
        found = _compared(_named(files, methods, flags), profile)
    seconds = time.perf_counter() - start
    if as_json:
        print_object(found.as_dict() | {"seconds": seconds, "plot": None if plot is None else str(plot)})
    else:
        _print(found)
    if plot is not None:
        from privet.reporting.plan_figures import save_comparison

        with warnings_as_lines():
            save_comparison(found, plot)
    say_written(plot, as_json=as_json)


def _check_question(files: tuple[Path, ...], methods: str | None, plot: Path | None, flags: dict[str, Any]) -> None:
    if not files and methods is None:
        raise click.UsageError("Give --methods noisy-sgd,dynamic (with a budget), or files of plans or recipes.")
    beside = [
        key for key, value in flags.items() if value is not None and key not in ("profile", "dimension", "half_life")
    ]
    if methods is None and beside:
        raise click.UsageError(f"--{beside[0].replace('_', '-')} needs --methods: a file says it itself.")
    if plot is not None:
        from privet.reporting.plan_figures import check_plot

        check_plot(plot, option="--plot", plans=len(files) + len(words_of("--methods", methods) if methods else []))


def _named(files: tuple[Path, ...], methods: str | None, flags: dict[str, Any]) -> "dict[str, Plan | Recipe]":
    """What to compare, under names: a file's stem, a method's name."""
    from privet.planning import Plan, Recipe
    from privet.planning.compare import numbered, recipes
    from privet.planning.plan_file import is_plan

    named: dict[str, Plan | Recipe] = {}
    for file in files:
        is_json = is_plan(file) or file.suffix.lower() == ".json"
        named[numbered(file.stem, list(named))] = Plan.load(file) if is_json else recipe_in(file, {})
    if methods is not None:
        published = " as published" if flags["as_published"] else ""
        for name, recipe in recipes(words_of("--methods", methods), **flags).items():
            named[numbered(name + published, list(named))] = recipe
    return named


def _compared(named: "dict[str, Plan | Recipe]", profile: Any) -> "Comparison":
    """The comparison, with a word on standard error about which plan is being made if someone watches."""
    from privet.planning import Plan, plan
    from privet.planning.compare import compare

    if not sys.stderr.isatty():
        return compare(named, profile=profile)
    from rich.console import Console

    with Console(stderr=True).status("planning") as status:
        plans = {}
        for name, one in named.items():
            status.update(f"planning {name}")
            plans[name] = one if isinstance(one, Plan) else plan(one)
        status.update("pricing")
        return compare(plans, profile=profile)


# --- the answer -------------------------------------------------------------------------------------


def _print(found: "Comparison") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in found.rows:
        table.add_column(row.name, justify="right")
    for title, cells in _lines(found.rows):
        table.add_row(title, *cells)
    width = None if sys.stdout.isatty() else max(120, 40 + 24 * len(found.rows))
    Console(width=width, highlight=False, markup=False).print(table)
    for said, names in _terms(found.rows).items():
        click.echo(f"{', '.join(names)}: {said}")
    d, half = found.profile.dimension, found.profile.half_life
    click.echo(
        "Noise energy: the sum over the steps of d (noise clip / batch)^2. Utility: an estimate of the share of what\n"
        f"there is to learn, for d = {d} and {half:g} steps that halve the loss without noise.\n"
        "No measurement: gains from schedules are small in practice once the learning rate is tuned."
    )
    for note in found.notes:
        click.echo(f"Note: {note}")


def _terms(rows: "tuple[Row, ...]") -> dict[str, list[str]]:
    """What epsilons are for, and of which plans."""
    said: dict[str, list[str]] = {}
    for row in rows:
        said.setdefault(f"sampling {terms(row.plan.guarantee)}", []).append(row.name)
    return said if len(said) > 1 else {one: ["All"] for one in said}


def _lines(rows: "tuple[Row, ...]") -> list[tuple[str, list[str]]]:
    """A title and one cell for each plan."""
    lines = [
        ("epsilon promised", [_labelled(row.plan.guarantee) for row in rows]),
        ("  certified interval", [_interval(row.plan.certified) for row in rows]),
        ("  CLT (gdp)", [_labelled(row.clt) for row in rows]),
        ("  Rényi (rdp)", [_labelled(row.renyi) for row in rows]),
        ("noise multiplier", [span(*row.noise, digits=5) for row in rows]),
        ("clip", [span(*row.clip, digits=5) for row in rows]),
        ("noise std (noise x clip)", [span(*row.noise_std, digits=5) for row in rows]),
        ("noise energy", [NOTHING if row.utility is None else f"{row.utility.noise_energy:.4g}" for row in rows]),
        ("utility (estimate)", [NOTHING if row.utility is None else f"{row.utility.utility:.4f}" for row in rows]),
        ("steps", [str(len(row.plan.steps)) for row in rows]),
        ("batch", [f"{row.plan.batch:.6g}" for row in rows]),
    ]
    deltas = [row.plan.guarantee.delta_text for row in rows]
    return [*lines, ("delta", deltas)]


def _labelled(guarantee: "Guarantee | None") -> str:
    return NOTHING if guarantee is None else f"{_epsilon(guarantee)} {guarantee.label}"


def _epsilon(guarantee: "Guarantee | None") -> str:
    from privet.accounting.guarantee import rounded

    return NOTHING if guarantee is None else rounded(guarantee.epsilon, up=True)


def _interval(guarantee: "Guarantee | None") -> str:
    from privet.accounting.guarantee import rounded

    if guarantee is None or guarantee.epsilon_lower is None:
        return _epsilon(guarantee)
    return f"{rounded(guarantee.epsilon_lower, up=False)} to {rounded(guarantee.epsilon, up=True)}"
