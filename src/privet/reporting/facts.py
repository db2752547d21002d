"""The facts of a run, gathered from its folder: what a report says, before any words are chosen.

Nothing in the folder is trusted: links and huge files are refused, the guarantee is computed again from the ledger, and
what is shown as a number is one.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict

from privet._files import is_plain_file
from privet._text import one_line, shorten
from privet.accounting import EpsilonCurve, epsilon_curve
from privet.accounting.guarantee import format_bound
from privet.accounting.tradeoff import Gaussian, Tradeoff, advantage, tradeoff, true_positive_rate
from privet.errors import InvalidValue, PrivetError
from privet.ledger import reading as ledger_reading
from privet.reporting import evidence
from privet.training import metrics
from privet.training.checkpoint_format import NAME as WEIGHTS, OTHER
from privet.training.run import BEST, NAME, PLAN, Run

READ = (NAME, PLAN, ledger_reading.NAME, ledger_reading.COUNT_NAME, metrics.NAME)
POINTS = 60  # of the epsilon curve
FALSE_ALARMS = (0.001, 0.01, 0.1)
MOST_HASHED = 64 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """The most that an attacker can find at a rate of false alarms; a bound from above."""

    false_alarms: float
    hits: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFacts:
    """One run: what it is, what it spent, what it is worth, and what was found against it."""

    name: str
    run: Run
    measure: str  # the held-out set's, such as accuracy
    higher_is_better: bool
    history: tuple[tuple[int, float], ...]  # (step, measure) on the held-out set
    score: float | None  # of the weights that the run gives
    score_step: int | None
    raw: Mapping[str, float]  # last figures from training records without noise: not private
    curves: tuple[EpsilonCurve, ...]
    attacker: Tradeoff | Gaussian | None  # certified; None where nothing is
    powers: tuple[Power, ...]
    advantage: float | None
    audit: evidence.Audits | None
    attacks: evidence.Attacks | None
    baseline: evidence.NonPrivateBaseline | None
    hashes: Mapping[str, str]
    damage: str = ""  # why the weights cannot be read back; the ledger proves what was spent all the same

    @property
    def is_guaranteed(self) -> bool:
        """Whether what is said of the run is proven."""
        return self.run.guarantee.label == "certified"

    @property
    def is_whole(self) -> bool:
        return self.run.steps >= len(self.run.plan.steps)

    def as_dict(self, *, show_private: bool) -> dict[str, Any]:
        """Plain values, for JSON; what is not private only if asked for."""
        run = self.run
        shown = {
            "name": self.name, "folder": str(run.folder), "task": run.settings.task, "steps": run.steps,
            "planned": len(run.plan.steps), "over": run.is_over, "end": run.end, "private": run.noise_is_secret,
            "guarantee": run.guarantee.as_dict(), "spent": run.spent.as_dict(), "together": run.together,
            "notes": list(run.notes), "attacker": [
                {"false_alarms": power.false_alarms, "hits_at_most": power.hits} for power in self.powers
            ], "advantage_at_most": self.advantage,
            "held_out": {"measure": self.measure, "score": self.score, "step": self.score_step},
            "evaluation": run.evaluation, "audit": _audit(self.audit), "versions": versions_of(run),
            "hashes": dict(self.hashes), "plan": run.plan.hash, "damage": self.damage,
        }  # fmt: skip
        if show_private:
            baseline = None if self.baseline is None else asdict(self.baseline)
            shown["not_private"] = {"raw": dict(self.raw), "attacks": _attacks(self.attacks), "plain": baseline}
        return shown


def gather(folder: str | Path) -> RunFacts:
    """The facts of the run in a folder, finished or not.

    Raises:
        InvalidValue: it is no run, or one of its files is damaged, a link, or very large; one line says which.
    """
    folder = Path(folder)
    for name in READ:
        file = folder / name
        if (file.is_symlink() or file.exists()) and not is_plain_file(file):
            raise InvalidValue(f"{file}: is a link, no plain file, or very large. A report reads nothing else.")
    for name in (WEIGHTS, f"{BEST}/{WEIGHTS}"):
        if (folder / name).is_symlink() or (folder / BEST).is_symlink():
            raise InvalidValue(f"{folder / name}: is a link. A report reads nothing outside the run.")
    try:
        return _gather(folder)
    except PrivetError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        why = shorten(f"{type(error).__name__}: {one_line(error)}", 120)
        raise InvalidValue(f"{folder}: cannot be read: {why}. A file was edited. Restore a copy of it.") from None


def _gather(folder: Path) -> RunFacts:
    run = Run.load(folder)
    if not all(isinstance(value, list) and len(value) == 2 for value in run.about["changed"].values()):
        raise ValueError("changed is not a table of pairs")
    measure, higher = run.about["measure"]["name"], bool(run.about["measure"]["higher_is_better"])
    key = f"held_out_{measure}"
    history = tuple(
        (line["step"], line[key]) for line in run.metrics if is_number(line.get(key)) and is_number(line["step"])
    )
    damage = _damage(run)
    scores = (None if damage and run.settings.keep == "best" else run.scores) or {}
    step = scores["step"] if type(scores.get("step")) is int else None
    audit, attacks = evidence.read_audit(folder, run.plan.hash), evidence.read_attack(folder, run.plan.hash)
    baseline = evidence.read_baseline(folder, run.plan.hash)
    curves, attacker = _curves(run)  # last: the rest is quick to refuse
    return RunFacts(
        name=printable(folder.resolve().name), run=run, measure=str(measure), higher_is_better=higher, history=history,
        score=scores[key] if is_number(scores.get(key)) else None, score_step=step, raw=_raw(run),
        curves=curves, attacker=attacker,
        powers=() if attacker is None else tuple(
            Power(false_alarms=rate, hits=min(1.0, true_positive_rate(attacker, rate))) for rate in FALSE_ALARMS
        ),
        advantage=None if attacker is None else min(1.0, advantage(attacker)),
        audit=audit, attacks=attacks, baseline=baseline, hashes=_hashes(run), damage=damage,
    )  # fmt: skip


def _damage(run: Run) -> str:
    try:
        run.check_weights()
    except PrivetError as error:
        return str(error).removesuffix(f" {OTHER}")
    return f"{run.folder / WEIGHTS}: there is no such file." if run.is_over and run.checkpoint is None else ""


def printable(text: str) -> str:
    """Text that any terminal and file can take: what is no character becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def versions_of(run: Run) -> dict[str, str]:
    return {shorten(str(key), 40): shorten(str(value), 60) for key, value in run.versions.items()}


def _curves(run: Run) -> tuple[tuple[EpsilonCurve, ...], Tradeoff | Gaussian | None]:
    """Epsilon over the steps, certified and by the central limit theorem, and the attacker's trade-off.

    Nothing where the run has no guarantee: a curve would look like one.
    """
    if run.guarantee.label != "certified":
        return (), None
    budget, curves = run.plan.recipe.budget, []
    # The steps that the guarantee is about: those spent, or the plan's while some are left or outputs decided.
    ledger = run.ledger if run.steps >= len(run.plan.steps) else run.plan.ledger()
    for accountant in ("pld", "gdp"):
        try:
            curves.append(epsilon_curve(ledger, budget.delta, points=POINTS, accountant=accountant,
                                        adjacency=budget.adjacency))  # fmt: skip
        except PrivetError:  # no theorem covers it
            continue
    try:
        return tuple(curves), tradeoff(ledger, adjacency=budget.adjacency)
    except PrivetError:
        return tuple(curves), None


def _raw(run: Run) -> dict[str, float]:
    """The last value of each figure that came from training records without noise."""
    found: dict[str, float] = {}
    for line in run.metrics:
        found |= {key: value for key, value in line.items() if key.startswith("raw_") and is_number(value)}
    return found


def _hashes(run: Run) -> dict[str, str]:
    found = {"plan": run.plan.hash}
    folder = run.checkpoint
    files = {"ledger": run.folder / ledger_reading.NAME} | ({} if folder is None else {"weights": folder / WEIGHTS})
    for name, file in files.items():
        if is_plain_file(file, most=MOST_HASHED):
            with file.open("rb") as stream:
                found[name] = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    return found


def _audit(found: evidence.Audits | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rows = [
        _values(one, "kind", "verdict", "says", "confidence")
        | {"empirical": None if one.empirical is None else one.empirical.as_dict()}
        for one in found.findings
    ]
    return {"verdict": found.verdict, "audits": found.count, "findings": rows}


def _attacks(found: evidence.Attacks | None) -> dict[str, Any] | None:
    if found is None:
        return None
    keys = ("method", "attack", "step", "victims", "succeeded", "control", "ceiling", "violation")
    return {"task": found.task, "attacks": found.count, "outcomes": [_values(one, *keys) for one in found.outcomes]}


def _values(one: object, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names}


def ends(values: Any, *, up: bool) -> str:
    """First and last of a schedule, spelled on the safe side.

    >>> ends([1.1, 0.99996], up=False), ends([0.1], up=True)
    ('1.1 to 0.9999', '0.1')
    """
    first, last = (format_bound(float(np.asarray(values)[place]), up=up, digits=4) for place in (0, -1))
    return first if first == last else f"{first} to {last}"
