"""What a client does with its own records in a round: FedSGD (one gradient) or FedAvg (some epochs of SGD)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet.noise.randomness import Randomness
from privet.per_example.model_facts import trainable_parameters
from privet.sampling.loading import gather
from privet.training.checks import count_records

Losses = Callable[[Any, Any], Tensor]  # (outputs, targets) -> one loss for each record
ALGORITHMS = ("fedavg", "fedsgd")
ROWS = 1000  # records whose gradient is taken at once


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """The work of a client in one round. FedSGD reads neither epochs, batch nor lr."""

    algorithm: str = "fedavg"
    epochs: int = 1
    batch: int = 32
    lr: float = 0.1

    def __post_init__(self) -> None:
        _check.one_of(ALGORITHMS, algorithm=self.algorithm)
        _check.whole(local_epochs=self.epochs, local_batch=self.batch)
        _check.positive(local_lr=self.lr)


def local_update(
    model: nn.Module, data: Any, losses: Losses, work: LocalTraining, source: Randomness
) -> dict[str, Tensor]:
    """The update of a client: which way it would move the model's weights, times -1. The model is left as it was.

        FedSGD  the gradient of the mean loss over its records
        FedAvg  the weights before less the weights after `epochs` of SGD on its records

    Source: McMahan et al. 2017, arXiv:1602.05629v4, Algorithm 1. Nothing here is private: the server clips it and adds
    noise. A client without records gives zeros.

    >>> model, x = nn.Linear(1, 1, bias=False), torch.ones(4, 1)
    >>> squares = lambda outputs, targets: (outputs - targets).square().sum(1)
    >>> _ = nn.init.zeros_(model.weight)
    >>> local_update(model, (x, x), squares, LocalTraining(algorithm="fedsgd"), Randomness())
    {'weight': tensor([[-2.]])}
    """
    named = trainable_parameters(model)
    size = count_records(data)
    if not size:
        return {name: torch.zeros_like(p, requires_grad=False) for name, p in named.items()}
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        if work.algorithm == "fedsgd":
            return _full_gradient(model, named, data, losses, size)
        before = {name: p.detach().clone() for name, p in named.items()}
        _train_locally(model, named, data, losses, work, source)
        return {name: before[name] - p.detach() for name, p in named.items()}
    finally:
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)


def _full_gradient(
    model: nn.Module, named: dict[str, nn.Parameter], data: Any, losses: Losses, size: int
) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    for rows in torch.split(torch.arange(size), ROWS):
        inputs, targets = gather(data, rows)
        (losses(model(inputs), targets).sum() / size).backward()  # type: ignore[no-untyped-call]
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for name, p in named.items()}


def _train_locally(
    model: nn.Module, named: dict[str, nn.Parameter], data: Any, losses: Losses, work: LocalTraining, source: Randomness
) -> None:
    optimizer = torch.optim.SGD(list(named.values()), lr=work.lr)
    for _ in range(work.epochs):
        order = torch.from_numpy(source.numpy_generator().permutation(count_records(data)))
        for rows in torch.split(order, work.batch):
            inputs, targets = gather(data, rows)
            optimizer.zero_grad()
            losses(model(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
