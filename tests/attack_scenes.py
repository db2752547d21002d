"""Small networks, records and updates for tests of attacks."""

from typing import Any

import torch
from torch import Tensor, nn

from privet.attacks.base import Observation, gradients

SHAPE, CLASSES = (1, 6, 6), 3


def network(kind: str = "sigmoid", seed: int = 0) -> nn.Module:
    """A first linear layer for `analytic`; smooth unless asked otherwise."""
    bend = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 40), bend(), nn.Linear(40, CLASSES)).eval()


def records(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, generator=source), torch.randint(CLASSES, (count,), generator=source)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def observation(model: nn.Module, x: Tensor, y: Tensor, *, batch: int = 1, **more: Any) -> Observation:
    """Updates without clipping and noise, `batch` records each."""
    state = state_of(model)
    grads = gradients(model, state, x, nn.functional.one_hot(y, CLASSES).float(), names=state)
    update = {name: g.detach().view(-1, batch, *g.shape[1:]).sum(1) for name, g in grads.items()}
    given: dict[str, Any] = {"update": update, "candidates": (x, y), **more}
    return Observation(model=model, state=state, shape=SHAPE, classes=CLASSES, batch=batch, **given)
