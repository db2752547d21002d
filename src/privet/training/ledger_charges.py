"""What the lines of a ledger charge, one by one; and what a torn end of the file is charged for."""

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privet.accounting import Ledger
from privet.errors import InvalidValue, PrivetError
from privet.training.assumptions import LoopFacts
from privet.training.ledger_lines import START, Header, chained, loop_row, reservation

RESTORE = "Restore the ledger from a copy; without one, count the plan's whole epsilon as spent and begin a new run."
REPAIR = b'{"torn":'
_LOOP = re.compile(rb'\{"[ln]')  # no other line has it: quotes inside of texts are escaped
_VOID = re.compile(rb'\{"n')


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What a crash left behind the last whole line, charged as `count` steps from the next on."""

    text: bytes
    count: int


def bad(line: int, why: str) -> InvalidValue:
    """The error for a line that is not as it was written."""
    return InvalidValue(f"line {line}: {why}. The file was changed after it was written. {RESTORE}")


class Charges:
    """The steps charged so far, line by line."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.notes: list[str] = []
        self._next = 0
        self._columns: dict[str, list[float]] = {"noise": [], "rate": [], "clip": []}
        self.loop: LoopFacts | None = None

    def add(self, line: int, row: Any, torn: bytes = b"") -> None:
        """One whole line, and the torn text before it that it vouches for."""
        self._check_void(torn)
        if "loop" in row or "none" in row:
            self._add_loop(line, row)
            return
        mends = "torn" in row
        count, first = row.get("count"), row.get("step")
        if first != self._next:
            raise bad(line, f"has step {first!r} where step {self._next} comes next")
        left = self.header.length - self._next
        most = left if mends else min(self.header.reserve, left)
        if type(count) is not int or not (0 if mends else 1) <= count <= most:
            raise bad(line, f"charges {count!r} steps, at most {most} may be")
        if mends:
            self._add_planned(count)
            self.notes.append(f"line {line}: {row['torn']} torn bytes before it are charged as {_steps(count)}")
            return
        if row.get("sampling") != self.header.steps["sampling"]:
            raise bad(line, f"sampling={row.get('sampling')!r} is not the plan's")
        for name, column in self._columns.items():
            column += _listed(line, name, row.get(name), count)
        self._next += count

    def _add_loop(self, line: int, row: Any) -> None:
        """The last line of the loop holds; that there is no guarantee, once it was said, stays."""
        key = "none" if "none" in row else "loop"
        if set(row) != {key, "facts", "digest"} or type(row[key]) is not int or row[key] != self._next:
            raise bad(line, f"is not about the loop after {_steps(self._next)}, as it says")
        try:
            found = LoopFacts.from_dict(row["facts"])
        except InvalidValue as error:
            raise bad(line, reprlib.repr(str(error).rstrip("."))) from None
        if (found.void_from is None) == (key == "none"):
            raise bad(line, f"begins with {key!r}, and its facts say otherwise")
        if self.loop is not None and self.loop.void_from is not None:
            found = found.void(self.loop.void_from, self.loop.void_reason)
        self.loop = found

    def _check_void(self, torn: bytes) -> None:
        """A torn line may say that there is no guarantee, by its key."""
        if _VOID.search(torn):
            self.loop = (self.loop or LoopFacts()).void(self._next, "a line that says so is torn in the ledger")

    def _add_planned(self, count: int) -> None:
        steps, here = self.header.planned_steps(), slice(self._next, self._next + count)
        for name, values in (("noise", steps.noises), ("rate", steps.rates), ("clip", steps.clips)):
            self._columns[name] += values[here].tolist()
        self._next += count

    def torn(self, line: int, pieces: Sequence[bytes]) -> Tail:
        """Charge what a crash left, for all that it could hold.

        A crash tears one line, and then perhaps its repairs. Other damage at the end of a file (a lost block, an end of
        line that is none any more) can hide more lines: as many as its bytes have room for.
        """
        is_loop, is_void = _LOOP.match(pieces[0]) is not None, _VOID.match(pieces[0]) is not None
        key = b"none" if is_void else b"loop" if is_loop else b"step"
        if not begins(pieces[0], b'{"%s":%d,' % (key, self._next)):
            raise bad(line, f"does not begin with step {self._next}, which comes next")
        if not all(begins(piece, REPAIR) for piece in pieces[1:]):  # only a repair is written behind a torn line
            raise bad(line, "its checksum does not fit, and lines follow")
        self._check_void(b"\n".join(pieces))
        most = self._room_behind_loop(len(pieces[0])) if is_loop else self._room(len(pieces[0]))
        most += sum(self._rough_room(len(piece)) for piece in pieces[1:])
        count = min(most, self.header.length - self._next)
        self._add_planned(count)
        self.notes.append(f"line {line}: torn, or just being written; charged as {_steps(count)}")
        return Tail(text=b"\n".join(pieces), count=count)

    def _rough_room(self, size: int) -> int:
        """The most steps that lines which begin in `size` bytes can charge: all whole but the last, none is shorter."""
        return self.header.reserve * (1 + size // _shortest(self.header.steps["sampling"]))

    def _room(self, size: int) -> int:
        """The same, if the bytes are those from the next line on: then each noise that is new takes its room in them.

        s steps in whole lines take at least ceil(s / reserve) lines, and in some line the digits of each noise that is
        not the one before; three of them are in the shortest line already.
        """
        reserve, shortest = self.header.reserve, _shortest(self.header.steps["sampling"])
        most = min(self._rough_room(size), self.header.length - self._next)
        noises = self.header.planned_steps().noises[self._next : self._next + most].tolist()
        before, whole, text = None, 0, 0
        for steps, noise in enumerate(noises, start=1):
            text += len(repr(noise)) - 3 if noise != before else 0
            if -(-steps // reserve) * shortest + text > size:
                break
            before, whole = noise, steps
        return min(whole + reserve, most)

    def _room_behind_loop(self, size: int) -> int:
        """The same, if the bytes begin with a line of the loop, which charges nothing."""
        rest = size - len(chained(START, loop_row(0, LoopFacts()))[0])  # no such line is shorter
        return self._rough_room(rest) if rest >= 0 else 0

    def ledger(self) -> Ledger:
        ledger = Ledger()
        try:
            ledger.extend(sampling=self.header.steps["sampling"], **{k: np.array(v) for k, v in self._columns.items()})
        except PrivetError as error:
            raise InvalidValue(f"{error} The file was changed after it was written. {RESTORE}") from None
        return ledger


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _listed(line: int, name: str, value: Any, count: int) -> list[float]:
    if type(value) is float:
        return [value] * count
    found = value if type(value) is list else []
    if len(found) != count or not all(type(v) is float for v in found):
        raise bad(line, f"{name}={reprlib.repr(value)} must be {count} numbers")
    return found


def begins(piece: bytes, start: bytes) -> bool:
    """Whether a piece begins as a line must, as far as it goes. Zeros are what a lost block reads as."""
    head = piece[: len(start)]
    return head == start[: len(head)] or b"\0" in head


def _shortest(kind: str) -> int:
    """No line that charges a step of this sampling is shorter."""
    one = np.ones(1)
    return len(chained(START, reservation(0, noises=one, rates=one, clips=one, kind=kind))[0])
