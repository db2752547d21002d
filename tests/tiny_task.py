"""A task that trains in milliseconds, for tests of whole runs; by its address `tiny_task:task` in commands."""

import torch
from torch import nn

from privet.data.task import Task

SIZE = 200


class Net(nn.Module):
    """A network as users write them, by its address `tiny_task:Net`."""

    def __init__(self, *, width: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Half(Net):
    """One that freezes its first layer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body[0].requires_grad_(False)


def task(size: int = SIZE, non_private_preprocessing: str = "") -> Task:
    """Points on two sides of a plane."""
    x = torch.randn(size + 50, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + x[:, 1] > 0).long()
    return Task(
        name="tiny", train=(x[:size], y[:size]), held_out=(x[size:], y[size:]), evaluation="50 made-up points",
        model="tiny_task:Net", source="made up", non_private_preprocessing=non_private_preprocessing,
    )  # fmt: skip


def not_a_task() -> int:
    """What a plan from elsewhere might name; it must not be called."""
    raise AssertionError("called")


def not_a_model(**_: object) -> nn.Module:
    """A function, though of the right kind: a plan must not call it."""
    raise AssertionError("called")
