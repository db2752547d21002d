"""The options that describe recipes and profiles, for all commands that plan."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from privet._registry import parse_number as number_of
from privet.cli.common import Command, Option, adjacency_of, integer, number, option_group
from privet.errors import name_errors

if TYPE_CHECKING:
    from privet.planning import Recipe
    from privet.planning.utility import Profile

N = TypeVar("N", int, float)
MOST_VALUES = 1000
SHAPED = {"noise": "noise_multiplier", "clip": "clipping_norm", "batch": "batch_size"}  # by --noise-schedule, ...
option = partial(click.option, cls=Option)

BUDGET = (
    option("--epsilon", type=number, help="Epsilon of the budget."),
    option("--delta", type=number, help="Delta of the budget. Default: 1 / (10 dataset size)."),
    option("--adjacency", "--relation", "adjacency", metavar="NAME", type=adjacency_of,
           help="Neighbouring datasets: zero-out (default), add-remove or replace-one."),
    option("--unit", metavar="NAME", help="Unit of privacy: example (default), client or user."),
    option("--accountant", metavar="NAME", help="Accountant that computes epsilon. Default: pld, certified."),
)  # fmt: skip


def value_or_list(one: Callable[[str], N]) -> Callable[[str], "N | list[N]"]:
    """Reads `256`, a list `64,256`, or a range in equal ratios `64:4096:4` (first, last, count)."""

    def read(text: str) -> "N | list[N]":
        if "," not in text and ":" not in text:
            return one(text)
        return list(dict.fromkeys(one(found) for found in _values(text, whole=one is integer)))

    return read


def _values(text: str, *, whole: bool) -> list[str]:
    if ":" not in text:
        return text.split(",")
    parts = text.split(":")
    if len(parts) != 3:
        raise click.BadParameter(f"{text!r} is not a list such as 64,256 or a range first:last:count such as 64:4096:4")
    first, last, count = number(parts[0]), number(parts[1]), integer(parts[2])
    if not 0 < first <= last or count > MOST_VALUES:
        raise click.BadParameter(f"{text!r} must rise from above 0, with at most {MOST_VALUES} values")
    ratios = [math.log(last / first) * k / max(1, count - 1) for k in range(count)]
    found = [min(last, first * math.exp(ratio)) for ratio in ratios]
    return [repr(round(value) if whole else value) for value in found]


def _sampling(*, lists: bool = False) -> "tuple[Callable[[Command], Command], ...]":
    """How examples are sampled; with `lists`, several numbers of steps or epochs may be given."""
    return (
        option("--dataset-size", "--size", "dataset_size", type=integer, help="Number of examples n (public)."),
        option("--batch-size", "--batch", "batch_size", type=number, help="Expected batch size. Default: 256."),
        option("--sample-rate", "--rate", "sample_rate", type=number,
               help="In place of --batch-size: probability that an example is in the batch of a step."),
        option("--steps", type=value_or_list(integer) if lists else integer, metavar="INTEGER",
               help="Number of steps T."),
        option("--epochs", type=value_or_list(number) if lists else number, metavar="NUMBER",
               help="In place of --steps: T = ceil(epochs * size / batch)."),
        option("--sampling", metavar="NAME", help="poisson (default), truncated-poisson:..., fixed-size, shuffled."),
    )  # fmt: skip


RHO = (
    option("--rho-noise", type=number, help="First noise multiplier over the last, for growing-mu and dynamic."),
    option("--rho-clip", type=number, help="First clipping norm over the last, for sensitivity-decay and dynamic."),
)  # fmt: skip
CLIP = option("--clipping-norm", "--clip", "clipping_norm", type=number,
              help="Clipping norm C: bound on the gradient norm of one example. Default: 1.")  # fmt: skip
SHAPES = (
    option("--method", metavar="NAME", help="A published method; see `privet list methods`."),
    option("--rule", metavar="NAME", help="Clipping rule: flat, per_layer, normalised, quantile, adaclip."),
    option("--noise-multiplier", "--noise", "noise_multiplier", type=number,
           help="Noise multiplier (standard deviation over sensitivity), where something else is solved for."),
    option("--noise-schedule", metavar="SHAPE", help="Schedule of the noise multiplier over the steps; see `privet "
           "list schedules`."),
    option("--clip-schedule", metavar="SHAPE", help="Schedule that multiplies --clipping-norm over the steps."),
    option("--batch-schedule", metavar="SHAPE", help="Schedule that multiplies --batch-size over the steps."),
)  # fmt: skip
UNCERTIFIED = option(
    "--uncertified", "uncertified", former=("--as-published",), is_flag=True, default=None,
    help="The method as its paper published it, with its own clipping rule, formula and label: there may be no "
    "guarantee.",
)  # fmt: skip
SOLVING = (
    option("--solve", metavar="NAME", help="Solve for noise (default), steps, batch or epsilon, given the other "
           "three."),
    option("--trials", type=integer, help="The budget covers this many runs together (hyperparameter tuning)."),
    option("--trials-mean", type=number, help="The budget covers the best of a random number of runs with this mean."),
    option("--trial-count-distribution", "--trials-law", "trial_count_distribution", metavar="NAME",
           help="geometric, poisson (with a mean); fixed, disjoint (with a number)."),
    UNCERTIFIED,
)  # fmt: skip
PROFILE = (
    option("--profile", metavar="FILE", help="Norms of one example's gradient over the run, measured on public data: "
           "a CSV or a list such as 2,1,0.5."),
    option("--dimension", type=integer, help="Number of parameters. Default: 26010."),
    option("--half-life", type=number, help="Steps that halve the loss without noise. Default: 200."),
)  # fmt: skip
JSON = option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")


def budget_options(command: Command, *, lists: bool = False) -> Command:
    """The options that describe a budget and a run."""
    command = option_group(command, (*RHO, CLIP), "Method, clipping and noise")
    return option_group(option_group(command, _sampling(lists=lists), "Data, sampling and steps"), BUDGET, "Budget")


def shape_options(command: Command) -> Command:
    return option_group(command, SHAPES, "Method, clipping and noise")


def plan_options(command: Command, *, lists: bool = False) -> Command:
    """All options that are keys of a recipe."""
    return budget_options(shape_options(option_group(command, SOLVING, "What is solved for")), lists=lists)


def with_shapes(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags as a recipe's keys: a number and its shape are one schedule."""
    given = dict(flags)
    if given["batch_schedule"] is not None and given["batch_size"] is None:
        raise click.UsageError("--batch-schedule needs --batch-size, which it multiplies.")
    for word, name in SHAPED.items():
        shape = given.pop(f"{word}_schedule")
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
    with name_errors(file):
        Settings.of(training)
    return found


def profile_options(command: Command) -> Command:
    return option_group(command, PROFILE, "Utility estimate")


def profile_of(flags: dict[str, Any]) -> "Profile":
    """The profile the options describe; they are taken out of `flags`."""
    from privet.planning.utility import Profile

    text = flags.pop("profile")
    rest = {key: value for key in ("dimension", "half_life") if (value := flags.pop(key)) is not None}
    if text is None:
        return Profile(**rest)
    try:
        norms = tuple(float(number_of(part)) for part in text.split(","))
    except ValueError:  # not numbers, so a file
        return Profile.load(Path(text), **rest)
    return Profile(norms=norms, **rest)


def words_of(option: str, text: str) -> list[str]:
    """The words between commas, each once; none may be empty."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise click.UsageError(f"{option}={text!r} has an empty name. Write names with commas between them.")
    return list(dict.fromkeys(words))
