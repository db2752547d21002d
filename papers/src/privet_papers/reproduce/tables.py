"""Tables of results: the published figure beside ours, as cells that the command line and the page share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean, stdev
from typing import Any

from privet.accounting.guarantee import format_outward
from privet_papers.reproduce.kinds import is_accounted
from privet_papers.reproduce.results import EXACT, Result
from privet_papers.reproduce.table_row import Row

WORDS = {
    "accuracy": "accuracy %", "rmse": "RMSE", "gdp mu": "CLT mu", "gdp epsilon": "CLT epsilon",
    "moments epsilon": "MA epsilon", "rdp epsilon": "Rényi epsilon", "pld epsilon": "tight epsilon",
    "least error sum": "least error sum %", "basic-wei epsilon": "BaseC epsilon",
    "advanced-wei epsilon": "AdvC epsilon", "optimal-wei epsilon": "OptC epsilon", "zcdp epsilon": "zCDP epsilon",
    "clipped epsilon": "upper bound if it were clipped, which it is not",
}  # fmt: skip
TIGHT = "pld epsilon"
_OF_THE_PAPER = "epsilon and mu, but the certified one: of the paper's steps, not of this run"
NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row and what came of it."""

    row: Row
    results: tuple[Result, ...]

    def ours(self, name: str) -> tuple[float, float | None, int] | None:
        """Mean, spread (the standard deviation; None for one) and number of a figure over the seeds."""
        values = [result.figures[name].value for result in self.results if name in result.figures]
        if not values:
            return None
        return fmean(values), stdev(values) if len(values) > 1 else None, len(values)

    def label(self, name: str) -> str | None:
        """What is proven of a figure of ours: that of an epsilon."""
        found = {result.figures[name].label for result in self.results if name in result.figures} - {None}
        return ", ".join(sorted(map(str, found))) or None

    @property
    def certified(self) -> tuple[float | None, float] | None:
        """(least lower or None, largest upper) of what is proven of the runs."""
        found = [result.certified for result in self.results if result.certified is not None]
        if not found:
            return None
        lowers = [low for low, _ in found if low is not None]
        return (min(lowers) if len(lowers) == len(found) else None), max(upper for _, upper in found)

    @property
    def seconds(self) -> float | None:
        """The mean time of a run."""
        return fmean(result.seconds for result in self.results) if self.results else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of its figures."""
        other = any(map(is_accounted, self.row.published)) and any(_is_other(one, self.row) for one in self.results)
        return (*self.row.notes, _OF_THE_PAPER) if other else self.row.notes

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        row, figures = self.row, dict.fromkeys([*self.row.published, *(n for r in self.results for n in r.figures)])
        ours = {name: self._plain(name) for name in figures}
        return {
            "key": row.key, "place": row.place, "kind": row.kind, "published": dict(row.published), "label": row.label,
            "ours": ours, "certified": None if self.certified is None else list(self.certified),
            "delta": next((r.delta for r in self.results), None), "claimed": _largest(r.claimed for r in self.results),
            "claimed_label": next((r.claimed_label for r in self.results if r.claimed is not None), None),
            "seconds": self.seconds, "steps": max((r.steps for r in self.results), default=None),
            "seeds": [r.seed for r in self.results], "chosen": next((r.chosen for r in self.results), {}),
            "tried": next((r.tried for r in self.results), []), "why": row.why, "notes": list(self.notes),
        }  # fmt: skip

    def _plain(self, name: str) -> dict[str, Any] | None:
        found = self.ours(name)
        if found is None:
            return None
        return dict(zip(("mean", "spread", "runs"), found, strict=True)) | {"label": self.label(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table as text: names of the columns, and a list of cells for each line."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def cells(lines: Sequence[Line]) -> Cells:
    """The lines of one table as text: each figure as `published / ours`, then what is certified, and the time."""
    figures = list(dict.fromkeys(name for line in lines for name in _figures(line)))
    if all(_says_it_twice(line) for line in lines):
        figures = [name for name in figures if name != TIGHT]
    proven = any(line.row.kind in ("trains", "federates") and line.results for line in lines)
    timed = any(line.row.is_trained and line.results for line in lines)
    names = ["row", *(f"{_heading(name, lines)} paper / ours" for name in figures)]
    names += ["certified epsilon"] if proven else []
    names += ["label of the paper's epsilon"] if any(line.row.label for line in lines) else []
    names += ["runs", "steps", "seconds"] if timed else []
    rows = []
    for line in lines:
        found = [line.row.name, *(_cell(line, name, labelled=len(_labels(name, lines)) > 1) for name in figures)]
        found += [_certified(line)] if proven else []
        found += [line.row.label or NONE] if any(other.row.label for other in lines) else []
        found += _timing(line) if timed else []
        rows.append(tuple(found))
    return Cells(names=tuple(names), rows=tuple(rows), notes=tuple(_notes(lines)))


def bar(words: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"


def _figures(line: Line) -> list[str]:
    ours = [name for result in line.results for name in result.figures]
    return list(dict.fromkeys([*line.row.published, *ours]))


def _says_it_twice(line: Line) -> bool:
    """Whether the tight epsilon of the row's recipe is what is certified of its runs anyway: in full runs it is."""
    ours = line.ours(TIGHT)
    return ours is None or (line.certified is not None and math.isclose(ours[0], line.certified[1], rel_tol=1e-6))


def _heading(name: str, lines: Sequence[Line]) -> str:
    """The name of a column; an epsilon of ours has its label here, or in each cell if they differ."""
    labels = _labels(name, lines)
    return WORDS.get(name, name) + (f" ({labels.pop()})" if len(labels) == 1 else "")


def _labels(name: str, lines: Sequence[Line]) -> set[str]:
    return {label for label in (line.label(name) for line in lines) if label is not None}


def _cell(line: Line, name: str, *, labelled: bool) -> str:
    published, ours = line.row.published.get(name), line.ours(name)
    if published is None and ours is None:
        return NONE
    left = NONE if published is None else f"{published:g}"
    label = line.label(name)
    right = NONE if ours is None else shown(name, *ours[:2])
    return f"{left} / {right}" + (f" ({label})" if labelled and label else "")


def shown(name: str, mean: float, spread: float | None = None) -> str:
    """A figure as text, to the safe side where it is a bound; `± spread` if there are several runs.

    >>> shown("pld epsilon", 0.83451), shown("accuracy", 93.7612, 0.2), shown("least error sum", 90.987)
    ('0.8346', '93.76 ± 0.20', '90.98')
    >>> shown("iterations", 9616.0)
    '9616'
    """
    if name.endswith(("epsilon", "least error sum")):
        return format_outward(mean, up=name.endswith("epsilon"), digits=4)
    if 0 < abs(mean) < 5e-4:
        return f"{mean:.1e}"
    places = 0 if name == "iterations" else 2 if abs(mean) >= 10 else 3
    return f"{mean:.{places}f}" + (f" ± {spread:.{places}f}" if spread else "")


def _certified(line: Line) -> str:
    if line.row.kind == "baseline":
        return "not private" if line.results else NONE
    found = line.certified
    if found is None:
        return "none: unsound" if line.results else NONE
    text = f"<= {format_outward(found[1], up=True, digits=4)}"
    claimed = _largest(result.claimed for result in line.results)
    if claimed is None:
        return text
    label = next(result.claimed_label for result in line.results if result.claimed is not None)
    return f"{text} ({label} {format_outward(claimed, up=True, digits=4)})"


def _timing(line: Line) -> list[str]:
    if not line.results or not line.row.is_trained:
        return [NONE, NONE, NONE]
    return [str(len(line.results)), str(max(r.steps for r in line.results)), f"{line.seconds:.1f}"]


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None and math.isfinite(value)), default=None)


def _notes(lines: Sequence[Line]) -> list[str]:
    """What a reader must know: notes of rows, reasons why some are not run, what was chosen; each once."""
    said: dict[str, list[str]] = {}
    for line in lines:
        for note in line.notes:
            said.setdefault(note, []).append(line.row.name)
        if line.row.why:
            said.setdefault(f"not run: {line.row.why}", []).append(line.row.name)
        for text in {_chosen(result) for result in line.results if result.chosen}:
            said.setdefault(text, []).append(line.row.name)
    rows = [line.row.name for line in lines]
    return [f"{note} ({_listed(names, rows)})" for note, names in said.items()]


def _is_other(result: Result, row: Row) -> bool:
    """Whether it is of other records or fewer steps than the row's."""
    return result.scale.startswith("quick") or (result.scale != EXACT and result.planned < (row.steps or 0))


def _chosen(result: Result) -> str:
    """The settings that were chosen; an end of the range of what was tried is said to be one: more may be better."""
    said = []
    for key, value in result.chosen.items():
        tried = sorted({one[key] for one in result.tried})
        is_end = len(tried) > 1 and value in (tried[0], tried[-1])
        said.append(
            f"{key} {value:g}" + (f" (an end of what was tried, {tried[0]:g} to {tried[-1]:g})" if is_end else "")
        )
    return "chosen: " + ", ".join(said)


def _listed(names: Sequence[str], among: Sequence[str]) -> str:
    """Which rows of a table these are, or which they are not, if that is one pattern or two and shorter.

    >>> _listed(["a-1-x", "a-2-x"], ["a-1-x", "a-1-y", "a-2-x", "a-2-y", "b"])
    '*-x'
    >>> _listed(["a-1-x", "a-1-y", "a-2-x", "a-2-y"], ["a-1-x", "a-1-y", "a-2-x", "a-2-y", "b"])
    'a-*'
    >>> _listed(["x", "y"], ["x", "y", "z"]), _listed(["x", "y"], ["x", "y"])
    ('all but z', 'all rows')
    """
    others = [name for name in among if name not in names]
    if not others:
        return "all rows"
    these, but = _patterns(names, others), _patterns(others, names)
    return f"all but {', '.join(but)}" if len(but) < min(3, len(these)) else ", ".join(these)


def _patterns(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """The names, those that begin or end alike as one pattern that none of the others fits, as `--rows` takes it."""
    ways: dict[str, list[str]] = {}
    for name in names:
        for at in (i for i, letter in enumerate(name) if letter == "-"):
            for pattern in (f"{name[:at]}-*", f"*-{name[at + 1 :]}"):
                if not any(fnmatchcase(other, pattern) for other in others):
                    ways.setdefault(pattern, []).append(name)
    said: list[str] = []
    left = list(names)
    while left:
        best = max(ways, key=lambda pattern: len(set(ways[pattern]) & set(left)), default="")
        met = set(ways.get(best, ())) & set(left)
        best, met = (best, met) if len(met) > 1 else (left[0], {left[0]})
        said.append(best)
        left = [name for name in left if name not in met]
    return said
