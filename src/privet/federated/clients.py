"""The clients: whom a server asks, what each does in a round, what comes back. Over the network in flower.py."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from privet.accounting import Guarantee
from privet.data.task import Task
from privet.errors import BudgetExceeded, NoSolution, PrivetError
from privet.federated.clipped_updates import Update
from privet.federated.example_level import ExampleLevelClient, client_plan
from privet.federated.settings import LocalTraining, Losses, Settings
from privet.noise.randomness import Randomness
from privet.per_example.model_facts import trainable_parameters
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.training.checks import count_records

ROWS = 1000  # records whose gradient is taken at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientReply:
    """What a client sends back. In record-level privacy it also says where its own budget stands."""

    client: int
    update: Update | None  # None: it refuses, and `why` says so
    why: str = ""
    spent: Guarantee | None = None
    planned: float | None = None  # epsilon of its whole plan
    left: int | None = None  # steps of it


class ClientPool(Protocol):
    """Where clients are. `sizes` are the records that they registered with, public; None if the server knows none."""

    sizes: Sequence[int] | None

    def ask(self, number: int, chosen: Sequence[int], model: nn.Module) -> Iterator[ClientReply]:
        """Let these clients work on the model in round `number`; who does not answer is not there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worker:
    """What every client does with a model and its own records, wherever it runs."""

    plan: Plan
    settings: Settings
    losses: Losses
    seed: int | None = None

    @property
    def are_sizes_public(self) -> bool:
        """Under add-remove how many records there are is private: the plan's size stands for it, everywhere."""
        return self.plan.recipe.budget.adjacency != "add-remove"

    def answer(self, client: int, data: Any, model: nn.Module, *, folder: Path, number: int) -> ClientReply:
        """The client's answer in a round: an update, not private, or a private one from its own plan and ledger."""
        if self.plan.recipe.budget.unit == "client":
            source = Randomness(self.seed, 1, client, number)
            return ClientReply(
                client=client, update=local_update(model, data, self.losses, self.settings.local, source)
            )
        return self._private_answer(client, data, model, folder)

    def _private_answer(self, client: int, data: Any, model: nn.Module, folder: Path) -> ClientReply:
        """Private steps, where the plan is met and not spent. The model is left as it was."""
        reply = partial(ClientReply, client=client)
        size = count_records(data) if self.are_sizes_public else self.plan.recipe.dataset_size
        try:
            plan = client_plan(self.plan, size)
        except PrivetError as error:  # too few records for this budget: it never takes part
            return reply(update=None, why=f"cannot plan: {error}", left=0)
        own = ExampleLevelClient(folder, plan, data, seed=self.seed, path=(4, client))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=self.settings.local_lr)
        try:
            update = own.train_round(model, optimizer, self.losses, steps=self.settings.local_steps)
        except (BudgetExceeded, NoSolution) as error:
            return reply(update=None, why=str(error), spent=own.spent(), planned=plan.guarantee.epsilon, left=0)
        finally:
            model.load_state_dict(before)
        return reply(update=update, spent=own.spent(), planned=plan.guarantee.epsilon, left=own.left)


class InProcess:
    def __init__(self, worker: Worker, task: Task, parts: Sequence[Tensor], folder: Path) -> None:
        self._worker, self._task, self._parts, self._folder = worker, task, parts, folder
        self.sizes: Sequence[int] | None = [len(part) for part in parts] if worker.are_sizes_public else None

    def ask(self, number: int, chosen: Sequence[int], model: nn.Module) -> Iterator[ClientReply]:
        lost, coins = self._worker.settings.dropout, Randomness(self._worker.seed, 2, number).numpy_generator()
        for client in chosen:
            if coins.random() < lost:
                continue
            data = gather(self._task.train, self._parts[client])
            own = deepcopy(model)  # what one leaves in it, and is not in its state dict, must not reach the next
            yield self._worker.answer(client, data, own, folder=client_folder(self._folder, client), number=number)


def client_folder(folder: Path, client: int) -> Path:
    """Where a client keeps its ledger."""
    return folder / "clients" / f"{client:05d}"


# --- work on a client's own records: FedSGD (one gradient) or FedAvg (some epochs of SGD) ------------


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
