"""What is shown while a run goes on: a live line on a terminal, a line for each evaluation in a log, or nothing."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from privet.accounting import Guarantee
from privet.accounting.guarantee import format_outward
from privet.ledger.account import uncertified_reason

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

OFTEN = 0.2  # seconds between two looks of the live line
NOT_PRIVATE = "not private"


class Progress:
    """Is told what happens, and here keeps it to itself. Every figure that it gets may be shown."""

    def begin(self, *, number: int, steps: int) -> None:
        """The run goes on at step `number` of so many."""

    def step(self, number: int, spent: Callable[[], Guarantee], speed: float) -> None:
        """So many steps are over; `spent` tells what is charged, if asked; `speed` is in planned examples a second."""

    def show_evaluation(self, line: Mapping[str, Any], spent: Guarantee) -> None:
        """A line was added to the metrics."""

    def note(self, text: str) -> None:
        """Something that one should know."""

    def end(self) -> None:
        """The run is over, or stopped."""


class LogProgress(Progress):
    """A line for each evaluation, as in a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps = self._begun = 0
        self._start = time.monotonic()

    def begin(self, *, number: int, steps: int) -> None:
        self._steps, self._begun, self._start = steps, number, time.monotonic()

    def show_evaluation(self, line: Mapping[str, Any], spent: Guarantee) -> None:
        done, taken = line["step"] - self._begun, time.monotonic() - self._start
        left = (self._steps - line["step"]) * taken / max(done, 1)
        parts = [
            f"step {line['step']}/{self._steps}", format_epsilon(spent), *format_scores(line), f"lr {line['lr']:.3g}",
        ]  # fmt: skip
        parts += [f"{line['examples_per_second']:,.0f} examples/s", f"{format_duration(left)} left"]
        self.note("  ".join(parts))

    def note(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class LiveProgress(Progress):
    """One line that moves, by rich: step, epsilon so far with its label, scores on held-out records, speed, time."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True) if console is None else console
        columns = [TextColumn("{task.completed:.0f}/{task.total:.0f}"), BarColumn(bar_width=None)]
        columns += [TextColumn(f"{{task.fields[{name}]}}") for name in ("spent", "scores", "speed")]
        self._shown = Progress(*columns, TimeRemainingColumn(compact=True), console=console,
                                         auto_refresh=False, expand=True)  # fmt: skip
        self._task: TaskID | None = None
        self._next = 0.0

    def begin(self, *, number: int, steps: int) -> None:
        self._task = self._shown.add_task("", total=steps, completed=number, spent="", scores="", speed="")
        self._shown.start()
        self._shown.refresh()

    def step(self, number: int, spent: Callable[[], Guarantee], speed: float) -> None:
        now = time.monotonic()
        if self._task is None or now < self._next:
            return
        self._next = now + OFTEN
        self._shown.update(self._task, completed=number, spent=format_epsilon(spent()), speed=f"{speed:,.0f} ex/s")
        self._shown.refresh()

    def show_evaluation(self, line: Mapping[str, Any], spent: Guarantee) -> None:
        if self._task is not None:
            text = "  ".join(format_scores(line))
            self._shown.update(self._task, completed=line["step"], spent=format_epsilon(spent), scores=text)
            self._shown.refresh()

    def note(self, text: str) -> None:
        self._shown.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        self._shown.stop()


def format_epsilon(spent: Guarantee) -> str:
    """Epsilon with its label, in a few characters."""
    if uncertified_reason(spent):
        return f"guarantee: none, {NOT_PRIVATE}"
    side = "<= " if spent.label == "certified" else ""
    return f"epsilon {side}{format_outward(spent.epsilon, up=True, digits=4)} {spent.label}"


def format_scores(line: Mapping[str, Any]) -> list[str]:
    """The scores in a line of the metrics, in words; what is not private says so."""
    found = [
        f"{key.removeprefix('held_out_')} {_format_score(value)}"
        for key, value in line.items()
        if key.startswith("held_out_")
    ]
    raw = [f"{key} {_format_score(value)} ({NOT_PRIVATE})" for key, value in line.items() if key.startswith("raw_")]
    return found + raw


def _format_score(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(7.2), format_duration(3725)
    ('7 s', '1:02:05')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
