"""Figures: epsilon over the steps, and what an attacker can achieve. Each line has its label.

matplotlib is loaded when used.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privet.reporting.drawing import COLOURS, DASHES, STYLE, pyplot, save, write

Floats = NDArray[np.float64]


class Curve(Protocol):
    """Epsilon after some of the steps of a run, by one method."""

    @property
    def steps(self) -> NDArray[np.int64]: ...
    @property
    def lower(self) -> Floats | None: ...
    @property
    def upper(self) -> Floats: ...
    @property
    def method(self) -> str: ...
    @property
    def label(self) -> str: ...
    def stairs(self) -> tuple[NDArray[np.int64], Floats, Floats]: ...


class Tradeoff(Protocol):
    """The least type II error at each type I error, by one method."""

    @property
    def method(self) -> str: ...
    @property
    def label(self) -> str: ...
    def __call__(self, alpha: ArrayLike, /) -> Floats: ...


def save_epsilon(
    curves: Sequence[Curve],
    path: Path,
    *,
    delta: float,
    noise: Floats | None = None,
    starts: Floats | None = None,
) -> None:
    """Epsilon over the steps: lower and upper bound as a band, the others as lines, each with its label.

    Args:
        noise: if it changes, it is drawn below on the same steps: `noise[k]` holds from step `starts[k]` on.
    """
    if path.suffix.lower() == ".csv":
        write(path, _epsilon_rows(curves))
        return
    plt = pyplot()
    dynamic = noise is not None and starts is not None and len(noise) > 1
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            2 if dynamic else 1, 1, figsize=(7, 5.2 if dynamic else 4.0), sharex=True, squeeze=False,
            gridspec_kw={"height_ratios": [3, 1]} if dynamic else None, layout="constrained",
        )  # fmt: skip
        top = axes[0, 0]
        for place, curve in enumerate(curves):
            _draw(top, curve, place)
        top.set(ylabel=f"epsilon at delta = {delta:g}", title="Privacy spent after each step", ylim=(0, None))
        top.legend(loc="lower right" if _concave(curves) else "upper left")
        if dynamic:
            assert noise is not None
            assert starts is not None
            last = float(curves[0].steps[-1])
            axes[1, 0].plot(np.append(starts, last), np.append(noise, noise[-1]), color="#444444",
                            linewidth=1.2, drawstyle="steps-post")  # fmt: skip
            axes[1, 0].set(ylabel="noise multiplier", ylim=(0, None))
        axes[-1, 0].set(xlabel="step", xlim=(0, None))
        axes[-1, 0].xaxis.set_major_formatter("{x:,.0f}")
        save(figure, path)
        plt.close(figure)


def save_tradeoff(curves: Sequence[Tradeoff], path: Path) -> None:
    """What an attacker can achieve at best: errors on the left, power at small false-positive rates on the right."""
    alpha = np.unique(np.concatenate((np.linspace(0, 1, 201), np.logspace(-6, 0, 121))))
    if path.suffix.lower() == ".csv":
        rows: list[tuple[object, ...]] = [("false_positive_rate", "method", "label", "least_false_negative_rate")]
        rows += [
            (a, c.method, c.label, b) for c in curves for a, b in zip(alpha.tolist(), c(alpha).tolist(), strict=True)
        ]
        write(path, rows)
        return
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 4.0), layout="constrained")
        left.plot([0, 1], [1, 0], color="#999999", linewidth=1, linestyle=":", label="guessing")
        right.plot(alpha[1:], alpha[1:], color="#999999", linewidth=1, linestyle=":", label="guessing")
        for place, curve in enumerate(curves):
            style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
            left.plot(alpha, curve(alpha), label=f"{curve.label}: {curve.method}", **style)
            right.plot(alpha[1:], 1 - curve(alpha[1:]), label=f"{curve.label}: {curve.method}", **style)
        left.set(xlabel="false alarms (type I error)", ylabel="misses (type II error), at least",
                 title="Was this record used?", xlim=(0, 1), ylim=(0, 1))  # fmt: skip
        right.set(xlabel="false-positive rate", ylabel="true-positive rate, at most", xscale="log", yscale="log",
                  title="The attacker's best power", xlim=(1e-6, 1), ylim=(1e-6, 1.2))  # fmt: skip
        left.legend(loc="upper right")
        save(figure, path)
        plt.close(figure)


def _draw(axes: Any, curve: Curve, place: int) -> None:
    name = f"{curve.label}: {curve.method}"
    colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
    steps, low, high = curve.stairs()  # a straight line between two points would lie below what is proven
    if curve.lower is not None:
        upper = np.asarray(curve.upper)
        thin = bool(np.all(upper - np.asarray(curve.lower) <= 0.004 * upper.max()))
        axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
        name += (
            " (lower and upper bound, closer than the line is wide)" if thin else " (band from lower to upper bound)"
        )
    axes.plot(steps, high, color=colour, linestyle=dash, linewidth=1.6, label=name)


def _concave(curves: Sequence[Curve]) -> bool:
    """Whether the first curve has passed half its height by half its length, so that the lower right is free."""
    upper = np.asarray(curves[0].upper)
    return bool(upper[len(upper) // 2] >= 0.5 * upper[-1])


def _epsilon_rows(curves: Sequence[Curve]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("step", "method", "label", "epsilon_lower", "epsilon")]
    for curve in curves:
        steps, upper = np.asarray(curve.steps).tolist(), np.asarray(curve.upper).tolist()
        lower = [""] * len(steps) if curve.lower is None else np.asarray(curve.lower).tolist()
        rows += [(s, curve.method, curve.label, a, b) for s, a, b in zip(steps, lower, upper, strict=True)]
    return rows
