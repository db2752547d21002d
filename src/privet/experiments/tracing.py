"""The norm of the gradient over a training, as Du et al. 2021 draw it. It is read off records: not private.

`raw_gradient_norm`: the mean over the coordinates of the absolute gradient of the mean loss over a batch.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.data.files import Where
from privet.data.task import Task
from privet.data.task import task as task_of
from privet.engine.randomness import seeded
from privet.experiments.baseline import Look, train_plainly
from privet.experiments.results import proven
from privet.experiments.row import Curve, Row
from privet.training.account import cost
from privet.training.evaluate import evaluate
from privet.training.optimizing import epoch_of, optimizer_for, pace_for
from privet.training.parts import drawing, first_weights
from privet.training.run import network_of
from privet.training.settings import Settings
from privet.training.steps import Training

POINTS = 100  # so many looks over a training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """What was seen on the way, and what is proven of the steps."""

    curve: Curve
    certified: tuple[float | None, float] | None
    steps: int
    seconds: float


def gradient_norms(row: Row, *, seed: int, where: Where | None = None) -> Trace:
    """The row trained once, with a look at the gradient at every hundredth of its steps."""
    every, points = max(1, (row.steps or 1) // POINTS), []

    def look(number: int, model: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> None:
        if number % every == 0:
            points.append((float(number), _norm(model, task, inputs, targets)))

    start = time.monotonic()
    if row.kind == "baseline":
        steps, certified = train_plainly(row, seed=seed, where=where, look=look).steps, None
    else:
        steps, certified = _privately(row, seed, where, look)
    curve = Curve(x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
    return Trace(curve=curve, certified=certified, steps=steps, seconds=time.monotonic() - start)


def _privately(
    row: Row, seed: int, where: Where | None, look: Look
) -> tuple[int, tuple[float | None, float] | None]:  # fmt: skip
    """Train as the plan says, `look` before each step; (steps, what is proven of them)."""
    plan = row.plan()
    settings = Settings.of(plan.recipe.training)
    task = task_of(settings.task, where=where)
    with drawing(seed):
        model, twin = network_of(task, settings), network_of(task, settings)
        first_weights(model, settings)
        optimizer = optimizer_for(settings, plan, model)
        pace, published = pace_for(settings, plan, optimizer), plan.recipe.as_published
        with Training(
            model, optimizer, task.train, plan, generator=seeded(seed), as_published=published,
            not_private=task.not_private,
        ) as training:  # fmt: skip
            for inputs, targets in training:
                twin.load_state_dict(model.state_dict())  # the model itself is watched: its gradients are clipped
                look(training.number, twin, task, inputs, targets)
                training.step(task.losses(model(inputs), targets))
                pace.follow(training.number)
                if pace.reads_scores and training.number % epoch_of(plan) == 0:
                    pace.evaluated(evaluate(model, task).loss)
    found = None if plan.is_unsound or task.not_private else cost(plan.ledger(), plan)
    return len(plan.steps), proven(found)


def _norm(model: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> float:
    """The mean absolute gradient of the mean loss, a coordinate."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(task.losses(model(inputs), targets).mean(), parameters)
    total = sum(float(grad.abs().sum()) for grad in grads)
    return total / sum(p.numel() for p in parameters)
