"""The ledger of a run folder: every step is charged on the disk before its noise is drawn, and none outside the plan."""

import os
import secrets
import stat
import threading
from pathlib import Path

import numpy as np

from privet import _check
from privet.accounting import Ledger, Step
from privet.errors import BudgetExceeded, InvalidValue, PrivetError
from privet.planning import Plan
from privet.training.ledger_lines import FORMAT, Header, Mark, chained, header_line, header_of, reservation
from privet.training.ledger_reading import Reading, parse, torn_digest
from privet.training.run_lock import Descriptor, locked, sync, sync_folder, unwritable

NAME = "ledger.jsonl"
_AGAIN = 5  # times a torn tail is looked at: a line may be just being written


def is_run(path: Path) -> bool:
    """Whether `path` is a folder, a ledger of a run, or says that it is one."""
    try:
        if path.is_dir() or path.name == NAME:
            return True
        with path.open("rb") as stream:
            return f'"format":"{FORMAT}"'.encode() in stream.read(200)
    except (OSError, ValueError):
        return False


def read(path: str | Path, *, at_least: Mark | None = None) -> Reading:
    """What the run in a folder has spent, from its ledger alone. Takes no lock: the run may be going on.

    >>> import tempfile
    >>> from privet import plan
    >>> p = plan(delta=1e-5, size=1000, batch=10, steps=40, noise=2.0, solve="epsilon")
    >>> with tempfile.TemporaryDirectory() as folder, LedgerFile.create(folder, p) as ledger:
    ...     ledger.charge(0, p.steps[0])
    ...     read(folder).ledger.steps
    1

    Raises:
        InvalidValue: there is no ledger, or it is damaged; one line names the place and what to do.
    """
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    try:
        found = parse(_bytes_of(file), at_least=at_least)
        for _ in range(_AGAIN):
            if found.tail is None:
                break
            before, found = found, parse(_bytes_of(file), at_least=at_least)
            if before.tail == found.tail:
                break
        return found
    except PrivetError as error:
        raise type(error)(f"{file}: {error}") from None


def _bytes_of(file: Path) -> bytes:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise InvalidValue("is not a file. Give the folder of a run.")
        return file.read_bytes()
    except FileNotFoundError:
        raise InvalidValue("there is no such file. Give the folder of a run.") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InvalidValue(f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None


class LedgerFile:
    """The ledger of a run, open for writing by this process alone. Made by `create` or `open`.

    `next` is the step that may be charged next. Lines are only appended; each is synced before the call returns.

    >>> import tempfile
    >>> from privet import plan
    >>> p = plan(delta=1e-5, size=1000, batch=10, steps=40, noise=2.0, solve="epsilon")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LedgerFile.create(folder, p, reserve=4) as ledger:
    ...         ledger.reserve(4)  # one line on the disk for steps 0 to 3
    ...         ledger.charge(0, p.steps[0])  # now the noise of step 0 may be drawn
    ...     with LedgerFile.open(folder, p) as ledger:
    ...         ledger.next  # steps 1 to 3 are charged and never done
    4
    """

    def __init__(self, folder: Path, plan: Plan, lock: Descriptor, reading: Reading) -> None:
        self.path = folder / NAME
        self.header: Header = reading.header
        self.notes = reading.notes
        self._lock, self._pid, self._mutex = lock, os.getpid(), threading.Lock()
        self._noises, self._rates, self._clips = plan.steps.noises, plan.steps.rates, plan.steps.clips
        self._sampling = plan.steps.sampling
        self._mark = reading.mark
        self._broken: str | None = None
        self._file = self._opened()
        self._length = os.fstat(self._file.number).st_size
        self._charged = reading.ledger.steps - (reading.tail.count if reading.tail else 0)
        self._repair(reading)
        self.next = self._charged

    @classmethod
    def create(cls, folder: str | Path, plan: Plan, *, reserve: int = 1, seeded: bool = False) -> "LedgerFile":
        """A new ledger for a run of `plan` in a folder that has none; the folder is made if need be.

        Args:
            reserve: the most steps that one line may charge, which is what a torn line costs.
            seeded: whether the run's noise can be drawn again. Then it is marked as not private.
        """
        header = header_of(plan, run=secrets.token_hex(16), reserve=reserve, seeded=seeded)
        place = Path(folder)
        _make(place)
        lock = locked(place)
        file = place / NAME
        if file.exists() or file.is_symlink():
            lock.close()
            raise InvalidValue(f"{file}: is there already. Its steps are spent. Resume that run, or use a new folder.")
        try:
            _write_new(file, header_line(header)[0])
        except OSError as error:
            lock.close()
            raise unwritable(file, error) from None
        return cls(place, plan, lock, read(file))

    @classmethod
    def open(cls, folder: str | Path, plan: Plan, *, at_least: Mark | None = None) -> "LedgerFile":
        """The ledger of a run that goes on. What a crash tore is charged, and kept.

        Args:
            at_least: the mark in the run's checkpoint. A ledger that ends before it has lost lines, and is refused.

        Raises:
            InvalidValue: another process has it open, it is damaged, or it is of another plan.
        """
        place = Path(folder)
        if not (place / NAME).exists():
            raise InvalidValue(f"{place / NAME}: there is no such file. Give the folder of a run, or begin a new run.")
        lock = locked(place)
        try:
            reading = read(place / NAME, at_least=at_least)
            _check_plan(place / NAME, reading, plan)
            return cls(place, plan, lock, reading)
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
            raise InvalidValue(f"steps={steps} must be at most {self.header.reserve}, the reserve the run began with.")
        with self._mutex:
            self._check_usable()
            if self._charged + steps > self.header.length:
                raise BudgetExceeded(
                    f"steps={steps} is more than the {self.header.length - self._charged} left of the plan's "
                    f"{self.header.length}. More would exceed its budget. Reserve fewer, or make a plan with more."
                )
            self._charge(steps, self._clips[self._charged : self._charged + steps])

    def charge(self, number: int, step: Step) -> None:
        """Let step `number` (from 0) happen: it is planned, was never charged before, and is on the disk now.

        Call it right before the step's noise is drawn. Its clip may differ from the plan's: it may follow earlier
        releases, and does not change the cost.

        Raises:
            BudgetExceeded: the step is not the plan's next one.
            InvalidValue: it could not be written. Then it is not charged, and must not happen.
        """
        with self._mutex:
            self._check_usable()
            self._check_planned(number, step)
            if number == self._charged:
                self._charge(1, np.array([float(step.clip)]))
            self.next = number + 1

    @property
    def charged(self) -> int:
        """How many steps are charged, done or not."""
        return self._charged

    @property
    def mark(self) -> Mark:
        """Where the ledger stands, for a checkpoint: opening with it refuses a ledger that has lost lines."""
        return self._mark

    def close(self) -> None:
        """Let another process have the ledger."""
        self._broken = self._broken or "is closed. Open it again"
        self._file.close()
        self._lock.close()

    def __enter__(self) -> "LedgerFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the gate ---

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidValue(
                f"{self.path}: belongs to process {self._pid}, and this is a copy of it, {os.getpid()}. Both would draw "
                "noise for one line. Charge steps in the first."
            )
        if self._broken is not None:
            raise InvalidValue(f"{self.path}: {self._broken}.")

    def _check_planned(self, number: int, step: Step) -> None:
        if number != self.next:
            why = (
                f"was charged before, and no step is done twice. Go on with step {self.next}"
                if number < self.next
                else f"is not the next one, {self.next}. Steps are done in the order of the plan"
            )
            raise BudgetExceeded(f"step={number} {why}.")
        if number >= self.header.length:
            raise BudgetExceeded(
                f"step={number} is beyond the plan's {self.header.length}. Its budget is spent. Make a plan with more."
            )
        for name, given, planned in (
            ("noise", step.noise, float(self._noises[number])),
            ("rate", step.rate, float(self._rates[number])),
            ("sampling", step.sampling, self._sampling),
        ):
            if given != planned:
                raise BudgetExceeded(
                    f"{name}={given} of step {number} is not the plan's, {planned}. What is spent would not be what was "
                    "planned. Make a plan for it."
                )

    # --- the file ---

    def _opened(self) -> Descriptor:
        try:
            return Descriptor(self.path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _repair(self, reading: Reading) -> None:
        """Close a line that lacks its end; charge a torn tail by a line that vouches for it. Nothing is removed."""
        if reading.tail is None:
            if not reading.ended:
                self._append(b"\n")
            return
        text, count = reading.tail.text, reading.tail.count
        torn = {"torn": len(text), "torn_sha256": torn_digest(text)}
        clips = self._clips[self._charged : self._charged + count]
        self._charge(count, clips, torn=torn, before=b"" if reading.ended else b"\n")

    def _charge(
        self, count: int, clips: "np.ndarray[tuple[int], np.dtype[np.float64]]", *,
        torn: dict[str, object] | None = None, before: bytes = b"",
    ) -> None:  # fmt: skip
        here = slice(self._charged, self._charged + count)
        row = reservation(
            self._charged, noises=self._noises[here], rates=self._rates[here], clips=clips, kind=str(self._sampling)
        )
        line, digest = chained(self._mark.digest, (torn or {}) | row)
        self._append(before + line)
        self._mark = Mark(self._mark.lines + 1, digest)
        self._charged += count

    def _append(self, text: bytes) -> None:
        """Add `text` and return once it is on the disk. On failure the steps it charges must not happen."""
        self._check_file()
        # Stands until the text is known to be there: an interrupt, too, leaves a ledger that must be read again.
        self._broken = "a line was not seen to reach the disk. Its steps may be charged. Open the ledger again"
        try:
            _write_all(self._file.number, text)
        except OSError as error:
            self._cut_back()
            raise unwritable(self.path, error) from None
        try:
            sync(self._file.number)
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._length += len(text)
        self._broken = None

    def _cut_back(self) -> None:
        """Take back a line that did not fit: nothing was drawn for it, and the next one may fit again."""
        try:
            os.ftruncate(self._file.number, self._length)
            self._broken = None
        except OSError:
            pass  # it stays broken

    def _check_file(self) -> None:
        """Raise unless the name still leads to the file we write, and nobody else wrote to it."""
        try:
            there, ours = os.stat(self.path), os.fstat(self._file.number)
        except OSError as error:
            raise unwritable(self.path, error) from None
        if not os.path.samestat(there, ours) or ours.st_size != self._length:
            raise InvalidValue(
                f"{self.path}: was changed or replaced by another process. What is spent would be lost. "
                "Stop that process, and open the ledger again."
            )


def _check_plan(file: Path, reading: Reading, plan: Plan) -> None:
    """Raise unless the ledger is of this plan, and charges its steps."""
    if reading.header.plan != plan.hash:
        raise InvalidValue(
            f"{file}: is of another plan, {reading.header.plan}; this one is {plan.hash}. Its steps would not be those "
            "charged. Resume with the plan the run began with."
        )
    if not _agree(reading.ledger, plan.ledger().first(reading.ledger.steps)):
        raise InvalidValue(f"{file}: charges other steps than its plan has. Begin a new run.")


def _agree(ours: Ledger, planned: Ledger) -> bool:
    """Whether two ledgers charge the same, up to how machines round a shape's exponentials."""
    one, other = ours.columns(), planned.columns()
    return all(
        np.allclose(np.repeat(a, one.count), np.repeat(b, other.count), rtol=1e-12, atol=0)
        for a, b in ((one.noise, other.noise), (one.rate, other.rate))
    )


def _make(folder: Path) -> None:
    """Make a folder and those above it, each on the disk before anything is written into it."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in reversed(missing):
            sync_folder(place.parent)
    except OSError as error:
        raise unwritable(folder, error) from None


def _write_new(file: Path, text: bytes) -> None:
    """A new file that is there whole or not at all."""
    beside = file.with_name(file.name + ".new")
    made = Descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        _write_all(made.number, text)
        sync(made.number)
    finally:
        made.close()
    os.rename(beside, file)
    sync_folder(file.parent)


def _write_all(number: int, text: bytes) -> None:
    while text:
        text = text[os.write(number, text) :]
