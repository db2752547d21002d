"""Choosing settings by trying them: each trial a private run on a part of the training records, another part judges.

found = tune({"lr": [0.05, 0.1], "clipping_norm": [0.5, 1.0]}, out="tuned", task="digits", epsilon=3.0, epochs=10)
found.best                                                      # {'lr': 0.1, 'clipping_norm': 0.5}

Without a charge only the guarantee of one run holds, and the look at the others is told. With `charge` the budget is
that of the whole: trials, scores and choice; planning/trials.py has the laws. The best run is then the result itself.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privet import _check
from privet._files import lock_folder, make_folder, sync_folder
from privet._text import one_line, shorten
from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.errors import InvalidValue, Unsupported
from privet.ledger.total import refuse_within
from privet.planning import Plan
from privet.planning.recipe import override
from privet.training import processes
from privet.training.checks import count_records
from privet.training.metrics import BOARD
from privet.training.progress import NOT_PRIVATE, Progress
from privet.training.run import Run
from privet.training.settings import Settings
from privet.training.setup import build_setup
from privet.training.train import resume_run, train
from privet.tuning import folder as tuning_folder
from privet.tuning.choice import best_index, correct_counts, exact_scores, exponential_mechanism, noisy_accuracy
from privet.tuning.folder import BEGUN, BEST, DRAWN, RESULT, RUN, SECRET, TRIALS, Tuned, summarize, trial_folder
from privet.tuning.job import JUDGES, TuningJob, build_job, select_records
from privet.tuning.space import Candidate, Space, format_candidate, split_candidate

Watch = Callable[[int, int | None, str], Progress]  # (trial from 1, how many or None if secret, candidate)


def tune(
    space: "Mapping[str, Any] | Space", *, out: str | Path, task: "str | Task | None" = None, charge: str | None = None,
    trials: float | None = None, validation_fraction: float = JUDGES, public: "str | Task | None" = None,
    seed: int | None = None,
    where: DataFolders | None = None, watch: Watch | None = None, tell: Callable[[str], None] = lambda _: None,
    **recipe: Any,
) -> Tuned:  # fmt: skip
    """The best of the candidates in a space. Called again with the same arguments it goes on where it stopped.

    Args:
        space: for each key of a recipe or of its [training] table, the values: a list, or text: `0.05,0.1`, `0.01..1`.
        out: the tuning's folder.
        charge: the law that charges the whole: geometric, poisson, fixed or disjoint. None: nothing is charged.
        trials: how many candidates are tried, at random if there are more; the mean for geometric and poisson.
        validation_fraction: the share of the training records that judges; they are not trained on.
        public: a task whose training records are public: they judge, and all records of the task train.
        seed: makes the tuning reproducible, and not private.
        watch: makes who is told of a trial's steps.
        recipe: keywords of `plan`, without size; `training` is a table of settings.

    >>> import tempfile, torch
    >>> from torch import nn
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> own = Task(name="own", train=(x, y), held_out=(x, y), evaluation="made up", model=lambda: nn.Linear(3, 2))
    >>> given = {"epsilon": 2.0, "delta": 1e-3, "batch_size": 10, "steps": 5}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = tune({"lr": [0.1, 0.5]}, out=folder + "/a", task=own, charge="fixed", **given)
    >>> found.runs, found.dataset_size, found.guarantee.label, found.guarantee.epsilon <= 2.0
    (2, 90, 'certified', True)

    Raises:
        InvalidValue: something does not fit, would void the guarantee, or the folder is of another tuning.
        KeyboardInterrupt: a trial was interrupted; the same call goes on with it.
    """
    if processes.group().size > 1:
        raise Unsupported("tune is called by several processes. Each would try on its own. Tune in one process.")
    if seed is not None:
        _check.whole(least=0, seed=seed)
    table = recipe.get("training") or {}
    wanted = task or table.get("task") or Settings().task
    loaded = task_of(wanted, where=where)
    job = build_job(
        space if isinstance(space, Space) else Space.of(space), out=Path(out), law=charge,
        spelling=loaded.name if isinstance(wanted, Task) else wanted, trials=trials, task=loaded,
        public=None if public is None else task_of(public, where=where), validation_fraction=validation_fraction,
        seed=seed, given=recipe,
    )  # fmt: skip
    if job.out.exists() and not job.out.is_dir():
        raise InvalidValue(f"out={str(out)!r} is a file. A tuning has a folder of its own. Choose another name.")
    refuse_within(job.out, "a tuning")
    make_folder(job.out)
    lock = lock_folder(job.out)
    try:
        tuning_folder.check_same(job.out, job.describe_request())
        return _run_tuning(job, where=where, watch=watch, tell=tell)
    finally:
        lock.close()


def _run_tuning(
    job: TuningJob, *, where: DataFolders | None, watch: Watch | None, tell: Callable[[str], None]
) -> Tuned:
    result = tuning_folder.read(job.out / RESULT)
    if result is None:
        drawn = _draw_candidates(job)
        if job.is_secret:
            tell(f"tuning {job.task.name}: how many runs there are is secret")
        for number, candidate in enumerate(drawn, start=1):
            of, said = (None, "") if job.is_secret else (len(drawn), format_candidate(candidate))
            _run_trial(job, number, candidate, where=where, watcher=watch and watch(number, of, said))
            if not job.is_secret:
                tell(f"trial {number} of {of}: {said}{_describe_outcome(job, number)}")
        result = _choose_trial(job, drawn)
    if (job.out / SECRET).exists():
        if job.is_secret:
            tuning_folder.give_one_time(job.out)
        shutil.rmtree(job.out / SECRET)  # the result is on the disk: what nobody may see is not needed any more
    return summarize(job, result)


def _draw_candidates(job: TuningJob) -> list[Candidate]:
    """The candidates to try: drawn once, and on the disk before the first is tried."""
    folder = _runs_folder(job)
    found = tuning_folder.read(folder / DRAWN)
    if found is None:
        if (job.out / BEGUN).exists():
            raise InvalidValue(
                f"{folder / DRAWN}: is gone. Another draw would be another tuning, and what was spent would not be "
                "charged. Restore it, or tune in another folder."
            )
        tuning_folder.check_trials(folder, 0)
        found = {"candidates": job.draw_candidates()}
        _check_candidates(job, found["candidates"])
        tuning_folder.begin(job.out, job.describe_request())
        make_folder(folder)
        make_folder(_scores_folder(job))
        if _scores_folder(job).name == SECRET:
            _scores_folder(job).chmod(0o700)
        tuning_folder.write(folder / DRAWN, found)
    tuning_folder.write(job.out / BEGUN, {"begun": True})
    drawn = [dict(candidate) for candidate in found["candidates"]]
    tuning_folder.check_trials(folder, len(drawn))
    return drawn


def _check_candidates(job: TuningJob, drawn: list[Candidate]) -> None:
    """Raise before anything is spent if a candidate cannot be planned, or its run not be made."""
    two = select_records(job.judging, torch.arange(min(2, count_records(job.judging))))
    for candidate in job.space.grid() if job.is_secret else drawn:
        plan = job.plan_of(candidate)
        made = build_setup(plan, job.part(1), Settings.of(plan.recipe.training), weights_seed=0, group=None)
        if job.public is not None:
            _check_fit(job, made.model.cpu(), two)
        elif job.law is not None:  # only whether it can be counted: what the count is, nobody sees
            correct_counts(made.model.cpu(), job.task, two)


def _check_fit(job: TuningJob, model: nn.Module, judging: Any) -> None:
    assert job.public is not None
    try:
        exact_scores(model, job.task, judging)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InvalidValue(
            f"public={job.public.name!r} does not fit the network of task={job.task.name!r}: "
            f"{shorten(one_line(error))}. Give examples of the same kind."
        ) from None


def _runs_folder(job: TuningJob) -> Path:
    return job.out / (SECRET if job.is_secret else TRIALS)


def _scores_folder(job: TuningJob) -> Path:
    """Where the scores of trials are: not to be seen, if the choice among them is a release of its own."""
    return job.out / (SECRET if job.is_secret or job.law == "disjoint" else TRIALS)


# --- one trial --------------------------------------------------------------------------------------


def _run_trial(
    job: TuningJob, number: int, candidate: Candidate, *, where: DataFolders | None, watcher: Progress | None
) -> None:
    file = _scores_folder(job) / f"{number:03}.json"
    if tuning_folder.read(file) is not None:
        return
    folder, task = trial_folder(_runs_folder(job), number), job.part(number)
    if job.is_secret and tuning_folder.has_begun(folder) and tuning_folder.has_lost(folder):
        # The theorem is about runs that are alike, so one that a crash took steps from is made anew. Nobody has seen
        # anything of it; how many there are, and of which candidates, stays as it was drawn.
        tuning_folder.discard(folder)
    if tuning_folder.has_begun(folder):
        run = resume_run(folder, task=task, where=where, watcher=watcher)
    else:
        seed = None if job.seed is None else job.seed + number
        run = train(job.plan_of(candidate), task, out=folder, seed=seed, where=where, watcher=watcher)
    if not run.is_over:
        raise KeyboardInterrupt
    _check_spent(run, job.plan_of(candidate))
    # a score that a crash kept from the disk was seen by nobody: another draw of its noise is no second release
    tuning_folder.write(file, {"score": _score_trial(job, run, number)})


def _check_spent(run: Run, plan: Plan) -> None:
    if run.plan.recipe != plan.recipe or run.plan.steps != plan.steps:
        raise InvalidValue(
            f"{run.folder}: is a run of another plan than its candidate's. It would not cost what is charged. Restore "
            "the folder, or tune in another one."
        )


def _score_trial(job: TuningJob, run: Run, number: int) -> float | None:
    """How good a trial is. On private records it is noisy if it is charged, and secret if a draw is to follow."""
    task = job.part(number)
    if job.law is None:
        assert run.scores is not None
        found: float | None = run.scores[f"held_out_{task.measure.name}"]
        return found
    model = run.network(task)
    if job.public is not None:
        measure = exact_scores(model, task, job.judging).measure
        return measure if measure == measure else None
    right = correct_counts(model, task, job.judging)
    if job.law == "disjoint":
        return float(right)
    return noisy_accuracy(
        right, size=count_records(job.judging), steps=run.plan.steps, source=job.randomness(2, number)
    )


def _describe_outcome(job: TuningJob, number: int) -> str:
    score = None if job.law == "disjoint" else tuning_folder.read_score(_scores_folder(job), number)
    not_private = f" ({NOT_PRIVATE})" if job.law is None and job.public is None else ""
    return "" if score is None else f": {job.task.measure.name} {score:.4f}{not_private}"


# --- the choice -------------------------------------------------------------------------------------


def _choose_trial(job: TuningJob, drawn: list[Candidate]) -> dict[str, Any]:
    scores = [tuning_folder.read_score(_scores_folder(job), number) for number in range(1, len(drawn) + 1)]
    choice: int | None = None
    if job.law == "disjoint":
        epsilon = min(job.plan_of(candidate).selection_epsilon or 0.0 for candidate in drawn)
        choice = exponential_mechanism([int(s or 0) for s in scores], epsilon=epsilon, source=job.randomness(3))
    elif drawn:
        choice = best_index(scores, higher_is_better=job.task.measure.higher_is_better)
    result: dict[str, Any] = {"best": None, "score": None, "run": None, "runs": None if job.is_secret else len(drawn)}
    if choice is not None:
        result["best"], place = drawn[choice], trial_folder(_runs_folder(job), choice + 1)
        result["score"] = None if job.law == "disjoint" else scores[choice]
        if job.is_secret:
            result["run"] = RUN
            _publish(place, job.out / RUN)
        else:
            result["run"] = str(place.relative_to(job.out))
        if job.law is None:
            _write_best(job, drawn[choice])
    tuning_folder.write(job.out / RESULT, result)
    return result


def _publish(folder: Path, place: Path) -> None:
    """Move the best run to where it may be seen, unless that was done before a crash.

    TensorBoard's files go: their names count the writers of this process, and tell the time. metrics.jsonl has it all.
    """
    if not place.exists():
        shutil.rmtree(folder / BOARD, ignore_errors=True)
        folder.rename(place)
        sync_folder(place.parent)


def _write_best(job: TuningJob, candidate: Candidate) -> None:
    """The chosen settings as a recipe for all records: without a size, so that it is the task's."""
    own, training = split_candidate(candidate)
    keys = override(job.recipe, own)
    recipe = {key: value for key, value in job.recipe_of(candidate).as_dict().items() if key in keys}
    tuning_folder.write_recipe(job.out / BEST, recipe, {"task": job.spelling, **job.training, **training})
