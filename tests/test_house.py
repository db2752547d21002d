"""The house stays small: how many files and lines it has, and how far one warm private step walks through it.

Counted are the `call` events of `sys.setprofile` in files below `src/privet` during one `training.step(losses)`, with
the ledger on the disk, of an MLP with two linear layers and flat clipping: every Python function, comprehension and
lambda that is entered, and every time a generator is gone on with. Code without a file, as dataclasses generate it, is
not counted. A change of file is a pair of consecutive calls in two files. Counted like this, commit 8e77399 made 337
calls in 26 files with 137 changes of file, and still charged inside `step`; since then a step is charged when its batch
is handed out, so that getting the batch has ceilings of its own. A later capability raises a ceiling in its own commit
by what it adds, and says so.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privet
import privet_papers
from privet import Training, plan
from privet.accounting import Step
from privet.training.loop_watch import ALWAYS_CHECKED, LoopGuard

SOURCE = Path(privet.__file__).parent
SIZES = {  # files and lines of Python, of the product and of the papers; they may only fall, but for a new capability
    SOURCE: (204, 39_962),
    Path(privet_papers.__file__).parent: (38, 7_400),
}
CEILINGS = {"step": (106, 17, 44), "batch": (84, 19, 31)}  # calls, files, changes of file


FOLLOWED = (  # what a reader opens to follow a step, in the order of the way of the data
    "training/training.py", "per_example/gradients.py", "clipping/clipped_sum.py", "ledger/account.py",
    "noise/release.py",
)  # fmt: skip
MOST_MODULES = 12  # that the file of `Training` imports when it is loaded; others are for its types alone
MOST_LINES = 450  # of a file


class Trace:
    """The files of the package's functions that were entered, one after the other."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __call__(self, do: Callable[[], Any]) -> Any:
        sys.setprofile(self._see)
        try:
            return do()
        finally:
            sys.setprofile(None)

    def _see(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            self.files.append(frame.f_code.co_filename)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Calls, files, changes of file."""
        return len(self.files), len(set(self.files)), sum(one != other for one, other in pairwise(self.files))


@pytest.fixture
def traces(tmp_path, monkeypatch) -> dict[str, Trace]:
    """One warm step in which nothing is checked, and the batch before it."""
    torch.manual_seed(0)
    records = torch.randn(400, 20), torch.randint(3, (400,))
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3))
    steps = plan(delta=1e-5, dataset_size=400, batch_size=64, steps=200, noise_multiplier=1.0, solve="epsilon")
    loss = nn.CrossEntropyLoss(reduction="none")
    found = {"batch": Trace(), "step": Trace()}
    with Training(model, torch.optim.SGD(model.parameters(), lr=0.1), records, steps, out=tmp_path / "run") as training:
        rounds: Iterator[Any] = iter(training)
        for number in range(ALWAYS_CHECKED + 12):
            if number == ALWAYS_CHECKED:  # from here on one of two hundred is drawn: none of these
                monkeypatch.setattr(LoopGuard, "wants_check", lambda _: False)
            x, y = next(rounds)
            training.step(loss(model(x), y))
        x, y = found["batch"](lambda: next(rounds))
        losses = loss(model(x), y)
        found["step"](lambda: training.step(losses))
        rounds.close()
    return found


def test_a_step_stays_within_its_ceilings(traces):
    found = {name: trace.counts for name, trace in traces.items()}
    assert all(
        count <= most for name, counts in found.items() for count, most in zip(counts, CEILINGS[name], strict=True)
    ), f"{found} against {CEILINGS}"


def test_the_file_of_training_imports_few_modules():
    tree = ast.parse((SOURCE / FOLLOWED[0]).read_text(encoding="utf-8"))
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert len([name for name in modules if name is not None and name.startswith("privet")]) <= MOST_MODULES


def test_the_files_that_explain_a_step_are_there():
    assert all((SOURCE / file).exists() for file in FOLLOWED)


@pytest.mark.parametrize("root", SIZES, ids=lambda root: root.name)
def test_the_house_is_no_larger(root):
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in root.rglob("*.py")}
    files, lines = SIZES[root]
    assert len(lengths) <= files
    assert sum(lengths.values()) <= lines
    assert {str(file.relative_to(root)): length for file, length in lengths.items() if length > MOST_LINES} == {}


def test_a_trace_sees_calls_files_and_changes_of_file():
    trace = Trace()
    trace(lambda: Step(noise_multiplier=1.0))
    calls, files, changes = trace.counts
    assert calls > 3
    assert files == 3  # the ledger, its checks, its samplings
    assert 2 <= changes < calls
