"""What watching a user's own loop costs: a step that is checked against one that is not, and against another checkout.

    python benchmarks/checks.py                      a minute
    python benchmarks/checks.py --base ../older      also the unchecked step of that checkout, side by side

Each kind has a process of its own; they take turns, and the processor's time is compared turn by turn.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[1]
CHILD = """
import json, sys, time
import torch
from torch import nn
from privet import Training, plan
from privet.training.loop_watch import LoopGuard, ONE_OF
kind, name = sys.argv[1:]
LoopGuard.wants_check = lambda _: kind == "checked"
"""
OLDER = """
import json, sys, time
import torch
from torch import nn
from privet import Training, plan
try:
    from privet.training.loop_watch import LoopGuard
    LoopGuard.wants_check = lambda _: False
except ImportError:  # the checks of earlier versions
    from privet.training import steps
    steps.SHADOWED = -1
name = sys.argv[2]
"""
LOOP = """
torch.manual_seed(0)
MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
}
model = MODELS[name]()
records = torch.randn(2000, 1, 28, 28), torch.randint(10, (2000,))
run_of = {"delta": 1e-5, "steps": 20_000, "solve": "epsilon"}
try:
    p = plan(**run_of, dataset_size=2000, batch_size=64, noise_multiplier=1.0)
except ValueError:  # the names of earlier versions
    p = plan(**run_of, size=2000, batch=64, noise=1.0)
training = Training(model, torch.optim.SGD(model.parameters(), lr=0.01), records, p)
loss, batches = nn.CrossEntropyLoss(reduction="none"), iter(training)

def run(steps):
    for _ in range(steps):
        x, y = next(batches)
        training.step(loss(model(x), y))

run(40)
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    began = time.process_time()
    run(int(line))
    print(json.dumps((time.process_time() - began) / int(line)), flush=True)
"""


class Child:
    """A process that makes steps of one kind when it is told to."""

    def __init__(self, code: str, kind: str, model: str, source: Path) -> None:
        given = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + LOOP, kind, model], env=given, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.times: list[float] = []
        self._hear()

    def turn(self, steps: int) -> None:
        assert self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)
        self.times.append(self._hear())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def measure(model: str, base: Path | None, turns: int) -> dict[str, float]:
    """Milliseconds of a step, and ratios turn by turn."""
    kinds = {name: Child(CHILD, name, model, HERE / "src") for name in ("unchecked", "checked")}
    if base is not None:
        kinds["base"] = Child(OLDER, "unchecked", model, base / "src")
    for _ in range(turns):
        for name, child in kinds.items():
            child.turn(4 if name == "checked" else 16)
    for child in kinds.values():
        child.end()

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(kinds[one].times, kinds[other].times, strict=True))

    found = {name: 1e3 * statistics.median(child.times) for name, child in kinds.items()}
    found["checked/unchecked"] = ratio("checked", "unchecked")
    return found | ({"unchecked/base": ratio("unchecked", "base")} if base is not None else {})


@click.command()
@click.option("--base", type=click.Path(exists=True, path_type=Path), help="Another checkout, beside this one.")
@click.option("--turns", default=30, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(base: Path | None, turns: int, as_json: bool) -> None:
    """What watching a user's own loop costs."""
    from privet.training.loop_watch import ONE_OF

    found = {model: measure(model, base, turns) for model in ("linear", "mlp", "cnn")}
    for row in found.values():
        row["a long run"] = 1 + (row["checked/unchecked"] - 1) / ONE_OF
    if as_json:
        print(json.dumps(found))
        return
    table = Table("model", "unchecked", "checked", "checked/unchecked", "a long run", "unchecked/base")
    for model, row in found.items():
        table.add_row(
            model, f"{row['unchecked']:.2f} ms", f"{row['checked']:.2f} ms", f"{row['checked/unchecked']:.2f}",
            f"{row['a long run']:.3f}", f"{row['unchecked/base']:.3f}" if base is not None else "",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
