"""What audits and attacks leave in a run's folder, and a rival without privacy: small JSON files, read strictly.

runs/a/audit.json          `privet audit --run runs/a`
runs/a/raw_attack.json     `privet attack --run runs/a`: comes from training records without noise, so it is not private
runs/a/raw_plain.json      the score of the same network without clipping and noise: not private either

Each names the plan and the run that it is of. A file of another, or one that says what no audit says, is refused.
"""

import json
import math
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from privet._registry import shortened
from privet.accounting import Guarantee
from privet.attacks.attack import Attacked
from privet.auditing.finding import ORDER, Audit
from privet.errors import InvalidValue, PrivetError
from privet.planning.plan_file import check_table, parsed
from privet.training import ledger_reading
from privet.training.append_file import write_new
from privet.training.run import Run

AUDIT, ATTACK, PLAIN = "audit.json", "raw_attack.json", "raw_plain.json"
VERSION = 1
MOST_BYTES = 64 * 2**20
MOST_SIDE = 512  # pixels
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """An audit of a run's plan, as its file says."""

    verdict: str
    findings: tuple[Found, ...]
    options: Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacks:
    """What attacks achieved, as the file says."""

    task: str
    settings: Mapping[str, Any]
    outcomes: tuple[Tried, ...]
    truth: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The same network trained without clipping and noise."""

    measure: str
    score: float
    steps: int


# --- written ----------------------------------------------------------------------------------------


def keep_audit(run: Run, audit: Audit, options: Mapping[str, Any]) -> Path:
    """Write audit.json into the run's folder, in place of an earlier one."""
    return _kept(run, AUDIT, "privet-audit", options, audit.as_dict())


def keep_attack(run: Run, attacked: Attacked) -> Path:
    """Write raw_attack.json into the run's folder: outcomes and pictures of the first victim. It is not private."""
    rows = []
    for outcome in attacked.outcomes:
        low, high = outcome.limits
        rows.append({
            "method": outcome.method, "attack": outcome.attack, "step": outcome.step,
            "victims": outcome.found.victims, "succeeded": outcome.found.succeeded,
            "control": outcome.control.succeeded, "limits": [low, high], "ceiling": outcome.ceiling,
            "violation": outcome.is_violation, "frames": outcome.frames,
        })  # fmt: skip
    found = {"task": attacked.task, "truth": attacked.truth, "outcomes": rows}
    return _kept(run, ATTACK, "privet-attack", attacked.settings, found)


def keep_plain(run: Run, plain: Plain) -> Path:
    """Write raw_plain.json into the run's folder."""
    return _kept(run, PLAIN, "privet-plain", {}, asdict(plain))


def _kept(run: Run, name: str, kind: str, options: Mapping[str, Any], found: Mapping[str, Any]) -> Path:
    content = {"format": kind, "version": VERSION, "plan": run.plan.hash, "run": _run_in(run.folder),
               "options": dict(options), "found": found}  # fmt: skip
    return write_plainly(run.folder / name, (json.dumps(content, allow_nan=False) + "\n").encode())


def write_plainly(file: Path, text: bytes) -> Path:
    """Write a file, whole or not at all, and never through a link that someone else left in the folder.

    Raises:
        InvalidValue: it cannot be written there.
    """
    beside = file.with_name(file.name + ".new")  # where `write_new` writes first
    if beside.is_symlink() or (beside.exists() and not beside.is_file()):
        raise InvalidValue(f"{beside}: is a link, or no plain file. It would be written to. Remove it.")
    try:
        write_new(file, text)
    except PrivetError as error:
        said = str(error).replace(" Nothing is released that is not recorded first.", "")
        raise InvalidValue(said) from None
    return file


# --- read -------------------------------------------------------------------------------------------


def is_plain_file(file: Path, *, most: float = MOST_BYTES) -> bool:
    """Whether it is a file of bearable size, and no link, pipe or folder."""
    try:
        found = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= most


def read_audit(folder: Path, plan: str) -> Audited | None:
    """What audit.json says; None if there is none.

    Raises:
        InvalidValue: it is a link, damaged, edited, or of another plan.
    """
    content = _content(folder / AUDIT, "privet-audit", plan)
    return None if content is None else _checked(folder / AUDIT, lambda: _audited(content))


def read_attack(folder: Path, plan: str) -> Attacks | None:
    """What raw_attack.json says; None if there is none."""
    content = _content(folder / ATTACK, "privet-attack", plan)
    return None if content is None else _checked(folder / ATTACK, lambda: _attacks(content))


def read_plain(folder: Path, plan: str) -> Plain | None:
    """What raw_plain.json says; None if there is none."""
    content = _content(folder / PLAIN, "privet-plain", plan)
    return None if content is None else _checked(folder / PLAIN, lambda: _plain(content["found"]))


def _content(file: Path, kind: str, plan: str) -> dict[str, Any] | None:
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
        if found["run"] != _run_in(file.parent):
            raise InvalidValue("is of another run, though of the same plan. It says nothing of this one.")
        if not (isinstance(found["options"], dict) and isinstance(found["found"], dict)):
            raise InvalidValue("options and found must be tables.")
        return found
    except RecursionError:
        raise InvalidValue(f"{file}: nested too deeply. Remove it.") from None
    except PrivetError as error:
        text = str(error).replace(" Make the plan again.", "")
        raise InvalidValue(f"{file}: {text} Remove it, and audit or attack again.") from None


def _run_in(folder: Path) -> str:
    """The name that the ledger's first line gives to the run in a folder."""
    return ledger_reading.read(folder).header.run


def _checked(file: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = shortened(" ".join(str(error).split()), 100)
        raise InvalidValue(f"{file}: is not what was written there: {why}. Remove it, and make it again.") from None


def _audited(content: Mapping[str, Any]) -> Audited:
    findings = tuple(_found(row) for row in content["found"]["findings"])
    verdict = content["found"]["verdict"]
    if verdict != max((found.verdict for found in findings), key=ORDER.index, default="inconclusive"):
        raise ValueError(f"verdict {verdict!r} does not follow from the findings")
    return Audited(verdict=verdict, findings=findings, options=content["options"])


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


def _attacks(content: Mapping[str, Any]) -> Attacks:
    found = content["found"]
    return Attacks(
        task=str(found["task"]), settings=content["options"], outcomes=tuple(map(_tried, found["outcomes"])),
        truth=_image(found["truth"]),
    )  # fmt: skip


def _tried(row: Mapping[str, Any]) -> Tried:
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
