"""The folder of a tuning: what was asked, what was drawn before anything was spent, each trial, what came of it.

out/tuning.json           what was asked; the same command goes on with it
out/trials/drawn.json     which candidates are tried: on the disk before the first of them is
out/trials/003/           the run of a trial, with its ledger
out/trials/003.json       its score
out/result.json           what came of it
out/best.toml             a recipe with the chosen settings, where the tuning is not charged

What nobody may see is in out/secret/, and gone at the end: for a random number of runs all trials but the best, which
is then in out/run/; for disjoint parts the scores.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet._files import LOCK_NAME as LOCK, make_folder, sync_folder, write_new
from privet._text import shorten
from privet.accounting import Guarantee
from privet.errors import InvalidValue
from privet.ledger import reading as ledger_reading
from privet.ledger.reading import TUNING
from privet.planning import Plan
from privet.planning.plan import content_digest
from privet.training import checkpoint, checkpoint_format
from privet.training.checks import count_records
from privet.training.progress import NOT_PRIVATE
from privet.training.run import NAME as ABOUT, PLAN, Run, mark_guarantee
from privet.tuning.choice import noisy_accuracy_std
from privet.tuning.job import TuningJob
from privet.tuning.space import Candidate

ASKED, BEGUN, DRAWN, RESULT, BEST = TUNING, "begun.json", "drawn.json", "result.json", "best.toml"
TRIALS, SECRET, RUN = "trials", "secret", "run"
LOST = ".lost"  # what is left of a run that counts for nothing, if a crash came between
FORMAT, VERSION = "privet-tuning", 1


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Put a JSON file there, whole or not at all, with a digest of its content."""
    text = json.dumps({**content, "digest": content_digest(content)}, indent=1, allow_nan=False) + "\n"
    make_folder(file.parent)
    write_new(file, text.encode())


def read(file: Path) -> dict[str, Any] | None:
    """The content of such a file; None if there is none."""
    try:
        found = json.loads(file.read_bytes())
        given = found.pop("digest")
        if content_digest(found) == given:
            return dict(found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        pass
    raise InvalidValue(
        f"{file}: is not as it was written. What was drawn or spent cannot be determined. Restore a copy of it, or "
        "tune in another folder."
    )


def begin(out: Path, asked: Mapping[str, Any]) -> None:
    """Write down what is asked, unless that was done before."""
    if not (out / ASKED).exists():
        write(out / ASKED, _plain_description(asked))


def _plain_description(asked: Mapping[str, Any]) -> dict[str, Any]:
    text = json.dumps({"format": FORMAT, "version": VERSION, **asked}, allow_nan=False, default=str)
    return dict(json.loads(text))


def check_same(out: Path, asked: Mapping[str, Any]) -> None:
    """Raise if the folder holds another tuning, or something else."""
    wanted, found = _plain_description(asked), read(out / ASKED)
    if found is None:
        if out.is_dir() and {entry.name for entry in out.iterdir()} - {LOCK, f"{ASKED}.new"}:
            raise InvalidValue(
                f"out={str(out)!r} holds other files, and no {ASKED}. What is spent there cannot be determined. "
                "Choose another folder."
            )
        return
    for key in sorted(wanted.keys() | found.keys()):
        if wanted.get(key) != found.get(key):
            raise InvalidValue(
                f"out={str(out)!r} holds another tuning: its {key} is {shorten(json.dumps(found.get(key)))}, not "
                f"{shorten(json.dumps(wanted.get(key)))}. Give what it began with, or choose another folder."
            )


def trial_folder(folder: Path, number: int) -> Path:
    """The folder of trial `number`, from 1."""
    return folder / f"{number:03}"


def read_score(folder: Path, number: int) -> float | None:
    """The score of trial `number`, which has one; None if it is not finite."""
    found = read(folder / f"{number:03}.json")
    if found is None:
        raise InvalidValue(
            f"{folder / f'{number:03}.json'}: is gone. What was chosen cannot be determined. Restore it."
        )
    score: float | None = found["score"]
    return score


def has_lost(folder: Path) -> bool:
    """Whether a crash took steps from the run in a folder that its ledger has charged."""
    saved = checkpoint.peek(folder).extra["step"] if (folder / checkpoint_format.NAME).exists() else 0
    return bool(saved < ledger_reading.read_ledger(folder).ledger.steps)


def has_begun(folder: Path) -> bool:
    """Whether there is a run to go on with; what a crash left of one that had not charged a step is removed."""
    if (folder / ABOUT).exists():
        return True
    if (folder / ledger_reading.NAME).exists():
        if ledger_reading.read_ledger(folder).ledger.steps:
            raise InvalidValue(
                f"{folder}: has steps in its ledger, and no {ABOUT}. They are spent, and cannot be made again. Restore "
                "a copy of it, or tune in another folder."
            )
        discard(folder)
    return False


def discard(folder: Path) -> None:
    """Take away a run that counts for nothing, whole or not at all: half of one would look like a damaged one."""
    gone = folder.with_name(folder.name + LOST)
    if gone.exists():
        shutil.rmtree(gone)
    folder.rename(gone)
    sync_folder(gone.parent)
    shutil.rmtree(gone)


def give_one_time(out: Path) -> None:
    """Give all that stays of a secret tuning the same time: when files were written tells how many runs there were."""
    now = time.time()
    for path in (path for path in out.rglob("*") if SECRET not in path.relative_to(out).parts[:1]):
        os.utime(path, (now, now))


def check_trials(folder: Path, count: int) -> None:
    """Raise if there are trials that were never drawn: more would be spent than is charged."""
    known = {DRAWN, f"{DRAWN}.new"}
    for number in range(1, count + 1):
        known |= {f"{number:03}{ending}" for ending in ("", ".json", ".json.new", LOST)}
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name not in known:
            raise InvalidValue(
                f"{entry}: is no trial that was drawn. More would be spent than is charged. Take it away, or tune in "
                "another folder."
            )


def write_recipe(file: Path, recipe: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """A recipe as TOML; of numbers and words alone."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in recipe.items()]
    lines += ["", "[training]"] + [f"{key} = {json.dumps(v, ensure_ascii=False)}" for key, v in training.items()]
    write_new(file, ("\n".join(lines) + "\n").encode())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One candidate that was tried. A score that nobody may see is None."""

    number: int
    candidate: Candidate
    score: float | None
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """What came of a tuning. Made by `tune`.

    `guarantee` is that of the whole: trials, scores and choice; None where it is not charged. `one_run` is that of the
    best trial alone. `runs` and `trials` are None where the number of runs is secret.
    """

    folder: Path
    charge: str | None
    runs: int | None
    law: str  # the number of runs, in words
    best: Candidate | None  # None if there was no run: Poisson may say 0
    score: float | None
    spread: float | None  # the standard deviation of a noisy score, at most
    measure: str
    higher_is_better: bool
    scored: str  # what a score is
    dataset_size: int  # the examples that a trial trains on
    records: int  # that the task has
    guarantee: Guarantee | None
    one_run: Guarantee | None
    run: Run | None  # of the best trial: the result, if it is charged
    trials: tuple[Trial, ...] | None
    seed: int | None

    @property
    def says(self) -> str:
        """What holds, in one line."""
        if self.charge is None:
            return (
                f"the settings were chosen by looking at {self.law} on these records, which is not charged: an epsilon "
                "is that of one run alone"
            )
        none = "" if self.best is not None else "; the law gave no run: the outcome is a model fixed beforehand"
        return f"epsilon is that of the whole: {self.law}, their scores and the choice{none}"

    @property
    def noise_is_secret(self) -> bool:
        """Whether a guarantee covers the whole: it is charged, and not reproducible."""
        return self.charge is not None and self.seed is None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        trials = None if self.trials is None else [
            {"number": t.number, "candidate": t.candidate, "score": t.score, "folder": str(t.folder)}
            for t in self.trials
        ]  # fmt: skip
        return {
            "folder": str(self.folder), "charge": self.charge, "runs": self.runs, "law": self.law, "best": self.best,
            "measure": self.measure, "score": self.score, "spread": self.spread, "scored": self.scored,
            "dataset_size": self.dataset_size, "records": self.records, "says": self.says,
            "guarantee": None if self.guarantee is None else self.guarantee.as_dict(),
            "one_run": None if self.one_run is None else self.one_run.as_dict(),
            "run": None if self.run is None else str(self.run.folder), "trials": trials,
            "private": self.noise_is_secret, "seed": self.seed,
            "held_out": None if self.run is None or self.charge is None else self.run.scores,
        }  # fmt: skip


def summarize(job: TuningJob, result: Mapping[str, Any]) -> Tuned:
    """What came of a job whose result is on the disk."""
    run = None if result["run"] is None else Run.load(job.out / result["run"])
    runs, tuning = result["runs"], job.tuning
    noisy = job.law is not None and job.law != "disjoint" and job.public is None and run is not None
    return Tuned(
        folder=job.out, charge=job.law, runs=runs, best=result["best"], score=result["score"],
        law=f"{runs} run{'s' if runs != 1 else ''}" if tuning is None else tuning.name,
        spread=noisy_accuracy_std(count_records(job.judging), run.plan.steps) if noisy and run is not None else None,
        measure=job.task.measure.name, higher_is_better=job.task.measure.higher_is_better, scored=describe_scores(job),
        dataset_size=job.size, records=count_records(job.task.train), guarantee=_overall_guarantee(job, run),
        one_run=None if run is None else run.guarantee, run=run, trials=_read_trials(job), seed=job.seed,
    )  # fmt: skip


def describe_scores(job: TuningJob) -> str:
    """What a score is, in words."""
    if job.public is not None:
        return job.judged_by
    if job.law is None:
        return f"{job.judged_by}; {NOT_PRIVATE}"
    if job.law == "disjoint":
        return f"right answers on {job.judged_by}; {NOT_PRIVATE}, and not shown"
    return f"{job.judged_by}; with noise, charged as a run is"


def _overall_guarantee(job: TuningJob, run: Run | None) -> Guarantee | None:
    """The guarantee of the whole: the plan's, and on disjoint parts that of the dearest."""
    if job.law is None:
        return None
    plans = [job.plan_of(next(job.space.grid())) if run is None else run.plan]
    if job.law == "disjoint":
        plans = [Plan.load(trial_folder(job.out / TRIALS, number) / PLAN) for number in range(1, len(job.parts) + 1)]
    dearest = max(plans, key=lambda p: p.guarantee.epsilon)
    return mark_guarantee(dearest.guarantee, dearest, seeded=job.seed is not None)


def _read_trials(job: TuningJob) -> tuple[Trial, ...] | None:
    drawn = None if job.is_secret else read(job.out / TRIALS / DRAWN)
    if drawn is None:
        return None
    return tuple(
        Trial(
            number=number, candidate=dict(candidate), folder=trial_folder(job.out / TRIALS, number),
            score=None if job.law == "disjoint" else read_score(job.out / TRIALS, number),
        )
        for number, candidate in enumerate(drawn["candidates"], start=1)
    )  # fmt: skip
