"""The lines of a run's ledger, as they are written: a header, then one for each reservation. See docs/ledger-format.md.

A line is a JSON object whose last key is its checksum: SHA-256 of the checksum of the line before, then its own text.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from privet import _check
from privet._registry import shortened
from privet.accounting import Guarantee
from privet.accounting.guarantee import RELATIONS, UNITS, Relation, Unit
from privet.accounting.sampling import sampling
from privet.errors import InvalidValue
from privet.planning import Plan
from privet.planning.steps import MOST_STEPS, Floats, Steps
from privet.training.assumptions import LoopFacts

FORMAT, VERSION = "privet-run-ledger", 1
MOST_RESERVED = 1000  # steps in one line: what a torn one costs
START = "0" * 64  # stands before the first line
_STEPS = ("length", "rate", "scale", "noise", "batch", "clip", "sampling")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Mark(NamedTuple):
    """A place in a ledger: how many whole lines, and the checksum of the last. A checkpoint keeps one."""

    lines: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line: which plan is spent, and what a torn line costs."""

    run: str  # random: no line of another run fits behind this one
    plan: str  # the plan's hash
    size: int
    relation: Relation
    unit: Unit
    delta: float
    rule: str
    sound: bool  # whether a proof covers the clipping rule, and nothing was read off the records without noise
    seeded: bool  # noise that can be drawn again: not private
    reserve: int  # the most steps of one line
    planned: Guarantee | None  # certified, of all steps of one run
    together: str | None  # with tuning: what the plan says of all runs
    steps: Mapping[str, Any]  # the plan's steps, as shapes
    dataset: str | None = None  # the name of the records, which other runs on them share

    def __post_init__(self) -> None:
        _check.whole(size=self.size, reserve=self.reserve, length=self.length)
        _check.one_of(RELATIONS, relation=self.relation)
        _check.one_of(UNITS, unit=self.unit)
        _check.delta(self.delta)
        if self.reserve > MOST_RESERVED:
            raise InvalidValue(
                f"reserve={self.reserve} must be at most {MOST_RESERVED}. A torn line costs that many steps. Use fewer."
            )
        check_dataset(self.dataset)
        if self.length > MOST_STEPS or set(self.steps) != set(_STEPS):
            raise InvalidValue("steps must be those of a plan.")

    @property
    def length(self) -> int:
        """How many steps are planned."""
        found: int = self.steps["length"]
        return found

    def planned_steps(self) -> Steps:
        """The plan's steps, from their shapes."""
        return Steps(**dict(self.steps) | {"sampling": sampling(self.steps["sampling"])})


def check_dataset(name: str | None) -> None:
    """Raise unless it is a name that two people would write alike; None is no name."""
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidValue(
            f"dataset_name={shortened(repr(name))} must be of small letters, digits and -._, 64 at most. Runs on the "
            "same records are found by it, so it has one spelling. Write people-2026, say."
        )


def header_of(
    plan: Plan, *, run: str, reserve: int, seeded: bool, covered: bool = True, dataset: str | None = None
) -> Header:
    """The first line of a run that will spend `plan`."""
    tuned = plan.recipe.tuning is not None
    by_other = plan.guarantee if plan.guarantee.label == "certified" else None  # rdp covers what pld refuses
    steps = {name: getattr(plan.steps, name) for name in _STEPS} | {"sampling": str(plan.steps.sampling)}
    return Header(
        run=run, plan=plan.hash, size=plan.recipe.size, relation=plan.guarantee.relation, unit=plan.guarantee.unit,
        delta=plan.guarantee.delta, rule=plan.rule, sound=covered and not plan.is_unsound, seeded=seeded,
        reserve=reserve, planned=plan.one_run if tuned else plan.certified or by_other,
        together=str(plan.guarantee) if tuned else None, steps=steps, dataset=dataset,
    )  # fmt: skip


# --- writing ----------------------------------------------------------------------------------------


def header_line(header: Header) -> tuple[bytes, str]:
    """The first line of a file, and its checksum."""
    planned = None if header.planned is None else header.planned.in_file()
    row = {"format": FORMAT, "version": VERSION} | asdict(header) | {"planned": planned}
    if header.dataset is None:
        del row["dataset"]
    return chained(START, row)


def chained(previous: str, row: Mapping[str, Any]) -> tuple[bytes, str]:
    """`row` as a line behind the one whose checksum is `previous`, and its own checksum."""
    body = json.dumps(row, separators=(",", ":"), allow_nan=False)[:-1]
    digest = sha256((previous + body).encode()).hexdigest()
    return f'{body},"digest":"{digest}"}}\n'.encode(), digest


def reservation(first: int, *, noises: Floats, rates: Floats, clips: Floats, kind: str) -> dict[str, Any]:
    """The row that charges one step for each entry; a value that all share is written once."""
    return {
        "step": first, "count": len(noises), "noise": _shared(noises), "rate": _shared(rates),
        "clip": _shared(clips), "sampling": kind,
    }  # fmt: skip


def repair(torn: bytes, first: int, count: int) -> dict[str, Any]:
    """The row that charges `count` planned steps for the torn text before it, and vouches that it is kept as it was.

    It has no lists, however many steps it charges: a repair may be torn itself, and what is torn costs by its length.
    """
    return {"torn": len(torn), "torn_sha256": sha256(torn).hexdigest(), "step": first, "count": count}


def loop_row(charged: int, facts: LoopFacts) -> dict[str, Any]:
    """The row that says what is known of the loop once so many steps are charged. It charges none; the last holds.

    That there is no guarantee has a key of its own, so that a line which a crash tore tells it from its third byte on.
    """
    return {"loop" if facts.void_from is None else "none": charged, "facts": facts.as_dict()}


def _shared(values: Floats) -> float | list[float]:
    found: list[float] = values.tolist()
    return found[0] if found and found.count(found[0]) == len(found) else found
