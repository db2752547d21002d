"""Parts of a task's training records, for tuning: some train, some judge. The held-out set is not looked at.

Which record is in which part is decided by a fixed shuffle of their numbers, never by what is in them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from privet import _check
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.training.gate import records_of

JUDGES = 0.1  # the share of the training records that judges


def judged_apart(task: Task, *, judges: float = JUDGES) -> tuple[Task, Any]:
    """(the task with the rest of its training records, the records that judge).

    >>> from torch import nn
    >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
    >>> own = Task(name="own", train=(x, y), held_out=(x, y), evaluation="made up", model=lambda: nn.Linear(3, 2))
    >>> rest, judging = judged_apart(own)
    >>> rest.size, len(judging[0])
    (18, 2)
    """
    _check.between(0, 1, judges=judges)
    size = records_of(task.train)
    count = int(size * judges)
    if not 0 < count < size:
        raise InvalidValue(
            f"judges={judges!r} leaves {count} of {size} training examples for validation. Both parts need examples. "
            "Give another fraction."
        )
    order = _order(size)
    return _with(task, order[count:]), picked(task.train, order[:count])


def in_parts(task: Task, parts: int) -> list[Task]:
    """Tasks with disjoint equal parts of the training records; fewer than `parts` records may be left over."""
    each = records_of(task.train) // parts
    if not each:
        raise InvalidValue(
            f"task={task.name!r} has {records_of(task.train)} training examples, fewer than the {parts} parts that "
            "are needed. Try fewer candidates."
        )
    order = _order(records_of(task.train))
    return [_with(task, order[k * each : (k + 1) * each]) for k in range(parts)]


def picked(data: Any, indices: Tensor) -> Any:
    """Some records of a dataset, as a dataset of the same kind."""
    if isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data):
        return tuple(part[indices] for part in data)
    if not hasattr(data, "__getitem__") or isinstance(data, (tuple, Tensor)):
        raise Unsupported(
            f"train={type(data).__name__} cannot be split. A part of it is needed for validation. Give tensors or a "
            "map-style dataset."
        )
    wanted: Sequence[int] = indices.tolist()
    return Subset(data, wanted)


def _order(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(0))


def _with(task: Task, indices: Tensor) -> Task:
    users = None if task.users is None else task.users[indices]
    return replace(task, train=picked(task.train, indices), users=users)
