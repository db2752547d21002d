"""The options that describe recipes and profiles, for all commands that plan."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from privet._registry import number as number_of
from privet.cli.shell import integer, number
from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet.planning import Recipe
    from privet.planning.utility import Profile

Command = TypeVar("Command", bound=Callable[..., Any])

BUDGET = (
    click.option("--epsilon", type=number, help="The budget."),
    click.option("--delta", type=number, help="The delta of the budget. Default: 1 / (10 size)."),
    click.option("--size", type=integer, help="Number of records n (public)."),
    click.option("--batch", type=number, help="Expected batch size. Default: 256."),
    click.option("--rate", type=number, help="In place of --batch: chance that a record takes part in a step."),
    click.option("--steps", type=integer, help="Number of steps T."),
    click.option("--epochs", type=number, help="In place of --steps: T = ceil(epochs * size / batch)."),
    click.option("--rho-noise", type=number, help="First noise over last noise, for growing-mu and dynamic."),
    click.option("--rho-clip", type=number, help="First clip over last clip, for sensitivity-decay and dynamic."),
    click.option("--clip", type=number, help="Clip C, the bound on one record's share. Default: 1."),
    click.option("--accountant", metavar="NAME", help="Who prices the plans. Default: pld, certified."),
    click.option("--relation", metavar="NAME", help="Neighbours: zero-out (default), add-remove or replace."),
    click.option("--unit", metavar="NAME", help="Whom a record stands for: example (default), client or user."),
    click.option("--sampling", metavar="NAME", help="poisson (default), truncated-poisson:..., fixed-size, shuffled."),
)  # fmt: skip
SHAPES = (
    click.option("--batch-schedule", metavar="SHAPE", help="Shape that multiplies --batch over the steps."),
    click.option("--method", metavar="NAME", help="A method of the papers; see `privet methods`."),
    click.option("--noise", type=number, help="Noise multiplier, when another knob is solved for."),
    click.option("--noise-schedule", metavar="SHAPE", help="Shape of the noise; see `privet schedules`."),
    click.option("--clip-schedule", metavar="SHAPE", help="Shape that multiplies --clip over the steps."),
    click.option("--rule", metavar="NAME", help="Clipping rule: flat, per_layer, normalised, quantile, adaclip."),
    click.option("--solve", metavar="KNOB", help="noise (default), steps, batch or epsilon, given the other three."),
    click.option("--trials", type=integer, help="The budget is for so many runs together; see --trials-law."),
    click.option("--trials-mean", type=number, help="The budget is for the best of a random number of runs: its mean."),
    click.option("--trials-law", metavar="LAW", help="geometric, poisson (with a mean); fixed, disjoint (a number)."),
    click.option("--as-published", is_flag=True, default=None, help="The paper's own rule, formula and label."),
)  # fmt: skip
PROFILE = (
    click.option("--profile", metavar="FILE", help="For the estimate: norms of one example's gradient over the run, "
                 "measured on public data, as a CSV or a list such as 2,1,0.5."),
    click.option("--dimension", type=integer, help="For the estimate: number of parameters. Default: 26010."),
    click.option("--half-life", type=number, help="For the estimate: steps that halve the loss without noise. "
                 "Default: 200."),
)  # fmt: skip


def budget_options(command: Command) -> Command:
    """The options of `privet plan` that describe a budget and a run."""
    return decorated(command, BUDGET)


def shape_options(command: Command) -> Command:
    """The other options of `privet plan`: shapes, method, rule, what is solved for, trials."""
    return decorated(command, SHAPES)


def with_shapes(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags as a recipe's keys: a number and its shape are one schedule."""
    given = dict(flags)
    if given["batch_schedule"] is not None and given["batch"] is None:
        raise click.UsageError("--batch-schedule needs --batch, the height of the shape.")
    for name in ("noise", "clip", "batch"):
        shape = given.pop(f"{name}_schedule")
        if shape is not None:
            given[name] = shape if given[name] is None else f"{given[name]!r} * ({shape})"
    return given


def recipe_in(file: Path | None, given: dict[str, Any]) -> "Recipe":
    """The recipe in a file with flags on top, or of the flags alone. What training would refuse of it is refused here.

    Planning itself knows nothing of training, and keeps the [training] table as it is.
    """
    from privet.planning import Recipe
    from privet.training.settings import Settings

    if file is None:
        return Recipe.of(**given)
    found = Recipe.load(file, **given)
    training = dict(found.training)
    if "weights" not in training:  # `privet train --weights` may bring them
        training = {key: value for key, value in training.items() if key not in ("train", "fresh")}
    try:
        Settings.of(training)
    except InvalidValue as error:
        raise InvalidValue(f"{file}: {error}") from None
    return found


def profile_options(command: Command) -> Command:
    """The options of the utility estimate."""
    return decorated(command, PROFILE)


def profile_of(flags: dict[str, Any]) -> "Profile":
    """The profile the options describe; they are taken out of `flags`."""
    from privet.planning.utility import Profile

    text = flags.pop("profile")
    rest = {key: value for key in ("dimension", "half_life") if (value := flags.pop(key)) is not None}
    if text is None:
        return Profile(**rest)
    norms = _numbers(text)
    return Profile.load(Path(text), **rest) if norms is None else Profile(norms=norms, **rest)


def words_of(option: str, text: str) -> list[str]:
    """The words between commas, each once; none may be empty."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise click.UsageError(f"{option}={text!r} has an empty name. Write names with commas between them.")
    return list(dict.fromkeys(words))


def _numbers(text: str) -> tuple[float, ...] | None:
    try:
        return tuple(float(number_of(part)) for part in text.split(","))
    except ValueError:
        return None


def decorated(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    """The command with these options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command
