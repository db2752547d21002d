"""Figures of plans: several side by side, and the frontier of what a budget asks for.

In the comparison a colour is a plan; in the panel of epsilon a line style is an accountant, and the legend says what
each one proves. The frontier is how much noise a fixed budget asks for, against the rounds, a line for each batch size.
"""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.accounting import EpsilonCurve, epsilon_curve
from privet.errors import InvalidValue, PrivetError
from privet.planning.compare import Comparison, Row
from privet.planning.frontier import Frontier, FrontierPoint
from privet.planning.utility import noise_std
from privet.reporting.figures import COLOURS, Rows, check_path, draw_band, drawing, is_csv, points_of, write

POINTS = 400  # of a shape
CURVE_POINTS = {"pld": 60, "gdp": 40, "rdp": 24}  # of epsilon: each costs an accountant's time
MOST_DRAWN = len(COLOURS)
_STYLES: dict[str, tuple[Any, float, str]] = {
    "pld": ("-", 1.8, "lower and upper bound (pld)"),
    "gdp": ((0, (4, 2)), 1.2, "CLT (gdp)"),
    "rdp": ((0, (1, 1.4)), 1.4, "Rényi (rdp), upper bound only"),
}
_PANELS = (
    ("noise_multiplier", "Noise multiplier", "noise multiplier"),
    ("clipping_norm", "Clipping norm", "clipping norm"),
    ("noise_std", "Noise added to the sum", "std of the noise (noise · clip)"),
)
# From light to dark: a batch is an amount, so its colour is too; the palette's blue is the middle.
_LIGHT, _DARK = (0.55, 0.78, 0.92), (0.02, 0.18, 0.36)
_CLAIM, _LIMIT = "#D55E00", "#777777"
_RING: dict[str, Any] = {
    "linestyle": "none", "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": "black",
    "markeredgewidth": 1.1, "zorder": 4,
}  # fmt: skip
_COLUMNS = ("steps", "batch_size", "epochs", "noise_multiplier", "noise_last", "std", "signal")


# --- plans side by side -----------------------------------------------------------------------------
def check_plot(path: Path, *, option: str = "path", plans: int = 1) -> None:
    """Raise unless a comparison of so many plans can be drawn at `path`; asked before anything is computed."""
    check_path(path, option=option)
    if plans > MOST_DRAWN and not is_csv(path):
        raise InvalidValue(
            f"{option}={str(path)!r} can show {MOST_DRAWN} plans, not {plans}. More cannot be told apart. Leave "
            "some out, or write a .csv."
        )


def save_comparison(found: Comparison, path: Path) -> None:
    """Draw a comparison at `path`; a .csv has the numbers of every line."""
    check_plot(path, plans=len(found.rows))
    curves = _curves(found.rows)
    if is_csv(path):
        write(path, _rows(found, curves))
        return
    with drawing(path, 10.0, 7.6) as figure:
        grid = figure.add_gridspec(2, 3, height_ratios=[1, 1.35])
        for place, (name, title, says) in enumerate(_PANELS):
            _draw_shapes(figure.add_subplot(grid[0, place]), found, name, title, says)
        axes = figure.add_subplot(grid[1, :])
        _draw_epsilon(axes, found, curves)
        _add_legends(axes, found, curves)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)


def _at(row: Row) -> NDArray[np.int64]:
    length = len(row.plan.steps)
    return np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(np.int64))


def _values(row: Row, name: str, at: NDArray[np.int64]) -> NDArray[np.float64]:
    if name == "noise_std":
        return noise_std(row.plan, at)
    steps = row.plan.steps
    return (steps.noise_multipliers if name == "noise_multiplier" else steps.clipping_norms)[at]


def _curves(rows: tuple[Row, ...]) -> dict[str, list[EpsilonCurve]]:
    """Epsilon over the steps by each accountant that has a theorem; none where no proof covers the rule."""
    made: dict[object, list[EpsilonCurve]] = {}
    found: dict[str, list[EpsilonCurve]] = {}
    for row in rows:
        if row.plan.is_unsound:
            found[row.name] = []
            continue
        key = (replace(row.plan.steps, clip_schedule="constant"), row.plan.recipe.budget)  # the clip costs nothing
        if key not in made:
            made[key] = [curve for name in _STYLES for curve in _curve(row, name)]
        found[row.name] = made[key]
    return found


def _curve(row: Row, name: str) -> list[EpsilonCurve]:
    budget, points = row.plan.recipe.budget, CURVE_POINTS[name]
    ledger = row.plan.ledger()
    try:
        return [epsilon_curve(ledger, budget.delta, points=points, accountant=name, adjacency=budget.adjacency)]
    except PrivetError as error:
        warnings.warn(f"{row.name} has no line for {name}: {error}", stacklevel=1)
        return []


def _rows(found: Comparison, curves: dict[str, list[EpsilonCurve]]) -> Rows:
    rows: Rows = [("plan", "step", "quantity", "method", "label", "lower", "value")]
    for row in found.rows:
        at = _at(row)
        for name, _, _ in _PANELS:
            values = _values(row, name, at).tolist()
            rows += [(row.name, k + 1, name, "", "", "", v) for k, v in zip(at.tolist(), values, strict=True)]
        for curve in curves[row.name]:
            rows += [(row.name, k, "epsilon", curve.method, curve.label, *b) for k, *b in points_of(curve)]
    return rows


def _draw_shapes(axes: Any, found: Comparison, name: str, title: str, says: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, row in enumerate(found.rows):
        at = _at(row)
        width = 0.5 + len(found.rows) - place  # wide below narrow, so that lines on top of each other are all seen
        axes.plot(at + 1, _values(row, name, at), color=COLOURS[place], solid_capstyle="butt", linewidth=width)
    axes.set(title=title, ylabel=says, xlabel="step", xlim=(0, None), ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _draw_epsilon(axes: Any, found: Comparison, curves: dict[str, list[EpsilonCurve]]) -> None:
    for place, row in enumerate(found.rows):
        colour = COLOURS[place]
        below = sum(curves[later.name] is curves[row.name] for later in found.rows[place + 1 :])  # drawn on top of it
        for curve in curves[row.name]:
            dash, width, _ = _STYLES[curve.method]
            steps, high = draw_band(axes, curve, colour=colour)
            axes.plot(steps, high, color=colour, linestyle=dash,
                      linewidth=width + (1.6 * below if curve.method == "pld" else 0.0))  # fmt: skip
    first = found.rows[0].plan.recipe
    if found.same_budget and first.solve != "epsilon":
        axes.axhline(first.budget.epsilon, color="#999999", linewidth=0.9, zorder=1)
    deltas = {row.plan.recipe.budget.delta for row in found.rows}
    where = f"delta = {deltas.pop():g}" if len(deltas) == 1 else "each plan's delta"
    axes.set(title="Privacy spent after each step", ylabel=f"epsilon at {where}", xlabel="step", xlim=(0, None),
             ylim=(0, None))  # fmt: skip
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _add_legends(axes: Any, found: Comparison, curves: dict[str, list[EpsilonCurve]]) -> None:
    """On top the plans with their estimates; in the panel what each line style proves."""
    from matplotlib.lines import Line2D

    plans = [Line2D([], [], color=COLOURS[k], linewidth=3, label=_plan_name(row)) for k, row in enumerate(found.rows)]
    kinds = [
        Line2D([], [], color="#333333", linestyle=dash, linewidth=width, label=f"{label}: {says}")
        for name, (dash, width, says) in _STYLES.items()
        if (label := " or ".join(sorted({c.label for one in curves.values() for c in one if c.method == name})))
    ]
    if found.same_budget and found.rows[0].plan.recipe.solve != "epsilon":
        kinds.append(Line2D([], [], color="#999999", linewidth=0.9, label="the budget"))
    axes.legend(handles=kinds, loc="lower right", frameon=True, framealpha=0.9, edgecolor="none")
    axes.figure.legend(handles=plans, loc="outside upper left", ncols=min(len(plans), 3), title=_title(found),
                       title_fontsize=12, alignment="left", columnspacing=3, fontsize=10)  # fmt: skip


def _plan_name(row: Row) -> str:
    if row.plan.is_unsound:
        return f"{row.name}\nno guarantee: epsilon is a claim"
    return row.name if row.utility is None else f"{row.name}\nutility {row.utility.utility:.3f} (estimate)"


def _title(found: Comparison) -> str:
    budget = found.rows[0].plan.recipe.budget
    if not found.same_budget:
        return "Plans side by side. Their budgets differ: less noise is no merit"
    if found.rows[0].plan.recipe.solve == "epsilon":
        return "Plans side by side"
    return f"Plans of one budget: epsilon {budget.epsilon:g} at delta {budget.delta:g}"


# --- the frontier -----------------------------------------------------------------------------------
def save_frontier(found: Frontier, path: Path) -> None:
    """Draw the noise multiplier (left) and what it means for the averaged gradient (right); a .csv has the numbers."""
    if is_csv(path):
        closed = ("closed_noise", "closed_epsilon", "closed_holds")
        head = (*_COLUMNS, "epsilon_lower", "epsilon", "label", "frontier", *closed, "why")
        write(path, [head, *(_frontier_row(found, cell) for cell in found.cells)])
        return
    with drawing(path, 10, 4.4) as figure:
        left, right = figure.subplots(1, 2)
        _draw_noise(left, found)
        _draw_std(right, found)
        budget = found.budget
        labels = sorted({cell.guarantee.label for cell in found.cells if cell.guarantee is not None})
        figure.suptitle(
            f"Planning ahead: epsilon {budget.epsilon:g} ({' or '.join(labels)}) at delta {budget.delta:g}, "
            f"{found.dataset_size:,} records" + (f", {found.method}" if found.method else ""),
            fontsize=11, x=0.01, ha="left",
        )  # fmt: skip
        handles, names = left.get_legend_handles_labels()  # one legend for both; the limit is in the right alone
        handles, names = [*handles, right.get_legend_handles_labels()[0][-1]], [*names, "full batch"]
        figure.legend(handles, names, loc="outside lower left", ncols=4, columnspacing=1.6)


def _draw_noise(axes: Any, found: Frontier) -> None:
    for batch in found.batches:
        _draw_line(axes, found, batch, "noise_multiplier")
    axes.plot([], [], label="frontier", **_RING)
    moves = any(cell.noise_multiplier != cell.noise_last for cell in found.cells)
    said = "for constant noise" if moves else "too little for points above it"
    axes.axhline(found.closed_noise, color=_CLAIM, linestyle="--", linewidth=1.2,
                 label=f"closed form {found.closed_noise:.4g} (claimed): {said}")  # fmt: skip
    _finish(axes, "Noise that the budget asks for", "noise multiplier" + (" of the first step" if moves else ""))


def _draw_std(axes: Any, found: Frontier) -> None:
    for batch in found.batches:
        _draw_line(axes, found, batch, "std")
    # std * signal does not depend on height or batch: it is the std of the same shapes on full batches.
    limit = {c.steps: c.std * c.signal for c in found.cells if c.std is not None and c.signal is not None}
    rounds = sorted(limit)
    axes.plot(rounds, [limit[steps] for steps in rounds], color=_LIMIT, linestyle=":", linewidth=1.4, zorder=1,
              label="full batch")  # fmt: skip
    _finish(axes, "Noise in the averaged gradient", "noise · clip / batch")


def _draw_line(axes: Any, found: Frontier, batch: float, quantity: str) -> None:
    cells = [cell for cell in found.row(batch) if cell.noise_multiplier is not None]
    rank = found.batches.index(batch) / max(1, len(found.batches) - 1)
    colour = tuple(a + (b - a) * rank for a, b in zip(_LIGHT, _DARK, strict=True))
    axes.plot(
        [cell.steps for cell in cells], [getattr(cell, quantity) for cell in cells], color=colour, linewidth=1.6,
        marker="o", markersize=3.5, label=f"batch {batch:,g}",
    )  # fmt: skip
    best = [cell for cell in cells if cell.frontier]
    axes.plot([cell.steps for cell in best], [getattr(cell, quantity) for cell in best], **_RING)


def _finish(axes: Any, title: str, name: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="rounds (steps T)", ylabel=name)
    axes.set_title(title, loc="left", fontsize=9.5)
    _number(axes.xaxis, axes.get_xlim(), "{x:,.0f}")
    _number(axes.yaxis, axes.get_ylim(), "{x:,g}")


def _number(axis: Any, ends: tuple[float, float], style: str) -> None:
    """Numbers on a logarithmic axis that may span a fraction of a decade or many."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    span = ends[1] / ends[0]
    axis.set_minor_locator(NullLocator())
    if span < 8:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    elif span < 300:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(style)


def _frontier_row(found: Frontier, cell: FrontierPoint) -> tuple[object, ...]:
    proven, closed = cell.guarantee, cell.closed
    bounds = ("", "", "") if proven is None else (_cell(proven.epsilon_lower), proven.epsilon, proven.label)
    return (
        *(_cell(getattr(cell, name)) for name in _COLUMNS), *bounds, cell.frontier, found.closed_noise,
        "" if closed is None else closed.epsilon, _cell(cell.holds), cell.why,
    )  # fmt: skip


def _cell(value: object) -> object:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
