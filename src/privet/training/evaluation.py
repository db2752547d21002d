"""How good a model is on records that it was not trained on: in batches, without gradients, unchanged after it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from privet import _check
from privet.data.task import Measure, Task
from privet.errors import InvalidValue
from privet.per_example.forward_record import map_tensors
from privet.per_example.trial_pass import evaluating
from privet.sampling.loading import gather
from privet.training.settings import Settings, parse_target

ROWS = 1000  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a model does on the held-out set: its mean loss, and the task's measure."""

    loss: float
    measure: float
    name: str  # of the measure
    higher_is_better: bool

    @classmethod
    def of(cls, kind: Measure, loss: float, measure: float) -> "Scores":
        return cls(loss=loss, measure=measure, name=kind.name, higher_is_better=kind.higher_is_better)

    def is_better(self, than: "Scores | None") -> bool:
        if than is None or than.measure != than.measure:
            return self.measure == self.measure
        return self.measure > than.measure if self.higher_is_better else self.measure < than.measure

    def reaches(self, name: str, value: float) -> bool:
        if name == "loss":
            return self.loss <= value
        return self.measure >= value if self.higher_is_better else self.measure <= value


def evaluate(model: nn.Module, task: Task, *, rows: int = ROWS, device: torch.device | None = None) -> Scores:
    """Loss and measure over all of `task.held_out`.

    >>> x = torch.eye(4)
    >>> own = Task(name="own", train=(x, x), held_out=(x, torch.tensor([0, 1, 2, 0])), evaluation="made up",
    ...            model=nn.Identity)
    >>> evaluate(own.network(), own).measure
    0.75

    Raises:
        InvalidValue: there is no held-out record.
    """
    data = task.held_out
    size = len(data[0]) if isinstance(data, tuple) else len(data)
    if not size:
        raise InvalidValue(f"task={task.name!r} has no held-out example. Nothing can be evaluated. Give it some.")
    loss = measure = torch.zeros((), dtype=torch.float64)
    with evaluating(model), torch.no_grad():
        for indices in torch.split(torch.arange(size), rows):
            inputs, targets = gather(data, indices)
            outputs, targets = model(move_to(inputs, device)), move_to(targets, device)
            loss = loss + task.losses(outputs, targets).double().sum().cpu()
            measure = measure + task.measure.each(outputs, targets).double().sum().cpu()
    return Scores.of(task.measure, float(loss) / size, task.measure.finish(float(measure) / size))


def move_to(data: Any, device: torch.device | None) -> Any:
    """A tensor, or a nest of them, on a device; where it is for None."""
    return data if device is None else map_tensors(data, lambda t: t.to(device))


class EarlyStopping:
    """Looks at each evaluation: is it the best so far, and is it time to stop?"""

    def __init__(self, settings: Settings, task: Task) -> None:
        self._aim = None if settings.stop_at is None else parse_target(settings.stop_at)
        self._patience, self._measure = settings.patience, task.measure
        if self._aim is not None:
            _check.one_of((task.measure.name, "loss"), stop_at=self._aim[0])
        self.best: Scores | None = None
        self.worse = 0  # evaluations in a row that were not better

    def observe(self, scores: Scores) -> bool:
        if scores.is_better(self.best):
            self.best, self.worse = scores, 0
            return True
        self.worse += 1
        return False

    def stop_reason(self, scores: Scores) -> str | None:
        """Why the run should stop after this evaluation, or None."""
        if self._aim is not None and scores.reaches(*self._aim):
            return f"{self._aim[0]} {self._aim[1]:g} was reached"
        if self._patience is not None and self.worse >= self._patience:
            return f"{scores.name} was not better in {self.worse} evaluations"
        return None

    def state(self) -> dict[str, Any]:
        best = None if self.best is None else [self.best.loss, self.best.measure]
        return {"best": best, "worse": self.worse}

    def restore(self, state: Any) -> None:
        best, self.worse = state["best"], int(state["worse"])
        found, kept = None if best is None else Scores.of(self._measure, *best), self.best
        self.best = kept if kept is not None and kept.is_better(found) else found  # `beat` may have been before

    def raise_best(self, line: Any) -> None:
        """Weights are kept that had these scores; if they are better than the best so far, they are the best."""
        kept = Scores.of(self._measure, line["held_out_loss"], line[f"held_out_{self._measure.name}"])
        if kept.is_better(self.best):
            self.best = kept


class Interrupt:
    """Whether the process was asked to end: SIGINT (Ctrl-C) or SIGTERM. The second time it ends at once."""

    asked = False

    def __call__(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def catch_interrupts() -> Iterator[Interrupt]:
    """Signals are noted while inside, so that a step is ended before the process is. Threads have no signals."""
    made = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield made
        return
    before = {number: signal.signal(number, made) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
