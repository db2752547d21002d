"""What audits and attacks leave in a run's folder, and a baseline without privacy: small JSON files, read strictly.

runs/a/audit.json          `privet audit --run runs/a`
runs/a/raw_attack.json     `privet attack --run runs/a`: comes from training records without noise, so it is not private
runs/a/raw_plain.json      the score of the same network without clipping and noise: not private either

Each names the plan and the run that it is of. A file of another, or one that says what no audit says, is refused.
Strong evidence is never lost to weak: an audit or attack takes the place of an earlier one of the same settings, unless
that had found a violation and this has not; one of others stands beside it, as audit-2.json and so on.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict, force_setattr, replace

from privet._files import is_plain_file, write_new
from privet._text import one_line, shorten
from privet.accounting import Guarantee
from privet.auditing.finding import ORDER, Audit, Verdict
from privet.errors import InvalidValue, PrivetError
from privet.ledger import reading as ledger_reading
from privet.planning.plan import parse_plan_file
from privet.training.run import Run

if TYPE_CHECKING:
    from privet.attacks.attack import AttackReport

AUDIT, ATTACK, BASELINE = "audit.json", "raw_attack.json", "raw_plain.json"
VERSION = 1
MOST_BYTES = 64 * 2**20
MOST_SIDE = 512  # pixels
MOST_FILES = 100  # of one kind
T = TypeVar("T")
E = TypeVar("E", "AuditEvidence", "AttackEvidence")
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Difference: TypeAlias = Annotated[float, Meta(ge=-1, le=1)]
Pixel: TypeAlias = Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(min_length=1, max_length=3)]
PixelRow: TypeAlias = Annotated[list[Pixel], Meta(min_length=1, max_length=MOST_SIDE)]
Image: TypeAlias = Annotated[list[PixelRow], Meta(min_length=1, max_length=MOST_SIDE)]  # (H, W, C)


class AuditEvidence(Struct, frozen=True, kw_only=True):
    """What one kind of audit says; `empirical` is the only epsilon that an audit gives."""

    kind: str
    verdict: Verdict
    says: str
    reasons: tuple[str, ...]
    confidence: Annotated[float, Meta(gt=0, le=1)]
    seconds: float
    empirical: Any  # a table in the file, here a guarantee or None

    def __post_init__(self) -> None:
        if self.empirical is None:
            return
        force_setattr(self, "empirical", Guarantee(**self.empirical))
        if self.empirical.label != "empirical" or not math.isfinite(self.empirical.epsilon):
            raise ValueError("an audit gives empirical bounds alone")

    @property
    def strength(self) -> tuple[bool, float, int]:
        """How much it tells: a violation first, then the leak it proves, then a doubt before none."""
        leak = 0.0 if self.empirical is None else self.empirical.epsilon
        return self.verdict == "violation", leak, ORDER.index(self.verdict)


class AttackEvidence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attack at one step. Counts are over victims, which are training records: not private, but for the ceiling."""

    method: str
    attack: str
    step: Count  # from 1; 0 for the whole run
    victims: Annotated[int, Meta(gt=0)]
    succeeded: Count
    control: Count
    limits: tuple[Difference, Difference]
    ceiling: Share | None
    violation: bool
    frames: dict[str, Image]
    truth: Image | None = None  # the first victim; it stands once in a file, not in each row
    model: str | None = None  # None: that of the plan or run

    def __post_init__(self) -> None:
        if max(self.succeeded, self.control) > self.victims:
            raise ValueError("counts do not fit together")
        if self.limits[0] > self.limits[1]:
            raise ValueError("limits do not fit together")
        for image in self.frames.values():
            _check_image(image)

    @property
    def kind(self) -> tuple[str, str, int]:
        """What was attacked how: the attack without its options."""
        name, _, options = self.attack.rpartition(":")
        return self.method, name if "=" in options else self.attack, self.step

    @property
    def strength(self) -> tuple[bool, float, float]:
        """What is sure of its success."""
        return self.violation, self.limits[0], self.succeeded / self.victims


class NonPrivateBaseline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same network trained without clipping and noise."""

    measure: str
    score: float
    steps: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError("score is not finite")


class _File(Struct, forbid_unknown_fields=True):
    format: str
    version: int
    plan: str
    run: str
    options: dict[str, Any]
    found: dict[str, Any]


class _AuditFile(Struct, frozen=True):
    verdict: Verdict
    findings: tuple[AuditEvidence, ...]

    def __post_init__(self) -> None:
        if self.verdict != _worst(self.findings):
            raise ValueError(f"verdict {self.verdict!r} does not follow from the findings")


class _AttackFile(Struct, frozen=True, forbid_unknown_fields=True):
    task: str
    truth: Image
    outcomes: tuple[AttackEvidence, ...]

    def __post_init__(self) -> None:
        _check_image(self.truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audits:
    """The audits of a run's plan, as their files say: of each kind of test the strongest."""

    verdict: str
    findings: tuple[AuditEvidence, ...]
    count: int  # audits that are stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacks:
    """What attacks achieved, as their files say: of each kind the strongest."""

    task: str
    outcomes: tuple[AttackEvidence, ...]
    count: int  # outcomes that are stored


# --- read -------------------------------------------------------------------------------------------
def read_audit(folder: Path, plan: str) -> Audits | None:
    """What audit.json and those beside it say; None if there is none.

    Raises:
        InvalidValue: one is a link, damaged, edited, or of another plan.
    """
    every = [found for found, _ in _read(folder, AUDIT, "privet-audit", plan, _AuditFile)]
    if not every:
        return None
    kinds = ((file, kind) for file in every for kind in dict.fromkeys(one.kind for one in file.findings))
    findings = _strongest((kind, tuple(one for one in file.findings if one.kind == kind)) for file, kind in kinds)
    return Audits(verdict=_worst(findings), findings=findings, count=len(every))


def read_attack(folder: Path, plan: str) -> Attacks | None:
    """What raw_attack.json and those beside it say; None if there is none."""
    every = _read(folder, ATTACK, "privet-attack", plan, _AttackFile)
    if not every:
        return None
    rows = [
        replace(one, truth=file.truth, model=None if (model := options.get("model")) is None else str(model))
        for file, options in every for one in file.outcomes
    ]  # fmt: skip
    task = ", ".join(dict.fromkeys(file.task for file, _ in every))
    return Attacks(task=task, outcomes=_strongest((one.kind, (one,)) for one in rows), count=len(rows))


def read_baseline(folder: Path, plan: str) -> NonPrivateBaseline | None:
    """What raw_plain.json says; None if there is none."""
    content = read_content(folder / BASELINE, "privet-plain", plan)
    return None if content is None else _convert(folder / BASELINE, content.found, NonPrivateBaseline)


def read_content(file: Path, kind: str, plan: str) -> _File | None:
    """What a file of evidence holds; None if there is none.

    Raises:
        InvalidValue: it is a link, damaged, or of another plan or run.
    """
    if not file.is_symlink() and not file.exists():
        return None
    if not is_plain_file(file, most=MOST_BYTES):
        raise InvalidValue(
            f"{file}: is a link, no plain file, or above {MOST_BYTES // 2**20} MiB. A report reads nothing else. "
            "Remove it."
        )
    try:
        found = parse_plan_file(file)
        if not isinstance(found, dict) or found.get("format") != kind or found.get("version") != VERSION:
            raise InvalidValue(f"is not a file of format {kind!r}, version {VERSION}.")
        content = convert(found, _File, strict=True)
        if content.plan != plan:
            raise InvalidValue("is of another plan than the run. It proves nothing of this one.")
        if content.run != _run_name(file.parent):
            raise InvalidValue("is of another run, though of the same plan. It says nothing of this one.")
        return content
    except RecursionError:
        raise InvalidValue(f"{file}: nested too deeply. Remove it.") from None
    except (PrivetError, ValidationError) as error:
        said = f"{shorten(one_line(error).replace(' Make the plan again', ''), 300)}."
        raise InvalidValue(f"{file}: {said} Remove it, and audit or attack again.") from None


def _read(folder: Path, name: str, kind: str, plan: str, schema: type[T]) -> list[tuple[T, dict[str, Any]]]:
    every = ((file, read_content(file, kind, plan)) for file in _places(folder, name))
    return [(_convert(file, content.found, schema), content.options) for file, content in every if content is not None]


def _convert(file: Path, found: Mapping[str, Any], schema: type[T]) -> T:
    try:
        return convert(found, schema, strict=True)
    except ValidationError as error:
        why = shorten(one_line(error), 100)
        raise InvalidValue(f"{file}: is not what was written there: {why}. Remove it, and make it again.") from None


def _places(folder: Path, name: str) -> list[Path]:
    """Where evidence of a kind may be: audit.json, audit-2.json and so on."""
    stem, end = name.split(".")
    return [folder / name, *(folder / f"{stem}-{k}.{end}" for k in range(2, MOST_FILES + 1))]


def _run_name(folder: Path) -> str:
    """The name that the ledger's first line gives to the run in a folder."""
    return ledger_reading.read_ledger(folder).header.run


def _strongest(groups: Iterable[tuple[Any, tuple[E, ...]]]) -> tuple[E, ...]:
    """Of each kind the rows that tell the most."""
    found: dict[Any, tuple[E, ...]] = {}
    for kind, rows in groups:
        found[kind] = max(found.get(kind, rows), rows, key=lambda rows: max(one.strength for one in rows))
    return tuple(one for rows in found.values() for one in rows)


def _worst(findings: tuple[AuditEvidence, ...]) -> str:
    return max((one.verdict for one in findings), key=ORDER.index, default="inconclusive")


def _check_image(rows: list[list[list[int]]]) -> None:
    """Every row as wide as the first, every pixel of one or three values: it becomes a picture in the page."""
    width, depth = len(rows[0]), len(rows[0][0])
    if depth == 2 or any(len(row) != width or any(len(pixel) != depth for pixel in row) for row in rows):
        raise ValueError("is no image")


# --- store ------------------------------------------------------------------------------------------
def store_audit(run: Run, audit: Audit, options: Mapping[str, Any]) -> Path:
    """Write audit.json into the run's folder, in place of an earlier one of the same options."""
    return _store(run, AUDIT, "privet-audit", options, audit.as_dict())


def store_attack(run: Run, attacked: "AttackReport") -> Path:
    """Write raw_attack.json into the run's folder: outcomes and pictures of the first victim. It is not private.

    It takes the place of an earlier one of the same settings.
    """
    rows = [
        {"method": one.method, "attack": one.attack, "step": one.step, "victims": one.found.victims,
         "succeeded": one.found.succeeded, "control": one.control.succeeded, "limits": list(one.limits),
         "ceiling": one.ceiling, "violation": one.is_violation, "frames": one.frames}
        for one in attacked.outcomes
    ]  # fmt: skip
    found = {"task": attacked.task, "truth": attacked.truth, "outcomes": rows}
    return _store(run, ATTACK, "privet-attack", attacked.settings, found)


def store_baseline(run: Run, baseline: NonPrivateBaseline) -> Path:
    return _store(run, BASELINE, "privet-plain", {}, asdict(baseline))


def _store(run: Run, name: str, kind: str, options: Mapping[str, Any], found: Mapping[str, Any]) -> Path:
    content = {"format": kind, "version": VERSION, "plan": run.plan.hash, "run": _run_name(run.folder),
               "options": dict(options), "found": found}  # fmt: skip
    text = json.dumps(content, allow_nan=False)
    return write_plainly(_free_place(run, name, convert(json.loads(text), _File)), f"{text}\n".encode())


def _free_place(run: Run, name: str, content: _File) -> Path:
    """The file that asked the same, and knew no worse; else the first that is free, or holds nothing of the run."""
    question, violates = _summary(content)
    stored = {file: _earlier(file, content.format, run.plan.hash) for file in _places(run.folder, name)}
    worse = (file for file, found in stored.items() if found and found[0] == question and found[1] <= violates)
    free = (file for file, found in stored.items() if found is None)
    for file in (*worse, *free):
        return file
    raise InvalidValue(f"{run.folder}: has {MOST_FILES} files of the kind {name}. Remove some.")


def _earlier(file: Path, kind: str, plan: str) -> tuple[Any, bool] | None:
    """The summary of an earlier file; None if it holds nothing of the run."""
    try:
        content = read_content(file, kind, plan)
        return None if content is None else _summary(content)
    except (PrivetError, LookupError, TypeError, AttributeError):
        return None


def _summary(content: _File) -> tuple[Any, bool]:
    """(its settings and what was attacked how, whether it found that more was given away than promised)."""
    found, rows = content.found, content.found.get("outcomes", ())
    question = content.options, [[row[key] for key in ("method", "attack", "step")] for row in rows]
    return question, found.get("verdict") == "violation" or any(row.get("violation") for row in rows)


def write_plainly(file: Path, text: bytes) -> Path:
    """Write a file, whole or not at all, and never through a link that someone else left in the folder.

    Raises:
        InvalidValue: it cannot be written there.
    """
    try:
        write_new(file, text)
    except PrivetError as error:
        said = str(error).replace(" Nothing is released that is not recorded first.", "")
        raise InvalidValue(said) from None
    return file
