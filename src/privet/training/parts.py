"""What a run is made of, before its first step: task, network, optimizer, learning rate; checked against the plan."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet._registry import one_line
from privet.data.files import expanded
from privet.data.task import Task
from privet.engine import clipped_sum
from privet.engine.loading import gather
from privet.errors import InvalidValue, Unsupported
from privet.models import from_checkpoint
from privet.planning import Plan
from privet.training.append_file import unwritable
from privet.training.distributed import Group
from privet.training.gate import records_of
from privet.training.meter import line_seconds, reserve_for
from privet.training.optimizing import Pace, optimizer_for, pace_for
from privet.training.run import network_of
from privet.training.settings import Settings
from privet.training.stopping import Judge


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Everything that a loop needs beside the ledger."""

    plan: Plan
    task: Task
    settings: Settings
    model: nn.Module
    optimizer: Optimizer
    pace: Pace
    judge: Judge
    device: torch.device
    weights: str | None = None  # SHA-256 of the file that first weights were read from


def parts_for(
    plan: Plan, task: Task, settings: Settings, *, weights_seed: int, group: Group | None, begun: bool = False
) -> Parts:
    """The parts of a run, fresh: the network's first weights come from `weights_seed`, which is public, or from a file.

    Of a run that has `begun` the file is not read: its checkpoint has all weights.

    Raises:
        InvalidValue: the task is not of the plan's size, or a setting does not fit.
    """
    check_size(plan, task)
    device = device_of(settings, group)
    with drawing(weights_seed):
        model = network_of(task, settings)
    weights = None if begun else first_weights(model, settings)
    model.to(device).train()
    optimizer = optimizer_for(settings, plan, model)
    pace = pace_for(settings, plan, optimizer)
    return Parts(
        plan=plan, task=task, settings=settings, model=model, optimizer=optimizer, pace=pace,
        judge=Judge(settings, task), device=device, weights=weights,
    )  # fmt: skip


def first_weights(model: nn.Module, settings: Settings) -> str | None:
    """Put the weights that the settings name in place; gives their file's SHA-256, None if they name none."""
    if settings.weights is None:
        return None
    path = expanded(settings.weights)
    return from_checkpoint(model, path, train=settings.train, fresh=settings.fresh or ()).sha256


def check_sound(plan: Plan, *, as_published: bool) -> None:
    """Raise if the plan's rule has no guarantee, unless that was asked for."""
    if plan.is_unsound and not as_published:
        raise Unsupported(
            f"rule={plan.rule!r} of the plan has no guarantee, and neither has a run with it. Plan the method without "
            "--uncertified, or train with --uncertified to see what it does."
        )


def check_size(plan: Plan, task: Task) -> None:
    """Raise unless the task has the plan's number of records, where that is public."""
    budget = plan.recipe.budget
    if budget.relation == "add-remove" or budget.unit != "example":
        return
    found = records_of(task.train)
    if found != plan.recipe.size:
        raise InvalidValue(
            f"task={task.name!r} has {found} examples, the plan is for size={plan.recipe.size}. Its sample rate and "
            f"noise are for that size. Use the whole dataset, or plan again with --dataset-size {found}."
        )


def device_of(settings: Settings, group: Group | None) -> torch.device:
    """Where to compute: the rank's own device, or the one asked for, or a GPU if there is one."""
    if group is not None and group.size > 1:
        return group.device
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
        torch.zeros(1, device=found).item()  # meta has no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        text = one_line(error).split(".")[0]
        raise InvalidValue(f"device={name!r} cannot be used: {text}. Use cpu, or leave it out.") from None
    return found


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Torch's own generators (first weights, dropout) from a seed while inside; as they were after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        yield


def measured_reserve(parts: Parts, folder: Path) -> int:
    """How many steps one line of the ledger should charge here, from a step on zeros and a few lines on this disk."""
    plan, task, step = parts.plan, parts.task, parts.plan.steps[0]
    batch = max(1, round(step.rate * plan.recipe.size))
    rows = min(batch, parts.settings.max_physical_batch or batch)
    inputs, targets = (_zeros(part, rows, parts.device) for part in gather(task.train, torch.arange(0)))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        clipped_sum(parts.model, task.losses, (inputs, targets), rule="flat", clip=1.0)
        seconds.append(time.perf_counter() - start)
    try:
        line = line_seconds(folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    return reserve_for(steps=len(plan.steps), step_seconds=min(seconds) * batch / rows, line_seconds=line)


def _zeros(part: Any, rows: int, device: torch.device) -> Any:
    """Zeros of the shapes and types of a batch without records: nobody's values are looked at."""
    if isinstance(part, Tensor):
        return torch.zeros(rows, *part.shape[1:], dtype=part.dtype, device=device)
    if isinstance(part, dict):
        return {key: _zeros(inner, rows, device) for key, inner in part.items()}
    return type(part)(_zeros(inner, rows, device) for inner in part)
