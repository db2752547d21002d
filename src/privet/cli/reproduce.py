"""`privet reproduce`: the papers' tables, the published figure beside ours."""

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
    from privet.experiments.row import Row
    from privet.experiments.runner import Mode
    from privet.experiments.table import Cells, Line


@click.command("reproduce", short_help="The papers' tables: the published figure beside ours.")
@click.argument("paper", required=False, metavar="[PAPER[:TABLE]]")
@click.option("--quick", is_flag=True, help="The same recipes on `digits`, at most 100 "
              "steps: minutes, no download (default).")  # fmt: skip
@click.option("--full", is_flag=True, help="The paper's data and number of steps.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each row, seeds 0, 1, ...")
@click.option("--rows", metavar="PATTERN", help="Only rows whose name is like this: 'sigma-*', or several with commas.")
@click.option("--steps", type=integer, help="At most so many steps of each row; kept apart from whole runs.")
@click.option("--out", type=PATH, default="results", show_default=True, help="Where results accumulate.")
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
    from privet.experiments.papers import rows_of

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
        from privet.experiments.drawn import draw

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
    from privet.data import Where
    from privet.experiments.runner import jobs, reproduce
    from privet.training.progress import Live, Plain

    asked = jobs(rows, mode=mode, seeds=seeds, steps=steps)
    watch = Live if sys.stderr.isatty() else lambda: Plain(sys.stderr)
    tell = lambda text: click.echo(text, err=True)  # noqa: E731
    with warnings_as_lines():
        done = sum(1 for _ in reproduce(asked, out=out, where=Where(folder=data_dir), watch=watch, tell=tell))
    return len(asked) - done


def _lines(rows: "Sequence[Row]", *, mode: "Mode", steps: int | None, out: Path) -> "list[Line]":
    """The rows with what the folder has of them."""
    from privet.experiments.results import all_of
    from privet.experiments.runner import scaled
    from privet.experiments.table import Line

    made = [(row, *scaled(row, mode, steps)) for row in rows]
    return [Line(row=row, results=tuple(all_of(out, as_run, scale))) for row, as_run, scale in made]


# --- what is shown ----------------------------------------------------------------------------------


def _list(paper: str | None, *, as_json: bool) -> None:
    from privet.experiments.papers import PAPERS
    from privet.experiments.papers import paper as paper_of

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
    from privet.experiments.papers import paper
    from privet.experiments.table import cells

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
    from privet.experiments.papers import rows_of
    from privet.reporting.drawing import check_path

    check_path(plot, option="--plot")
    if len({row.table for row in rows_of(paper)}) > 1:
        raise click.UsageError(f"--plot draws one table or figure. Write {paper}:TABLE; --list has the tables.")


def _write_page(out: Path, page: Path, *, quiet: bool = False) -> None:
    from privet.experiments.page import write_page

    count = write_page(out, page)
    if not quiet:
        click.echo(f"wrote {page}: {count} rows from {out}")
