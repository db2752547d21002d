"""`privet reproduce`, `privet recipes`: the papers' tables, and the best recipes."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet import _check
from privet.cli.common import PATH, integer, print_object, say_written, warnings_as_lines
from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet_papers.recipes import Best
    from privet_papers.reproduce.runner import Mode
    from privet_papers.reproduce.table_row import Row
    from privet_papers.reproduce.tables import Cells, Line


def _out() -> Path:
    """Where results accumulate if nothing is said: in a checkout, where those that are kept lie."""
    kept = Path("papers/results")
    return kept if kept.is_dir() else Path("results")


# --- privet reproduce -------------------------------------------------------------------------------


@click.command("reproduce", short_help="The papers' tables: the published figure beside ours.")
@click.argument("paper", required=False, metavar="[PAPER[:TABLE]]")
@click.option("--quick", is_flag=True, help="The same recipes on `digits`, at most 100 "
              "steps: minutes, no download (default).")  # fmt: skip
@click.option("--full", is_flag=True, help="The paper's data and number of steps.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each row, seeds 0, 1, ...")
@click.option("--rows", metavar="PATTERN", help="Only rows whose name is like this: 'sigma-*', or several with commas.")
@click.option("--steps", type=integer, help="At most so many steps of each row; kept apart from whole runs.")
@click.option("--out", type=PATH, default=_out, show_default="results", help="Where results accumulate.")
@click.option("--data-dir", type=PATH, metavar="FOLDER", help="Where files of datasets are.")
@click.option("--show", is_flag=True, help="Run nothing: print what the results folder has.")
@click.option("--plot", type=PATH, metavar="FILE", help="Draw one table or figure (.png, .svg, .pdf, .csv).")
@click.option("--page", type=PATH, metavar="FILE", help="Write a page of all full results in the folder (Markdown).")
@click.option("--list", "listed", is_flag=True, help="The papers and their tables.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def reproduce_command(
    *, paper: str | None, quick: bool, full: bool, seeds: int, rows: str | None, steps: int | None, out: Path,
    data_dir: Path | None, show: bool, plot: Path | None, page: Path | None, listed: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run a paper's table: its published figures beside ours, with the certified epsilon of what really ran.

    Results stay in a folder, one file for each row and seed. What is there is not run again, and a run that was
    interrupted goes on. Runs have seeds: they can be repeated, and are therefore not private themselves; the certified
    epsilon is that of the same mechanism with the system's randomness.

    \b
    Examples:
      privet reproduce --list
      privet reproduce bu2019:table1 --quick
      privet reproduce bu2019:table2 --full --seeds 3 --data-dir data
      privet reproduce bu2019:fig3 --plot fig3.png
      privet reproduce --page docs/results.md
    """
    from privet_papers.tables import rows_of

    if quick and full:
        raise click.UsageError("--quick and --full are both given. They say how far a row goes. Give one.")
    mode: Mode = "full" if full else "quick"
    if listed:
        if show or plot is not None or page is not None:
            raise click.UsageError("--list prints what there is, and does nothing else. Leave the other options out.")
        _list(paper, as_json=as_json)
        return 0
    if paper is None:
        if page is None:
            raise click.UsageError("PAPER is missing: bu2019, bu2019:table1, .... `privet reproduce --list` has them.")
        _write_page(out, page)
        return 0
    if plot is not None:
        _check_plot(paper, plot)
    if page is not None:
        _check.writable(page, name="--page")
    chosen = _matching(rows_of(paper), rows)
    asked: dict[str, Any] = {"mode": mode, "steps": steps, "out": out}
    failed = 0 if show else run_rows(chosen, seeds=seeds, data_dir=data_dir, **asked)
    lines = _lines(chosen, **asked)
    if as_json:
        said = {"paper": paper, "mode": mode, "steps": steps, "out": str(out), "plot": plot and str(plot)}
        notes = _remarks(lines, mode=mode, steps=steps)
        print_object(said | {"rows": [line.as_dict() for line in lines], "notes": notes})
    else:
        _print(lines, mode=mode, steps=steps)
    if plot is not None:
        from privet_papers.reproduce.figures import draw

        draw(lines, plot)
    say_written(plot, as_json=as_json)
    if page is not None:
        _write_page(out, page, quiet=as_json)
    return 1 if failed else 0


def _matching(rows: "list[Row]", pattern: str | None) -> "list[Row]":
    if pattern is None:
        return rows
    patterns = [part.strip() for part in pattern.split(",")]
    for part in patterns:
        if not any(fnmatchcase(row.name, part) for row in rows):
            names = ", ".join(row.name for row in rows[:12]) + (", ..." if len(rows) > 12 else "")
            raise InvalidValue(f"--rows={part!r} matches no row. There are {names}. Use * for any letters.")
    return [row for row in rows if any(fnmatchcase(row.name, part) for part in patterns)]


def run_rows(
    rows: "Sequence[Row]", *, seeds: int, steps: int | None, out: Path, data_dir: Path | None, mode: "Mode" = "full"
) -> int:
    """Run what the folder lacks; how many could not be run, which is told."""
    from privet.data import DataFolders
    from privet.training.progress import LiveProgress, LogProgress
    from privet_papers.reproduce.runner import jobs, reproduce

    asked = jobs(rows, mode=mode, seeds=seeds, steps=steps)
    watch = LiveProgress if sys.stderr.isatty() else lambda: LogProgress(sys.stderr)
    tell = lambda text: click.echo(text, err=True)  # noqa: E731
    with warnings_as_lines():
        done = sum(1 for _ in reproduce(asked, out=out, where=DataFolders(folder=data_dir), watch=watch, tell=tell))
    return len(asked) - done


def _lines(rows: "Sequence[Row]", *, mode: "Mode", steps: int | None, out: Path) -> "list[Line]":
    """The rows with what the folder has of them."""
    from privet_papers.reproduce.results import all_of
    from privet_papers.reproduce.runner import scaled
    from privet_papers.reproduce.tables import Line

    made = [(row, *scaled(row, mode, steps)) for row in rows]
    return [Line(row=row, results=tuple(all_of(out, as_run, scale))) for row, as_run, scale in made]


# --- what is shown ----------------------------------------------------------------------------------


def _list(paper: str | None, *, as_json: bool) -> None:
    from privet_papers.tables import PAPERS, paper as paper_of

    papers = list(PAPERS.values()) if paper is None else [paper_of(paper.partition(":")[0])]
    if as_json:
        print_object({"papers": [_listing(one) for one in papers]})
        return
    for one in papers:
        click.echo(f"{one.name}  {one.title}")
        for name, table in one.tables.items():
            rows = one.of(name)
            runs = sum(row.is_trained for row in rows)
            kinds = f"{runs} train" if runs else "computed"
            kinds = "not run" if all(row.kind == "not run" for row in rows) else kinds
            click.echo(f"  {one.name + ':' + name:<26} {len(rows):>3} rows, {kinds:<9}  {table.title}")


def _listing(paper: Any) -> dict[str, Any]:
    tables = {
        name: {"title": table.title, "rows": [{"name": row.name, "kind": row.kind} for row in paper.of(name)]}
        for name, table in paper.tables.items()
    }
    return {"name": paper.name, "title": paper.title, "tables": tables}


def _print(lines: "Sequence[Line]", *, mode: str, steps: int | None) -> None:
    from privet_papers.reproduce.tables import cells
    from privet_papers.tables import paper

    for key in dict.fromkeys((line.row.paper, line.row.table) for line in lines):
        own = [line for line in lines if (line.row.paper, line.row.table) == key]
        table = paper(key[0]).tables[key[1]]
        click.echo(f"{key[0]}:{key[1]}  {table.title}")
        print_cells(cells(own))
        click.echo()
    for remark in _remarks(lines, mode=mode, steps=steps):
        click.echo(remark)


def _remarks(lines: "Sequence[Line]", *, mode: str, steps: int | None) -> list[str]:
    """What a reader must know of all rows."""
    if not any(line.row.is_trained for line in lines):
        return []
    said = ["runs have seeds: reproducible, not private; certified epsilon: of the same mechanism, by pld"]
    if mode == "quick":
        most = 100 if steps is None else min(steps, 100)
        return [f"quick: trained on 4,000 digits for at most {most} steps, by rule; the paper's accuracy is of its own "
                "data and steps, so only directions compare", *said]  # fmt: skip
    return said if steps is None else [f"at most {steps} steps of each row: not the paper's training", *said]


def print_cells(found: "Cells") -> None:
    """A table with the columns below each other, and its notes."""
    columns = list(zip(*found.rows, strict=True))
    heads = [_wrap(name, max(map(len, column))) for name, column in zip(found.names, columns, strict=True)]
    widths = [max(map(len, (*head, *column))) for head, column in zip(heads, columns, strict=True)]
    for number in range(max(map(len, heads))):
        words = [head[number] if number < len(head) else "" for head in heads]
        click.echo("  " + "  ".join(word.ljust(width) for word, width in zip(words, widths, strict=True)).rstrip())
    for row in found.rows:
        click.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for note in found.notes:
        click.echo(f"  {note}")


def _wrap(text: str, width: int) -> list[str]:
    """Words of a heading in lines about as wide as the column below it."""
    return textwrap.wrap(text, max(width, 10), break_long_words=False) or [""]


def _check_plot(paper: str, plot: Path) -> None:
    from privet.reporting.figures import check_path
    from privet_papers.tables import rows_of

    check_path(plot, option="--plot")
    if len({row.table for row in rows_of(paper)}) > 1:
        raise click.UsageError(f"--plot draws one table or figure. Write {paper}:TABLE; --list has the tables.")


def _write_page(out: Path, page: Path, *, quiet: bool = False) -> None:
    from privet_papers.reproduce.page import write_page

    count = write_page(out, page)
    if not quiet:
        click.echo(f"wrote {page}: {count} rows from {out}")


# --- privet recipes ---------------------------------------------------------------------------------


ALL = "all"


@click.command("recipes", short_help="The best recipe known for each dataset and budget.")
@click.argument("name", required=False)
@click.option("--run", "wanted", metavar="NAME", help="Train a recipe (or `all`) with seeds, keep the result.")
@click.option("--ablation", metavar="NAME", help="Train a recipe with one part changed at a time: what bought what.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each, seeds 0, 1, ...")
@click.option("--steps", type=integer, help="At most so many steps of each; kept apart from whole runs.")
@click.option("--out", type=PATH, default=_out, show_default="results", help="Where results accumulate.")
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
    from privet_papers.recipes import best, line, recipes, rows_of
    from privet_papers.reproduce.page import write_page

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
        _print_recipes([(one, line(one.row(), out, steps)) for one in chosen], whole=name is not None, as_json=as_json)
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
    from privet_papers.reproduce.tables import cells

    if as_json:
        print_object({"ablation": name, "rows": [one.as_dict() for one in lines]})
    else:
        print_cells(cells(lines))


def _print_recipes(found: "Sequence[tuple[Best, Line]]", *, whole: bool, as_json: bool) -> None:
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
    from privet.accounting.guarantee import format_bound

    names = ("recipe", "epsilon (certified)", "delta", "measure", "reached", "published", "command")
    rows = [names]
    for one, line in found:
        budget = one.recipe().budget
        published = "–" if one.published is None else f"{one.published:g}"
        epsilon, delta = format_bound(budget.epsilon, up=True), format_bound(budget.delta, up=True, digits=2)
        rows.append((one.name, epsilon, delta, one.measure, _said(one, line), published, one.command))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo("\nReached: mean and standard deviation over seeds on the test set. `privet recipes NAME` says more.")


def _print_one(one: "Best", line: "Line") -> None:
    from privet.accounting.guarantee import format_bound

    recipe = one.recipe()
    budget, training = recipe.budget, recipe.training
    _, _, seeds = _reached(one, line)
    batch = f"batch size {recipe.batch_size:g} of {recipe.dataset_size:,}"
    plan = f"{recipe.count} steps, {batch}, clipping norm {recipe.clipping_norm}"
    lines = {
        "what": one.says,
        "budget": f"epsilon {format_bound(budget.epsilon, up=True)} at delta "
        f"{format_bound(budget.delta, up=True, digits=3)}, certified by pld from the run's ledger",
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
