"""Training a plan on a task: from the first step to a run's folder, evaluated and saved on the way.

run = train(plan, "digits", out="runs/a", lr=0.1)
run = go_on("runs/a")                              # after a stop or a crash
"""

import json
import secrets
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from privet import _check
from privet.data.files import DataFolders
from privet.data.task import Task, dataset_name_of, task as task_of
from privet.errors import InvalidValue, PrivetError
from privet.ledger import reading as ledger_reading
from privet.ledger.reading import is_federation, resume_command
from privet.ledger.total import check_total, set_total
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.training import checkpoint, checkpoint_format, metrics, processes
from privet.training.checks import check_preprocessing
from privet.training.evaluation import catch_interrupts
from privet.training.loop import TrainingLoop
from privet.training.processes import Group
from privet.training.progress import Progress
from privet.training.resume import resume as taken_up
from privet.training.run import BEST, NAME, PLAN, Run, versions, write_about, write_plan
from privet.training.settings import Settings, changed_keys
from privet.training.setup import TrainingSetup, build_setup, check_sound, measure_steps_per_line, seed_torch
from privet.training.training import Training


def train(
    plan: Plan, task: "str | Task | None" = None, *, out: str | Path, seed: int | None = None,
    uncertified: bool = False, secure_noise: bool = False, show_private: bool = False,
    total_epsilon: float | None = None,
    ledger_dir: "str | Path | None" = None, where: DataFolders | None = None, watcher: Progress | None = None,
    **settings: Any,
) -> Run:  # fmt: skip
    """A run of `plan` on a task, in a folder of its own: trained, evaluated on the held-out set, saved.

    Settings are those of the plan's [training] table; what is given here wins. Under torchrun all ranks call it.

    Args:
        task: a name, an address `my.module:task`, or a Task.
        out: the run's folder. It must not hold a ledger, nor a plan.json or run.json of something else.
        seed: makes the run reproducible, and not private.
        uncertified: train by a rule that has no guarantee, or on a task that read something off its records.
        secure_noise: noise that no rounding of floating-point numbers gives away.
        total_epsilon: what all runs on these records in `ledger_dir` may cost together, this one included.
        ledger_dir: the folder of those runs; `out` lies in it. See docs/howto-budget.md.
        show_private: also show what comes from training records without noise, marked so.
        where: where files of the task are looked for.
        watcher: who is told what happens; see privet.training.progress.

    >>> import tempfile, torch
    >>> from torch import nn
    >>> from privet import plan
    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> own = Task(name="own", train=(x, y), held_out=(x, y), evaluation="made up", model=lambda: nn.Linear(3, 2))
    >>> p = plan(epsilon=2.0, delta=1e-3, dataset_size=100, batch_size=10, steps=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(p, own, out=folder + "/a", lr=0.5)
    >>> run.steps, run.end, run.guarantee.label
    (5, 'complete', 'certified')

    Raises:
        InvalidValue: the folder is in use, the task is not of the plan's size, or a setting does not fit.
        Unsupported: the plan's rule or the task has no guarantee, and that was not asked for.
    """
    folder, group = Path(out), processes.group()
    if seed is not None:
        _check.whole(least=0, seed=seed)
    check_sound(plan, uncertified=uncertified)
    flags = {key: value for key, value in settings.items() if value is not None}
    flags |= {} if task is None else {"task": task.name if isinstance(task, Task) else task}
    chosen = Settings.of({**plan.recipe.training, **flags})
    dataset = chosen.dataset_name  # the user's, or that of a task of Privet's
    if dataset is None and not isinstance(task, Task):
        dataset = dataset_name_of(chosen.task)
    if total_epsilon is not None or ledger_dir is not None:
        within = partial(_admit_within_total, plan, folder, total_epsilon, ledger_dir, dataset, seeded=seed is not None)
        group.run_on_first(within if group.is_first else lambda: None)
    loaded = task_of(chosen.task if task is None else task, where=where)
    check_preprocessing(loaded.non_private_preprocessing, uncertified=uncertified)
    _check_new(folder, plan)
    about = {"weights_seed": group.broadcast_value(secrets.randbits(48) if seed is None else seed)}
    parts = build_setup(plan, loaded, chosen, weights_seed=about["weights_seed"], group=group)
    reserve = chosen.steps_per_line or measure_steps_per_line(parts, folder) if group.is_first else 1
    reserve = group.broadcast_value(reserve)
    about |= _describe_run(parts, own=isinstance(task, Task)) | {
        "changed": changed_keys(plan.recipe.training, flags), "seed": seed, "secure_noise": secure_noise,
        "uncertified": uncertified, "show_private": show_private,
    }  # fmt: skip
    training = Training(
        parts.model, parts.optimizer, loaded.train, plan, out=folder, steps_per_line=reserve, dataset_name=dataset,
        randomness=Randomness(seed), **_training_options(parts, about, group),
    )  # fmt: skip
    with training:
        if group.is_first:
            write_plan(folder, plan)
            write_about(folder, about)
        return _run_loop(training, parts, about, folder=folder, steps_per_line=reserve, group=group, watcher=watcher)


def resume_run(
    out: "str | Path | Run", *, task: Task | None = None, show_private: bool | None = None,
    where: DataFolders | None = None,
    watcher: Progress | None = None,
) -> Run:  # fmt: skip
    """The run in a folder, taken up at the ledger's next step with the weights of its last checkpoint, and ended.

    Everything but `show_private` is as it began. A run that is over is given back as it is.

    Raises:
        InvalidValue: it is not the folder of a run, a file of it is damaged, or it needs its own `task` again.
    """
    group = processes.group()
    run = out if isinstance(out, Run) else Run.load(out)
    if run.is_over:
        run.check_weights()
        return run
    folder = run.folder
    about = dict(run.about)
    about["show_private"] = about["show_private"] if show_private is None else show_private
    loaded = run.task(where=where) if task is None else task
    _check_task(run, loaded)
    begun = group.broadcast_value((folder / checkpoint_format.NAME).exists())
    parts = build_setup(run.plan, loaded, run.settings, weights_seed=about["weights_seed"], group=group, begun=begun)
    _check_weights(run, parts)
    reserve = ledger_reading.read_ledger(folder).header.reserve
    training = taken_up(
        parts.model, parts.optimizer, loaded.train, run.plan, out=folder, scheduler=parts.pace.scheduler,
        steps_per_line=reserve, randomness=Randomness(run.seed, run.steps), **_training_options(parts, about, group),
    )  # fmt: skip
    with training:
        kept = checkpoint.peek(folder).extra if (folder / checkpoint_format.NAME).exists() else None
        if run.checkpoint not in (None, folder):  # a crash may have left better weights than the checkpoint knows of
            parts.judge.raise_best(run.scores)
        return _run_loop(
            training, parts, about, folder=folder, steps_per_line=reserve, group=group, watcher=watcher, kept=kept,
            resumed=True,
        )  # fmt: skip


def _run_loop(
    training: Training, parts: TrainingSetup, about: dict[str, Any], *, folder: Path, steps_per_line: int, group: Group,
    watcher: Progress | None, kept: Mapping[str, Any] | None = None, resumed: bool = False,
) -> Run:  # fmt: skip
    first = group.is_first
    seed = about["seed"]
    told = Progress() if watcher is None or not first else watcher
    with catch_interrupts() as interrupt, nullcontext() if seed is None else seed_torch(seed + training.steps_done):
        rounds = TrainingLoop(
            training, parts, folder=folder, steps_per_line=steps_per_line, show_private=about["show_private"],
            watcher=told,
            interrupt=interrupt, group=group, kept=kept,
        )  # fmt: skip
        if resumed:
            rounds.record_resume(0 if kept is None else kept["step"])
        rounds.run()
    if rounds.end is not None and first:
        write_about(folder, about | {"end": rounds.end})
    group.any(False)  # nobody reads the folder before rank 0 has written it
    return Run.load(folder)


def _describe_run(parts: TrainingSetup, *, own: bool) -> dict[str, Any]:
    task, settings = parts.task, parts.settings
    spelling = settings.model or (task.model if isinstance(task.model, str) else None)
    facts = {key: list(value) if isinstance(value, tuple) else value for key, value in task.facts.items()}
    try:
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError):  # facts that a file cannot hold: the task itself makes the network again
        spelling = None
    return {
        "plan": parts.plan.hash, "task": settings.task, "own_task": own, "settings": settings.as_dict(),
        "evaluation": task.evaluation, "source": task.source,
        "non_private_preprocessing": task.non_private_preprocessing, "weights": parts.weights,
        "measure": {"name": task.measure.name, "higher_is_better": task.measure.higher_is_better},
        "network": None if spelling is None else {"model": spelling, "facts": facts},
        "versions": versions(), "end": None,
    }  # fmt: skip


def _training_options(parts: TrainingSetup, about: Mapping[str, Any], group: Group) -> dict[str, Any]:
    """The options of `Training` that a run keeps when it goes on."""
    settings, task = parts.settings, parts.task
    return {
        "max_physical_batch_size": settings.max_physical_batch_size, "workers": settings.workers,
        "augmentations": settings.augmentations,
        "ema_decay": settings.ema_decay, "uncertified": about["uncertified"], "secure_noise": about["secure_noise"],
        "non_private_preprocessing": task.non_private_preprocessing, "group": group, "own_loop": False,
        "users": task.users if parts.plan.recipe.budget.unit == "user" else None,
    }  # fmt: skip


def _check_task(run: Run, task: Task) -> None:
    """Raise if a run would go on with another task than it began with, as far as public facts tell."""
    now = {"name": task.measure.name, "higher_is_better": task.measure.higher_is_better}
    name = task.name if run.about["own_task"] else run.settings.task
    if name != run.settings.task or now != run.about["measure"]:
        raise InvalidValue(
            f"task={task.name!r}, judged by {task.measure.name}, is not the one that the run in {str(run.folder)!r} "
            f"began with, {run.settings.task!r}. Its scores could not be compared. Give that one."
        )
    if task.evaluation != run.evaluation:
        raise InvalidValue(
            f"task={task.name!r} is judged by {task.evaluation!r}, and the run in {str(run.folder)!r} began with "
            f"{run.evaluation!r}. Held-out examples may now be in the training set. Use the dataset it began with, or "
            "start a new run."
        )


def _check_weights(run: Run, parts: TrainingSetup) -> None:
    """Raise if a run without a checkpoint would go on from other weights than it began with."""
    if parts.weights not in (None, run.about["weights"]):
        raise InvalidValue(
            f"weights={run.settings.weights!r} is another file than the run in {str(run.folder)!r} began with: its "
            f"SHA-256 is {parts.weights}, not {run.about['weights']}. Put that file in its place."
        )


def _admit_within_total(
    plan: Plan, folder: Path, epsilon: float | None, ledger_dir: "str | Path | None", dataset: str | None, *,
    seeded: bool,
) -> None:  # fmt: skip
    """Raise, before a record is read, unless the run may begin within the total of ledger_dir, which may be new."""
    if ledger_dir is None:
        raise InvalidValue(
            f"total_epsilon={epsilon!r} is given without ledger_dir. It is for all runs in a folder. Give that folder."
        )
    root = Path(ledger_dir).resolve()
    if folder.resolve() == root or not folder.resolve().is_relative_to(root):
        raise InvalidValue(
            f"out={str(folder)!r} is not in ledger_dir={str(ledger_dir)!r}. Its cost would not be found there. Choose "
            "a folder in it."
        )
    if dataset is None:
        raise InvalidValue(
            "dataset_name is missing. Runs on the same dataset are found by it, and for your own data only you know "
            "it. Give dataset_name='people-2026', for example."
        )
    if epsilon is not None:
        set_total(ledger_dir, epsilon, dataset=dataset, plan=plan, seeded=seeded)
    else:
        check_total(ledger_dir, dataset=dataset, plan=plan, seeded=seeded)


def _check_new(folder: Path, plan: Plan) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidValue(f"out={str(folder)!r} is a file. A run has a folder of its own. Choose another name.")
    if (folder / ledger_reading.NAME).exists():
        raise InvalidValue(
            f"out={str(folder)!r} holds a {'federation' if is_federation(folder) else 'run'} already. Its steps are "
            f"spent. Resume it by `{resume_command(folder)}`, or choose another folder."
        )
    others = (checkpoint_format.NAME, f"{BEST}/{checkpoint_format.NAME}", metrics.NAME)
    left = [name for name in others if (folder / name).exists()]
    if left:
        raise InvalidValue(
            f"out={str(folder)!r} holds {left[0]} of a run whose ledger is gone. It would be taken for this run's, "
            "and its cost is not in the ledger. Choose another folder."
        )
    if (folder / NAME).exists() or ((folder / PLAN).exists() and not _holds_plan(folder / PLAN, plan)):
        name = NAME if (folder / NAME).exists() else PLAN
        raise InvalidValue(
            f"out={str(folder)!r} holds a {name} that is not of this run. It would be overwritten. Choose another "
            "folder, or move the file away."
        )


def _holds_plan(file: Path, plan: Plan) -> bool:
    """Whether a file holds this very plan, as `privet plan --out runs/a/plan.json` leaves it."""
    try:
        return Plan.load(file).hash == plan.hash
    except PrivetError:
        return False
