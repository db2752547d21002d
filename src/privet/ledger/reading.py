"""What lies in a folder, a run, a federation or a tuning, and the command that goes on with it."""

import contextlib
import json
import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from privet._files import MIB, Descriptor, read_file, read_json, read_start
from privet.accounting import Guarantee, Ledger
from privet.errors import InvalidValue, PrivetError, name_errors
from privet.ledger.assumptions import LoopFacts
from privet.ledger.format import (
    FORMAT,
    REPAIR,
    RESTORE,
    START,
    VERSION,
    ChargeReader,
    Header,
    LedgerPosition,
    TornTail,
    bad_line_error,
    could_begin_with,
)
from privet.planning.format_1 import from_format_1

RUN, FEDERATION, TUNING = "run.json", "federation.json", "tuning.json"  # the description of each
WEIGHTS, METRICS = "checkpoint.safetensors", "metrics.jsonl"  # of a run


def is_federation(folder: Path) -> bool:
    return (folder / FEDERATION).exists()


def resume_command(folder: Path) -> str:
    """The command that goes on with what lies in a folder.

    >>> resume_command(Path("runs/a"))
    'privet train --resume runs/a'
    """
    return f"privet {'federate' if is_federation(folder) else 'train'} --resume {folder}"


COUNT_NAME = "ledger.count"
_MOST_BYTES = 200


class Count(NamedTuple):
    """So many steps of this run were charged once."""

    run: str
    charged: int


class HighWaterMark:
    """The count beside a ledger, open for writing. That it cannot be written is no reason to stop.

    Raises:
        InvalidValue: it is a link, or no plain file: something else would be overwritten.
    """

    def __init__(self, folder: Path) -> None:
        self._held: Descriptor | None = None
        with contextlib.suppress(OSError):
            self._held = Descriptor(folder / COUNT_NAME, os.O_WRONLY | os.O_CREAT)

    def write(self, count: Count) -> None:
        if self._held is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._held.number, _count_line(count), 0)  # in place: it needs no room on the disk

    def close(self) -> None:
        if self._held is not None:
            self._held.close()


def remove_high_water_mark(folder: Path) -> None:
    """Remove the count of a run whose ledger is gone, before another is begun in its folder."""
    with contextlib.suppress(OSError):
        (folder / COUNT_NAME).unlink()


def read_high_water_mark(folder: Path) -> Count | None:
    """What the count in a folder says; None if there is none, or it is damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     HighWaterMark(Path(folder)).write(Count("a1", 7))
    ...     read_high_water_mark(Path(folder))
    Count(run='a1', charged=7)
    """
    try:
        text = read_start(folder / COUNT_NAME, _MOST_BYTES)
        line = text[: text.find(b"\n") + 1]
        found = Count(**{key: value for key, value in json.loads(line).items() if key != "digest"})
        return found if _count_line(found) == line else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _count_line(count: Count) -> bytes:
    body = f'{{"run":"{count.run}","charged":{count.charged}'
    return f'{body},"digest":"{sha256(body.encode()).hexdigest()}"}}\n'.encode()


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
    position: LedgerPosition
    ended: bool  # whether the last line has its end of line
    tail: TornTail | None
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
        return path.is_dir() or path.name == NAME or _begins_with_header(path)
    except (OSError, ValueError):
        return False


def _begins_with_header(file: Path) -> bool:
    return f'"format":"{FORMAT}"'.encode() in read_start(file, 200)


def read_ledger(path: str | Path, *, at_least: LedgerPosition | None = None) -> Reading:
    """What the run in a folder has spent, from its ledger alone. Takes no lock: the run may be going on.

    >>> import tempfile
    >>> from privet import plan
    >>> from privet.ledger.file import LedgerFile
    >>> p = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier=2.0, solve="epsilon")
    >>> with tempfile.TemporaryDirectory() as folder, LedgerFile.create(folder, p) as ledger:
    ...     ledger.charge(0, p.steps[0])
    ...     read_ledger(folder).ledger.steps
    1

    Raises:
        InvalidValue: there is no ledger, or it is damaged; one line names the place and what to do.
    """
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    count = read_high_water_mark(file.parent) if file.name == NAME else None  # first: the run may be going on
    with name_errors(file):
        found = parse(_read_bytes(file), at_least=at_least)
        for _ in range(_AGAIN):
            if found.tail is None:
                break
            before, found = found, parse(_read_bytes(file), at_least=at_least)
            if before.tail == found.tail:
                break
        _check_count(found, count)
        return found


def _check_count(found: Reading, count: Count | None) -> None:
    """Raise if lines were cut off at the end, which the lines alone cannot show."""
    if count is None:
        return
    if count.run != found.header.run:
        raise InvalidValue(f"is of another run than {COUNT_NAME} beside it. What is spent could not be told. {RESTORE}")
    if found.ledger.steps < count.charged:
        raise InvalidValue(
            f"charges {found.ledger.steps} steps, and {COUNT_NAME} beside it says that {count.charged} were. "
            f"Steps would be spent twice. {RESTORE}"
        )


def _read_bytes(file: Path) -> bytes:
    try:
        start = read_start(file, MIB)
        if len(start) == MIB and not _begins_with_header(file):  # before all of it is read
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


def parse(data: bytes, *, at_least: LedgerPosition | None = None) -> Reading:
    """The reading of a file's content.

    Raises:
        InvalidValue: a line is damaged, missing or out of order, or the file ends before `at_least`; names the line.
    """
    lines = data.split(b"\n")
    ended = not lines[-1]
    if ended:
        lines.pop()
    places, mark, torn = _verify_lines(lines, at_least)
    if not places:
        raise InvalidValue(f"line 1: is not the header of a {FORMAT} file, or is damaged. {RESTORE}")
    rows = _parse_rows([lines[place] for place in places], places)
    header = _parse_header(rows[0])
    charged = ChargeReader(header)
    for before, place, row in zip(places, places[1:], rows[1:], strict=False):
        charged.add(place + 1, row, b"\n".join(lines[before + 1 : place]))
    tail = None
    if torn:
        tail = charged.charge_torn(places[-1] + 2, lines[places[-1] + 1 :])
    return Reading(
        header=header, ledger=charged.ledger(), notes=tuple(charged.notes), position=mark, ended=ended, tail=tail,
        loop=charged.loop,
    )  # fmt: skip


def _verify_lines(lines: Sequence[bytes], at_least: LedgerPosition | None) -> tuple[list[int], LedgerPosition, bool]:
    """The places of the lines whose checksums fit, the mark of the last, and whether something is left behind it."""
    places: list[int] = []
    previous, seen, i = START, None, 0
    while i < len(lines):
        digest = _matching_digest(previous, lines[i])
        if digest is None:
            repaired = _find_repair(previous, lines, i)
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
    return places, LedgerPosition(len(places), previous), i < len(lines)


def _matching_digest(previous: str, line: bytes) -> str | None:
    """The checksum of a line, if it is the one written in it."""
    body = line[:-_ENDING]
    digest = sha256(previous.encode() + body).hexdigest()
    return digest if line[-_ENDING:] == f',"digest":"{digest}"}}'.encode() else None


def _find_repair(previous: str, lines: Sequence[bytes], start: int) -> int | None:
    """The place of the line that vouches for the torn ones from `start` on, if there is one."""
    for place in range(start + 1, min(len(lines), start + _MOST_PIECES)):
        if not could_begin_with(lines[place], REPAIR):
            return None
        torn = b"\n".join(lines[start:place])
        said = b'{"torn":%d,"torn_sha256":"%s",' % (len(torn), sha256(torn).hexdigest().encode())
        if lines[place].startswith(said) and _matching_digest(previous, lines[place]):
            return place
    return None


def _parse_rows(lines: list[bytes], places: Sequence[int]) -> list[Any]:
    """The objects in whole lines: read all at once, since a run has many, and one by one only to name a bad one."""
    try:
        found = read_json(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines) and all(type(row) is dict for row in found):
            return found  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        pass
    for place, line in zip(places, lines, strict=True):
        try:
            read_json(line)
        except (ValueError, RecursionError):
            raise bad_line_error(place + 1, "is not a JSON object") from None
    raise bad_line_error(1, "and those after it are not one JSON object each")


def _parse_header(row: Any) -> Header:
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise InvalidValue(f"line 1: is not the header of a {FORMAT} file. Give the folder of a run.")
    if row.get("version") != VERSION:
        raise InvalidValue(f"line 1: version={row.get('version')!r} must be {VERSION}. Use the Privet that wrote it.")
    fields = {key: value for key, value in row.items() if key not in ("format", "version", "digest")}
    try:
        found = Header(**from_format_1("guarantee", fields))
        planned = fields["planned"]
        return replace(found, planned=planned and Guarantee(**from_format_1("guarantee", planned)))
    except (TypeError, KeyError, PrivetError) as error:
        raise bad_line_error(1, f"is not a whole header: {reprlib.repr(str(error))}") from None
