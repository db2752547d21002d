"""Figures of `privet reproduce`: a paper's figure drawn again, and published figures against ours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.reporting.figures import COLOURS, drawing, is_csv, look, write


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
