"""A mechanism for audits: the whole training loop on a short plan."""

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from privet.accounting.guarantee import Adjacency
from privet.auditing.mechanism import MechanismClaim, Records, Released
from privet.auditing.neighbours import Sliced, logistic_losses
from privet.noise.gaussian import noise_std
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.training.loop_watch import LoopGuard
from privet.training.training import Training


@dataclass(slots=True, kw_only=True, eq=False)
class TrainingSteps:
    """All steps of a short plan by `privet.Training`, with plain SGD: what each took off the weights.

    Sampling, clipping, charging, noise and the optimizer are those of a real run. Rules without a memory only: of the
    others, the optimizer sees a transformed release.
    """

    plan: Plan
    _model: Sliced = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._model = Sliced(self.plan.steps[0].clipping_norm)

    @property
    def claim(self) -> MechanismClaim:
        steps = tuple(self.plan.steps)
        names = [name for name, _ in Sliced().named_parameters()]
        stds: dict[str, float] = {}
        for number, step in enumerate(steps):
            std = noise_std(step, l2_bound=step.clipping_norm, adjacency=self._relation) / (
                step.sample_rate * self.plan.recipe.dataset_size
            )
            stds |= {f"{number}/{name}": std for name in names}
        return MechanismClaim(
            steps=steps, std=stds, adjacency=self._relation,
            step_of={name: int(name.partition("/")[0]) for name in stds},
        )  # fmt: skip

    @property
    def _relation(self) -> Adjacency:
        return self.plan.recipe.budget.adjacency

    def __call__(self, records: Records, generator: Randomness) -> Released:
        model = self._model
        optimizer = _Returning(model)
        training = Training(
            model, optimizer, records, self.plan, randomness=generator, uncertified=self.plan.is_unsound
        )
        with patch.object(LoopGuard, "wants_check", lambda _: False):  # hundreds of trainings by one sound loop
            for x, y in training:
                training.step(logistic_losses(model(x), y))
        return optimizer.found


class _Returning(torch.optim.SGD):
    """Keeps what each step takes off the weights, and returns to them: so the gradients of every step are known."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=1.0)
        self._named = dict(model.named_parameters())
        self._start = {name: p.detach().clone() for name, p in self._named.items()}
        self.found: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        number = len(self.found) // len(self._start)
        for name, p in self._named.items():
            self.found[f"{number}/{name}"] = self._start[name] - p.detach()
            p.copy_(self._start[name])
