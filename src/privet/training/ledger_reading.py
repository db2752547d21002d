"""A run's ledger, read back and proven whole. What a crash can leave is charged; any other damage is refused."""

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from privet._files import MIB, read_file, read_start
from privet.accounting import Guarantee, Ledger
from privet.errors import InvalidValue, PrivetError
from privet.training import ledger_count
from privet.training.assumptions import LoopFacts
from privet.training.ledger_charges import REPAIR, RESTORE, Charges, Tail, bad, begins
from privet.training.ledger_lines import FORMAT, START, VERSION, Header, Mark

NAME = "ledger.jsonl"
MOST_BYTES = 2**33  # ten million steps, the most of a schedule, take a quarter of it
_MOST_PIECES = 1000  # of a torn tail: each but the first is a crash while the one before was repaired
_AGAIN = 5  # times a torn tail is looked at: a line may be just being written
_ENDING = len(',"digest":"') + 64 + len('"}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a ledger file says. `ledger` charges every step that may have been released, none that was not planned."""

    header: Header
    ledger: Ledger
    notes: tuple[str, ...]  # what was torn and charged, one line each
    mark: Mark
    ended: bool  # whether the last line has its end of line
    tail: Tail | None
    loop: LoopFacts | None = None  # what is known of the loop; None if nothing was written of it

    @property
    def remark(self) -> str | None:
        """When the cost of this ledger is the run's guarantee; None once the whole plan is spent."""
        if self.ledger.steps >= self.header.length:
            return None
        return "holds if the moment to stop was fixed beforehand; if outputs decided it, the plan's epsilon holds"


def is_run(path: Path) -> bool:
    """Whether `path` is a folder, a ledger of a run, or says that it is one."""
    try:
        return path.is_dir() or path.name == NAME or _begins(path)
    except (OSError, ValueError):
        return False


def _begins(file: Path) -> bool:
    return f'"format":"{FORMAT}"'.encode() in read_start(file, 200)


def read(path: str | Path, *, at_least: Mark | None = None) -> Reading:
    """What the run in a folder has spent, from its ledger alone. Takes no lock: the run may be going on.

    >>> import tempfile
    >>> from privet import plan
    >>> from privet.training.ledger_file import LedgerFile
    >>> p = plan(delta=1e-5, size=1000, batch=10, steps=40, noise=2.0, solve="epsilon")
    >>> with tempfile.TemporaryDirectory() as folder, LedgerFile.create(folder, p) as ledger:
    ...     ledger.charge(0, p.steps[0])
    ...     read(folder).ledger.steps
    1

    Raises:
        InvalidValue: there is no ledger, or it is damaged; one line names the place and what to do.
    """
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    count = ledger_count.counted(file.parent) if file.name == NAME else None  # first: the run may be going on
    try:
        found = parse(_bytes_of(file), at_least=at_least)
        for _ in range(_AGAIN):
            if found.tail is None:
                break
            before, found = found, parse(_bytes_of(file), at_least=at_least)
            if before.tail == found.tail:
                break
        _check_count(found, count)
        return found
    except PrivetError as error:
        raise type(error)(f"{file}: {error}") from None


def _check_count(found: Reading, count: ledger_count.Count | None) -> None:
    """Raise if lines were cut off at the end, which the lines alone cannot show."""
    if count is None:
        return
    if count.run != found.header.run:
        raise InvalidValue(
            f"is of another run than {ledger_count.NAME} beside it. What is spent could not be told. {RESTORE}"
        )
    if found.ledger.steps < count.charged:
        raise InvalidValue(
            f"charges {found.ledger.steps} steps, and {ledger_count.NAME} beside it says that {count.charged} were. "
            f"Steps would be spent twice. {RESTORE}"
        )


def _bytes_of(file: Path) -> bytes:
    try:
        start = read_start(file, MIB)
        if len(start) == MIB and not _begins(file):  # before all of it is read
            raise InvalidValue(f"line 1: is not the header of a {FORMAT} file, or is damaged. {RESTORE}")
        return read_file(file, most=MOST_BYTES, advice="No run's ledger is so long.")
    except FileNotFoundError:
        raise InvalidValue("there is no such file. Give the folder of a run.") from None
    except MemoryError:
        raise InvalidValue("is larger than this machine's memory.") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if isinstance(error, PrivetError):
            raise
        raise InvalidValue(f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None


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
    charged = Charges(header)
    for before, place, row in zip(places, places[1:], rows[1:], strict=False):
        charged.add(place + 1, row, b"\n".join(lines[before + 1 : place]))
    tail = None
    if torn:
        tail = charged.torn(places[-1] + 2, lines[places[-1] + 1 :])
    return Reading(
        header=header, ledger=charged.ledger(), notes=tuple(charged.notes), mark=mark, ended=ended, tail=tail,
        loop=charged.loop,
    )  # fmt: skip


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
    for place in range(start + 1, min(len(lines), start + _MOST_PIECES)):
        if not begins(lines[place], REPAIR):
            return None
        torn = b"\n".join(lines[start:place])
        said = b'{"torn":%d,"torn_sha256":"%s",' % (len(torn), sha256(torn).hexdigest().encode())
        if lines[place].startswith(said) and _fitting(previous, lines[place]):
            return place
    return None


def _rows(lines: list[bytes], places: Sequence[int]) -> list[Any]:
    """The objects in whole lines: read all at once, since a run has many, and one by one only to name a bad one."""
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=_refuse)
        if len(found) == len(lines) and all(type(row) is dict for row in found):
            return found  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        pass
    for place, line in zip(places, lines, strict=True):
        try:
            json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise bad(place + 1, "is not a JSON object") from None
    raise bad(1, "and those after it are not one JSON object each")


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _header(row: Any) -> Header:
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise InvalidValue(f"line 1: is not the header of a {FORMAT} file. Give the folder of a run.")
    if row.get("version") != VERSION:
        raise InvalidValue(f"line 1: version={row.get('version')!r} must be {VERSION}. Use the Privet that wrote it.")
    fields = {key: value for key, value in row.items() if key not in ("format", "version", "digest")}
    try:
        found = Header(**fields)
        return replace(found, planned=None if fields["planned"] is None else Guarantee(**fields["planned"]))
    except (TypeError, KeyError, PrivetError) as error:
        raise bad(1, f"is not a whole header: {reprlib.repr(str(error))}") from None
