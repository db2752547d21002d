"""Toy tasks for the probe, by their addresses `freeze.toy:task` and `freeze.toy:broken`; and a CSV file."""

from pathlib import Path

import torch
from torch import nn

from freeze.renames import kw, name

Task = name("privet.data.task:Task")
SIZE = 200


class Net(nn.Module):
    def __init__(self, *, width: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def task(size: int = SIZE) -> Task:
    x = torch.randn(size + 50, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + x[:, 1] > 0).long()
    return Task(**kw(
        "Task", name="tiny", train=(x[:size], y[:size]), held_out=(x[size:], y[size:]), evaluation="50 made-up points",
        model="freeze.toy:Net", source="made up",
    ))  # fmt: skip


def counted() -> Task:
    made = task()
    return Task(**kw(
        "Task", name="tiny", train=made.train, held_out=made.held_out, evaluation="50 made-up points",
        model="freeze.toy:Net", source="made up", not_private="vocabulary=counted",
    ))  # fmt: skip


def make():
    g = torch.Generator().manual_seed(0)
    batch = torch.randn(8, 4, generator=g), torch.randint(2, (8,), generator=g)
    return Net(), nn.CrossEntropyLoss(reduction="none"), batch


def coupled():
    return Normed(), *make()[1:]


def write_csv(file: Path) -> None:
    x = torch.randint(0, 100, (120, 3), generator=torch.Generator().manual_seed(1)).tolist()
    lines = [f"{a},{b},{c},{'yes' if a + b > c + 50 else 'no'}" for a, b, c in x]
    file.write_text("\n".join(["age,hours,rank,target", *lines]) + "\n")
