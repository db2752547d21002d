"""A network trained without clipping and noise: what privacy costs is held against it. It is not private."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.training import setup
from privet.training.evaluation import Scores, evaluate, move_to
from privet.training.run import build_network
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


def step_plainly(optimizer: Optimizer, losses: Tensor) -> None:
    """A step along the gradient of the mean loss, as it is."""
    optimizer.zero_grad()
    torch.autograd.backward(losses.mean())
    optimizer.step()


def train_plainly(
    plan: Plan, task: Task | None = None, *, seed: int, where: DataFolders | None = None, look: Look | None = None
) -> Trained:
    """A network trained by the settings of a plan, without its noise: shuffled batches of its size, their mean loss.

    `task` stands for the one that the plan names; `look` is called before each step with what it will see.
    """
    settings = Settings.of(plan.recipe.training)
    task, device = task_of(settings.task, where=where) if task is None else task, setup.choose_device(settings, None)
    start = time.monotonic()
    with setup.seed_torch(seed):
        model = build_network(task, settings)
        setup.load_first_weights(model, settings)
        model.to(device)
        optimizer = setup.build_optimizer(settings, plan, model)
        pace = setup.learning_rate_schedule(settings, plan, optimizer)
        batch, every = max(1, round(plan.batch_size)), setup.steps_per_epoch(plan)
        order, used, points = torch.randperm(task.size), 0, []
        for step in range(1, len(plan.steps) + 1):
            if used + batch > task.size:
                order, used = torch.randperm(task.size), 0
            inputs, targets = (move_to(part, device) for part in gather(task.train, order[used : used + batch]))
            used += batch
            if look is not None:
                look(step - 1, model, task, inputs, targets)
            step_plainly(optimizer, task.losses(model(inputs), targets))
            pace.follow(step)
            if step % every == 0 or step == len(plan.steps):
                scores = evaluate(model, task, device=device)
                pace.observe_loss(scores.loss)
                points.append((step / every, scores.measure))
    seconds = time.monotonic() - start
    return Trained(
        scores=scores, points=tuple(points), steps=len(plan.steps), seconds=seconds, evaluation=task.evaluation
    )
