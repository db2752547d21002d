"""Figures of attacks: what was rebuilt after so many iterations, and how often members are found."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privet._text import format_bound, format_count, format_outward
from privet.attacks.outcome import Outcome
from privet.reporting import figures

if TYPE_CHECKING:
    from privet.attacks.attack import AttackReport
    from privet.attacks.membership import Membership

MOST_ROWS = 24
MARK = "not private: shows a training record"


def save_grid(found: "AttackReport", path: Path) -> None:
    """Draw the first victim: its image, then what each attack made of its update after so many iterations.

    A .csv has the measures of every row.
    """
    figures.check_path(path)
    if figures.is_csv(path):
        lines = [outcome.as_dict() for outcome in found.outcomes]
        flat = [{key: value for key, value in line.items() if not isinstance(value, dict)} for line in lines]
        figures.write(path, [tuple(flat[0]), *(tuple(line.values()) for line in flat)])
        return
    moving = [outcome for outcome in found.outcomes if "0" in outcome.frames]  # others have an end and no way to it
    shown = (moving or list(found.outcomes))[:MOST_ROWS]
    columns = _columns(shown)
    with figures.drawing(path, 1.02 * (len(columns) + 1) + 2.2, 1.02 * len(shown) + 0.9) as figure:
        axes = figure.subplots(len(shown), len(columns) + 1, squeeze=False)
        for row, outcome in zip(axes, shown, strict=True):
            _draw_row(row, outcome, found.truth, columns)
        titles = {"0": "seed", "end": "at the end", "control": "control:\nnoise alone"}
        heads = [titles.get(word, f"{word} iterations") for word in columns]
        for place, word in zip(axes[0], ["true image", *heads], strict=True):
            place.set_title(word, fontsize=8)
        victims = format_count(found.settings["examples"], "victim", commas=True)
        update = f"one update of {format_count(found.settings['batch'], 'unknown record', commas=True)}"
        figure.suptitle(f"{found.task}: one of {victims}, rebuilt from {update}", fontsize=9)
        figure.supxlabel(MARK, fontsize=8, color="#a4133c", fontweight="bold")


def _columns(shown: Sequence[Outcome]) -> list[str]:
    """The frames in order: iterations that some of them reached, the end, the control."""
    numbers = {int(word) for o in shown for word in o.frames if word.isdigit() and int(word) <= o.iterations}
    return [*map(str, sorted(numbers)), "end", "control"]


def _draw_row(axes: Any, outcome: Outcome, truth: Any, columns: list[str]) -> None:
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
    if outcome.noise is not None:
        bound = "" if outcome.clip is None else f"C {format_bound(outcome.clip, up=True, digits=4)}, "
        noise = f"{bound}σ {format_bound(outcome.noise, up=False, digits=3)}"
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
    figures.check_path(path)
    if figures.is_csv(path):
        points = [
            (one.method, score.attack, float(a), float(b))
            for one in found for score in one.scores for a, b in zip(*score.roc, strict=True)
        ]  # fmt: skip
        figures.write(path, [("method", "attack", "false_positive_rate", "true_positive_rate"), *points])
        return
    with figures.drawing(path, 4.4 * len(found), 4.2) as figure:
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
            np.maximum(false, least), np.maximum(true, least), color=figures.COLOURS[number],
            ls=figures.DASHES[number], label=score.attack, drawstyle="steps-post",
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
