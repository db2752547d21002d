"""Settings that a paper does not state are chosen on a split of the training records, before anything is judged.

Nine tenths of the training records, by a fixed shuffle, train with each candidate; the last tenth judges. The held-out
set of the task is not looked at. One setting, such as the learning rate, is climbed along its list from the middle, and
on beyond its ends in steps of the same ratio; of several, every combination is tried. The search is not charged to the
budget, as in the papers: the table says so.
"""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from privet._files import write_new
from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.errors import InvalidValue
from privet.training.checks import count_records
from privet.tuning.job import train_validation_split
from privet_papers.reproduce.table_row import Row

MORE = 3  # values that are tried beyond an end of a list, at most
CLIMBED = ("lr",)  # settings whose list may be left: positive, without an upper limit, by ratio


class Train(Protocol):
    """Runs a row on a task, in a folder of that name, or goes on with it: the measure on the task's held-out set."""

    def __call__(self, tried: Row, task: Task, name: str, /) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The settings that were chosen, and all that were tried."""

    chosen: dict[str, Any] = field(default_factory=dict)
    tried: tuple[dict[str, Any], ...] = ()


def choice(
    row: Row,
    *,
    file: Path,
    train: Train,
    where: DataFolders | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Choice:
    """The best candidate of a row's choices; looked up in `file` if it was found before, else found now.

    What each candidate gave is kept there too: a search that was interrupted, or may go further by now, goes on.
    """
    if not row.choices:
        return Choice()
    kept, more = _read(file, row), _beyond(row)
    if kept["chosen"] is not None and kept.get("beyond", 0) == more:
        return _of(kept)
    task = apart(task_of(row.task or "", where=where))
    name, sign = task.measure.name, 1 if task.measure.higher_is_better else -1
    known = [score for score in kept["scores"] if name in score]
    before = {json.dumps(score["candidate"]): score for score in known}
    scores: dict[int, dict[str, Any]] = {}

    def goodness(number: int) -> float:
        candidate = _candidate(row, number)
        scores[number] = before.get(json.dumps(candidate)) or measured(number, candidate)
        value = scores[number][name]
        return sign * float(value) if value is not None and math.isfinite(value) else -math.inf

    def measured(number: int, candidate: dict[str, Any]) -> dict[str, Any]:
        value = train(_tried(row, candidate, task.size), task, f"choice-{number}")
        tell(f"{row.key}: {candidate} gives {name} {value} on a split of the training records")
        found = {"candidate": candidate, name: value}
        known.append(found)
        _write(file, row, None, known)
        return found

    count = math.prod(map(len, row.choices.values()))
    best = _climbed(count, goodness, more) if len(row.choices) == 1 else max(range(count), key=goodness)
    return _of(_write(file, row, scores[best]["candidate"], [scores[k] for k in sorted(scores)]))


def _beyond(row: Row) -> int:
    """How many values beyond an end of a row's only list may be tried: none unless its setting grows by ratio."""
    (name, *others), (values, *_) = row.choices, row.choices.values()
    return MORE if not others and name in CLIMBED and len(set(values)) > 1 and min(values) > 0 else 0


def _climbed(count: int, goodness: Callable[[int], float], more: int = 0) -> int:
    """The best of an ordered list: the two in the middle, then on from the better one as long as it gets better.

    `more` numbers beyond either end are tried too, as long as it gets better.

    >>> tried = []
    >>> _climbed(5, lambda k: tried.append(k) or -abs(k - 1)), tried
    (1, [2, 3, 1, 0])
    >>> _climbed(4, [0.1, 0.1, 0.1, 0.9].__getitem__), _climbed(1, [0.1].__getitem__), _climbed(2, lambda k: k, 3)
    (3, 0, 4)
    """
    at = (count - 1) // 2
    here = goodness(at)
    if count == 1:
        return at
    beside = goodness(at + 1)
    if here == beside:  # no slope to see, as where both diverge
        found = {at: here} | {k: goodness(k) for k in range(count) if k not in (at, at + 1)}
        return max(found, key=found.__getitem__)
    step = 1 if beside > here else -1
    at, here = (at + 1, beside) if beside > here else (at, here)
    while -more <= at + step < count + more and (further := goodness(at + step)) > here:
        at, here = at + step, further
    return at


def _write(file: Path, row: Row, chosen: dict[str, Any] | None, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Keep what the candidates gave, and what was chosen of them, or None while the search is under way."""
    found = {"fingerprint": row.fingerprint, "chosen": chosen, "beyond": _beyond(row), "scores": scores}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_new(file, (json.dumps(found, indent=1) + "\n").encode())
    return found


def _read(file: Path, row: Row) -> dict[str, Any]:
    """What is known: `scores` of candidates and, once the search was over, what was `chosen`."""
    nothing: dict[str, Any] = {"chosen": None, "scores": []}
    if not file.exists():
        return nothing
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        if found["fingerprint"] != row.fingerprint:
            return nothing  # of another row
        if found["chosen"] is not None:
            _of(found)
        for score in found["scores"]:  # a candidate and one number, or it raises
            dict(score["candidate"])
            (value,) = (value for key, value in score.items() if key != "candidate")
            float(0 if value is None else value)
        return found
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidValue(f"{file}: is not a choice. It was edited or torn. Delete it: it is made again.") from None


def _of(found: dict[str, Any]) -> Choice:
    return Choice(chosen=dict(found["chosen"]), tried=tuple(score["candidate"] for score in found["scores"]))


def _candidate(row: Row, number: int) -> dict[str, Any]:
    """The candidate of that number; beyond an end of a list of numbers, in steps of the last ratio there.

    >>> row = Row(paper="", table="", name="", place="", kind="trains", task="digits", choices={"lr": (0.5, 1.0, 3.0)})
    >>> [_candidate(row, number) for number in (-2, 1, 3)]
    [{'lr': 0.125}, {'lr': 1.0}, {'lr': 9.0}]
    """
    combinations = list(itertools.product(*row.choices.values()))
    last = len(combinations) - 1
    inside = min(max(number, 0), last)
    values = combinations[inside]
    if number != inside:
        (beside,) = combinations[1] if number < 0 else combinations[last - 1]
        values = (float(f"{values[0] * (values[0] / beside) ** abs(number - inside):.4g}"),)
    return dict(zip(row.choices, values, strict=True))


def _tried(row: Row, candidate: dict[str, Any], size: int) -> Row:
    """The row with a candidate's settings, on the smaller part; one evaluation, at the end, is enough."""
    training = {**row.training, **candidate, "evaluate_every": row.steps}
    counted = {} if row.kind == "federates" else {"dataset_size": size}  # clients stay as many, with fewer records each
    return replace(row, recipe={**row.recipe, **counted}, training=training, choices={}, name=f"{row.name}-split")


def apart(task: Task) -> Task:
    """The training records of a task alone: nine tenths to train on, a tenth to judge by, by a fixed shuffle."""
    rest, validation = train_validation_split(task)
    said = f"{count_records(validation):,} of the training records, by a fixed shuffle: to choose settings by"
    return replace(rest, held_out=validation, evaluation=said)
