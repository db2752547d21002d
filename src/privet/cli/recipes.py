"""`privet recipes`: the best recipe known for each dataset and budget, what it reaches, and how to run it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli.common import PATH, integer, print_object
from privet.cli.reproduce import print_cells, run_rows
from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet.experiments.recipes import Best
    from privet.experiments.table import Line

ALL = "all"


@click.command("recipes", short_help="The best recipe known for each dataset and budget.")
@click.argument("name", required=False)
@click.option("--run", "wanted", metavar="NAME", help="Train a recipe (or `all`) with seeds, keep the result.")
@click.option("--ablation", metavar="NAME", help="Train a recipe with one part changed at a time: what bought what.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each, seeds 0, 1, ...")
@click.option("--steps", type=integer, help="At most so many steps of each; kept apart from whole runs.")
@click.option("--out", type=PATH, default="results", show_default=True, help="Where results accumulate.")
@click.option("--data-dir", type=PATH, metavar="FOLDER", help="Where files of datasets are.")
@click.option("--page", type=PATH, metavar="FILE", help="Write a page of all full results in the folder (Markdown).")
@click.option("--save", type=PATH, metavar="FILE", help="Write the recipe NAME as a file, to change and to train.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def recipes_command(
    *, name: str | None, wanted: str | None, ablation: str | None, seeds: int, steps: int | None, out: Path,
    data_dir: Path | None, page: Path | None, save: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """The best recipe known for each dataset and budget: what it reaches at a certified epsilon, and how to train it.

    `privet train --recipe NAME` trains one privately. --run trains with seeds, so that a result can be repeated; such
    runs are not private, and their certified epsilon is that of the same mechanism with the system's randomness.

    \b
    Examples:
      privet recipes
      privet recipes mnist-1.2
      privet recipes mnist-1.2 --save mine.toml
      privet recipes --run all --seeds 3 --page docs/results.md
      privet recipes --ablation adult-1 --seeds 3
    """
    from privet.experiments.ablation import rows_of
    from privet.experiments.page import write_page
    from privet.experiments.recipes import best, line, recipes

    if save is not None and name is None:
        raise click.UsageError("--save needs the NAME of a recipe. `privet recipes` lists them.")
    if sum(given is not None for given in (name, wanted, ablation)) > 1:
        raise click.UsageError("NAME, --run and --ablation are three questions. Ask one.")
    if page is not None:
        _check.writable(page, name="--page")
    chosen = list(recipes().values()) if name is None else [best(name)]
    wrote = [] if save is None else [_saved(chosen[0], save)]
    failed, rows = 0, []
    if wanted is not None:
        chosen = chosen if wanted == ALL else [best(wanted)]
        rows = [one.row() for one in chosen]
    if ablation is not None:
        rows = rows_of(ablation)
    if rows:
        failed = run_rows(rows, seeds=seeds, steps=steps, out=out, data_dir=data_dir)
    if page is not None:
        wrote.append(f"wrote {page}: {write_page(out, page)} rows from {out}")
    if ablation is not None:
        _print_ablation(ablation, [line(row, out, steps) for row in rows], as_json=as_json)
    else:
        _print([(one, line(one.row(), out, steps)) for one in chosen], whole=name is not None, as_json=as_json)
    for text in wrote:
        click.echo(text, err=as_json)
    return 1 if failed else 0


def _saved(one: "Best", file: Path) -> str:
    if file.exists():
        raise InvalidValue(f"save={str(file)!r} is there already. It is not written over. Choose another name.")
    try:
        shutil.copyfile(one.path, file)
    except OSError as error:
        raise InvalidValue(f"save={str(file)!r} cannot be written: {error.strerror}. Choose another place.") from None
    return f"wrote {file}: privet train {file}"


# --- what is shown ----------------------------------------------------------------------------------


def _print_ablation(name: str, lines: "Sequence[Line]", *, as_json: bool) -> None:
    from privet.experiments.table import cells

    if as_json:
        print_object({"ablation": name, "rows": [one.as_dict() for one in lines]})
    else:
        print_cells(cells(lines))


def _print(found: "Sequence[tuple[Best, Line]]", *, whole: bool, as_json: bool) -> None:
    if as_json:
        print_object({"recipes": [_object(*one) for one in found]})
    elif whole:
        _print_one(*found[0])
    else:
        _print_all(found)


def _object(one: "Best", line: "Line") -> dict[str, Any]:
    recipe = one.recipe()
    reached, spread, seeds = _reached(one, line)
    return {
        "name": one.name, "dataset": one.dataset, "says": one.says, "epsilon": recipe.budget.epsilon,
        "delta": recipe.budget.delta, "label": "certified", "measure": one.measure, "reached": reached,
        "spread": spread, "seeds": seeds, "certified": None if line.certified is None else list(line.certified),
        "published": one.published, "by": one.by, "published_label": one.label, "goal": one.goal, "tuned": one.tuned,
        "tuning_runs": one.runs, "command": one.command, "recipe": recipe.as_dict(),
    }  # fmt: skip


def _reached(one: "Best", line: "Line") -> tuple[float | None, float | None, int]:
    """(mean, spread, seeds) of the results at hand, else of those the package was made with."""
    found = line.ours(one.measure)
    return found if found is not None else (one.reached, one.spread, one.seeds)


def _said(one: "Best", line: "Line") -> str:
    mean, spread, _ = _reached(one, line)
    if mean is None:
        return "not run"
    places = 2 if one.measure == "accuracy" else 4
    return f"{mean:.{places}f}" + (f" ± {spread:.{places}f}" if spread is not None else "")


def _print_all(found: "Sequence[tuple[Best, Line]]") -> None:
    from privet.accounting.guarantee import printed

    names = ("recipe", "epsilon (certified)", "delta", "measure", "reached", "published", "command")
    rows = [names]
    for one, line in found:
        budget = one.recipe().budget
        published = "–" if one.published is None else f"{one.published:g}"
        epsilon, delta = printed(budget.epsilon, up=True), printed(budget.delta, up=True, digits=2)
        rows.append((one.name, epsilon, delta, one.measure, _said(one, line), published, one.command))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo("\nReached: mean and standard deviation over seeds on the test set. `privet recipes NAME` says more.")


def _print_one(one: "Best", line: "Line") -> None:
    from privet.accounting.guarantee import printed

    recipe = one.recipe()
    budget, training = recipe.budget, recipe.training
    _, _, seeds = _reached(one, line)
    plan = f"{recipe.count} steps, batch {recipe.batch:g} of {recipe.size:,}, clip {recipe.clip}"
    lines = {
        "what": one.says,
        "budget": f"epsilon {printed(budget.epsilon, up=True)} at delta {printed(budget.delta, up=True, digits=3)}, "
        "certified by pld from the run's ledger",
        "plan": plan,
        "training": ", ".join(f"{key} {value}" for key, value in training.items()),
        "reached": f"{one.measure} {_said(one, line)}" + (f" over {seeds} seeds" if seeds else ""),
        "published": f"{one.published:g}: {one.by} ({one.label})" if one.published is not None else "",
        "goal": "" if one.goal is None else f"{one.goal:g}",
        "tuned": f"{one.tuned} ({one.runs} runs, not charged)",
        "train": one.command,
        "change": f"privet recipes {one.name} --save mine.toml",
    }
    click.echo(one.name)
    for name, text in lines.items():
        if text:
            click.echo(f"  {name:<10}{text}")
