"""A network trained without clipping and noise: what privacy costs is held against it. It is not private."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.data.files import Where
from privet.data.task import Task
from privet.data.task import task as task_of
from privet.engine.loading import gather
from privet.planning import Plan
from privet.training.evaluate import Scores, evaluate, moved
from privet.training.optimizing import epoch_of, optimizer_for, pace_for
from privet.training.parts import device_of, drawing, first_weights
from privet.training.run import network_of
from privet.training.settings import Settings

Look = Callable[[int, nn.Module, Task, Tensor, Tensor], None]  # (step, network, task, inputs, targets)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The scores of the last weights, and the measure after each epoch."""

    scores: Scores
    points: tuple[tuple[float, float], ...]  # (epoch, measure)
    steps: int
    seconds: float
    evaluation: str


def train_plainly(
    plan: Plan, task: Task | None = None, *, seed: int, where: Where | None = None, look: Look | None = None
) -> Trained:
    """A network trained by the settings of a plan, without its noise: shuffled batches of its size, their mean loss.

    `task` stands for the one that the plan names; `look` is called before each step with what it will see.
    """
    settings = Settings.of(plan.recipe.training)
    task, device = task_of(settings.task, where=where) if task is None else task, device_of(settings, None)
    start = time.monotonic()
    with drawing(seed):
        model = network_of(task, settings)
        first_weights(model, settings)
        model.to(device)
        optimizer = optimizer_for(settings, plan, model)
        pace = pace_for(settings, plan, optimizer)
        batch, every = max(1, round(plan.batch)), epoch_of(plan)
        order, used, points = torch.randperm(task.size), 0, []
        for step in range(1, len(plan.steps) + 1):
            if used + batch > task.size:
                order, used = torch.randperm(task.size), 0
            inputs, targets = (moved(part, device) for part in gather(task.train, order[used : used + batch]))
            used += batch
            if look is not None:
                look(step - 1, model, task, inputs, targets)
            optimizer.zero_grad()
            torch.autograd.backward(task.losses(model(inputs), targets).mean())
            optimizer.step()
            pace.follow(step)
            if step % every == 0 or step == len(plan.steps):
                scores = evaluate(model, task, device=device)
                pace.evaluated(scores.loss)
                points.append((step / every, scores.measure))
    seconds = time.monotonic() - start
    return Trained(
        scores=scores, points=tuple(points), steps=len(plan.steps), seconds=seconds, evaluation=task.evaluation
    )
