"""Whom an attack is tried on: records drawn from the training set, hidden among known candidates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from privet import _check
from privet.data.task import Task
from privet.engine.loading import gather
from privet.errors import InvalidValue, Unsupported

MOST_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Victims:
    """N groups of `batch` records, each attacked on its own, and the K candidates that they are among."""

    inputs: Tensor  # (N, batch, *shape), in [0, 1]
    labels: Tensor  # (N, batch)
    places: Tensor  # (N, batch): where each stands among the candidates
    candidates: tuple[Tensor, Tensor]
    classes: int

    @property
    def size(self) -> int:
        return len(self.inputs)

    @property
    def batch(self) -> int:
        return self.inputs.shape[1]


def victims_of(task: Task, *, examples: int, batch: int = 1, candidates: int = 1000, seed: int = 0) -> Victims:
    """`examples` victims of `batch` records each, all different, drawn evenly from K candidates of the training set.

    Raises:
        Unsupported: the task is not one of images with classes.
        InvalidValue: there are not as many records.
    """
    _check.whole(examples=examples, batch=batch)
    _check.whole(least=2, candidates=candidates)
    shape, classes = task.facts.get("shape"), task.facts.get("classes")
    if shape is None or classes is None or len(shape) != 3:
        raise Unsupported(
            f"task={task.name!r} is not one of images with classes. The attack reconstructs images. Use digits, mnist "
            "or cifar10, or attack it with --membership."
        )
    if batch > MOST_BATCH:
        raise InvalidValue(
            f"batch={batch} must be at most {MOST_BATCH}. Reconstruction from larger batches is not "
            "attempted. Use fewer."
        )
    most = min(candidates, task.size)
    if not examples * batch <= most:
        raise InvalidValue(
            f"examples={examples} of {batch} examples are more than the {most} candidates. Every target is a "
            "candidate. Use fewer, or more candidates."
        )
    source = torch.Generator().manual_seed(seed)
    inputs, labels = gather(task.train, torch.randperm(task.size, generator=source)[:most])
    places = torch.randperm(most, generator=source)[: examples * batch].view(examples, batch)
    return Victims(
        inputs=inputs[places], labels=labels[places], places=places, candidates=(inputs, labels), classes=classes
    )
