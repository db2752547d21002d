"""Parts of a task's training records, for tuning: some train, some judge. The held-out set is not looked at.

Which record is in which part is decided by a fixed shuffle of their numbers, never by what is in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from privet import _check
from privet.accounting import Budget
from privet.accounting.sampling import Poisson, sampling as sampling_of
from privet.accounting.selection import LAWS, RANDOM
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness
from privet.planning import Plan, Recipe, plan
from privet.planning.recipe import override
from privet.planning.tuning_budget import TrialBudget
from privet.training.checks import check_preprocessing, count_records
from privet.training.settings import Settings
from privet.tuning.choice import draw_run_count
from privet.tuning.space import SPENDING, Candidate, Space, split_candidate

JUDGES = 0.1  # the share of the training records that judges


def train_validation_split(task: Task, *, validation_fraction: float = JUDGES) -> tuple[Task, Any]:
    """(the task with the rest of its training records, the records that judge)."""
    _check.between(0, 1, validation_fraction=validation_fraction)
    size = count_records(task.train)
    count = int(size * validation_fraction)
    if not 0 < count < size:
        raise InvalidValue(
            f"validation_fraction={validation_fraction!r} leaves {count} of {size} training examples for validation. "
            "Both parts need examples. Give another fraction."
        )
    order = _shuffled_order(size)
    return _select_task_records(task, order[count:]), select_records(task.train, order[:count])


def split_into_parts(task: Task, parts: int) -> list[Task]:
    """Tasks with disjoint equal parts of the training records; fewer than `parts` records may be left over."""
    each = count_records(task.train) // parts
    if not each:
        raise InvalidValue(
            f"task={task.name!r} has {count_records(task.train)} training examples, fewer than the {parts} parts that "
            "are needed. Try fewer candidates."
        )
    order = _shuffled_order(count_records(task.train))
    return [_select_task_records(task, order[k * each : (k + 1) * each]) for k in range(parts)]


def select_records(data: Any, indices: Tensor) -> Any:
    """Some records of a dataset, as a dataset of the same kind."""
    if isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data):
        return tuple(part[indices] for part in data)
    if not hasattr(data, "__getitem__") or isinstance(data, (tuple, Tensor)):
        raise Unsupported(
            f"train={type(data).__name__} cannot be split. A part of it is needed for validation. Give tensors or a "
            "map-style dataset."
        )
    wanted: Sequence[int] = indices.tolist()
    return Subset(data, wanted)


def _shuffled_order(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(0))


def _select_task_records(task: Task, indices: Tensor) -> Task:
    users = None if task.users is None else task.users[indices]
    return replace(task, train=select_records(task.train, indices), users=users)


ACCURACY = "accuracy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TuningJob:
    """What is to be tried. `law` is None where the tuning is not charged."""

    out: Path
    spelling: str  # of the task
    space: Space
    law: str | None
    trials: float  # how many, or their mean
    task: Task
    public: Task | None
    validation_fraction: float
    seed: int | None
    recipe: Mapping[str, Any]  # keywords of a plan, without size and training
    training: Mapping[str, Any]
    parts: tuple[Task, ...]  # what trials train on: one part for all, or one each
    judging: Any  # the records that judge
    _plans: dict[str, Plan] = field(default_factory=dict, repr=False)

    @property
    def is_secret(self) -> bool:
        """Whether nobody may learn how many runs there were."""
        return self.law in RANDOM

    @property
    def size(self) -> int:
        return count_records(self.parts[0].train)

    def part(self, number: int) -> Task:
        """The task of trial `number`, from 1. Where nothing is charged it is evaluated on the records that judge."""
        found = self.parts[number - 1 if self.law == "disjoint" else 0]
        if self.law is not None:
            return found
        return replace(found, held_out=self.judging, evaluation=self.judged_by)

    @property
    def judged_by(self) -> str:
        count = f"{count_records(self.judging):,}"
        if self.public is not None:
            return f"{count} public records of {self.public.name}"
        return f"{count} of the training records, by a fixed shuffle: to choose settings by"

    def randomness(self, *path: int) -> Randomness:
        return Randomness(self.seed, *path)

    def draw_candidates(self) -> list[Candidate]:
        numbers = self.randomness(0).numpy_generator()
        if not self.is_secret:
            return self.space.draw_some(int(self.trials), numbers)
        assert self.law is not None
        count = draw_run_count(self.law, self.trials, self.randomness(1))
        return [self.space.draw(numbers) for _ in range(count)]

    def recipe_of(self, candidate: Candidate) -> Recipe:
        """The recipe of one candidate's trial, charged by the law."""
        own, training = split_candidate(candidate)
        trials = {"trial_count_distribution": self.law, "trials_mean" if self.is_secret else "trials": self.trials}
        if not self.is_secret:
            trials["trials"] = int(self.trials)
        table = {**self.training, **training, "task": self.spelling}
        charged = {} if self.law is None else trials
        return Recipe.of(**override(self.recipe, own), **charged, dataset_size=self.size, training=table)

    def plan_of(self, candidate: Candidate) -> Plan:
        """The plan of one candidate's trial; what differs in its [training] table alone is planned once."""
        recipe = self.recipe_of(candidate)
        key = repr(sorted((key, value) for key, value in recipe.as_dict().items() if key != "training"))
        if key not in self._plans:
            self._plans[key] = plan(recipe)
        found = self._plans[key]
        # one evaluation, at the end, is enough, unless more are asked for
        training = {"evaluate_every": len(found.steps), **recipe.training}
        return replace(found, recipe=replace(recipe, training=training))

    def describe_request(self) -> dict[str, Any]:
        """All that decides what is tried and spent, in plain values."""
        return {
            "task": self.spelling, "records": count_records(self.task.train), "trained_on": self.size,
            "judged_by": self.judged_by, "space": self.space.as_dict(), "charge": self.law, "trials": self.trials,
            "validation_fraction": self.validation_fraction if self.public is None and self.law != "disjoint" else None,
            "public": None if self.public is None else self.public.name, "seed": self.seed,
            "recipe": dict(self.recipe), "training": dict(self.training),
        }  # fmt: skip

    @property
    def tuning(self) -> TrialBudget | None:
        return None if self.law is None else TrialBudget(trial_count_distribution=self.law, runs=float(self.trials))


def build_job(
    space: Space, *, out: Path, spelling: str, law: str | None, trials: float | None, task: Task,
    public: Task | None, validation_fraction: float, seed: int | None, given: Mapping[str, Any],
) -> TuningJob:  # fmt: skip
    """A job that can be done, and whose guarantee will hold."""
    recipe = {key: value for key, value in given.items() if value is not None}
    training = dict(recipe.pop("training", {}))
    check_preprocessing(task.non_private_preprocessing)
    _check_recipe(recipe, task)
    recipe.setdefault("delta", 1 / (10 * count_records(task.train)))  # all records are protected, not those of a part
    count = _resolve_trials(law, trials, space)
    if law == "disjoint" and public is not None:
        raise InvalidValue(
            "public is given beside charge='disjoint', which chooses on a part of the examples. Give one."
        )
    if public is not None:
        parts, judging = [task], public.train
    elif law == "disjoint":
        *parts, last = split_into_parts(task, int(count) + 1)
        judging = last.train
    else:
        rest, judging = train_validation_split(task, validation_fraction=validation_fraction)
        parts = [rest]
    job = TuningJob(
        out=out, spelling=spelling, space=space, law=law, trials=count, task=task, public=public,
        validation_fraction=validation_fraction,
        seed=seed, recipe=recipe, parts=tuple(parts), judging=judging,
        training={key: value for key, value in training.items() if key != "task" and value is not None},
    )  # fmt: skip
    _check_public(job)
    for candidate in space.grid():
        _check_budget(job.recipe_of(candidate).budget)
        Settings.of(job.recipe_of(candidate).training)
    if law is not None:
        _check_charged(job)
    return job


def _resolve_trials(law: str | None, trials: float | None, space: Space) -> float:
    if law is not None:
        _check.one_of(LAWS, charge=law)
    if law in RANDOM:
        if trials is None:
            raise InvalidValue(
                f"trials is missing. charge={law!r} needs the mean number of runs. Give trials=10, for example."
            )
        return float(trials)
    if trials is None and space.size is None:
        raise InvalidValue("trials is missing. A range has no end of candidates. Say how many are drawn: trials=20.")
    count = space.size if trials is None else trials
    assert count is not None
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    _check.whole(trials=count)  # type: ignore[arg-type]
    return count


def _check_recipe(recipe: dict[str, Any], task: Task) -> None:
    """Raise for what a tuning says otherwise, or not at all; a size that is the task's is left out."""
    own = {"trials": "trials", "trials_mean": "trials", "trial_count_distribution": "charge"}
    for key, other in own.items():
        if key in recipe:
            raise InvalidValue(f"{key}={recipe[key]!r} is set by the tuning itself. Leave it out, and give {other}.")
    if recipe.get("uncertified"):
        raise InvalidValue("uncertified=True cannot be tuned. Its trials have no guarantee. Leave it out.")
    if recipe.get("solve", "noise") != "noise":
        raise InvalidValue(f"solve={recipe['solve']!r}: candidates are compared at one budget. Leave it out.")
    size = recipe.pop("dataset_size", None)
    if size is not None and size != count_records(task.train):
        raise InvalidValue(
            f"dataset_size={size!r} is not that of task={task.name!r}, {count_records(task.train)}. The tuning finds "
            "the size of the part that it trains on. Leave it out."
        )


def _check_budget(budget: Budget) -> None:
    if budget.unit != "example" or budget.adjacency == "add-remove":
        raise Unsupported(
            f"unit={budget.unit!r}, adjacency={budget.adjacency!r}: the split assumes that every example belongs to "
            "another person, and that their number is public. Use unit='example' and adjacency='zero-out'."
        )


def _check_public(job: TuningJob) -> None:
    if job.public is None:
        return
    if job.public.name == job.task.name:
        raise InvalidValue(
            f"public={job.public.name!r} is the task itself. Its examples are the private ones, and its held-out set "
            "is for the final evaluation. Give a task whose training examples are public."
        )
    if job.public.measure.name != job.task.measure.name:
        raise InvalidValue(
            f"public={job.public.name!r} is judged by {job.public.measure.name}, task={job.task.name!r} by "
            f"{job.task.measure.name}. Give one that is judged alike."
        )


def _check_charged(job: TuningJob) -> None:
    recipe = job.recipe_of(next(job.space.grid()))
    spending = [key for key in job.space.values if key in SPENDING]
    if spending and job.law != "disjoint":
        raise InvalidValue(
            f"{spending[0]} is tuned, and charge={job.law!r} is for trials that cost the same. Its theorem is for one "
            "plan. Tune it with charge='disjoint', or without a charge."
        )
    for key in ("stop_at", "patience", "keep"):
        if job.training.get(key, "last") != "last":
            raise InvalidValue(
                f"{key}={job.training[key]!r} decides on the held-out set, which is not used in a private selection. "
                "Leave it out."
            )
    spelled = [job.training.get("scheduler"), *job.space.as_dict().get("scheduler", [])]
    if any("plateau" in str(word).lower() for word in spelled):
        raise InvalidValue(
            "scheduler='reduce-on-plateau' reads the held-out set, which is not used in a private selection. Use "
            "cosine."
        )
    if job.public is not None:
        return
    why = "Trials are judged by private examples, whose score is charged as a run is"
    if recipe.budget.adjacency != "zero-out":
        raise Unsupported(
            f"adjacency={recipe.budget.adjacency!r}: {why}. That holds for adjacency='zero-out'. Give public."
        )
    if job.task.measure.name != ACCURACY:
        raise Unsupported(
            f"task={job.task.name!r} is judged by {job.task.measure.name}, which one example can move by any amount. "
            f"{why}. Give public."
        )
    if job.law != "disjoint" and not isinstance(sampling_of(recipe.sampling), Poisson):
        raise Unsupported(f"sampling={recipe.sampling!r}: {why}, with Poisson sampling only. Give public.")
