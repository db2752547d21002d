"""`privet compare`, `privet plan --explore` and `privet plan --optimize`: what to plan, before a plan is made."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._text import format_bound, format_outward, shorten
from privet.cli import common, recipe_options
from privet.cli.common import PATH, number, progress, span
from privet.cli.epsilon_answer import terms
from privet.cli.recipe_options import JSON, SHAPED, option, recipe_in, words_of

if TYPE_CHECKING:
    from privet.accounting import Guarantee
    from privet.planning import Plan, Recipe
    from privet.planning.compare import Comparison, Row
    from privet.planning.frontier import Extension, Frontier, FrontierPoint
    from privet.planning.search import SearchResult, SearchTrial

NOTHING = "–"
OVER, MOST, SHOWN = "rho-noise,rho-clip", 150, 8  # of `--optimize`: what varies, candidates, those in the table
_FOUND = {  # what `--explore` varies or finds itself
    "batch_size": "--batch-size", "sample_rate": "--sample-rate", "batch_schedule": "--batch-schedule",
    "noise_multiplier": "--noise-multiplier", "solve": "--solve", "uncertified": "--uncertified",
}  # fmt: skip


@click.command("compare", cls=common.GroupedCommand, short_help="Compare plans of one budget side by side.")
@click.argument("files", nargs=-1, type=PATH)
@option("--methods", metavar="NAMES", help="Methods with commas between them; see `privet list methods`.")
@recipe_options.budget_options
@recipe_options.UNCERTIFIED
@recipe_options.profile_options
@click.option("--plot", type=PATH, metavar="FILE", help="Draw the plans over the steps (.png, .svg, .pdf or .csv).")
@JSON
def compare_command(
    *, files: tuple[Path, ...], methods: str | None, plot: Path | None, as_json: bool, **flags: Any
) -> None:
    """Compare plans: noise multiplier, clipping norm, epsilon by three accountants, and an estimate of utility.

    FILES are plans (JSON) or recipes (TOML), shown as they are. --methods adds one plan for each method, all with the
    budget and the training run that the options describe; rho goes to the methods that need it.

    \b
    Examples:
      privet compare --epsilon 1.2 --size 60000 --batch 256 --epochs 60 --delta 1e-5 \\
          --methods noisy-sgd,growing-mu,dynamic --rho-noise 3.3 --rho-clip 3.3 --plot compare.png
      privet compare plan.json recipe.toml
    """
    start = time.perf_counter()
    _check_question(files, methods, plot, flags)
    profile = recipe_options.profile_of(flags)
    with common.warnings_as_lines():
        found = _compare(_load_plans(files, methods, flags), profile)
    seconds = time.perf_counter() - start
    if as_json:
        common.print_object(found.as_dict() | {"seconds": seconds, "plot": None if plot is None else str(plot)})
    else:
        _print(found)
    if plot is not None:
        from privet.reporting.plan_figures import save_comparison

        with common.warnings_as_lines():
            save_comparison(found, plot)
    common.say_written(plot, as_json=as_json)


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


def _load_plans(files: tuple[Path, ...], methods: str | None, flags: dict[str, Any]) -> "dict[str, Plan | Recipe]":
    from privet.planning import Plan, Recipe
    from privet.planning.compare import method_recipes, unique_name
    from privet.planning.plan import is_plan

    named: dict[str, Plan | Recipe] = {}
    for file in files:
        is_json = is_plan(file) or file.suffix.lower() == ".json"
        named[unique_name(file.stem, list(named))] = Plan.load(file) if is_json else recipe_in(file, {})
    if methods is not None:
        published = " as published" if flags["uncertified"] else ""
        for name, recipe in method_recipes(words_of("--methods", methods), **flags).items():
            named[unique_name(name + published, list(named))] = recipe
    return named


def _compare(named: "dict[str, Plan | Recipe]", profile: Any) -> "Comparison":
    """The comparison; on a terminal, standard error shows which plan is being made."""
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
        status.update("computing epsilon")
        return compare(plans, profile=profile)


# --- the answer -------------------------------------------------------------------------------------
def _print(found: "Comparison") -> None:
    columns = ["", *(row.name for row in found.rows)]
    common.print_table(columns, [[title, *cells] for title, cells in _lines(found.rows)],
                width=max(120, 40 + 24 * len(found.rows)))  # fmt: skip
    said: dict[str, list[str]] = {}  # what epsilons are for, and of which plans
    for row in found.rows:
        said.setdefault(f"sampling {terms(row.plan.guarantee)}", []).append(row.name)
    for what, names in said.items():
        click.echo(f"{', '.join(names) if len(said) > 1 else 'All'}: {what}")
    d, half = found.profile.dimension, found.profile.half_life
    click.echo(
        "Noise energy: sum over the steps of d (noise * clip / batch)^2. Utility: estimated fraction of the possible\n"
        f"improvement, for d = {d} parameters and {half:g} steps that halve the loss without noise.\n"
        "It is no measurement: gains from schedules are small in practice once the learning rate is tuned."
    )
    for note in found.notes:
        click.echo(f"Note: {note}")


def _lines(rows: "tuple[Row, ...]") -> list[tuple[str, list[str]]]:
    lines = [
        ("epsilon of the plan", [_with_label(row.plan.guarantee) for row in rows]),
        ("  certified interval", [_interval(row.plan.certified) for row in rows]),
        ("  CLT (gdp)", [_with_label(row.clt) for row in rows]),
        ("  Rényi (rdp)", [_with_label(row.renyi) for row in rows]),
        ("noise multiplier", [span(*row.noise_multiplier, digits=5) for row in rows]),
        ("clipping norm", [span(*row.clipping_norm, digits=5) for row in rows]),
        ("noise std (noise x clip)", [span(*row.noise_std, digits=5) for row in rows]),
        ("noise energy", [NOTHING if row.utility is None else f"{row.utility.noise_energy:.4g}" for row in rows]),
        ("utility (estimate)", [NOTHING if row.utility is None else f"{row.utility.utility:.4f}" for row in rows]),
        ("steps", [str(len(row.plan.steps)) for row in rows]),
        ("expected batch size", [f"{row.plan.batch_size:.6g}" for row in rows]),
    ]
    deltas = [row.plan.guarantee.delta_text for row in rows]
    return [*lines, ("delta", deltas)]


def _with_label(guarantee: "Guarantee | None") -> str:
    return NOTHING if guarantee is None else f"{_epsilon(guarantee)} {guarantee.label}"


def _epsilon(guarantee: "Guarantee | None") -> str:
    return NOTHING if guarantee is None else format_outward(guarantee.epsilon, up=True)


def _interval(guarantee: "Guarantee | None") -> str:
    if guarantee is None or guarantee.epsilon_lower is None:
        return _epsilon(guarantee)
    return f"{format_outward(guarantee.epsilon_lower, up=False)} to {format_outward(guarantee.epsilon, up=True)}"


# --- plan --optimize --------------------------------------------------------------------------------
def print_best(
    recipe: Path | None, given: dict[str, Any], searched: dict[str, Any], *, out: Path | None, as_json: bool
) -> None:
    """The certified plan whose utility estimate is best, over some of rho, steps and batch size.

    What is given is where the search starts. The estimate is no measurement: it says what to try first. It does not
    charge for time, so steps need a limit.
    """
    from privet.planning.search import search

    start = time.perf_counter()
    limits, most = _limits(searched.pop("over") or OVER), searched.pop("most") or MOST
    profile = recipe_options.profile_of(searched)
    with common.warnings_as_lines(), progress("searching") as tell:
        found = search(recipe_in(recipe, given), over=limits, profile=profile, most=most, progress=tell)
    seconds = time.perf_counter() - start
    if as_json:
        common.print_object({
            "found": dict(found.values), "at_the_edge": list(found.edges),
            "guarantee": found.plan.guarantee.as_dict(), "utility": found.utility.as_dict(),
            "recipe": found.recipe.as_dict(), "peak_noise_multiplier": found.plan.peak_noise_multiplier,
            "steps": len(found.plan.steps), "batch_size": found.plan.batch_size, "hash": found.plan.hash,
            "trials": [trial.as_dict() for trial in found.trials],
            "seconds": seconds, "out": None if out is None else str(out),
        })  # fmt: skip
    else:
        _print_best(found, seconds)
    if out is not None:
        found.plan.save(out)
    common.say_written(out, as_json=as_json)


def _limits(over: str) -> dict[str, tuple[float, float] | None]:
    """`rho-noise,steps=100..5000` as names and limits."""
    found: dict[str, tuple[float, float] | None] = {}
    for word in words_of("--over", over):
        name, equals, text = (part.strip() for part in word.partition("="))
        low, dots, high = text.partition("..")
        if equals and not dots:
            raise click.UsageError(f"--over {word!r} must read name=least..largest, for example steps=100..5000.")
        key = SHAPED.get(name, name.replace("-", "_"))
        found[key] = (number(low), number(high)) if equals else None
    return found


def _print_best(found: "SearchResult", seconds: float) -> None:
    from privet.cli.plan import WIDTH, describe_plan

    certified = sum(trial.certified for trial in found.trials)
    click.echo(str(found.plan.guarantee))
    common.print_lines([
        ("found", ", ".join(f"{name.replace('_', '-')} {value:.6g}" for name, value in found.values.items())),
        ("utility", f"{found.utility.utility:.4f} (estimate)"),
        *describe_plan(found.plan),
        ("candidates", f"{len(found.trials)}, of which {certified} certified; {seconds:.1f} s"),
        *(("note", f"{name.replace('_', '-')} is at its limit: the best value may lie beyond it")
          for name in found.edges),
    ], WIDTH)  # fmt: skip
    _print_trials(found.trials)


def _print_trials(trials: "tuple[SearchTrial, ...]") -> None:
    rows = []
    for trial in trials[:SHOWN]:
        noise = "" if trial.noise_multiplier is None else format_bound(trial.noise_multiplier, up=True, digits=5)
        numbers = [noise, "" if trial.utility is None else f"{trial.utility:.5g}"]
        said = "certified" if trial.certified else "refused" if trial.refused else "estimated"
        rows.append([*(f"{value:.6g}" for value in trial.values.values()), *numbers, said])
    varied = [name.replace("_", "-") for name in trials[0].values]
    common.print_table([*varied, "noise multiplier", "utility (estimate)", "status"], rows, left=0, width=100)
    if len(trials) > SHOWN:
        click.echo(f"and {len(trials) - SHOWN} more (--json has all)")


# --- plan --explore ---------------------------------------------------------------------------------
def print_frontier(
    file: Path | None, flags: dict[str, Any], *, batches: Any, more: Any, within: float | None, plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """How much noise a budget asks for, for every number of steps and batch size; with `more`, what more steps cost."""
    start = time.perf_counter()
    given = {name: value for name, value in flags.items() if value is not None}
    grid = {"batches": batches, "steps": given.pop("steps", None), "epochs": given.pop("epochs", None)}
    lists: dict[str, Any] = {name: [value] if isinstance(value, int | float) else value for name, value in grid.items()}
    if more is None and within is not None:
        raise click.UsageError("--within needs --more, the number of steps that it limits.")
    if more is not None:
        beside = [name for name, value in {"plot": plot, **lists, **given}.items() if value is not None]
        _more(file, [more] if isinstance(more, int) else more, within, beside, as_json, start)
        return
    for name, option_name in _FOUND.items():
        if name in given:
            raise click.UsageError(
                f"{option_name} cannot be combined with --explore: it finds the noise, by --batches."
            )
    for word, name in SHAPED.items():
        if (shape := given.pop(f"{word}_schedule", None)) is not None:
            given[name] = f"{given[name]!r} * ({shape})" if name in given else shape
    if plot is not None:
        from privet.reporting.figures import check_path

        check_path(plot, option="--plot")
    from privet.planning import ahead

    with common.warnings_as_lines(), common.progress_bar("calibrating") as bar:
        show = None if bar is None else lambda done, of: bar("calibrating", done, of)
        if file is None:
            found = ahead(**given, **lists, progress=show)
        else:
            found = ahead(_recipe(file, given, lists), **lists, progress=show)
    seconds = time.perf_counter() - start
    if as_json:
        common.print_object(found.as_dict() | {"seconds": seconds, "plot": None if plot is None else str(plot)})
    else:
        _print_view(found, seconds)
    if plot is not None:
        from privet.reporting.plan_figures import save_frontier

        save_frontier(found, plot)
    common.say_written(plot, as_json=as_json)


def _recipe(file: Path, flags: dict[str, Any], grid: dict[str, Any]) -> "Recipe":
    """The recipe in a plan or a TOML file, with the flags on top; the grid stands in for what the file leaves out."""
    from privet.planning import Plan, Recipe
    from privet.planning.plan import is_plan
    from privet.planning.recipe import override

    first = {"batch_size": grid["batches"], "steps": grid["steps"], "epochs": grid["epochs"]}
    given = flags | {key: values[0] for key, values in first.items() if values}
    if is_plan(file):
        return Recipe.of(**override(Plan.load(file).recipe.as_dict(), given))
    return recipe_in(file, given)


def _print_view(found: "Frontier", seconds: float) -> None:
    budget = found.budget
    shown = next(cell.guarantee for cell in found.cells if cell.guarantee is not None)
    click.echo(
        f"noise multiplier for epsilon {budget.epsilon:g} at delta {budget.delta:g} [{shown.label}: {shown.method}; "
        f"{shown.sampling}, {budget.adjacency}, per {budget.unit}], {found.dataset_size:,} {budget.unit}s"
        + (f", {found.method}" if found.method else "")
    )
    names = (
        "steps", "batch_size", "epochs", "noise_multiplier", "std", "signal", f"closed form {found.closed_noise:.4g}",
    )  # fmt: skip
    widths = (9, 8, 8, 16 if any(_moves(cell) for cell in found.cells) else 8, 10, 7, 0)
    click.echo("  " + _line(names, widths))
    for cell in sorted(found.cells, key=lambda cell: (cell.steps, cell.batch_size)):
        click.echo(("* " if cell.frontier else "  ") + _line(_words(cell), widths))
    click.echo("  *            frontier: least computation for as many steps or more, std within 5 % of the least")
    click.echo("  std          noise * clip / batch: noise in a coordinate of the averaged gradient")
    click.echo("  signal       signal-to-noise ratio of the whole run, relative to full-batch training")
    click.echo("  closed form  van Dijk et al. 2021, claimed for any steps: the certified epsilon at that noise")
    click.echo(f"  time         {seconds:.3f} s")


def _words(cell: "FrontierPoint") -> tuple[str, ...]:
    place = (str(cell.steps), f"{cell.batch_size:g}", f"{cell.epochs:.4g}")
    closed = ""
    if cell.closed is not None:
        closed = f"{'holds' if cell.holds else 'fails'}, {format_outward(cell.closed.epsilon, up=True, digits=4)}"
    if cell.noise_multiplier is None or cell.noise_last is None:
        return (*place, "none", "", "", "; ".join(filter(None, (closed, shorten(cell.why, 90)))))
    noise = format_outward(cell.noise_multiplier, up=True, digits=5)
    if _moves(cell):
        noise += f" to {format_outward(cell.noise_last, up=True, digits=5)}"
    return (*place, noise, f"{cell.std:.3g}", f"{100 * (cell.signal or 0):.0f} %", closed)


def _moves(cell: "FrontierPoint") -> bool:
    return cell.noise_multiplier != cell.noise_last


def _line(words: tuple[str, ...], widths: tuple[int, ...]) -> str:
    """Columns aligned on the right; the last one hangs on the left."""
    return "  ".join(word.rjust(width) for word, width in zip(words, widths, strict=True)).rstrip()


# --- more rounds ------------------------------------------------------------------------------------
def _more(
    file: Path | None, rounds: list[int], within: float | None, given: list[str], as_json: bool, start: float
) -> None:
    from privet.planning import Plan, extend_rounds

    if file is None:
        raise click.UsageError("--more needs a plan, such as plan.json from `privet plan --out plan.json`.")
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')} cannot be combined with --more: the plan says the rest."
        )
    plan = Plan.load(file)
    found = extend_rounds(plan, rounds, within=within)
    seconds = time.perf_counter() - start
    if as_json:
        common.print_object(found.as_dict() | {"seconds": seconds})
        return
    _print_more(plan, found, seconds)


def _print_more(plan: "Plan", found: "Extension", seconds: float) -> None:
    click.echo(f"{found.planned} after the {len(plan.steps)} planned steps")
    names: tuple[str, ...] = ("more", "steps", f"epsilon at noise {found.last.noise_multiplier:.5g}")
    names += () if found.epsilon is None else (f"noise for epsilon <= {found.epsilon:g}",)
    widths = (9, 9, 26, 26)[: len(names)]
    click.echo(_line(names, widths))
    for row in found.rows:
        low = row.guarantee.epsilon_lower
        interval = format_outward(row.guarantee.epsilon, up=True)
        interval = f"<= {interval}" if low is None else f"{format_outward(low, up=False)} to {interval}"
        words: tuple[str, ...] = (str(row.rounds), str(row.guarantee.steps), interval)
        if found.epsilon is not None:
            words += (
                row.why if row.noise_multiplier is None else format_outward(row.noise_multiplier, up=True, digits=5),
            )
        click.echo(_line(words, widths))
    click.echo(f"  all {found.planned.label}: {found.planned.method}, for the whole run, the planned steps included")
    if found.most is not None:
        click.echo(
            f"  at most {found.most} more steps at noise {found.last.noise_multiplier:.5g} stay within "
            f"{found.epsilon:g}"
        )
    click.echo("  choose a row before looking at results; to decide later, count the longest row at the plan's noise")
    click.echo(f"  time {seconds:.3f} s")
