"""Lines that several papers draw; and a table or a figure drawn: curves, and published figures against ours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privet.accounting import epsilon_curve
from privet.accounting.tradeoff import Gaussian, Tradeoff, tradeoff
from privet.errors import InvalidValue
from privet.reporting.figures import COLOURS, drawing, is_csv, look, write
from privet_papers.reproduce.table_row import Curve, Row, keyed
from privet_papers.reproduce.tables import WORDS, Line

# --- lines ------------------------------------------------------------------------------------------


POINTS = 60  # of epsilon over a run
ERRORS = 101  # of a trade-off curve


@keyed("spending")
def spending(row: Row, accountant: str = "pld", unit: Literal["step", "epoch"] = "step") -> Curve:
    """Epsilon at the row's delta after each part of its plan, by an accountant.

    >>> from privet_papers.tables import rows_of
    >>> found = spending(rows_of("bu2019:fig4-epsilon")[0], "gdp", "epoch")
    >>> round(found.x[-1]), round(found.y[-1], 2), found.label
    (20, 0.98, 'approximate')
    """
    plan = row.plan()
    budget = plan.recipe.budget
    found = epsilon_curve(plan.ledger(), budget.delta, accountant=accountant, points=POINTS, adjacency=budget.adjacency)
    places = found.steps * (plan.steps[0].sample_rate if unit == "epoch" else 1.0)
    return Curve(x=tuple(places.tolist()), y=tuple(found.upper.tolist()), label=found.label)


def over_steps(accountant: str = "pld") -> partial[Curve]:
    """`spending` by an accountant, as the `curve` of a row."""
    return partial(spending, accountant=accountant)


def over_epochs(accountant: str = "pld") -> partial[Curve]:
    """The same, against epochs."""
    return partial(spending, accountant=accountant, unit="epoch")


def errors(curve: "Tradeoff | Gaussian") -> Curve:
    """The least type II error at each type I error, evenly spaced."""
    alpha = np.linspace(0, 1, ERRORS)
    return Curve(x=tuple(alpha.tolist()), y=tuple(curve(alpha).tolist()), label=curve.label)


@keyed("attacker")
def attacker(row: Row, accountant: str = "pld") -> Curve:
    """What an attacker can achieve against the row's plan, by `pld` or `gdp`."""
    return errors(tradeoff(row.plan().ledger(), accountant=accountant))


# --- with matplotlib --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line of a figure, in the panel of that name."""

    name: str
    panel: str
    x: Sequence[float]
    y: Sequence[float]
    label: str | None  # of an epsilon: certified, approximate, claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One row of a table: what was published, and ours."""

    name: str
    published: float | None
    ours: float | None
    spread: float | None


def save_curves(traces: Sequence[Trace], path: Path, *, title: str, x: str, y: str, log_y: bool = False) -> None:
    """Lines over a common axis, one panel for each name of a panel, each line with its label.

    Raises:
        InvalidValue: it cannot be written there.
        MissingExtra: matplotlib is not installed.
    """
    if is_csv(path):
        rows = [(t.panel, t.name, t.label or "", a, b) for t in traces for a, b in zip(t.x, t.y, strict=True)]
        write(path, [("panel", "row", "label", x, y), *rows])
        return
    panels = list(dict.fromkeys(trace.panel for trace in traces))
    columns = min(3, len(panels))
    height = math.ceil(len(panels) / columns)
    with drawing(path, max(6.4, 3.4 * columns), 4.0 if height == 1 else 2.9 * height + 0.4) as figure:
        axes = figure.subplots(height, columns, squeeze=False)
        for place, panel in enumerate(panels):
            one = axes[place // columns][place % columns]
            _draw(one, [trace for trace in traces if trace.panel == panel], panel)
            one.set(xlabel=x, ylabel=y, yscale="log" if log_y else "linear")
        for place in range(len(panels), height * columns):
            axes[place // columns][place % columns].set_visible(False)
        figure.suptitle(title, fontsize=10)


def _draw(axes: Any, traces: Sequence[Trace], panel: str) -> None:
    for place, trace in enumerate(traces):
        said = f"{trace.name} ({trace.label})" if trace.label else trace.name
        axes.plot(trace.x, trace.y, label=said, linewidth=1.6, **look(place))
    axes.set_title(panel, fontsize=9)
    axes.legend(fontsize=7)


def save_dots(dots: Sequence[Dot], path: Path, *, title: str, x: str) -> None:
    """One line of a table each: an open ring where the paper is, a full dot with its spread where we are."""
    if is_csv(path):
        rows = [(d.name, *("" if v is None else v for v in (d.published, d.ours, d.spread))) for d in dots]
        write(path, [("row", f"published {x}", f"ours {x}", "spread"), *rows])
        return
    with drawing(path, 7.2, 1.2 + 0.26 * len(dots)) as figure:
        axes = figure.subplots()
        places = list(range(len(dots)))[::-1]
        for place, dot in zip(places, dots, strict=True):
            if dot.published is not None and dot.ours is not None:
                axes.plot([dot.published, dot.ours], [place, place], color="#bbbbbb", linewidth=1, zorder=1)
        _scatter(axes, [(d.published, p) for d, p in zip(dots, places, strict=True)], filled=False, label="published")
        _scatter(axes, [(d.ours, p) for d, p in zip(dots, places, strict=True)], filled=True, label="ours")
        for place, dot in zip(places, dots, strict=True):
            if dot.ours is not None and dot.spread is not None:
                axes.errorbar(dot.ours, place, xerr=dot.spread, color=COLOURS[0], capsize=2, linewidth=1.2)
        axes.set_yticks(places, [dot.name for dot in dots])
        axes.set(xlabel=f"{x} (bars: standard deviation over seeds)")
        axes.set_title(title, fontsize=10, loc="left")
        axes.legend(loc="best")


def _scatter(axes: Any, points: Sequence[tuple[float | None, int]], *, filled: bool, label: str) -> None:
    kept = [(x, y) for x, y in points if x is not None]
    colour = COLOURS[0] if filled else COLOURS[1]
    axes.scatter([x for x, _ in kept], [y for _, y in kept], s=34, zorder=2, label=label, edgecolors=colour,
                 facecolors=colour if filled else "white")  # fmt: skip


# --- a table or a figure ----------------------------------------------------------------------------


MEASURES = ("accuracy", "rmse")


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the lines of one table to `path`.

    Raises:
        InvalidValue: nothing was run, or there is nothing to draw.
    """
    from privet_papers.tables import paper  # the tables are made of the lines above

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
