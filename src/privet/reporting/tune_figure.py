"""A figure of a tuning: the score of every trial against one setting, a line for each value of another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from privet._registry import shortened
from privet.errors import InvalidValue
from privet.reporting.drawing import COLOURS, DASHES, STYLE, pyplot, save, write

MOST_LINES = len(COLOURS)
MOST_TICKS = 12
MARKS = "os^Dvp"
Candidate = Mapping[str, Any]


class Trial(Protocol):
    """A candidate and its score."""

    @property
    def number(self) -> int: ...
    @property
    def candidate(self) -> Candidate: ...
    @property
    def score(self) -> float | None: ...


def save_trials(
    trials: Sequence[Trial], path: Path, *, measure: str, higher_is_better: bool, title: str, note: str
) -> None:
    """Every trial's score against lr, or the first setting that was tuned; a colour for each clip, or the next setting.

    A line joins the best scores, if there are but a few numbers across. `note` says what the scores are; a CSV has one
    row for each trial.
    """
    if path.suffix.lower() == ".csv":
        write(path, _rows(trials, measure, note))
        return
    seen = [t for t in trials if t.score is not None]
    if not seen:
        raise InvalidValue(f"{path}: no trial has a finite score. There is nothing to draw. Lower the learning rates.")
    across, along = axes_of([t.candidate for t in seen])
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
        place, joined = _scaled(axes, [t.candidate[across] for t in seen])
        groups = [None] if along is None else list(dict.fromkeys(t.candidate[along] for t in seen))
        for number, group in enumerate(groups):
            points = [(place[t.candidate[across]], t.score or 0.0) for t in seen
                      if along is None or t.candidate[along] == group]  # fmt: skip
            _draw(axes, points, number, label=None if along is None else f"{along} {_short(group)}",
                  best=(max if higher_is_better else min) if joined else None)  # fmt: skip
        top = (max if higher_is_better else min)(seen, key=lambda t: t.score or 0.0)
        axes.plot([place[top.candidate[across]]], [top.score], "o", markersize=11, markerfacecolor="none",
                  markeredgecolor="#222222", linestyle="none", label="chosen")  # fmt: skip
        axes.set(xlabel=across, ylabel=measure, title=title)
        figure.legend(loc="outside right upper")
        figure.supxlabel(note, fontsize=7, color="#666666")
        save(figure, path)
        plt.close(figure)


def _rows(trials: Sequence[Trial], measure: str, note: str) -> list[tuple[object, ...]]:
    keys = list(trials[0].candidate)
    rows: list[tuple[object, ...]] = [("trial", *keys, measure, "scored")]
    for t in trials:
        rows.append((t.number, *(t.candidate[key] for key in keys), "" if t.score is None else t.score, note))
    return rows


def axes_of(candidates: Sequence[Candidate]) -> tuple[str, str | None]:
    """(the setting across, the one that has a line for each value): lr and clip where they were tuned.

    >>> axes_of([{"clip": 1.0, "lr": 0.1, "batch": 10}, {"clip": 2.0, "lr": 0.2, "batch": 10}])
    ('lr', 'clip')
    """
    tuned = {key: len({c[key] for c in candidates}) for key in candidates[0]}
    across = "lr" if tuned.get("lr", 0) > 1 else max(tuned, key=lambda key: tuned[key])
    rest = [key for key in sorted(tuned, key=lambda key: key != "clip") if key != across]
    along = next((key for key in rest if 1 < tuned[key] <= MOST_LINES), None)
    return across, along


def _scaled(axes: Any, given: Sequence[Any]) -> tuple[dict[Any, float], bool]:
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


def _draw(
    axes: Any, points: Sequence[tuple[float, float]], number: int, *, label: str | None,
    best: Callable[[Iterable[float]], float] | None,
) -> None:  # fmt: skip
    colour = COLOURS[number % MOST_LINES]
    mark = MARKS[number % MOST_LINES]
    axes.plot(*zip(*points, strict=True), mark, color=colour, markersize=4.5, alpha=0.75, label=label)
    if best is not None:
        line = [(x, best(y for at, y in points if at == x)) for x in sorted({x for x, _ in points})]
        axes.plot(*zip(*line, strict=True), color=colour, linestyle=DASHES[number % len(DASHES)], linewidth=1.4)


def _short(given: object) -> str:
    return f"{given:g}" if isinstance(given, float) else shortened(str(given), 24)
