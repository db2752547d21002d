"""Shadow models: trained by one plan on the same records but for those that a coin leaves out.

A record that is left out adds nothing to any sum, while rate, noise and divisor stay those of the plan: this is the
neighbour that zero-out speaks of. So the loop is given the members alone, with the plan of the same steps under
add-or-remove, where the number of records is never read. Nothing else tells members and others apart.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.sampling.samplers import poisson_indices
from privet.training.evaluation import evaluation_mode
from privet.training.settings import Settings
from privet.training.setup import TrainingSetup, build_setup
from privet.training.training import Training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShadowModels:
    """M models and what they say of R records: how sure each is of the true class, and its loss; and who was in."""

    members: Tensor  # (M, R), bool, each by an independent fair coin
    confidence: Tensor  # (M, R): log p - log(1 - p) of the true class
    losses: Tensor  # (M, R)

    def part(self, rows: slice) -> "ShadowModels":
        return ShadowModels(members=self.members[rows], confidence=self.confidence[rows], losses=self.losses[rows])


def train_shadow_models(
    plan: Plan | None, task: Task, *, sampled: Plan, settings: Settings, records: int, models: int, seed: int,
    progress: Callable[[int], None] | None = None,
) -> ShadowModels:  # fmt: skip
    """Train `models` of them; without privacy if `plan` is None, on batches of `sampled`'s rates."""
    _check.whole(records=records)
    _check.whole(least=4, models=models)
    if records > task.size:
        raise InvalidValue(f"records={records} are more than the {task.size} of the task. Use fewer.")
    source = torch.Generator().manual_seed(seed)
    order = torch.randperm(task.size, generator=source)
    asked, always = order[:records], order[records:]
    members = torch.rand(models, records, generator=source) < 0.5
    looked_at = gather(task.train, asked)
    found = []
    for number, coins in enumerate(members):
        if progress is not None:
            progress(number)
        chosen = torch.cat([asked[coins], always])
        model = _train_model(plan, task, gather(task.train, chosen), sampled, settings, seed + 1 + number)
        found.append(_score_records(model, task, *looked_at))
    confidence, losses = (torch.stack(part) for part in zip(*found, strict=True))
    return ShadowModels(members=members, confidence=confidence, losses=losses)


def to_add_remove(plan: Plan) -> Plan:
    """The same steps, with neighbours that lack a record: the numbers are the same as under zero-out."""
    budget = plan.recipe.budget
    if budget.relation == "replace" or plan.steps[0].sampling.name != "poisson" or budget.unit != "example":
        raise Unsupported(
            f"relation={budget.relation!r}, sampling={plan.steps[0].sampling}, unit={budget.unit!r}: membership "
            "inference needs a plan with Poisson sampling and unit example, under zero-out or add-remove. Make such "
            "a plan."
        )
    return replace(plan, recipe=replace(plan.recipe, budget=replace(budget, relation="add-remove")))


def _train_model(
    plan: Plan | None, task: Task, data: "tuple[Tensor, Tensor]", sampled: Plan, settings: Settings, seed: int
) -> nn.Module:
    parts = build_setup(to_add_remove(plan or sampled), task, settings, weights_seed=seed, group=None)
    if plan is None:
        _train_without_privacy(parts, data, seed)
        return parts.model
    training = Training(
        parts.model, parts.optimizer, data, parts.plan, generator=seeded(seed, 1), as_published=plan.is_unsound
    )
    with training:
        for x, y in training:
            training.step(task.losses(parts.model(x), y))
    return parts.model


def _train_without_privacy(parts: TrainingSetup, data: "tuple[Tensor, Tensor]", seed: int) -> None:
    numbers = seeded(seed, 1).numpy_generator()
    for step in parts.plan.steps:
        rows = torch.as_tensor(poisson_indices(len(data[0]), step.rate, numbers))
        if len(rows):
            parts.optimizer.zero_grad()
            x, y = gather(data, rows)
            parts.task.losses(parts.model(x), y).mean().backward()  # type: ignore[no-untyped-call]
            parts.optimizer.step()


def _score_records(model: nn.Module, task: Task, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(how sure the model is of the true class, its loss), for each record."""
    with evaluation_mode(model):
        outputs = model(inputs).double()
        own = outputs.gather(1, labels[:, None])[:, 0]
        others = outputs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
        return own - others, task.losses(outputs, labels)
