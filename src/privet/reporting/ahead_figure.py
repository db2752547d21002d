"""The plan-ahead figure: how much noise a fixed budget asks for, against the rounds, a line for each batch size."""

import math
from pathlib import Path
from typing import Any

from privet.planning.ahead import Cell, Frontier
from privet.reporting import drawing

# From light to dark: a batch is an amount, so its colour is too; the palette's blue is the middle.
_LIGHT, _DARK = (0.55, 0.78, 0.92), (0.02, 0.18, 0.36)
_CLAIM, _LIMIT = "#D55E00", "#777777"
_RING: dict[str, Any] = {
    "linestyle": "none", "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": "black",
    "markeredgewidth": 1.1, "zorder": 4,
}  # fmt: skip
_COLUMNS = ("steps", "batch", "epochs", "noise", "noise_last", "std", "signal")


def save_ahead(found: Frontier, path: Path) -> None:
    """Draw the noise multiplier (left) and what it means for the averaged gradient (right); a .csv has the numbers."""
    if path.suffix.lower() == ".csv":
        drawing.write(path, _rows(found))
        return
    plt = drawing.pyplot()
    with plt.rc_context(drawing.STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
        _draw_noise(left, found)
        _draw_std(right, found)
        budget = found.budget
        figure.suptitle(
            f"Planning ahead: epsilon {budget.epsilon:g} ({_label(found)}) at delta {budget.delta:g}, "
            f"{found.size:,} records" + (f", {found.method}" if found.method else ""),
            fontsize=11, x=0.01, ha="left",
        )  # fmt: skip
        _add_legend(figure, left, right)
        drawing.save(figure, path)
        plt.close(figure)


def _draw_noise(axes: Any, found: Frontier) -> None:
    for batch in found.batches:
        _draw_line(axes, found, batch, "noise")
    axes.plot([], [], label="frontier", **_RING)
    moves = any(cell.noise != cell.noise_last for cell in found.cells)
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
    cells = [cell for cell in found.row(batch) if cell.noise is not None]
    colour = _shade(found, batch)
    axes.plot(
        [cell.steps for cell in cells], [getattr(cell, quantity) for cell in cells], color=colour, linewidth=1.6,
        marker="o", markersize=3.5, label=f"batch {batch:,g}",
    )  # fmt: skip
    best = [cell for cell in cells if cell.frontier]
    axes.plot(
        [cell.steps for cell in best], [getattr(cell, quantity) for cell in best], **_RING
    )  # fmt: skip


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


def _add_legend(figure: Any, left: Any, right: Any) -> None:
    """One legend for both: the batches, the frontier, the closed form, and the limit, which only the right has."""
    handles, names = left.get_legend_handles_labels()
    handles, names = [*handles, right.get_legend_handles_labels()[0][-1]], [*names, "full batch"]
    figure.legend(handles, names, loc="outside lower left", ncols=4, columnspacing=1.6)


def _shade(found: Frontier, batch: float) -> tuple[float, ...]:
    """Between light and dark, by the rank of the batch."""
    rank = found.batches.index(batch) / max(1, len(found.batches) - 1)
    return tuple(a + (b - a) * rank for a, b in zip(_LIGHT, _DARK, strict=True))


def _label(found: Frontier) -> str:
    labels = {cell.guarantee.label for cell in found.cells if cell.guarantee is not None}
    return " or ".join(sorted(labels))


def _rows(found: Frontier) -> list[tuple[object, ...]]:
    closed = ("closed_noise", "closed_epsilon", "closed_holds")
    head = (*_COLUMNS, "epsilon_lower", "epsilon", "label", "frontier", *closed, "why")
    return [head, *(_row(found, cell) for cell in found.cells)]


def _row(found: Frontier, cell: Cell) -> tuple[object, ...]:
    proven, closed = cell.guarantee, cell.closed
    bounds = ("", "", "") if proven is None else (_cell(proven.epsilon_lower), proven.epsilon, proven.label)
    return (
        *(_cell(getattr(cell, name)) for name in _COLUMNS), *bounds, cell.frontier, found.closed_noise,
        "" if closed is None else closed.epsilon, _cell(cell.holds), cell.why,
    )  # fmt: skip


def _cell(value: object) -> object:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
