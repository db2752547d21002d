"""A task whose gradients are zero, and an optimizer that writes down what reaches it: noise alone. For crash tests."""

import json
import os
import resource
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privet.data.task import Task

SIZE, VALUES = 40, 200  # records; values of a gradient
RELEASES = "releases"  # in the folder where the command is called
HOLD = "hold"  # while there is a file of this name there, no step is made
FOLDER = "runs/a"
_write = os.write  # as it was before a test changed it


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, VALUES // 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def silent(outputs: Tensor, _: Tensor) -> Tensor:
    return 0.0 * outputs.sum(1)


def task() -> Task:
    """Records that say nothing."""
    x, y = torch.ones(SIZE, 3), torch.zeros(SIZE, dtype=torch.int64)
    return Task(
        name="silent", train=(x, y), held_out=(x[:2], y[:2]), evaluation="2 ones", model="crash_task:Net",
        losses=silent,
    )  # fmt: skip


class Witness(torch.optim.SGD):
    """Before each step, appends a line to `releases`: the steps charged by now, and the gradient that it was given."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr=lr, momentum=0.9)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        while os.path.exists(HOLD):
            time.sleep(1e-3)
        grad = torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]])
        seen = {
            "charged": _charged(), "digest": sha256(grad.numpy().tobytes()).hexdigest(),
            "squares": float(grad.double().square().sum()),
        }  # fmt: skip
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit[1], limit[1]))  # a test may limit the run's files, not ours
        file = os.open(RELEASES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        _write(file, json.dumps(seen).encode() + b"\n")
        os.close(file)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        return super().step(closure)


def _charged() -> int:
    """What the last line of steps in the ledger has charged: read the obvious way."""
    lines = Path(FOLDER, "ledger.jsonl").read_bytes().splitlines()
    last = json.loads([line for line in lines if not line.startswith((b'{"loop"', b'{"none"'))][-1])
    return int(last["step"] + last["count"])
