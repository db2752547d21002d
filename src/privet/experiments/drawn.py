"""A table or a figure, drawn: curves for a figure of a paper, published against ours for a table."""

from collections.abc import Sequence
from pathlib import Path

from privet.errors import InvalidValue
from privet.experiments.papers import paper
from privet.experiments.table import WORDS, Line
from privet.reporting.reproduce_figure import Dot, Trace, save_curves, save_dots

MEASURES = ("accuracy", "rmse")


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the lines of one table to `path`.

    Raises:
        InvalidValue: nothing was run, or there is nothing to draw.
    """
    row = lines[0].row
    table = paper(row.paper).tables[row.table]
    title = f"{row.paper} {row.table}: {table.title}"
    if table.is_figure:
        traces = [_trace(line) for line in lines if any(result.curve for result in line.results)]
        _check(bool(traces), row.table)
        save_curves(traces, path, title=title, x=table.x, y=table.y, log_y=table.log_y)
        return
    name, dots = _dots(lines)
    _check(bool(dots), row.table)
    save_dots(dots, path, title=title, x=WORDS.get(name, name))


def _trace(line: Line) -> Trace:
    """The line of a row: that of its first seed."""
    curve = next(result.curve for result in line.results if result.curve)
    return Trace(name=line.row.name, panel=line.row.panel, x=curve.x, y=curve.y, label=curve.label)


def _dots(lines: Sequence[Line]) -> tuple[str, list[Dot]]:
    """One figure of a table, the measure if there is one: published, and ours with its spread."""
    names = [name for line in lines for name in (*line.row.published, *(n for r in line.results for n in r.figures))]
    name = next((name for name in MEASURES if name in names), names[0] if names else "")
    found = []
    for line in lines:
        published, ours = line.row.published.get(name), line.ours(name)
        if published is not None or ours is not None:
            mean, spread = (None, None) if ours is None else ours[:2]
            found.append(Dot(name=line.row.name, published=published, ours=mean, spread=spread))
    return name, found


def _check(found: bool, table: str) -> None:
    if not found:
        raise InvalidValue(f"table={table!r} has nothing to draw. No row of it was run. Leave out --show, or run it.")
