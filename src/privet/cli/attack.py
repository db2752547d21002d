"""`privet attack`: what gradients, or a trained model, give away."""

from pathlib import Path
from typing import Any

import click

from privet.cli import common
from privet.cli.common import PATH, Option, integer, number
from privet.cli.recipe_options import words_of
from privet.errors import InvalidValue

_OF_METHODS = ("noise_multiplier", "clipping_norm", "sample_rate", "steps", "uncertified")
_LEAKAGE = ("attacks", "examples", "batch_size", "candidates", "at_steps", "out")
_NAMES = ("attacks", "at_steps")
_MEMBERSHIP = ("records", "shadows", "targets")


@click.command("attack", short_help="Rebuild records from gradients; find members.")
@click.option("--task", metavar="NAME", help="Images with classes: digits (default), mnist, ... or my.module:task.")
@click.option("--method", "methods", metavar="NAMES", help="Methods of the papers, with commas between them. Training "
              "without privacy is always attacked beside them.")  # fmt: skip
@click.option("--plan", "plan_file", type=PATH, metavar="FILE", help="In place of --method: a plan (JSON).")
@click.option("--run", "folder", type=PATH, metavar="FOLDER", help="In place of --method: a run, at its checkpoint.")
@click.option("--attack", "attacks", metavar="NAMES", help="Of invert-l2, invert-cosine, analytic and prior, with "
              "options: invert-l2:iterations=50. Default: invert-l2,prior.")  # fmt: skip
@click.option("--examples", type=integer, help="Examples that are attacked. Default: 100.")
@click.option("--batch-size", "--batch", "batch_size", type=integer,
              help="Unknown examples in an update, 1 to 8. Default: 1.")  # fmt: skip
@click.option("--candidates", type=integer, help="Known examples, of which the attacked one is one. Default: 1000.")
@click.option("--at-steps", metavar="STEPS", help="Of first, middle, last, numbers, and all (the whole run, for "
              "prior). Default: first.")  # fmt: skip
@click.option("--model", metavar="NAME", help="Default: that of the plan or run, else shallow-cnn.")
@click.option("--noise-multiplier", "--noise", "noise_multiplier", type=number,
              help="With --method: noise multiplier. Default: 6; with --membership 1.")  # fmt: skip
@click.option("--clipping-norm", "--clip", "clipping_norm", type=number,
              help="With --method: clipping norm. Default: 4; with --membership 1.")  # fmt: skip
@click.option("--sample-rate", "--rate", "sample_rate", type=number,
              help="With --method: sample rate. Default: 0.01; with --membership 0.1.")  # fmt: skip
@click.option("--steps", type=integer, help="With --method: steps of the run. Default: 100.")
@click.option("--uncertified", "uncertified", cls=Option, former=("--as-published",), is_flag=True,
              help="Methods by the papers' own rules, which may have no guarantee.")  # fmt: skip
@click.option("--membership", is_flag=True, help="Tell members from others by the trained model (LiRA).")
@click.option("--records", type=integer, help="With --membership: records that are in or out. Default: 200.")
@click.option("--shadows", type=integer, help="With --membership: models to learn from. Default: 32.")
@click.option("--targets", type=integer, help="With --membership: models to attack. Default: 16.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Attacked examples, weights and noise."
)
@click.option("--data-dir", type=PATH, metavar="FOLDER", help="Where files of datasets are.")
@click.option("--out", type=PATH, metavar="FOLDER", help="Keep outcomes there; go on where an interrupted attack was.")
@click.option("--plot", type=PATH, metavar="FILE", help="The picture grid, or the ROC: .png, .svg, .pdf; numbers: "
              ".csv.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def attack_command(
    *, task: str | None, methods: str | None, plan_file: Path | None, folder: Path | None, plot: Path | None,
    data_dir: Path | None, membership: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Attack what training gives out: rebuild records from one update, or find out who took part.

    An update is what a step releases: the attacker knows the weights, the rule, the noise and all other records of the
    step. Success is SSIM above 0.9 or identification among the candidates, held against a control made of the same
    noise alone; the ceiling is what the plan's guarantee allows at most.

    \b
    Examples:
      privet attack --method dp-baseline,quantile,adaclip,dyn-s-sigma --at-steps first,middle,last --plot grid.png
      privet attack --plan plan.json --attack prior --examples 500
      privet attack --run runs/a
      privet attack --membership --task digits:size=500 --method noisy-sgd --plot roc.png
    """
    given = {"--method": methods, "--plan": plan_file, "--run": folder}
    if sum(value is not None for value in given.values()) > 1:
        raise click.UsageError("Give one of --method, --plan and --run.")
    _check_options(options, membership=membership, is_plan=plan_file is not None, is_run=folder is not None)
    if plot is not None:
        from privet.reporting.figures import check_path

        check_path(plot, option="--plot")
    from privet.data import DataFolders

    options["where"] = DataFolders(folder=data_dir)
    with common.warnings_as_lines(), common.progress("attacking") as tell:
        what: Any = words_of("--method", methods) if methods is not None else common.load(plan_file, folder)
        found = _attack(what, task, options | {"progress": tell}, membership=membership)
    common.print_object(found.as_dict()) if as_json else click.echo(str(found))
    if folder is not None:
        from privet.reporting.evidence import store_attack

        common.keep_for_report(lambda: store_attack(what, found), ": it is not private")
    if plot is not None:
        from privet.reporting.figures import save_grid, save_roc

        with common.warnings_as_lines():
            save_roc(list(found.methods), plot) if membership else save_grid(found, plot)
    common.say_written(plot, as_json=as_json)


def _check_options(options: dict[str, Any], *, membership: bool, is_plan: bool, is_run: bool) -> None:
    """Raise if an option is given that has no say here."""
    idle = dict.fromkeys(_LEAKAGE, "has no part in --membership") if membership else dict.fromkeys(
        _MEMBERSHIP, "needs --membership"
    )  # fmt: skip
    if is_plan or is_run:
        idle |= dict.fromkeys(_OF_METHODS, "needs --method: a plan has its own")
    if is_run:
        idle |= {"at_steps": "has no part in --run: a run is attacked where its checkpoint stands"}
        idle |= {"model": "has no part in --run: a run has its own network"}
    for key, why in idle.items():
        if options[key] not in (None, False):
            raise click.UsageError(f"{_option_name(key)} {why}.")


def _option_name(key: str) -> str:
    return "--attack" if key == "attacks" else f"--{key.replace('_', '-')}"


def _spellings(option: str, text: str) -> list[str]:
    """Names with commas between them; a word with `=` and no colon goes on with the options of the one before."""
    found: list[str] = []
    for word in words_of(option, text):
        if found and "=" in word and ":" not in word:
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def _attack(what: Any, task: str | None, options: dict[str, Any], *, membership: bool) -> Any:
    from privet.attacks.attack import attack
    from privet.attacks.membership import membership_inference
    from privet.training.run import Run

    others = _LEAKAGE if membership else _MEMBERSHIP
    given = {key: value for key, value in options.items() if value is not None and key not in others}
    if not membership:
        spellings = {key: _spellings(_option_name(key), given[key]) for key in given if key in _NAMES}
        return attack(what, task, **given | spellings)
    if isinstance(what, Run):
        raise InvalidValue(
            "--run has no part in --membership. Shadow models are trained by its plan. Give --plan with the run's "
            "plan.json."
        )
    return membership_inference(what, task, **given)
