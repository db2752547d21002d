"""What audits and attacks left in a run's folder, and a rival without privacy: small JSON files, read strictly.

runs/a/audit.json          `privet audit --run runs/a`
runs/a/raw_attack.json     `privet attack --run runs/a`: comes from training records without noise, so it is not private
runs/a/raw_plain.json      the score of the same network without clipping and noise: not private either

Each names the plan and the run that it is of. A file of another, or one that says what no audit says, is refused.
Several of a kind stand side by side, as audit-2.json and so on: see report_keeping.py.
"""

import math
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from privet._registry import shortened
from privet.accounting import Guarantee
from privet.auditing.finding import ORDER
from privet.errors import InvalidValue, PrivetError
from privet.planning.plan_file import check_table, parsed
from privet.training import ledger_reading

AUDIT, ATTACK, PLAIN = "audit.json", "raw_attack.json", "raw_plain.json"
VERSION = 1
MOST_BYTES = 64 * 2**20
MOST_SIDE = 512  # pixels
MOST_FILES = 100  # of one kind
T = TypeVar("T")
_KEYS = ("format", "version", "plan", "run", "options", "found")
_FINDING = {"kind": str, "verdict": str, "says": str, "reasons": list, "confidence": float, "seconds": float}
_OUTCOME = {"method": str, "attack": str, "step": int, "victims": int, "succeeded": int, "control": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one kind of audit says; `empirical` is the only epsilon that an audit gives."""

    kind: str
    verdict: str
    says: str
    reasons: tuple[str, ...]
    confidence: float
    empirical: Guarantee | None

    @property
    def strength(self) -> tuple[bool, float, int]:
        """How much it tells: a violation first, then the leak it proves, then a doubt before none."""
        leak = 0.0 if self.empirical is None else self.empirical.epsilon
        return self.verdict == "violation", leak, ORDER.index(self.verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The audits of a run's plan, as their files say: of each kind of test the strongest."""

    verdict: str
    findings: tuple[Found, ...]
    count: int  # audits that were kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attack at one step. Counts are over victims, which are training records: not private, but for the ceiling."""

    method: str
    attack: str
    step: int  # from 1; 0 for the whole run
    victims: int
    succeeded: int
    control: int
    limits: tuple[float, float]
    ceiling: float | None
    is_violation: bool
    frames: Mapping[str, Any]
    truth: Any  # the first victim
    model: str | None  # None: that of the plan or run

    @property
    def kind(self) -> tuple[str, str, int]:
        """What was attacked how: the attack without its options."""
        name, _, options = self.attack.rpartition(":")
        return self.method, name if "=" in options else self.attack, self.step

    @property
    def strength(self) -> tuple[bool, float, float]:
        """What is sure of its success."""
        return self.is_violation, self.limits[0], self.succeeded / self.victims


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacks:
    """What attacks achieved, as their files say: of each kind the strongest."""

    task: str
    outcomes: tuple[Tried, ...]
    count: int  # outcomes that were kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The same network trained without clipping and noise."""

    measure: str
    score: float
    steps: int


# --- read -------------------------------------------------------------------------------------------


def is_plain_file(file: Path, *, most: float = MOST_BYTES) -> bool:
    """Whether it is a file of bearable size, and no link, pipe or folder."""
    try:
        found = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= most


def read_audit(folder: Path, plan: str) -> Audited | None:
    """What audit.json and those beside it say; None if there is none.

    Raises:
        InvalidValue: one is a link, damaged, edited, or of another plan.
    """
    every = _read(folder, AUDIT, "privet-audit", plan, _findings)
    if not every:
        return None
    strongest: dict[str, tuple[Found, ...]] = {}
    for findings in every:
        for kind in dict.fromkeys(found.kind for found in findings):
            rows = tuple(found for found in findings if found.kind == kind)
            strongest[kind] = max(strongest.get(kind, rows), rows, key=lambda rows: max(one.strength for one in rows))
    findings = tuple(found for rows in strongest.values() for found in rows)
    return Audited(verdict=_verdict(findings), findings=findings, count=len(every))


def read_attack(folder: Path, plan: str) -> Attacks | None:
    """What raw_attack.json and those beside it say; None if there is none."""
    every = _read(folder, ATTACK, "privet-attack", plan, _outcomes)
    if not every:
        return None
    strongest: dict[tuple[str, str, int], Tried] = {}
    for one in (one for _, outcomes in every for one in outcomes):
        strongest[one.kind] = max(strongest.get(one.kind, one), one, key=lambda one: one.strength)
    return Attacks(
        task=", ".join(dict.fromkeys(task for task, _ in every)), outcomes=tuple(strongest.values()),
        count=sum(len(outcomes) for _, outcomes in every),
    )  # fmt: skip


def read_plain(folder: Path, plan: str) -> Plain | None:
    """What raw_plain.json says; None if there is none."""
    content = content_of(folder / PLAIN, "privet-plain", plan)
    return None if content is None else _checked(folder / PLAIN, lambda: _plain(content["found"]))


def _read(folder: Path, name: str, kind: str, plan: str, take: Callable[[dict[str, Any]], T]) -> list[T]:
    """What is taken from each file of a kind."""
    every = ((file, content_of(file, kind, plan)) for file in places(folder, name))
    return [_checked(file, partial(take, content)) for file, content in every if content is not None]


def places(folder: Path, name: str) -> list[Path]:
    """Where evidence of a kind may be: audit.json, audit-2.json and so on."""
    stem, end = name.split(".")
    return [folder / name, *(folder / f"{stem}-{k}.{end}" for k in range(2, MOST_FILES + 1))]


def content_of(file: Path, kind: str, plan: str) -> dict[str, Any] | None:
    """What a file of evidence holds; None if there is none.

    Raises:
        InvalidValue: it is a link, damaged, or of another plan or run.
    """
    if not file.is_symlink() and not file.exists():
        return None
    if not is_plain_file(file):
        raise InvalidValue(
            f"{file}: is a link, no plain file, or above {MOST_BYTES // 2**20} MiB. A report reads nothing else. "
            "Remove it."
        )
    try:
        found = parsed(file)
        if not isinstance(found, dict) or found.get("format") != kind or found.get("version") != VERSION:
            raise InvalidValue(f"is not a file of format {kind!r}, version {VERSION}.")
        check_table("it", found, _KEYS)
        if found["plan"] != plan:
            raise InvalidValue("is of another plan than the run. It proves nothing of this one.")
        if found["run"] != run_in(file.parent):
            raise InvalidValue("is of another run, though of the same plan. It says nothing of this one.")
        if not (isinstance(found["options"], dict) and isinstance(found["found"], dict)):
            raise InvalidValue("options and found must be tables.")
        return found
    except RecursionError:
        raise InvalidValue(f"{file}: nested too deeply. Remove it.") from None
    except PrivetError as error:
        text = str(error).replace(" Make the plan again.", "")
        raise InvalidValue(f"{file}: {text} Remove it, and audit or attack again.") from None


def run_in(folder: Path) -> str:
    """The name that the ledger's first line gives to the run in a folder."""
    return ledger_reading.read(folder).header.run


def _checked(file: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = shortened(" ".join(str(error).split()), 100)
        raise InvalidValue(f"{file}: is not what was written there: {why}. Remove it, and make it again.") from None


def _findings(content: Mapping[str, Any]) -> tuple[Found, ...]:
    findings = tuple(_found(row) for row in content["found"]["findings"])
    if content["found"]["verdict"] != _verdict(findings):
        raise ValueError(f"verdict {content['found']['verdict']!r} does not follow from the findings")
    return findings


def _verdict(findings: tuple[Found, ...]) -> str:
    return max((found.verdict for found in findings), key=ORDER.index, default="inconclusive")


def _found(row: Mapping[str, Any]) -> Found:
    for key, kind in _FINDING.items():
        if not isinstance(row[key], (kind, int) if kind is float else kind):
            raise ValueError(f"{key} is not of its kind")
    if row["verdict"] not in ORDER or not 0 < row["confidence"] <= 1:
        raise ValueError("no such verdict or confidence")
    bound = None if row["empirical"] is None else Guarantee(**row["empirical"])
    if bound is not None and (bound.label != "empirical" or not math.isfinite(bound.epsilon)):
        raise ValueError("an audit gives empirical bounds alone")
    return Found(
        kind=row["kind"], verdict=row["verdict"], says=row["says"], reasons=tuple(map(str, row["reasons"])),
        confidence=float(row["confidence"]), empirical=bound,
    )  # fmt: skip


def _outcomes(content: Mapping[str, Any]) -> tuple[str, tuple[Tried, ...]]:
    """The task, and what was tried on it."""
    found, model = content["found"], content["options"].get("model")
    truth = _image(found["truth"])
    made = tuple(_tried(row, truth, None if model is None else str(model)) for row in found["outcomes"])
    return str(found["task"]), made


def _tried(row: Mapping[str, Any], truth: Any, model: str | None) -> Tried:
    for key, kind in _OUTCOME.items():
        if type(row[key]) is not kind:
            raise ValueError(f"{key} is not of its kind")
    if not (0 <= row["succeeded"] <= row["victims"] and 0 <= row["control"] <= row["victims"] and row["victims"] > 0):
        raise ValueError("counts do not fit together")
    low, high = map(float, row["limits"])
    ceiling = None if row["ceiling"] is None else float(row["ceiling"])
    if not (-1 <= low <= high <= 1) or (ceiling is not None and not 0 <= ceiling <= 1):
        raise ValueError("limits do not fit together")
    return Tried(
        method=row["method"], attack=row["attack"], step=row["step"], victims=row["victims"],
        succeeded=row["succeeded"], control=row["control"], limits=(low, high), ceiling=ceiling,
        is_violation=bool(row["violation"]), frames={str(k): _image(v) for k, v in row["frames"].items()},
        truth=truth, model=model,
    )  # fmt: skip


def _plain(found: Mapping[str, Any]) -> Plain:
    score, steps, measure = float(found["score"]), found["steps"], found["measure"]
    if not math.isfinite(score) or type(steps) is not int or type(measure) is not str:
        raise ValueError("score, steps and measure do not fit together")
    return Plain(measure=measure, score=score, steps=steps)


def _image(rows: Any) -> Any:
    """Pixels (H, W, C), checked one by one: they become a picture in the page."""
    depth = len(rows[0][0])
    fits = 0 < len(rows) <= MOST_SIDE and 0 < len(rows[0]) <= MOST_SIDE and depth in (1, 3)
    if not fits or any(len(row) != len(rows[0]) or any(len(pixel) != depth for pixel in row) for row in rows):
        raise ValueError("is no image")
    if any(type(value) is not int or not 0 <= value <= 255 for row in rows for pixel in row for value in pixel):
        raise ValueError("a pixel is not a whole number from 0 to 255")
    return rows
