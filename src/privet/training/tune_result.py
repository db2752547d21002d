"""What comes of a tuning, read from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.accounting import Guarantee
from privet.planning import Plan
from privet.training import tune_file
from privet.training.gate import records_of
from privet.training.progress import NOT_PRIVATE
from privet.training.run import PLAN, Run, marked
from privet.training.tune_file import DRAWN, TRIALS, place_of
from privet.training.tune_job import Job
from privet.training.tune_score import spread_of
from privet.training.tune_space import Candidate


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
    size: int  # the records that a trial trains on
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
    def private(self) -> bool:
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
            "size": self.size, "records": self.records, "says": self.says,
            "guarantee": None if self.guarantee is None else self.guarantee.as_dict(),
            "one_run": None if self.one_run is None else self.one_run.as_dict(),
            "run": None if self.run is None else str(self.run.folder), "trials": trials, "private": self.private,
            "seed": self.seed, "held_out": None if self.run is None or self.charge is None else self.run.scores,
        }  # fmt: skip


def told(job: Job, result: Mapping[str, Any]) -> Tuned:
    """What came of a job whose result is on the disk."""
    run = None if result["run"] is None else Run.load(job.out / result["run"])
    runs, tuning = result["runs"], job.tuning
    noisy = job.law is not None and job.law != "disjoint" and job.public is None and run is not None
    return Tuned(
        folder=job.out, charge=job.law, runs=runs, best=result["best"], score=result["score"],
        law=f"{runs} run{'s' if runs != 1 else ''}" if tuning is None else tuning.name,
        spread=spread_of(records_of(job.judging), run.plan.steps) if noisy and run is not None else None,
        measure=job.task.measure.name, higher_is_better=job.task.measure.higher_is_better, scored=scored(job),
        size=job.size, records=records_of(job.task.train), guarantee=_whole(job, run),
        one_run=None if run is None else run.guarantee, run=run, trials=_trials(job), seed=job.seed,
    )  # fmt: skip


def scored(job: Job) -> str:
    """What a score is, in words."""
    if job.public is not None:
        return job.judged_by
    if job.law is None:
        return f"{job.judged_by}; {NOT_PRIVATE}"
    if job.law == "disjoint":
        return f"right answers on {job.judged_by}; {NOT_PRIVATE}, and not shown"
    return f"{job.judged_by}; with noise, charged as a run is"


def _whole(job: Job, run: Run | None) -> Guarantee | None:
    """The guarantee of the whole: the plan's, and on disjoint parts that of the dearest."""
    if job.law is None:
        return None
    plans = [job.plan_of(next(job.space.grid())) if run is None else run.plan]
    if job.law == "disjoint":
        plans = [Plan.load(place_of(job.out / TRIALS, number) / PLAN) for number in range(1, len(job.parts) + 1)]
    dearest = max(plans, key=lambda p: p.guarantee.epsilon)
    return marked(dearest.guarantee, dearest, seeded=job.seed is not None)


def _trials(job: Job) -> tuple[Trial, ...] | None:
    drawn = None if job.is_secret else tune_file.read(job.out / TRIALS / DRAWN)
    if drawn is None:
        return None
    return tuple(
        Trial(
            number=number, candidate=dict(candidate), folder=place_of(job.out / TRIALS, number),
            score=None if job.law == "disjoint" else tune_file.score_of(job.out / TRIALS, number),
        )
        for number, candidate in enumerate(drawn["candidates"], start=1)
    )  # fmt: skip
