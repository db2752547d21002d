"""Figures by matplotlib: epsilon over the steps, what an attacker can achieve and has achieved, trials of a tuning.

What every figure shares stands here: colours and style, the kinds of file, and how they are written. Each line has its
label. matplotlib is loaded when used.
"""

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privet import _check
from privet._files import write_file
from privet._text import format_bound, format_count, format_outward, shorten
from privet.accounting import EpsilonCurve
from privet.accounting.tradeoff import Gaussian, Tradeoff
from privet.errors import InvalidValue, MissingExtra

if TYPE_CHECKING:
    from privet.attacks.attack import AttackReport
    from privet.attacks.membership import Membership
    from privet.attacks.outcome import Outcome
    from privet.tuning.folder import Trial

Floats = NDArray[np.float64]
Rows = list[tuple[object, ...]]
Candidate = Mapping[str, Any]

SUFFIXES = (".png", ".svg", ".pdf", ".csv")

# Blue, orange, green, purple: told apart in grey and by the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
STYLE = {  # the salt: the same figure is the same file
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False, "svg.hashsalt": "privet",
}  # fmt: skip
MOST_LINES = len(COLOURS)
MOST_TICKS = 12
MARKS = "os^Dvp"
MOST_ROWS = 24
NOT_PRIVATE = "not private: shows a training record"


def check_path(path: Path, *, option: str = "path") -> None:
    """Raise unless a figure can be written at `path`; asked before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidValue(f"{option}={str(path)!r} must end in {', '.join(SUFFIXES)}.")
    _check.writable(path, name=option)
    if not is_csv(path):
        pyplot()


def is_csv(path: Path) -> bool:
    """Whether the numbers are asked for, and no drawing."""
    return path.suffix.lower() == ".csv"


def write(path: Path, rows: Sequence[tuple[object, ...]]) -> None:
    text = io.StringIO(newline="")
    with _refusal(path):
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_file(path, text.getvalue().encode())


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix."""
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=160, metadata=metadata, format=path.suffix[1:].lower())
    with _refusal(path):
        write_file(path, drawn.getvalue())


@contextmanager
def _refusal(path: Path) -> Iterator[None]:
    """What the system says of a file that cannot be written, in one line."""
    try:
        yield
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be written: {error.strerror}.") from None


@contextmanager
def drawing(path: Path, *size: float) -> Iterator[Any]:
    """A figure of so many inches in our style, written at the end."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=size, layout="constrained")
        yield figure
        save(figure, path)
        plt.close(figure)


def pyplot() -> Any:
    """matplotlib.pyplot, without a screen; raises MissingExtra if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matplotlib's own dependencies deprecate is not the user's matter
            import matplotlib

            matplotlib.use("Agg")
            import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("matplotlib is not installed. Figures need it. Run: pip install 'privet[plots]'") from None
    return plt


def look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}


# --- epsilon over the steps -------------------------------------------------------------------------
def save_epsilon(
    curves: Sequence[EpsilonCurve], path: Path, *, delta: float, noise: Floats | None = None,
    starts: Floats | None = None,
) -> None:  # fmt: skip
    """Epsilon over the steps: lower and upper bound as a band, the others as lines, each with its label.

    Args:
        noise: if it changes, it is drawn below on the same steps: `noise[k]` holds from step `starts[k]` on.
    """
    if is_csv(path):
        head = ("step", "method", "label", "epsilon_lower", "epsilon")
        write(path, [head, *((step, c.method, c.label, *b) for c in curves for step, *b in points_of(c))])
        return
    below = None if noise is None or starts is None or len(noise) < 2 else (starts, noise)
    with drawing(path, 7, 4.0 if below is None else 5.2) as figure:
        ratios = [3] if below is None else [3, 1]
        axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios})
        top = axes[0, 0]
        for place, curve in enumerate(curves):
            _draw_curve(top, curve, place)
        top.set(ylabel=f"epsilon at delta = {delta:g}", title="Privacy spent after each step", ylim=(0, None))
        first = curves[0].upper  # past half its height by half its length: then the lower right is free
        top.legend(loc="lower right" if first[len(first) // 2] >= 0.5 * first[-1] else "upper left")
        if below is not None:
            starts, noise = below
            x, y = np.append(starts, float(curves[0].steps[-1])), np.append(noise, noise[-1])
            axes[1, 0].plot(x, y, color="#444444", linewidth=1.2, drawstyle="steps-post")
            axes[1, 0].set(ylabel="noise multiplier", ylim=(0, None))
        axes[-1, 0].set(xlabel="step", xlim=(0, None))
        axes[-1, 0].xaxis.set_major_formatter("{x:,.0f}")


def _draw_curve(axes: Any, curve: EpsilonCurve, place: int) -> None:
    name = f"{curve.label}: {curve.method}"
    steps, high = draw_band(axes, curve, colour=COLOURS[place % len(COLOURS)])
    if curve.lower is not None:
        thin = np.all(curve.upper - curve.lower <= 0.004 * curve.upper.max())
        said = "lower and upper bound, closer than the line is wide" if thin else "band from lower to upper bound"
        name += f" ({said})"
    axes.plot(steps, high, linewidth=1.6, label=name, **look(place))


def draw_band(axes: Any, curve: EpsilonCurve, *, colour: str) -> tuple[NDArray[np.int64], Floats]:
    """Fill what lies between the bounds; returns the upper as stairs, which a straight line would cut below."""
    steps, low, high = curve.step_points()
    if curve.lower is not None:
        axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    return steps, high


def points_of(curve: EpsilonCurve) -> Rows:
    """(step, lower bound or nothing, upper bound) of each point."""
    lower = [""] * len(curve.steps) if curve.lower is None else curve.lower.tolist()
    return list(zip(curve.steps.tolist(), lower, curve.upper.tolist(), strict=True))


# --- trade-off --------------------------------------------------------------------------------------
def save_tradeoff(curves: Sequence[Tradeoff | Gaussian], path: Path) -> None:
    """What an attacker can achieve at best: errors on the left, power at small false-positive rates on the right."""
    alpha = np.unique(np.concatenate((np.linspace(0, 1, 201), np.logspace(-6, 0, 121))))
    if is_csv(path):
        rows: Rows = [("false_positive_rate", "method", "label", "least_false_negative_rate")]
        for c in curves:
            rows += [(a, c.method, c.label, b) for a, b in zip(alpha.tolist(), c(alpha).tolist(), strict=True)]
        write(path, rows)
        return
    with drawing(path, 8.4, 4.0) as figure:
        left, right = figure.subplots(1, 2)
        left.plot([0, 1], [1, 0], color="#999999", linewidth=1, linestyle=":", label="guessing")
        right.plot(alpha[1:], alpha[1:], color="#999999", linewidth=1, linestyle=":", label="guessing")
        for place, curve in enumerate(curves):
            left.plot(alpha, curve(alpha), label=f"{curve.label}: {curve.method}", **look(place))
            right.plot(alpha[1:], 1 - curve(alpha[1:]), label=f"{curve.label}: {curve.method}", **look(place))
        left.set(xlabel="false alarms (type I error)", ylabel="misses (type II error), at least",
                 title="Was this record used?", xlim=(0, 1), ylim=(0, 1))  # fmt: skip
        right.set(xlabel="false-positive rate", ylabel="true-positive rate, at most", xscale="log", yscale="log",
                  title="The attacker's best power", xlim=(1e-6, 1), ylim=(1e-6, 1.2))  # fmt: skip
        left.legend(loc="upper right")


# --- trials of a tuning -----------------------------------------------------------------------------
def save_trials(
    trials: Sequence["Trial"], path: Path, *, measure: str, higher_is_better: bool, title: str, note: str
) -> None:
    """Every trial's score against lr, or the first setting that was tuned; a colour for each clip, or the next setting.

    A line joins the best scores, if there are but a few numbers across. `note` says what the scores are; a CSV has one
    row for each trial.
    """
    if is_csv(path):
        keys = tuple(trials[0].candidate)
        rows: Rows = [("trial", *keys, measure, "scored")]
        rows += [(t.number, *(t.candidate[k] for k in keys), "" if t.score is None else t.score, note) for t in trials]
        write(path, rows)
        return
    seen = [t for t in trials if t.score is not None]
    if not seen:
        raise InvalidValue(f"{path}: no trial has a finite score. There is nothing to draw. Lower the learning rates.")
    across, along = tuned_axes([t.candidate for t in seen])
    best = max if higher_is_better else min
    with drawing(path, 7, 4.2) as figure:
        axes = figure.subplots()
        place, joined = _place(axes, [t.candidate[across] for t in seen])
        groups = [None] if along is None else list(dict.fromkeys(t.candidate[along] for t in seen))
        for number, group in enumerate(groups):
            points = [(place[t.candidate[across]], t.score or 0.0) for t in seen
                      if along is None or t.candidate[along] == group]  # fmt: skip
            _draw_group(axes, points, number, label=None if along is None else f"{along} {_short(group)}",
                  best=best if joined else None)  # fmt: skip
        top = best(seen, key=lambda t: t.score or 0.0)
        axes.plot([place[top.candidate[across]]], [top.score], "o", markersize=11, markerfacecolor="none",
                  markeredgecolor="#222222", linestyle="none", label="chosen")  # fmt: skip
        axes.set(xlabel=across, ylabel=measure, title=title)
        figure.legend(loc="outside right upper")
        figure.supxlabel(note, fontsize=7, color="#666666")


def tuned_axes(candidates: Sequence[Candidate]) -> tuple[str, str | None]:
    """(the setting across, the one that has a line for each value): lr and clip where they were tuned.

    >>> tuned_axes([{"clipping_norm": 1.0, "lr": 0.1}, {"clipping_norm": 2.0, "lr": 0.2}])
    ('lr', 'clipping_norm')
    """
    tuned = {key: len({c[key] for c in candidates}) for key in candidates[0]}
    across = "lr" if tuned.get("lr", 0) > 1 else max(tuned, key=lambda key: tuned[key])
    rest = [key for key in sorted(tuned, key=lambda key: key != "clipping_norm") if key != across]
    along = next((key for key in rest if 1 < tuned[key] <= MOST_LINES), None)
    return across, along


def _place(axes: Any, given: Sequence[Any]) -> tuple[dict[Any, float], bool]:
    """(where each value lies, whether a line may join them): words side by side, numbers by factors if they are far."""
    values = sorted(set(given), key=lambda v: (isinstance(v, str), v))
    numeric = not any(isinstance(v, str) for v in values)
    place = {v: float(v if numeric else k) for k, v in enumerate(values)}
    if numeric and min(values) > 0 and max(values) >= 5 * min(values):
        axes.set_xscale("log")
    if len(values) <= MOST_TICKS:
        axes.set_xticks(list(place.values()), [_short(v) for v in values])
        axes.minorticks_off()
    return place, numeric and len(values) <= MOST_TICKS


def _draw_group(
    axes: Any, points: Sequence[tuple[float, float]], number: int, *, label: str | None,
    best: Callable[[Iterable[float]], float] | None,
) -> None:  # fmt: skip
    mark = MARKS[number % MOST_LINES]
    axes.plot(
        *zip(*points, strict=True), mark, color=COLOURS[number % MOST_LINES], markersize=4.5, alpha=0.75, label=label
    )
    if best is not None:
        line = [(x, best(y for at, y in points if at == x)) for x in sorted({x for x, _ in points})]
        axes.plot(*zip(*line, strict=True), linewidth=1.4, **look(number))


def _short(given: object) -> str:
    return f"{given:g}" if isinstance(given, float) else shorten(str(given), 24)


# --- attacks ----------------------------------------------------------------------------------------
def save_grid(found: "AttackReport", path: Path) -> None:
    """Draw the first victim: its image, then what each attack made of its update after so many iterations.

    A .csv has the measures of every row.
    """
    check_path(path)
    if is_csv(path):
        lines = [outcome.as_dict() for outcome in found.outcomes]
        flat = [{key: value for key, value in line.items() if not isinstance(value, dict)} for line in lines]
        write(path, [tuple(flat[0]), *(tuple(line.values()) for line in flat)])
        return
    moving = [outcome for outcome in found.outcomes if "0" in outcome.frames]  # others have an end and no way to it
    shown = (moving or list(found.outcomes))[:MOST_ROWS]
    columns = _columns(shown)
    with drawing(path, 1.02 * (len(columns) + 1) + 2.2, 1.02 * len(shown) + 0.9) as figure:
        axes = figure.subplots(len(shown), len(columns) + 1, squeeze=False)
        for row, outcome in zip(axes, shown, strict=True):
            _draw_row(row, outcome, found.truth, columns)
        titles = {"0": "seed", "end": "at the end", "control": "control:\nnoise alone"}
        heads = [titles.get(word, f"{word} iterations") for word in columns]
        for place, word in zip(axes[0], ["true image", *heads], strict=True):
            place.set_title(word, fontsize=8)
        victims = format_count(found.settings["examples"], "victim", commas=True)
        update = f"one update of {format_count(found.settings['batch_size'], 'unknown record', commas=True)}"
        figure.suptitle(f"{found.task}: one of {victims}, rebuilt from {update}", fontsize=9)
        figure.supxlabel(NOT_PRIVATE, fontsize=8, color="#a4133c", fontweight="bold")


def _columns(shown: Sequence["Outcome"]) -> list[str]:
    """The frames in order: iterations that some of them reached, the end, the control."""
    numbers = {int(word) for o in shown for word in o.frames if word.isdigit() and int(word) <= o.iterations}
    return [*map(str, sorted(numbers)), "end", "control"]


def _draw_row(axes: Any, outcome: "Outcome", truth: Any, columns: list[str]) -> None:
    pictures = [truth, *(outcome.frames.get(word) for word in columns)]
    for place, picture in zip(axes, pictures, strict=True):
        place.set_xticks([])
        place.set_yticks([])
        place.grid(visible=False)
        for side in place.spines.values():
            side.set_visible(picture is not None)
            side.set_color("#bbbbbb")
        if picture is not None:
            pixels = np.asarray(picture, dtype=np.uint8)
            place.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=255)
    noise = "no noise"  # else what was added, and to what at most, on the safe side
    if outcome.noise_multiplier is not None:
        bound = "" if outcome.clipping_norm is None else f"C {format_bound(outcome.clipping_norm, up=True, digits=4)}, "
        noise = f"{bound}σ {format_bound(outcome.noise_multiplier, up=False, digits=3)}"
    low, high = outcome.limits
    text = (
        f"{outcome.method}, step {outcome.when}\n{outcome.attack}; {noise}\n"
        f"success − control {outcome.difference:+.2f}\n[{low:+.2f}, {high:+.2f}]"
    )
    axes[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=7, labelpad=6)


# --- membership -------------------------------------------------------------------------------------
def save_roc(found: "list[Membership]", path: Path) -> None:
    """Draw how often members are found against false alarms, on a logarithmic scale, under what the plan allows.

    A .csv has the points of every line.
    """
    check_path(path)
    if is_csv(path):
        points = [
            (one.method, score.attack, float(a), float(b))
            for one in found for score in one.scores for a, b in zip(*score.roc, strict=True)
        ]  # fmt: skip
        write(path, [("method", "attack", "false_positive_rate", "true_positive_rate"), *points])
        return
    with drawing(path, 4.4 * len(found), 4.2) as figure:
        axes = figure.subplots(1, len(found), squeeze=False)
        for place, one in zip(axes[0], found, strict=True):
            _draw_roc(place, one)
        axes[0][0].set_ylabel("true-positive rate: members found")


def _draw_roc(axes: Any, one: "Membership") -> None:
    least = min(float(score.roc[0][score.roc[0] > 0].min()) for score in one.scores)  # no trial tells less
    rates = np.geomspace(least, 1, 200)
    for number, score in enumerate(one.scores):
        false, true = score.roc
        axes.plot(
            np.maximum(false, least), np.maximum(true, least), color=COLOURS[number],
            ls=DASHES[number], label=score.attack, drawstyle="steps-post",
        )  # fmt: skip
    if one.curve is not None:
        axes.plot(rates, 1 - one.curve(rates), color="#333333", lw=1.8, label="ceiling (certified)")
    axes.plot(rates, rates, color="#999999", lw=0.8, ls=":", label="a coin")
    axes.set(
        xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05), xlabel="false-positive rate",
        title=f"{one.method}\n{_cost(one)}",
    )  # fmt: skip
    axes.title.set_fontsize(8)
    axes.set_aspect("equal")
    axes.legend(loc="lower right", fontsize=7)


def _cost(one: "Membership") -> str:
    if one.guarantee is None:
        return "no guarantee"
    g = one.guarantee
    return f"epsilon <= {format_outward(g.epsilon, up=True, digits=3)} at delta {g.delta_text} ({g.label})"
