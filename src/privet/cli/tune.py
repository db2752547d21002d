"""`privet tune`: settings tried on a part of the training records, judged by another; charged if asked."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli import common
from privet.cli.common import PATH, number, option_group, plain_name, print_lines, print_object
from privet.cli.recipe_options import JSON, budget_options, option, shape_options, with_shapes
from privet.cli.train import training_options
from privet.errors import InvalidValue, name_errors

if TYPE_CHECKING:
    from privet.training.progress import Progress
    from privet.tuning.folder import Tuned

MOST_SHOWN = 20  # trials, best first
_PARTS = 1000  # of a trial, on the bar
_OWN = (
    "space",
    "out",
    "task",
    "charge",
    "trials",
    "validation_fraction",
    "public",
    "seed",
    "where",
    "watch",
    "tell",
)  # of `tune`


TUNING = (
    option("--try", "tried", multiple=True, required=True, metavar="KEY=VALUES",
           help="What to try: lr=0.05,0.1,0.2 or lr=0.01..1 (log-uniform). Repeat it for other keys of a recipe or its "
           "[training] table."),
    option("--trials", type=number, help="Number of candidates, drawn at random if there are more. For geometric and "
           "poisson: the mean. Default: every candidate once."),
    option("--selection", "--charge", "charge", metavar="NAME", help="Private selection, so that the budget covers the "
           "whole tuning: geometric, poisson, fixed or disjoint. Default: none, and the result says so."),
    option("--validation-fraction", "--judges", "validation_fraction", type=number,
           help="Fraction of the training examples used for validation. Default: 0.1."),
    option("--public", metavar="TASK", help="A task whose training examples are public: it is the validation set, and "
           "all others train."),
    option("--out", type=PATH, metavar="FOLDER", help="Folder of the tuning. Default: runs/tune- and the task's "
           "name."),
    option("--plot", type=PATH, metavar="FILE", help="Draw the scores: .png, .svg, .pdf or .csv."),
    option("--data-dir", type=PATH, metavar="FOLDER", help="Folder with the files of datasets."),
    option("--seed", type=click.IntRange(0), help="A reproducible tuning, which is not private."),
)  # fmt: skip


@click.command("tune", cls=common.GroupedCommand, short_help="Search hyperparameters; privately, if asked.")
@click.argument("recipe", required=False, type=PATH)
@partial(option_group, options=TUNING, heading="Tuning")
@training_options
@budget_options
@shape_options
@JSON
def tune_command(
    *, recipe: Path | None, tried: tuple[str, ...], trials: float | None, charge: str | None,
    validation_fraction: float | None,
    public: str | None, out: Path | None, plot: Path | None, data_dir: Path | None, seed: int | None, as_json: bool,
    **flags: Any,
) -> None:  # fmt: skip
    """Search hyperparameters. Each trial is a private run on a part of the training examples and is scored on the rest;
    the held-out set is not used.

    Without --selection epsilon is that of one run, and the result says how many runs were compared; train the best
    settings on all examples by `privet train FOLDER/best.toml`. With --selection the budget covers everything: trials,
    scores and selection, and the best run is the result. The same command resumes where it stopped.

    \b
    Examples:
      privet tune --epsilon 3 --epochs 10 --try lr=0.05,0.1,0.2 --try clipping-norm=0.5,1 --plot scores.png
      privet tune recipe.toml --try lr=0.01..1 --try momentum=0,0.9 --trials 20
      privet tune --epsilon 3 --epochs 10 --try lr=0.05,0.1,0.2 --selection geometric --trials 5
    """
    from dataclasses import fields

    from privet.data import DataFolders
    from privet.training.settings import Settings
    from privet.tuning.job import JUDGES
    from privet.tuning.tune import tune

    settings = {field.name: flags.pop(field.name) for field in fields(Settings)}
    task = settings.pop("task")
    given = _keywords(recipe, with_shapes(flags), {key: value for key, value in settings.items() if value is not None})
    spelled = str(task or given["training"].get("task") or Settings().task)
    _check_plot(plot, charge)
    try:
        with common.progress_bar("tuning") as bar, common.warnings_as_lines():
            found = tune(
                _space(tried), out=out or Path("runs") / f"tune-{plain_name(spelled)}", task=spelled, charge=charge,
                trials=trials, validation_fraction=JUDGES if validation_fraction is None else validation_fraction,
                public=public, seed=seed,
                where=DataFolders(folder=data_dir), watch=None if bar is None else _watch(bar),
                tell=partial(click.echo, err=True) if bar is None else lambda _: None, **given,
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo("stopped. The same command resumes it.", err=True)
        raise
    if as_json:
        print_object(found.as_dict() | {"plot": None if plot is None else str(plot)})
    else:
        _print(found, spelled)
    if plot is not None:
        _plot(found, plot)


# The short forms of --clip and its kin may be tried, too.
SHORT = {
    "noise": "noise_multiplier", "clip": "clipping_norm", "batch": "batch_size", "rate": "sample_rate",
    "average": "ema_decay", "views": "augmentations",
}  # fmt: skip


def _space(tried: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in tried:
        key, equals, values = text.partition("=")
        key = key.strip().replace("-", "_")
        key = SHORT.get(key, key)
        if not (key and equals and values.strip()):
            raise InvalidValue(f"--try {text!r} must be a key and its values. Write --try lr=0.05,0.1.")
        if key in found:
            raise InvalidValue(f"--try {key} is given twice. Each candidate has one value of it. Join the lists.")
        found[key] = values.strip()
    return found


def _keywords(recipe: Path | None, flags: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The keywords of the plan: those of the file, and the flags, which win."""
    from privet.planning.recipe import override, read_table

    with name_errors(recipe):
        table = {} if recipe is None else read_table(recipe)
    for key in table:
        if key in _OWN:
            raise InvalidValue(
                f"{recipe}: {key}={table[key]!r} is set by the tuning itself. Leave it out of the recipe."
            )
    given = override(table, flags)
    own = given.get("training", {})
    if not isinstance(own, Mapping):
        raise InvalidValue(f"training={own!r} must be a table. Write [training] and keys below it.")
    return given | {"training": {**own, **settings}}


def _check_plot(plot: Path | None, charge: str | None) -> None:
    if plot is None:
        return
    if charge in ("geometric", "poisson", "disjoint"):
        raise InvalidValue(f"--plot cannot be given with --selection {charge}, whose scores are private. Leave it out.")
    from privet.reporting.figures import check_path

    check_path(plot, option="--plot")


def _watch(bar: Callable[..., None]) -> "Callable[[int, int | None, str], Progress]":
    from privet.training.progress import Progress

    class Bar(Progress):
        """Moves the bar by the steps of a trial; where the number of trials is secret it only tells that they go on."""

        def __init__(self, trial: int, of: int | None, said: str) -> None:
            self._trial, self._of, self._steps = trial, of, 1
            self._said = "trials, whose number is secret" if of is None else f"trial {trial} of {of}: {said}"

        def begin(self, *, number: int, steps: int) -> None:
            self._steps = steps
            self._show(number)

        def step(self, number: int, *_: Any) -> None:
            self._show(number)

        def _show(self, number: int) -> None:
            if self._of is None:
                bar(self._said)
            else:
                bar(self._said, int(_PARTS * (self._trial - 1 + number / self._steps)), _PARTS * self._of)

    return Bar


# --- what is said at the end ------------------------------------------------------------------------
def _plot(found: "Tuned", path: Path) -> None:
    from privet.reporting.figures import save_trials

    assert found.trials is not None
    save_trials(
        found.trials, path, measure=found.measure, higher_is_better=found.higher_is_better,
        title=f"{found.runs} runs, each on {found.dataset_size:,} of {found.records:,} examples", note=found.scored,
    )  # fmt: skip


def _print(found: "Tuned", task: str) -> None:
    from privet.tuning.space import format_candidate

    click.echo(f"tuned {task}: {found.law}, each on {found.dataset_size:,} of {found.records:,} examples")
    scored = [(trial.score, trial.candidate) for trial in found.trials or () if trial.score is not None]
    for score, candidate in sorted(scored, key=lambda row: -row[0] if found.higher_is_better else row[0])[:MOST_SHOWN]:
        click.echo(f"  {found.measure} {score:.4f}  {format_candidate(candidate)}")
    print_lines(_lines(found))


def _lines(found: "Tuned") -> list[tuple[str, str]]:
    from privet.training.progress import format_scores
    from privet.tuning.space import format_candidate

    said = []
    if found.best is not None:
        spread = "" if found.spread is None else f" +- {found.spread:.4f}"
        score = "" if found.score is None else f": {found.measure} {found.score:.4f}{spread}"
        said += [("best", f"{format_candidate(found.best)}{score}"), ("judged by", found.scored)]
    if found.guarantee is not None:
        said.append(("guarantee", str(found.guarantee)))
    if found.one_run is not None:
        said.append(("one run", str(found.one_run)))
    if found.seed is not None:
        said.append(("seed", f"{found.seed}: reproducible, not private"))
    said.append(("charged" if found.charge else "note", found.says))
    if found.charge is not None and found.run is not None and found.run.scores is not None:
        said.append(("held-out", f"{', '.join(format_scores(found.run.scores))} ({found.run.evaluation})"))
    said.append(("folder", str(found.folder if found.charge is None or found.run is None else found.run.folder)))
    if found.charge is None:
        said.append(("next", f"privet train {found.folder / 'best.toml'}"))
    return said
