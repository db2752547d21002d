"""Settings that a paper does not state are chosen on a split of the training records, before anything is judged.

Nine tenths of the training records, by a fixed shuffle, train with each candidate; the last tenth judges. The held-out
set of the task is not looked at. One setting, such as the learning rate, is climbed along its list from the middle;
of several, every combination is tried. The search is not charged to the budget, as in the papers: the table says so.
"""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from privet.data.files import Where
from privet.data.task import Task
from privet.data.task import task as task_of
from privet.errors import InvalidValue
from privet.experiments.row import Row
from privet.training.append_file import write_new
from privet.training.gate import records_of
from privet.training.tune_split import judged_apart


class Scored(Protocol):
    """A run that is over: of `train` or of a federation."""

    @property
    def scores(self) -> dict[str, Any] | None: ...


class Train(Protocol):
    """Runs a row on a task, in a folder of that name, or goes on with it."""

    def __call__(self, tried: Row, task: Task | None, name: str, /) -> Scored: ...


def chosen(
    row: Row, *, file: Path, train: Train, where: Where | None = None, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The best candidate of a row's choices; looked up in `file` if it was found before, else found now."""
    if not row.choices:
        return {}
    known = _read(file, row)
    if known is not None:
        return known
    task, candidates = apart(task_of(row.task or "", where=where)), _candidates(row)
    name, sign = task.measure.name, 1 if task.measure.higher_is_better else -1
    scores: dict[int, dict[str, Any]] = {}

    def goodness(number: int) -> float:
        run = train(_tried(row, candidates[number], task.size), task, f"choice-{number}")
        assert run.scores is not None
        value = run.scores[f"held_out_{name}"]
        scores[number] = {"candidate": candidates[number], name: value}
        tell(f"{row.key}: {candidates[number]} gives {name} {value} on a split of the training records")
        return sign * float(value) if value is not None and math.isfinite(value) else -math.inf

    best = scores[_climbed(len(candidates), goodness) if len(row.choices) == 1 else _of_all(len(candidates), goodness)]
    found = {"fingerprint": row.fingerprint, "chosen": best["candidate"], "scores": [scores[k] for k in sorted(scores)]}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_new(file, (json.dumps(found, indent=1) + "\n").encode())
    return dict(best["candidate"])


def _of_all(count: int, goodness: Callable[[int], float]) -> int:
    return max(range(count), key=goodness)


def _climbed(count: int, goodness: Callable[[int], float]) -> int:
    """The best of an ordered list: the two in the middle, then on from the better one as long as it gets better.

    >>> tried = []
    >>> _climbed(5, lambda k: tried.append(k) or -abs(k - 1)), tried
    (1, [2, 3, 1, 0])
    >>> _climbed(4, [0.1, 0.1, 0.1, 0.9].__getitem__), _climbed(1, [0.1].__getitem__)
    (3, 0)
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
    while 0 <= at + step < count and (further := goodness(at + step)) > here:
        at, here = at + step, further
    return at


def _read(file: Path, row: Row) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_bytes())
        return dict(found["chosen"]) if found["fingerprint"] == row.fingerprint else None
    except (ValueError, KeyError, TypeError):
        raise InvalidValue(f"{file}: is not a choice. It was edited or torn. Delete it: it is made again.") from None


def _candidates(row: Row) -> list[dict[str, Any]]:
    names = list(row.choices)
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*row.choices.values())]


def _tried(row: Row, candidate: dict[str, Any], size: int) -> Row:
    """The row with a candidate's settings, on the smaller part; one evaluation, at the end, is enough."""
    training = {**row.training, **candidate, "evaluate_every": row.steps}
    counted = {} if row.kind == "federates" else {"size": size}  # clients stay as many, with fewer records each
    return replace(row, recipe={**row.recipe, **counted}, training=training, choices={}, name=f"{row.name}-split")


def apart(task: Task) -> Task:
    """The training records of a task alone: nine tenths to train on, a tenth to judge by, by a fixed shuffle."""
    rest, judges = judged_apart(task)
    said = f"{records_of(judges):,} of the training records, by a fixed shuffle: to choose settings by"
    return replace(rest, held_out=judges, evaluation=said)
