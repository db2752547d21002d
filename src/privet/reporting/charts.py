"""Charts as SVG text that stands in the page itself: no script, colours from the page's style, light or dark."""

import math
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np

from privet.accounting.guarantee import format_bound

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 12, 42
MOST_POINTS = 240
DASHES = {"approximate": "7 4", "claimed": "2 4"}
TURNS = ("", "7 4", "2 3", "9 3 2 3")  # where colours stand for runs: told apart without them too


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a chart. `label` is that of the epsilons or rates it shows; it decides the dashes."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    label: str | None = None
    colour: int = 0
    is_faint: bool = False  # a line to compare with
    is_filled: bool = False  # the area below it is what can happen
    side: Literal["nearest", "up", "down"] = "nearest"  # how its values are rounded in words
    is_stepped: bool = False  # a rising bound: between two points that of the later one holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over an axis, and a sentence that says what is seen."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    caption: str = ""
    is_log: bool = False  # both axes
    from_zero: bool = True
    is_percent: bool = False


class Axis:
    """Values on a stretch of the drawing, with ticks at round numbers."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_log: bool, is_tight: bool = False
    ) -> None:
        self.is_log, self._start, self._end = is_log, start, end
        self.ticks = _decades(low, high) if is_log else _round_ticks(low, high)
        if is_tight and high > low:  # the line ends where the axis does
            self.ticks = [value for value in self.ticks if low <= value <= high]
        within = is_log or (is_tight and high > low)
        self.low, self.high = (low, high) if within else (min(low, self.ticks[0]), max(high, self.ticks[-1]))

    def at(self, value: float) -> float:
        """Where a value stands; what lies beyond an end is held there."""
        low, high, value = (map(math.log, (self.low, self.high, max(value, self.low))) if self.is_log
                            else (self.low, self.high, value))  # fmt: skip
        share = min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0)
        return self._start + share * (self._end - self._start)


def svg(chart: Chart) -> str:
    x, y = _axes(chart)
    said = f"{chart.title}. {chart.y_name} over {chart.x_name}: {'; '.join(map(_line_sentence, chart.lines))}."
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said, quote=True)}">',
        *_grid(chart, x, y), *(_fill(line, x, y) for line in chart.lines if line.is_filled),
        *(_path(line, x, y, chart) for line in chart.lines), "</svg>",
    ]  # fmt: skip
    return "".join(parts)


def legend_mark(line: Line, *, turns: bool) -> str:
    return f'<svg width="28" height="10" aria-hidden="true"><path d="M1 5H27" {_stroke(line, turns=turns)}/></svg>'


def turns(chart: Chart) -> bool:
    """Whether lines differ by run and not by label: then dashes follow the colours."""
    return len({line.label for line in chart.lines if not line.is_faint}) <= 1


def thin(line: Line, most: int = MOST_POINTS) -> tuple[tuple[float, float], ...]:
    """Finite points of a line, evenly chosen where there are many; the last is always there."""
    points = [(a, b) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    if len(points) <= most:
        return tuple(points)
    return tuple(points[int(i)] for i in np.linspace(0, len(points) - 1, most).round())


def _axes(chart: Chart) -> tuple[Axis, Axis]:
    x = [point[0] for line in chart.lines for point in thin(line)] or [0.0, 1.0]
    y = [point[1] for line in chart.lines for point in thin(line)] or [0.0, 1.0]
    low = 0.0 if chart.from_zero and not chart.is_log else min(y)
    if chart.is_log:
        x, y = ([value for value in values if value > 0] or [0.1, 1.0] for values in (x, y))
        low = min(y)
    first = 0.0 if not chart.is_log and min(x) <= 1 else min(x)
    across = Axis(first, max(x), LEFT, WIDTH - RIGHT, is_log=chart.is_log, is_tight=True)
    return across, Axis(low, max(y), HEIGHT - BOTTOM, TOP, is_log=chart.is_log)


def _grid(chart: Chart, x: Axis, y: Axis) -> list[str]:
    parts = []
    for value in y.ticks:
        place = y.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{place + 4:.1f}" text-anchor="end">{_tick(value, chart, y)}</text>')
    for value in x.ticks:
        place = x.at(value)
        parts.append(f'<path class="tick" d="M{place:.1f} {HEIGHT - BOTTOM}v4"/>')
        anchor = "end" if place > WIDTH - RIGHT - 8 else "middle"
        text = _tick(value, chart, x)
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="{anchor}">{text}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    height = (TOP + HEIGHT - BOTTOM) / 2
    return [
        *parts,
        f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
        f'<text class="name" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.x_name)}</text>',
        f'<text class="name" transform="translate(12 {height:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_name)}</text>",
    ]


def _path(line: Line, x: Axis, y: Axis, chart: Chart) -> str:
    places = [(f"{x.at(a):.1f}", f"{y.at(b):.1f}") for a, b in thin(line)]
    if not places:
        return ""
    first, *rest = places
    drawn = "".join(f"V{b}H{a}" for a, b in rest) if line.is_stepped else "".join(f" {a} {b}" for a, b in rest)
    return f'<path d="M{first[0]} {first[1]}{drawn}" {_stroke(line, turns=turns(chart))}/>'


def _fill(line: Line, x: Axis, y: Axis) -> str:
    points = thin(line)
    if not points:
        return ""
    inner = " ".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in points)
    floor = y.at(y.low)
    first, last = x.at(points[0][0]), x.at(points[-1][0])
    return f'<path class="area" d="M{first:.1f} {floor:.1f} {inner} {last:.1f} {floor:.1f}Z"/>'


def _stroke(line: Line, *, turns: bool) -> str:
    if line.is_faint:
        return 'class="line faint" stroke-dasharray="2 3"'
    dash = TURNS[line.colour % len(TURNS)] if turns else DASHES.get(line.label or "", "")
    return f'class="line c{line.colour % 4}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _tick(value: float, chart: Chart, axis: Axis) -> str:
    if chart.is_percent and (chart.is_log or axis.high <= 1.0):
        return f"{100 * value:.10g} %"
    return f"{value:,.10g}"


def _round_ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers that hold low and high between them."""
    if not high > low:
        low, high = (low - 0.5 * abs(low), low + 0.5 * abs(low)) if low else (0.0, 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    found = [10.0**k for k in range(first, last + 1)]
    return found if len(found) > 1 else [low, high]


def table(chart: Chart, points: int = 7) -> tuple[str, list[tuple[str, str]]]:
    """The chart in words: what its columns are, and a few points of each line; none where there is only guessing."""
    rows = [
        (_full_name(line), ", ".join(f"{a:.4g}: {point(b, line)}" for a, b in thin(line, points)))
        for line in chart.lines if not line.is_faint
    ]  # fmt: skip
    return f"{chart.x_name}: {chart.y_name}", rows


def _line_sentence(line: Line) -> str:
    points, name = thin(line), _full_name(line)
    return f"{name} from {point(points[0][1], line)} to {point(points[-1][1], line)}" if points else name


def _full_name(line: Line) -> str:
    return line.name if line.label is None or line.label in line.name else f"{line.name} ({line.label})"


def point(value: float, line: Line) -> str:
    """A value of a line in four digits, on the line's safe side."""
    return f"{value:.4g}" if line.side == "nearest" else format_bound(value, up=line.side == "up", digits=4)
