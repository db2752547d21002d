"""The lines of a run's ledger, as they are written: a header, then one for each reservation. See docs/ledger-format.md.

A line is a JSON object whose last key is its checksum: SHA-256 of the checksum of the line before, then its own text.
"""

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from privet import _check
from privet._text import format_count, shorten
from privet.accounting import Guarantee, Ledger
from privet.accounting.guarantee import ADJACENCIES, UNITS, Adjacency, Unit
from privet.accounting.ledger import SHORT, Floats
from privet.accounting.sampling import sampling
from privet.errors import InvalidValue, PrivetError
from privet.ledger.assumptions import LoopFacts
from privet.planning import Plan
from privet.planning.format_1 import from_format_1, to_format_1
from privet.planning.planned_steps import MOST_STEPS, PlannedSteps

FORMAT, VERSION = "privet-run-ledger", 1
MOST_RESERVED = 1000  # steps in one line: what a torn one costs
START = "0" * 64  # stands before the first line
_STEPS = ("length", "rate", "scale", "noise", "batch", "clip", "sampling")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class LedgerPosition(NamedTuple):
    """A place in a ledger: how many whole lines, and the checksum of the last. A checkpoint keeps one."""

    lines: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: which plan is spent, and what a torn line costs."""

    run: str  # random: no line of another run fits behind this one
    plan: str  # the plan's hash
    size: int
    adjacency: Adjacency
    unit: Unit
    delta: float
    rule: str
    sound: bool  # whether a proof covers the clipping rule, and nothing was read off the records without noise
    seeded: bool  # noise that can be drawn again: not private
    reserve: int  # the most steps of one line
    planned: Guarantee | None  # certified, of all steps of one run
    together: str | None  # with tuning: what the plan says of all runs
    steps: Mapping[str, Any]  # the plan's steps, as shapes, in the file's names
    dataset: str | None = None  # the name of the records, which other runs on them share

    def __post_init__(self) -> None:
        _check.whole(dataset_size=self.size, steps_per_line=self.reserve, length=self.length)
        _check.one_of(ADJACENCIES, adjacency=self.adjacency)
        _check.one_of(UNITS, unit=self.unit)
        _check.delta(self.delta)
        if self.reserve > MOST_RESERVED:
            raise InvalidValue(
                f"steps_per_line={self.reserve} must be at most {MOST_RESERVED}. A torn line costs that many steps. "
                "Use fewer."
            )
        check_dataset(self.dataset)
        if self.length > MOST_STEPS or set(self.steps) != set(_STEPS):
            raise InvalidValue("steps must be those of a plan.")

    @property
    def length(self) -> int:
        return int(self.steps["length"])

    def planned_steps(self) -> PlannedSteps:
        steps = from_format_1("steps", self.steps)
        return PlannedSteps(**steps | {"sampling": sampling(steps["sampling"])})


def check_dataset(name: str | None) -> None:
    """Raise unless it is a name that two people would write alike; None is no name."""
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidValue(
            f"dataset_name={shorten(repr(name))} must be of small letters, digits and -._, 64 at most. Runs on the "
            "same records are found by it, so it has one spelling. Write people-2026, say."
        )


def make_header(
    plan: Plan, *, run: str, steps_per_line: int, seeded: bool, preprocessing_is_private: bool = True,
    dataset: str | None = None,
) -> Header:  # fmt: skip
    """The first line of a run that will spend `plan`."""
    tuned = plan.recipe.tuning is not None
    by_other = plan.guarantee if plan.guarantee.label == "certified" else None  # rdp covers what pld refuses
    return Header(
        run=run, plan=plan.hash, size=plan.recipe.dataset_size, adjacency=plan.guarantee.adjacency,
        unit=plan.guarantee.unit,
        delta=plan.guarantee.delta, rule=plan.rule, sound=preprocessing_is_private and not plan.is_unsound,
        seeded=seeded,
        reserve=steps_per_line, planned=plan.one_run if tuned else plan.certified or by_other,
        together=str(plan.guarantee) if tuned else None, steps=to_format_1("steps", plan.as_dict()["steps"]),
        dataset=dataset,
    )  # fmt: skip


# --- writing ----------------------------------------------------------------------------------------
def header_line(header: Header) -> tuple[bytes, str]:
    """The first line of a file, and its checksum."""
    planned = None if header.planned is None else to_format_1("guarantee", header.planned.to_file_table())
    row = {"format": FORMAT, "version": VERSION} | to_format_1("guarantee", asdict(header) | {"planned": planned})
    if header.dataset is None:
        del row["dataset"]
    return chain_line(START, row)


def chain_line(previous: str, row: Mapping[str, Any]) -> tuple[bytes, str]:
    """`row` as a line behind the one whose checksum is `previous`, and its own checksum."""
    body = json.dumps(row, separators=(",", ":"), allow_nan=False)[:-1]
    digest = sha256((previous + body).encode()).hexdigest()
    return f'{body},"digest":"{digest}"}}\n'.encode(), digest


def charge_row(first: int, *, noises: Floats, rates: Floats, clips: Floats, kind: str) -> dict[str, Any]:
    """The row that charges one step for each entry; a value that all share is written once."""
    return {
        "step": first, "count": len(noises), "noise": _collapse_equal(noises), "rate": _collapse_equal(rates),
        "clip": _collapse_equal(clips), "sampling": kind,
    }  # fmt: skip


def repair_row(torn: bytes, first: int, count: int) -> dict[str, Any]:
    """The row that charges `count` planned steps for the torn text before it, and vouches that it is kept as it was.

    It has no lists, however many steps it charges: a repair may be torn itself, and what is torn costs by its length.
    """
    return {"torn": len(torn), "torn_sha256": sha256(torn).hexdigest(), "step": first, "count": count}


def loop_row(charged: int, facts: LoopFacts) -> dict[str, Any]:
    """The row that says what is known of the loop once so many steps are charged. It charges none; the last holds.

    That there is no guarantee has a key of its own, so that a line which a crash tore tells it from its third byte on.
    """
    return {"loop" if facts.void_from is None else "none": charged, "facts": facts.as_dict()}


def _collapse_equal(values: Floats) -> float | list[float]:
    found: list[float] = values.tolist()
    return found[0] if found and found.count(found[0]) == len(found) else found


RESTORE = "Restore the ledger from a copy; without one, count the plan's whole epsilon as spent and begin a new run."
REPAIR = b'{"torn":'
_LOOP = re.compile(rb'\{"[ln]')  # no other line has it: quotes inside of texts are escaped
_VOID = re.compile(rb'\{"n')


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """What a crash left behind the last whole line, charged as `count` steps from the next on."""

    text: bytes
    count: int


def bad_line_error(line: int, why: str) -> InvalidValue:
    return InvalidValue(f"line {line}: {why}. The file was changed after it was written. {RESTORE}")


class ChargeReader:
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
            raise bad_line_error(line, f"has step {first!r} where step {self._next} comes next")
        left = self.header.length - self._next
        most = left if mends else min(self.header.reserve, left)
        if type(count) is not int or not (0 if mends else 1) <= count <= most:
            raise bad_line_error(line, f"charges {count!r} steps, at most {most} may be")
        if mends:
            self._add_planned(count)
            self.notes.append(
                f"line {line}: {row['torn']} torn bytes before it are charged as {format_count(count, 'step')}"
            )
            return
        if row.get("sampling") != self.header.steps["sampling"]:
            raise bad_line_error(line, f"sampling={row.get('sampling')!r} is not the plan's")
        for name, column in self._columns.items():
            column += _read_values(line, name, row.get(name), count)
        self._next += count

    def _add_loop(self, line: int, row: Any) -> None:
        """The last line of the loop holds; that there is no guarantee, once it was said, stays."""
        key = "none" if "none" in row else "loop"
        if set(row) != {key, "facts", "digest"} or type(row[key]) is not int or row[key] != self._next:
            raise bad_line_error(line, f"is not about the loop after {format_count(self._next, 'step')}, as it says")
        try:
            found = LoopFacts.from_dict(row["facts"])
        except InvalidValue as error:
            raise bad_line_error(line, reprlib.repr(str(error).rstrip("."))) from None
        if (found.void_from is None) == (key == "none"):
            raise bad_line_error(line, f"begins with {key!r}, and its facts say otherwise")
        if self.loop is not None and self.loop.void_from is not None:
            found = found.void(self.loop.void_from, self.loop.void_reason)
        self.loop = found

    def _check_void(self, torn: bytes) -> None:
        """A torn line may say that there is no guarantee, by its key."""
        if _VOID.search(torn):
            self.loop = (self.loop or LoopFacts()).void(self._next, "a line that says so is torn in the ledger")

    def _add_planned(self, count: int) -> None:
        steps, here = self.header.planned_steps(), slice(self._next, self._next + count)
        for name, values in (
            ("noise", steps.noise_multipliers),
            ("rate", steps.sample_rates),
            ("clip", steps.clipping_norms),
        ):
            self._columns[name] += values[here].tolist()
        self._next += count

    def charge_torn(self, line: int, pieces: Sequence[bytes]) -> TornTail:
        """Charge what a crash left, for all that it could hold.

        A crash tears one line, and then perhaps its repairs. Other damage at the end of a file (a lost block, an end of
        line that is none any more) can hide more lines: as many as its bytes have room for.
        """
        is_loop, is_void = _LOOP.match(pieces[0]) is not None, _VOID.match(pieces[0]) is not None
        key = b"none" if is_void else b"loop" if is_loop else b"step"
        if not could_begin_with(pieces[0], b'{"%s":%d,' % (key, self._next)):
            raise bad_line_error(line, f"does not begin with step {self._next}, which comes next")
        if not all(could_begin_with(piece, REPAIR) for piece in pieces[1:]):  # nothing else follows a torn line
            raise bad_line_error(line, "its checksum does not fit, and lines follow")
        self._check_void(b"\n".join(pieces))
        most = self._steps_behind_loop(len(pieces[0])) if is_loop else self._steps_in(len(pieces[0]))
        most += sum(self._most_steps_in(len(piece)) for piece in pieces[1:])
        count = min(most, self.header.length - self._next)
        self._add_planned(count)
        self.notes.append(f"line {line}: torn, or just being written; charged as {format_count(count, 'step')}")
        return TornTail(text=b"\n".join(pieces), count=count)

    def _most_steps_in(self, size: int) -> int:
        """The most steps that lines which begin in `size` bytes can charge: all whole but the last, none is shorter."""
        return self.header.reserve * (1 + size // _shortest_line(self.header.steps["sampling"]))

    def _steps_in(self, size: int) -> int:
        """The same, if the bytes are those from the next line on: then each noise that is new takes its room in them.

        s steps in whole lines take at least ceil(s / reserve) lines, and in some line the digits of each noise that is
        not the one before; three of them are in the shortest line already.
        """
        reserve, shortest = self.header.reserve, _shortest_line(self.header.steps["sampling"])
        most = min(self._most_steps_in(size), self.header.length - self._next)
        noises = self.header.planned_steps().noise_multipliers[self._next : self._next + most].tolist()
        before, whole, text = None, 0, 0
        for steps, noise in enumerate(noises, start=1):
            text += len(repr(noise)) - 3 if noise != before else 0
            if -(-steps // reserve) * shortest + text > size:
                break
            before, whole = noise, steps
        return min(whole + reserve, most)

    def _steps_behind_loop(self, size: int) -> int:
        """The same, if the bytes begin with a line of the loop, which charges nothing."""
        rest = size - len(chain_line(START, loop_row(0, LoopFacts()))[0])  # no such line is shorter
        return self._most_steps_in(rest) if rest >= 0 else 0

    def ledger(self) -> Ledger:
        ledger = Ledger()
        try:
            columns = {SHORT[name]: np.array(values) for name, values in self._columns.items()}
            ledger.extend(sampling=self.header.steps["sampling"], **columns)
        except PrivetError as error:
            raise InvalidValue(f"{error} The file was changed after it was written. {RESTORE}") from None
        return ledger


def _read_values(line: int, name: str, value: Any, count: int) -> list[float]:
    if type(value) is float:
        return [value] * count
    found = value if type(value) is list else []
    if len(found) != count or not all(type(v) is float for v in found):
        raise bad_line_error(line, f"{name}={reprlib.repr(value)} must be {count} numbers")
    return found


def could_begin_with(piece: bytes, start: bytes) -> bool:
    """Whether a piece begins as a line must, as far as it goes. Zeros are what a lost block reads as."""
    head = piece[: len(start)]
    return head == start[: len(head)] or b"\0" in head


def _shortest_line(kind: str) -> int:
    """No line that charges a step of this sampling is shorter."""
    one = np.ones(1)
    return len(chain_line(START, charge_row(0, noises=one, rates=one, clips=one, kind=kind))[0])
