"""`privet train`: a plan and a task in, a run's folder out."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._registry import from_entry_point
from privet.cli import common
from privet.cli.common import PATH, Command, integer, number, option_group
from privet.cli.recipe_options import JSON, option, plan_options, with_shapes, words_of
from privet.errors import InvalidValue, PrivetError

if TYPE_CHECKING:
    from privet.data import DataFolders
    from privet.ledger.total import Standing
    from privet.planning import Plan
    from privet.training.run import Run


def _words(_: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else words_of(option.opts[0], text)


MODEL = (
    option("--task", metavar="NAME", help="Dataset and network: digits (default), mnist, ..., or my.module:task."),
    option("--model", metavar="NAME", help="Another network than the task's: cnn, ..., or my.module:Net."),
    option("--weights", metavar="FILE", help="Fine-tuning: initial weights from a safetensors file."),
    option("--train", metavar="PATTERNS", callback=_words, help="With --weights: the parameters to train, by patterns "
           "of their names: fc3.*,*.bias. Default: all."),
    option("--fresh", metavar="PATTERNS", callback=_words, help="With --weights: parameters not taken from the file, "
           "such as the last layer for other classes. Default: none."),
    option("--dataset-name", metavar="NAME", help="Name of the dataset, such as people-2026: runs on the same data are "
           "found by it. Default: the name of a task of Privet's."),
)  # fmt: skip
OPTIMIZER = (
    option("--optimizer", metavar="NAME", help="sgd (default), adam, adamw, adagrad, rmsprop, or any other of "
           "torch, with options: sgd:nesterov=true."),
    option("--lr", type=number, help="Learning rate. Default: 0.1 for sgd, 0.005 for adam."),
    option("--momentum", type=number, help="Momentum of the optimizer. Default: 0.9 for sgd."),
    option("--weight-decay", type=number, help="Weight decay of the optimizer."),
    option("--scheduler", metavar="NAME", help="cosine, polynomial (a linear decay), step:step_size=10, "
           "exponential:gamma=0.9, one-cycle, reduce-on-plateau, or any other of torch."),
    option("--ema-decay", "--average", "ema_decay", type=number,
           help="Decay of an exponential moving average of the weights, such as 0.999. It costs no privacy."),
    option("--augmentations", "--views", "augmentations", type=integer,
           help="Augmentation multiplicity: augmented copies of each example, for a dataset that augments. "
           "Default: 1."),
)  # fmt: skip
RUNNING = (
    option("--max-physical-batch-size", "--max-physical-batch", "max_physical_batch_size", type=integer,
           help="Largest physical batch in memory at a time; the result is the same."),
    option("--workers", type=click.IntRange(0), help="Processes that load data. Default: 0."),
    option("--device", metavar="NAME", help="cpu, cuda, cuda:1. Default: a GPU if there is one."),
    option("--evaluate-every", type=integer, help="Steps between evaluations. Default: an epoch."),
    option("--save-every", type=integer, help="Steps between checkpoints. Default: at evaluations, 30 s apart."),
    option("--stop-at", metavar="MEASURE=VALUE", help="Early stopping at this value on the held-out set: "
           "accuracy=0.97."),
    option("--patience", type=integer, help="Early stopping after this many evaluations without improvement."),
    option("--keep", metavar="WHICH", help="Weights to keep: last (default) or best, on the held-out set."),
    option("--steps-per-line", "--reserve", "steps_per_line", type=integer,
           help="Steps charged by one line of the ledger. Default: measured."),
)  # fmt: skip


def training_options(command: Command) -> Command:
    """The options that are keys of a recipe's [training] table."""
    command = option_group(command, RUNNING, "Batches, evaluation and checkpoints")
    return option_group(option_group(command, OPTIMIZER, "Optimizer"), MODEL, "Dataset and model")


RUN = (
    option("--recipe", "named", metavar="NAME", help="A recipe that ships with Privet: `privet recipes` lists them."),
    option("--plan", "plan_file", type=PATH, metavar="FILE", help="A plan of `privet plan`."),
    option("--resume", type=PATH, metavar="FOLDER", help="Resume the run in a folder."),
    option("--out", type=PATH, metavar="FOLDER", help="The run's folder. Default: runs/ and the task's name."),
    option("--data-dir", type=PATH, metavar="FOLDER", help="Folder with the files of datasets."),
    option("--total-epsilon", type=number, help="Epsilon that all runs on this dataset in --ledger-dir may cost "
           "together; a run that would exceed it does not start."),
    option("--ledger-dir", type=PATH, metavar="FOLDER", help="The folder of those runs; --out lies in it."),
    option("--seed", type=click.IntRange(0), help="A reproducible run, which is not private."),
    option("--secure-noise", is_flag=True, help="Noise that is safe against floating-point attacks."),
    option("--show-private", is_flag=True, help="Also show loss and accuracy on training data: not private."),
    option("--plain", is_flag=True, help="A line for each evaluation, as in a log, instead of a progress display."),
)  # fmt: skip


@click.command("train", cls=common.GroupedCommand, short_help="Train a model with differential privacy.")
@click.argument("recipe", required=False, type=PATH)
@partial(option_group, options=RUN, heading="Run")
@training_options
@plan_options
@JSON
def train_command(
    *, recipe: Path | None, named: str | None, plan_file: Path | None, resume: Path | None, out: Path | None,
    data_dir: Path | None, total_epsilon: float | None, ledger_dir: Path | None, uncertified: bool | None,
    seed: int | None, secure_noise: bool, show_private: bool, plain: bool, as_json: bool, **flags: Any,
) -> int:  # fmt: skip
    """Train with differential privacy (DP-SGD): exactly the steps of a plan, each charged to a ledger on disk before
    its noise is drawn, so that no crash can exceed the budget.

    The plan comes from --plan, or is made from RECIPE (a TOML file) and the options of `privet plan`; options win over
    the file, and its [training] table has the same keys as the options. Ctrl-C stops after the current step, saves, and
    prints how to resume. Without --dataset-size the plan is for the size of the task's dataset.

    \b
    Examples:
      privet train --epsilon 3 --epochs 20
      privet train --recipe mnist-1.2
      privet train --plan plan.json --task digits --out runs/a
      privet train recipe.toml --lr 0.2 --scheduler cosine --keep best
      privet train --epsilon 3 --epochs 5 --weights public.safetensors --train "fc3.*" --fresh "fc3.*"
      privet train --epsilon 1 --epochs 5 --total-epsilon 3 --ledger-dir runs
      privet train --resume runs/a
    """
    from dataclasses import fields

    from privet.data import DataFolders
    from privet.training.progress import LiveProgress, LogProgress
    from privet.training.settings import Settings

    settings = {field.name: flags.pop(field.name) for field in fields(Settings)}
    where = DataFolders(folder=data_dir)
    watcher = LiveProgress() if sys.stderr.isatty() and not plain else LogProgress(sys.stderr)
    if named is not None:
        _refuse({"recipe": recipe}, "--recipe", "It names another recipe")
        recipe = from_entry_point("privet.recipes", "best", asked=f"--recipe {named}")(named).path
    if resume is not None:
        given = settings | flags | {"recipe": recipe, "plan": plan_file, "out": out, "seed": seed}
        given |= {"total_epsilon": total_epsilon, "ledger_dir": ledger_dir}
        _refuse(given | {"uncertified": uncertified, "secure_noise": secure_noise or None}, "--resume",
                "A resumed run keeps its settings")  # fmt: skip
        from privet.training.run import Run
        from privet.training.train import resume_run

        found = Run.load(resume)
        was_over = found.is_over
        run = resume_run(found, show_private=show_private or None, where=where, watcher=watcher)
    else:
        from privet.training.train import train

        plan = _plan(recipe, plan_file, flags | {"uncertified": uncertified}, settings, where)
        name = str(settings["task"] or plan.recipe.training.get("task") or Settings().task)
        folder = out or common.free_folder(ledger_dir or Path("runs"), name)
        run = train(
            plan, settings.pop("task"), out=folder, seed=seed, uncertified=bool(uncertified),
            secure_noise=secure_noise, show_private=show_private, total_epsilon=total_epsilon, ledger_dir=ledger_dir,
            where=where, watcher=watcher, **settings,
        )  # fmt: skip
        was_over = False
    _print(run, as_json=as_json, was_over=was_over)
    return 0 if run.is_over else 130


def _refuse(given: dict[str, Any], beside: str, why: str) -> None:
    for key, value in given.items():
        if value is not None:
            name = "RECIPE" if key == "recipe" else f"--{key.replace('_', '-')}"
            raise InvalidValue(f"{name} cannot be given with {beside}. {why}. Leave it out.")


def _plan(
    recipe: Path | None, file: Path | None, flags: dict[str, Any], settings: dict[str, Any], where: "DataFolders"
) -> "Plan":
    """The plan in a file, or one made from a recipe and flags."""
    from privet.planning import Plan, Recipe, plan

    if file is not None:
        _refuse({key: value for key, value in flags.items() if key != "uncertified"} | {"recipe": recipe}, "--plan",
                "A plan is not changed: make another with `privet plan`")  # fmt: skip
        return Plan.load(file)
    given = with_shapes(flags)
    given["dataset_size"] = given["dataset_size"] or _size(recipe, given, settings, where)
    with common.warnings_as_lines():
        return plan(Recipe.of(**given) if recipe is None else Recipe.load(recipe, **given))


def _size(recipe: Path | None, given: dict[str, Any], settings: dict[str, Any], where: "DataFolders") -> int | None:
    """The size of the task, for a recipe that names none; it is public unless the relation says otherwise."""
    from privet.data.task import task
    from privet.planning.recipe import read_table
    from privet.training.settings import Settings

    try:
        table = {} if recipe is None else read_table(recipe)
    except PrivetError:
        return None  # reading the recipe will say what is wrong
    own = table.get("training", {})
    adjacency = given["adjacency"] or table.get("adjacency", "zero-out")
    if "dataset_size" in table or adjacency != "zero-out" or not isinstance(own, dict):
        return None
    wanted = settings["task"] or own.get("task") or Settings().task
    if not isinstance(wanted, str):
        raise InvalidValue(f'{recipe}: training.task={wanted!r} must be a word. Write task = "digits", for example.')
    return task(wanted, where=where).size


# --- what is said at the end ------------------------------------------------------------------------
def _print(run: "Run", *, as_json: bool, was_over: bool) -> None:
    from privet.training.processes import group

    if not group().is_first:
        return
    if as_json:
        common.print_object(_object(run))
        return
    planned = len(run.plan.steps)
    said = "had finished already" if was_over else "finished" if run.is_over else "stopped"
    click.echo(f"the run {said}: {run.steps} of {planned} steps on {run.settings.task}")
    common.print_lines(_lines(run))


def _lines(run: "Run") -> list[tuple[str, str]]:
    from privet.ledger.assumptions import list_assumptions

    found = [("guarantee", str(run.guarantee))]
    if run.why_none:
        found = [("guarantee", f"none: {run.why_none}"), ("claim", str(run.guarantee))]
    else:
        found += [("assumes", said) for said in list_assumptions(run.guarantee)]
    every, error = _standings(run)
    found += [("total", f"cannot be computed: {error}")] if error else []
    for one in every:
        found += [("total", str(one)), *(("assumes", said) for said in one.guarantee.assumptions)]
    if run.about["secure_noise"]:
        found.append(("noise", "secure: safe against floating-point attacks"))
    if run.seed is not None:
        found.append(("seed", f"{run.seed}: reproducible, not private"))
    if run.about["weights"] is not None:
        file, sha = run.settings.weights, run.about["weights"][:12]
        found.append(("weights", f"from {file}, SHA-256 {sha}...: the guarantee covers this training, not the file"))
    if run.together is not None:
        found.append(("together", run.together))
    if run.steps < len(run.plan.steps):
        so_far = "" if run.is_over else ", if the number of steps was fixed beforehand"
        found.append(("ledger", f"{run.spent}{so_far}"))
        if run.is_over:
            holds = "" if run.why_none else ": the plan's epsilon holds"
            found.append(("stopped", f"{run.end}, on the held-out set{holds}"))
    found += [("torn", note) for note in run.notes]
    if run.scores is not None:
        found.append(("held-out", f"{_scores(run)} ({run.evaluation})"))
    found.append(("folder", str(run.folder)))
    after = "audit --run" if run.why_none else "epsilon --from"  # without a guarantee there is no epsilon to show
    return [*found, ("next", f"privet {after if run.is_over else 'train --resume'} {run.folder}")]


def _standings(run: "Run") -> "tuple[list[Standing], PrivetError | None]":
    """Where the run's dataset stands, or why that cannot be told: the run is done all the same."""
    from privet.ledger.total import read_standings

    try:
        return read_standings(run.folder, run.dataset), None
    except PrivetError as error:
        return [], error


def _scores(run: "Run") -> str:
    from privet.training.progress import format_scores

    assert run.scores is not None
    step, best = run.scores["step"], ", the best" if run.settings.keep == "best" else ""
    at = f" at step {step}{best}" if best or step != run.steps else ""
    return ", ".join(format_scores(run.scores)) + at


def _object(run: "Run") -> dict[str, Any]:
    every, error = _standings(run)
    if error:
        click.echo(f"privet: warning: the total cannot be computed: {error}", err=True)
    return {
        "folder": str(run.folder), "task": run.settings.task, "steps": run.steps, "planned": len(run.plan.steps),
        "over": run.is_over, "end": run.end, "private": run.noise_is_secret, "seed": run.seed,
        "guarantee": run.guarantee.as_dict(), "spent": run.spent.as_dict(), "together": run.together,
        "held_out": run.scores, "evaluation": run.evaluation, "settings": run.settings.as_dict(),
        "changed": run.about["changed"], "weights": run.about["weights"], "plan": run.plan.hash,
        "dataset": run.dataset, "totals": None if error else [one.as_dict() for one in every],
        "non_private_preprocessing": run.non_private_preprocessing, "secure_noise": run.about["secure_noise"],
        "notes": list(run.notes),
    }  # fmt: skip
