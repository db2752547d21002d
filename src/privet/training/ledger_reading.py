"""A run's ledger, read back and proven whole. What a crash can leave is charged; any other damage is refused."""

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np

from privet.accounting import Guarantee, Ledger
from privet.errors import InvalidValue, PrivetError
from privet.training.ledger_lines import FORMAT, START, VERSION, Header, Mark

RESTORE = "Restore the ledger from a copy; without one, count the plan's whole epsilon as spent and begin a new run."
_REPAIR = b'{"torn":'
_MOST_PIECES = 100  # of one torn tail: each is a crash during the repair of the one before
_ENDING = len(',"digest":"') + 64 + len('"}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What a crash left behind the last whole line, charged as `count` steps from the next on."""

    text: bytes
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a ledger file says. `ledger` charges every step that may have been released, none that was not planned."""

    header: Header
    ledger: Ledger
    notes: tuple[str, ...]  # what was torn and charged, one line each
    mark: Mark
    ended: bool  # whether the last line has its end of line
    tail: Tail | None


def parse(data: bytes, *, at_least: Mark | None = None) -> Reading:
    """The reading of a file's content.

    Raises:
        InvalidValue: a line is damaged, missing or out of order, or the file ends before `at_least`; names the line.
    """
    lines = data.split(b"\n")
    ended = not lines[-1]
    if ended:
        lines.pop()
    places, mark, torn = _verified(lines, at_least)
    if not places:
        raise InvalidValue(f"line 1: is not the header of a {FORMAT} file, or is damaged. {RESTORE}")
    rows = _rows([lines[place] for place in places], places)
    header = _header(rows[0])
    charged = _Charged(header)
    for place, row in zip(places[1:], rows[1:], strict=True):
        charged.add(place + 1, row)
    tail = None
    if torn:
        tail = charged.torn(places[-1] + 2, lines[places[-1] + 1 :])
    return Reading(
        header=header, ledger=charged.ledger(), notes=tuple(charged.notes), mark=mark, ended=ended, tail=tail
    )


def _verified(lines: Sequence[bytes], at_least: Mark | None) -> tuple[list[int], Mark, bool]:
    """The places of the lines whose checksums fit, the mark of the last, and whether something is left behind it."""
    places: list[int] = []
    previous, seen, i = START, None, 0
    while i < len(lines):
        digest = _fitting(previous, lines[i])
        if digest is None:
            repaired = _repaired(previous, lines, i)
            if repaired is None:
                break
            i = repaired
            continue
        places.append(i)
        previous = digest
        if at_least is not None and len(places) == at_least.lines:
            seen = digest
        i += 1
    if at_least is not None and places and seen != at_least.digest:
        lost = f"has {len(places)} whole lines, the checkpoint saw {at_least.lines}"
        other = f"line {at_least.lines}: is not the one that the checkpoint saw"
        raise InvalidValue(f"{lost if seen is None else other}. Steps would be spent twice. {RESTORE}")
    return places, Mark(len(places), previous), i < len(lines)


def _fitting(previous: str, line: bytes) -> str | None:
    """The checksum of a line, if it is the one written in it."""
    body = line[:-_ENDING]
    digest = sha256(previous.encode() + body).hexdigest()
    return digest if line[-_ENDING:] == f',"digest":"{digest}"}}'.encode() else None


def _repaired(previous: str, lines: Sequence[bytes], start: int) -> int | None:
    """The place of the line that vouches for the torn ones from `start` on, if there is one."""
    for place in range(start + 1, min(start + 1 + _MOST_PIECES, len(lines))):
        line = lines[place]
        if line.startswith(_REPAIR) and _fitting(previous, line):
            row = json.loads(line)
            return place if row.get("torn_sha256") == torn_digest(b"\n".join(lines[start:place])) else None
    return None


def torn_digest(text: bytes) -> str:
    """How a repair names the torn text before it."""
    return sha256(text).hexdigest()


def _rows(lines: list[bytes], places: Sequence[int]) -> list[Any]:
    """The objects in whole lines: read all at once, since a run has many, and one by one only to name a bad one."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=_refuse)
        if len(found) == len(lines):
            return found  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        pass
    for place, line in zip(places, lines, strict=True):
        try:
            json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise _bad(place + 1, "is not a JSON object") from None
    raise _bad(1, "and those after it are not one JSON object each")


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _bad(line: int, why: str) -> InvalidValue:
    return InvalidValue(f"line {line}: {why}. The file was changed after it was written. {RESTORE}")


def _header(row: Any) -> Header:
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise InvalidValue(f"line 1: is not the header of a {FORMAT} file. Give the folder of a run.")
    if row.get("version") != VERSION:
        raise InvalidValue(f"line 1: version={row.get('version')!r} must be {VERSION}. Use the Privet that wrote it.")
    fields = {key: value for key, value in row.items() if key not in ("format", "version", "digest")}
    try:
        found = Header(**fields)
        return replace(found, planned=None if fields["planned"] is None else Guarantee(**fields["planned"]))
    except (TypeError, KeyError, AttributeError, PrivetError) as error:
        raise _bad(1, reprlib.repr(str(error))) from None


class _Charged:
    """The steps charged so far, line by line."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.notes: list[str] = []
        self._next = 0
        self._columns: dict[str, list[float]] = {"noise": [], "rate": [], "clip": []}

    def add(self, line: int, row: Any) -> None:
        repair = "torn" in row
        count, first = row.get("count"), row.get("step")
        if first != self._next:
            raise _bad(line, f"has step {first!r} where step {self._next} comes next")
        most = min(self.header.reserve * (_MOST_PIECES if repair else 1), self.header.length - self._next)
        if type(count) is not int or not (0 if repair else 1) <= count <= most:
            raise _bad(line, f"charges {count!r} steps, at most {most} may be")
        if row.get("sampling") != self.header.steps["sampling"]:
            raise _bad(line, f"sampling={row.get('sampling')!r} is not the plan's")
        for name, column in self._columns.items():
            column += _listed(line, name, row.get(name), count)
        self._next += count
        if repair:
            self.notes.append(f"line {line}: {row['torn']} torn bytes before it are charged as {count} steps")

    def torn(self, line: int, pieces: Sequence[bytes]) -> Tail:
        """Charge what a crash left: as many steps as one line may reserve, for each piece of it."""
        reason = _not_torn(pieces[0], b'{"step":%d,' % self._next)
        if reason is None and (len(pieces) > _MOST_PIECES or any(_not_torn(p, _REPAIR) for p in pieces[1:])):
            reason = "its checksum does not fit, and lines follow"
        if reason:
            raise _bad(line, reason)
        count = min(self.header.reserve * len(pieces), self.header.length - self._next)
        steps, here = self.header.planned_steps(), slice(self._next, self._next + count)
        for name, values in (("noise", steps.noises), ("rate", steps.rates), ("clip", steps.clips)):
            self._columns[name] += values[here].tolist()
        self._next += count
        self.notes.append(f"line {line}: torn, or just being written; charged as {count} steps")
        return Tail(text=b"\n".join(pieces), count=count)

    def ledger(self) -> Ledger:
        ledger = Ledger()
        try:
            ledger.extend(sampling=self.header.steps["sampling"], **{k: np.array(v) for k, v in self._columns.items()})
        except PrivetError as error:
            raise InvalidValue(f"{error} The file was changed after it was written. {RESTORE}") from None
        return ledger


def _listed(line: int, name: str, value: Any, count: int) -> list[float]:
    found = value if type(value) is list else [value] * count
    if len(found) != count or not all(type(v) is float for v in found):
        raise _bad(line, f"{name}={reprlib.repr(value)} must be {count} numbers")
    return found


def _not_torn(piece: bytes, start: bytes) -> str | None:
    """Why a line whose checksum does not fit cannot be a torn one: then lines are missing, moved or changed.

    A torn line begins as the next line must, as far as it goes; zeros are what a lost block reads as. Two lines that
    run together would be charged as one.
    """
    head = piece[: len(start)]
    if head != start[: len(head)] and b"\0" not in head:
        return f"does not begin with {start.decode()!r} as the next line must"
    if max(piece.count(word) for word in (b"{", b"}", b'"digest"')) > 1:
        return "is more than one line"
    return None
