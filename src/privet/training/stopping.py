"""When to stop early, and which weights to keep: decided on the held-out set, and by signals of the system."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from privet import _check
from privet.data.task import Task
from privet.training.evaluate import Scores
from privet.training.settings import Settings, target


class Judge:
    """Looks at each evaluation: is it the best so far, and is it time to stop?"""

    def __init__(self, settings: Settings, task: Task) -> None:
        self._aim = None if settings.stop_at is None else target(settings.stop_at)
        self._patience, self._measure = settings.patience, task.measure
        if self._aim is not None:
            _check.one_of((task.measure.name, "loss"), stop_at=self._aim[0])
        self.best: Scores | None = None
        self.worse = 0  # evaluations in a row that were not better

    def sees(self, scores: Scores) -> bool:
        """Take in an evaluation; whether it is the best so far."""
        if scores.is_better(self.best):
            self.best, self.worse = scores, 0
            return True
        self.worse += 1
        return False

    def why(self, scores: Scores) -> str | None:
        """Why the run should stop after this evaluation, or None."""
        if self._aim is not None and scores.reaches(*self._aim):
            return f"{self._aim[0]} {self._aim[1]:g} was reached"
        if self._patience is not None and self.worse >= self._patience:
            return f"{scores.name} was not better in {self.worse} evaluations"
        return None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        best = None if self.best is None else [self.best.loss, self.best.measure]
        return {"best": best, "worse": self.worse}

    def restore(self, state: Any) -> None:
        """Go on from what a checkpoint kept."""
        best, self.worse = state["best"], int(state["worse"])
        found, kept = None if best is None else self._scores(*best), self.best
        self.best = kept if kept is not None and kept.is_better(found) else found  # `beat` may have been before

    def beat(self, line: Any) -> None:
        """Weights are kept that had these scores; if they are better than the best so far, they are the best."""
        kept = self._scores(line["held_out_loss"], line[f"held_out_{self._measure.name}"])
        if kept.is_better(self.best):
            self.best = kept

    def _scores(self, loss: float, measure: float) -> Scores:
        of = self._measure
        return Scores(loss=loss, measure=measure, name=of.name, higher_is_better=of.higher_is_better)


class Interrupt:
    """Whether the process was asked to end: SIGINT (Ctrl-C) or SIGTERM. The second time it ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, number: int, _: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Signals are noted while inside, so that a step is ended before the process is. Threads have no signals."""
    made = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield made
        return
    before = {number: signal.signal(number, made._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
