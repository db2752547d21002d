"""The ledger of a run folder: each step is charged on the disk before its noise is drawn, and none outside the plan."""

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privet import _check
from privet._files import AppendFile, check_own, lock_folder, make_folder, write_new
from privet.accounting import Step
from privet.accounting.ledger import Floats
from privet.errors import BudgetExceeded, InvalidValue
from privet.ledger.assumptions import LoopFacts
from privet.ledger.format import (
    Header,
    LedgerPosition,
    chain_line,
    charge_row,
    header_line,
    loop_row,
    make_header,
    repair_row,
)
from privet.ledger.reading import NAME, Count, HighWaterMark, Reading, read_ledger, remove_high_water_mark
from privet.planning import Plan


class _Place(NamedTuple):
    """Where the file stands. Replaced as one value, so that an interrupt never leaves half of it."""

    position: LedgerPosition
    charged: int
    size: int


class LedgerFile:
    """The ledger of a run, open for writing by this process alone. Made by `create` or `open`.

    Lines are only appended; each is on the disk before the call that writes it returns.

    >>> import tempfile
    >>> from privet import plan
    >>> p = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier=2.0, solve="epsilon")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LedgerFile.create(folder, p, steps_per_line=4) as ledger:
    ...         ledger.reserve(4)  # one line on the disk for steps 0 to 3
    ...         ledger.charge(0, p.steps[0])  # now the noise of step 0 may be drawn
    ...     with LedgerFile.open(folder, p) as ledger:
    ...         ledger.next_step  # steps 1 to 3 are charged and never done
    4
    """

    def __init__(self, file: AppendFile, plan: Plan, reading: Reading, unlock: Callable[[], None]) -> None:
        self.header: Header = reading.header
        self.notes = reading.notes  # what was torn, and is charged
        self._facts = reading.loop
        self._file, self._unlock = file, unlock
        self._pid, self._mutex, self._closed = os.getpid(), threading.Lock(), False
        self._noises, self._rates, self._clips = (
            plan.steps.noise_multipliers, plan.steps.sample_rates, plan.steps.clipping_norms,
        )  # fmt: skip
        self._sampling = plan.steps.sampling
        torn = reading.tail.count if reading.tail else 0
        self._place = _Place(reading.position, reading.ledger.steps - torn, file.size())
        self._count = HighWaterMark(file.path.parent)
        self._mend(reading)
        self._count.write(Count(self.header.run, self.charged))
        self._next = self.charged

    @classmethod
    def create(
        cls, folder: str | Path, plan: Plan, *, steps_per_line: int = 1, seeded: bool = False,
        preprocessing_is_private: bool = True,
        dataset: str | None = None,
    ) -> "LedgerFile":  # fmt: skip
        """A new ledger for a run of `plan` in a folder that has none; the folder is made if need be.

        Args:
            steps_per_line: the most steps that one line may charge, which is what a torn line costs.
            seeded: whether the run's noise can be drawn again. Then it is marked as not private.
            preprocessing_is_private: False if something was read off the records without noise. Then it is marked as
                not sound.
            dataset: the name of the records, which other runs on them share.
        """
        header = make_header(
            plan, run=secrets.token_hex(16), steps_per_line=steps_per_line, seeded=seeded,
            preprocessing_is_private=preprocessing_is_private, dataset=dataset,
        )  # fmt: skip
        file = Path(folder) / NAME
        make_folder(file.parent)
        lock = lock_folder(file.parent)
        try:
            if os.path.lexists(file):
                raise InvalidValue(
                    f"{file}: is there already. Its steps are spent. Resume that run, or use a new folder."
                )
            remove_high_water_mark(file.parent)
            write_new(file, header_line(header)[0])
            return cls(AppendFile(file), plan, read_ledger(file), lock.close)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, folder: str | Path, plan: Plan, *, at_least: LedgerPosition | None = None) -> "LedgerFile":
        """The ledger of a run that goes on. What a crash tore is charged, and kept.

        Args:
            at_least: the mark in the run's checkpoint. A ledger that ends before it has lost lines, and is refused.

        Raises:
            InvalidValue: another process has it open, it is damaged, a link, or of another plan.
        """
        file = Path(folder) / NAME
        if not file.exists():
            raise InvalidValue(f"{file}: there is no such file. Give the folder of a run, or begin a new run.")
        check_own(file)
        lock = lock_folder(file.parent)
        try:
            reading = read_ledger(file, at_least=at_least)
            _check_plan(file, reading, plan)
            return cls(AppendFile(file), plan, reading, lock.close)
        except BaseException:
            lock.close()
            raise

    # --- spending ---
    def reserve(self, steps: int) -> None:
        """Charge the next `steps` steps with one line, before any of them is done. All are charged, done or not.

        A clean stop does the steps it has reserved first: those left at the end are lost.
        """
        _check.whole(steps=steps)
        if steps > self.header.reserve:
            raise InvalidValue(
                f"steps={steps} must be at most {self.header.reserve}, the reserve that the run began with. A torn "
                "line is charged as that many. Reserve fewer."
            )
        with self._mutex:
            self._check_usable()
            if self.charged + steps > self.header.length:
                raise BudgetExceeded(
                    f"steps={steps} is more than the {self.header.length - self.charged} left of the plan's "
                    f"{self.header.length}. More would exceed its budget. Reserve fewer, or make a plan with more."
                )
            self._charge(steps, self._clips[self.charged : self.charged + steps])

    def charge(self, number: int, step: Step) -> None:
        """Let step `number` (from 0) happen: it is planned, was never done before, and is on the disk now.

        Call it right before the step's noise is drawn. Its clip may differ from the plan's: it may follow earlier
        releases, and does not change the cost.

        Raises:
            BudgetExceeded: the step is not the plan's next one.
            InvalidValue: it could not be written. Then it must not happen.
        """
        with self._mutex:
            self._check_usable()
            self._check_planned(number, step)
            if number == self.charged:
                self._charge(1, np.array([float(step.clipping_norm)]))
            self._next = number + 1

    def note(self, facts: LoopFacts) -> None:
        """Write down what is known of the loop, in place of what was written before. It charges nothing.

        That there is no guarantee, once it was written, stays.
        """
        with self._mutex:
            self._check_usable()
            if self._facts is not None and self._facts.void_from is not None:
                facts = facts.void(self._facts.void_from, self._facts.void_reason)
            if facts != self._facts:
                self._append(loop_row(self.charged, facts), 0)
                self._facts = facts

    @property
    def facts(self) -> LoopFacts | None:
        """What was last noted of the loop; None if nothing was."""
        return self._facts

    @property
    def next_step(self) -> int:
        """The step that may be charged next."""
        return self._next

    @property
    def charged(self) -> int:
        """How many steps are charged, done or not."""
        return self._place.charged

    @property
    def position(self) -> LedgerPosition:
        """Where the ledger stands, for a checkpoint: opening with it refuses a ledger that has lost lines."""
        return self._place.position

    def close(self) -> None:
        """Let another process have the ledger."""
        self._closed = True
        self._file.close()
        self._count.close()
        self._unlock()

    def __enter__(self) -> "LedgerFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the gate ---
    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidValue(
                f"{self._file.path}: belongs to process {self._pid}, and this is a copy of it, {os.getpid()}. Both "
                "would draw noise for one line. Charge steps in the first."
            )
        if self._closed:
            raise InvalidValue(f"{self._file.path}: is closed. Nothing can be charged. Open it again.")

    def _check_planned(self, number: int, step: Step) -> None:
        if number < self.next_step:
            raise BudgetExceeded(
                f"step={number} was charged before. No step is done twice. Go on with step {self.next_step}."
            )
        if number >= self.header.length:
            raise BudgetExceeded(
                f"step={number} is beyond the plan's {self.header.length}. Its budget is spent. Make a plan with more."
            )
        if number > self.next_step:
            raise BudgetExceeded(
                f"step={number} is not the next one. The plan's order counts. Do step {self.next_step}."
            )
        noise, rate = float(self._noises[number]), float(self._rates[number])
        planned_values = {"noise_multiplier": noise, "sample_rate": rate, "sampling": self._sampling}
        for name, planned in planned_values.items():
            given = getattr(step, name)
            if given != planned:
                raise BudgetExceeded(
                    f"{name}={given} of step {number} is not the plan's, {planned}. It would cost what was not "
                    "planned. Make a plan for it."
                )

    # --- the file ---
    def _mend(self, reading: Reading) -> None:
        """End a line that lacks only its end; charge a torn tail by a line that vouches for it. Nothing is removed."""
        before = b"" if reading.ended else b"\n"
        if reading.tail is not None:
            count = reading.tail.count
            self._append(repair_row(reading.tail.text, self.charged, count), count, before=before)
        elif before:
            self._file.append(before, at=self._place.size)
            self._place = self._place._replace(size=self._place.size + len(before))

    def _charge(self, count: int, clips: Floats) -> None:
        first, here = self.charged, slice(self.charged, self.charged + count)
        noises, rates = self._noises[here], self._rates[here]
        row = charge_row(first, noises=noises, rates=rates, clips=clips, kind=str(self._sampling))
        self._append(row, count)

    def _append(self, row: Mapping[str, Any], count: int, *, before: bytes = b"") -> None:
        mark, charged, size = self._place
        line, digest = chain_line(mark.digest, row)
        self._file.append(before + line, at=size)
        self._place = _Place(LedgerPosition(mark.lines + 1, digest), charged + count, size + len(before) + len(line))
        self._count.write(Count(self.header.run, self.charged))


def _check_plan(file: Path, reading: Reading, plan: Plan) -> None:
    if reading.header.plan != plan.hash:
        raise InvalidValue(
            f"{file}: is of another plan, {reading.header.plan}; this one is {plan.hash}. Its steps are not those that "
            "were charged. Resume with the plan the run began with."
        )
    one, other = reading.ledger.columns(), plan.ledger().first(reading.ledger.steps).columns()
    if not all(  # up to how machines round a shape's exponentials
        np.allclose(np.repeat(ours, one.count), np.repeat(planned, other.count), rtol=1e-12, atol=0)
        for ours, planned in ((one.noise_multiplier, other.noise_multiplier), (one.sample_rate, other.sample_rate))
    ):
        raise InvalidValue(
            f"{file}: charges other steps than its plan has. It was not made by Privet. Use a new folder."
        )
