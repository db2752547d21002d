"""A recipe: what is wanted, from keywords, a TOML file or flags. A recipe says nothing that planning finds out.

epsilon = 1.2            # or a [budget] table with epsilon, delta, unit, adjacency
delta = 1e-5             # left out: 1 / (10 dataset_size)
dataset_size = 60000
batch_size = 256         # or sample_rate = "256/60000"; also a schedule: "256 * linear:end=2"
epochs = 60              # or steps = 14063
method = "dynamic"       # `privet list methods` lists them; or your own shapes in `noise_multiplier`, `clipping_norm`
rho_noise = 3.3
rho_clip = 3.3
clipping_norm = 1.0
trials_mean = 10         # the budget is for the best of so many runs; planning/tuning_budget.py has the laws
trial_count_distribution = "geometric"

[training]               # kept as it is, for training
task = "mnist"
"""

import copy
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from privet import _check
from privet._files import read_text
from privet._registry import parse_value
from privet._text import one_line, shorten
from privet.accounting import Budget
from privet.accounting.accountant import registry as accountants
from privet.accounting.sampling import TruncatedPoisson, sampling as sampling_of
from privet.errors import InvalidValue, PrivetError, name_errors
from privet.planning.clipping_rules import check_rule
from privet.planning.methods import method
from privet.planning.planned_steps import MOST_STEPS
from privet.planning.tuning_budget import TrialBudget, check_accountant, parse_trial_budget
from privet.schedules import Constant, schedule, to_spec

Knob = Literal["noise", "steps", "batch", "epsilon"]
KNOBS: tuple[str, ...] = get_args(Knob)
Shape: TypeAlias = "float | str"  # a number, or the spelling of a schedule

VERSION = 1  # of a file
MOST_BYTES = 16 * 2**20
BUDGET = ("epsilon", "delta", "unit", "adjacency")
NO_LIMIT = 1.7976931348623157e308  # the epsilon of a budget when epsilon is what is asked for
GIVEN = {  # what says each knob
    "noise": ("noise_multiplier",), "steps": ("steps", "epochs"), "batch": ("batch_size", "sample_rate"),
    "epsilon": ("epsilon",),
}  # fmt: skip
MOST_SIZE = 10**12
DEFAULT_BATCH = 256


@_check.known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is wanted: a budget, a dataset size, and all but one of noise, steps, batch and epsilon.

    `noise_multiplier`, `clipping_norm` and `batch_size` are numbers or schedules, as text, mapping or object; they are
    kept as a number or as text. The peak of the noise multiplier is what planning finds, unless `solve` names another
    knob.

    >>> budget = Budget(epsilon=1.2, delta=1e-5)
    >>> recipe = Recipe(budget=budget, dataset_size=60000, batch_size=256, epochs=60, method="noisy-sgd")
    >>> recipe.count, recipe.solve
    (14063, 'noise')
    """

    budget: Budget
    dataset_size: int
    batch_size: Any = None  # Shape | None, once made
    sample_rate: float | None = None
    steps: int | None = None
    epochs: float | None = None
    noise_multiplier: Any = None  # Shape | None
    clipping_norm: Any = 1.0  # Shape
    method: str | None = None
    rho_noise: float | None = None
    rho_clip: float | None = None
    rule: str | None = None
    accountant: str | None = None
    sampling: str = "poisson"
    uncertified: bool = False
    solve: Knob = "noise"
    trials: int | None = None
    trials_mean: float | None = None
    trial_count_distribution: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise InvalidValue(f"budget={self.budget!r} must be a Budget. Write Budget(epsilon=1.2, delta=1e-5).")
        _check.one_of(KNOBS, solve=self.solve)
        _check.whole(dataset_size=self.dataset_size)
        _check_most("dataset_size", self.dataset_size, MOST_SIZE)
        for name in ("noise_multiplier", "clipping_norm", "batch_size"):
            object.__setattr__(self, name, _parse_shape(name, getattr(self, name)))
        _check_words(self)
        _check_knobs(self)
        _check_numbers(self)
        check_accountant(self.tuning, accountant=self.accountant, uncertified=self.uncertified)
        law = None if self.tuning is None else self.tuning.trial_count_distribution
        object.__setattr__(self, "trial_count_distribution", law)
        for name in ("sample_rate", "epochs", "rho_noise", "rho_clip", "trials_mean"):  # 60 and 60.0 have one hash
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        _check_sampling(self)
        object.__setattr__(self, "training", to_plain_table(self.training))

    @property
    def base_rate(self) -> float | None:
        """The rate before the batch's shape, if the batch is known: batch / size."""
        if self.sample_rate is not None:
            return self.sample_rate
        return (
            1.0 / self.dataset_size
            if isinstance(self.batch_size, str)
            else self.batch_size and self.batch_size / self.dataset_size
        )

    @property
    def count(self) -> int | None:
        """The number of steps, if it is known."""
        if self.steps is not None or self.epochs is None or self.base_rate is None:
            return self.steps
        return steps_in_epochs(self.epochs, self.base_rate)

    @property
    def tuning(self) -> TrialBudget | None:
        """The law by which runs are tried, if more than one is: the budget is for all of them together."""
        return parse_trial_budget(
            trials=self.trials, trials_mean=self.trials_mean, trial_count_distribution=self.trial_count_distribution
        )

    @classmethod
    def of(cls, **given: Any) -> "Recipe":
        """A recipe from flat keywords: epsilon, delta, unit and relation beside the fields of `Recipe`.

        Left out: delta is 1 / (10 dataset_size), and the batch is 256 examples (or all there are).

        >>> Recipe.of(epsilon=2.0, dataset_size=60000, epochs=15).budget.delta
        1.6666666666666667e-06
        """
        given = {key: value for key, value in given.items() if value is not None}
        known = [*BUDGET, *(f.name for f in fields(cls))]
        if unknown := [key for key in given if key not in known]:
            hint = _check.suggestion(unknown[0].replace("-", "_"), known, cutoff=0.5)
            raise InvalidValue(f"{shorten(unknown[0])!r} is not known in a recipe.{hint} Known: {', '.join(known)}.")
        budget = given.pop("budget", None)
        if budget is None:
            budget = take_budget(given)
        elif any(key in given for key in BUDGET):
            raise InvalidValue("budget and epsilon, delta, unit or adjacency are both given. Give one of them.")
        require_size(given, budget.unit)
        if given.get("solve") != "batch" and "batch_size" not in given and "sample_rate" not in given:
            size = given["dataset_size"]
            given["batch_size"] = min(DEFAULT_BATCH, size) if isinstance(size, int) else DEFAULT_BATCH
        return cls(budget=budget, **given)

    @classmethod
    def load(cls, path: str | Path, **overrides: Any) -> "Recipe":
        """The recipe in a TOML file; `overrides` (as for `of`) win over the file.

        Raises:
            InvalidValue: the file is missing or not TOML, or has a key that is not known; the nearest one is named.
        """
        with name_errors(path):
            return cls.of(**override(read_table(Path(path)), overrides))

    def as_dict(self) -> dict[str, Any]:
        """Flat plain values, what is not given left out: `Recipe.of(**recipe.as_dict()) == recipe`."""
        budget = asdict(self.budget)
        budget |= {key: float(budget[key]) for key in ("epsilon", "delta")}
        if self.solve == "epsilon":
            del budget["epsilon"]
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "budget"}
        kept = {key: value for key, value in (budget | rest).items() if value is not None}
        return kept | {"training": copy.deepcopy(dict(self.training))}


def as_recipe(recipe: Recipe | None, given: Mapping[str, Any]) -> Recipe:
    """A recipe, or that of the keywords of `Recipe.of`: one of the two is given."""
    if recipe is None:
        return Recipe.of(**given)
    if given:
        raise InvalidValue(
            f"{next(iter(given))} cannot be given with a recipe. Use dataclasses.replace, or keywords alone."
        )
    if not isinstance(recipe, Recipe):
        raise InvalidValue(f"recipe={recipe!r} must be a Recipe. Use Recipe.load for a file.")
    return recipe


def steps_in_epochs(epochs: float, sample_rate: float) -> int:
    """T = ceil(epochs / rate), less a few roundings: 0.1 epochs of 60000 in batches of 100 are 60 steps, not 61.

    >>> steps_in_epochs(60, 256 / 60000), steps_in_epochs(0.1, 100 / 60000)
    (14063, 60)
    """
    found = epochs / sample_rate
    if found > MOST_STEPS:
        raise InvalidValue(
            f"epochs={epochs:g} at sample_rate={sample_rate:g} is more than {MOST_STEPS:.0e} steps. Use fewer."
        )
    return max(1, math.ceil(found * (1 - 2.0**-49)))


# --- checks -----------------------------------------------------------------------------------------
def _parse_shape(name: str, given: Any) -> "Shape | None":
    """A number for a constant, else the spelling, which does not depend on files."""
    if given is None:
        return None
    try:
        made = schedule(given)
        return made.value if isinstance(made, Constant) else to_spec(made)
    except PrivetError as error:
        if isinstance(given, (int, float)):
            raise InvalidValue(f"{name}={given!r} must be finite and > 0.") from None
        raise type(error)(f"{name}: {error}") from None


def _check_words(recipe: Recipe) -> None:
    if not isinstance(recipe.uncertified, bool):
        raise InvalidValue(f"uncertified={recipe.uncertified!r} must be true or false.")
    if recipe.method is not None:
        method(recipe.method)
    if recipe.rule is not None:
        check_rule(recipe.rule, uncertified=recipe.uncertified)
    if recipe.accountant is not None:
        if not isinstance(recipe.accountant, str):
            raise InvalidValue(f"accountant={recipe.accountant!r} must be a name such as 'pld'.")
        accountants.maker(recipe.accountant)


def _check_knobs(recipe: Recipe) -> None:
    """All knobs but the one that is solved for, each given once; of the noise, a shape may always be given."""
    values = {key: getattr(recipe, key) for keys in GIVEN.values() for key in keys if key != "epsilon"}
    values["epsilon"] = None if recipe.budget.epsilon == NO_LIMIT else recipe.budget.epsilon
    given = {knob: [key for key in keys if values[key] is not None] for knob, keys in GIVEN.items()}
    asked = given.pop(recipe.solve)
    if asked and not (recipe.solve == "noise" and isinstance(recipe.noise_multiplier, str)):
        raise InvalidValue(
            f"solve={recipe.solve!r} asks for {recipe.solve}, but {asked[0]}={values[asked[0]]!r} is given. "
            f"Leave out {asked[0]}, or solve for another of {', '.join(KNOBS)}."
        )
    for knob, found in given.items():
        if len(found) != 1:
            if found:
                raise InvalidValue(f"{' and '.join(found)} are both given. They say the same. Give one.")
            raise InvalidValue(f"{' or '.join(GIVEN[knob])} is missing. Solving for {recipe.solve} needs it. Give one.")


def _check_numbers(recipe: Recipe) -> None:
    if recipe.sample_rate is not None:
        _check.rate(sample_rate=recipe.sample_rate)
    if recipe.steps is not None:
        _check.whole(steps=recipe.steps)
        _check_most("steps", recipe.steps, MOST_STEPS)
    if recipe.epochs is not None:
        _check.positive(epochs=recipe.epochs)
        if isinstance(recipe.batch_size, str):
            raise InvalidValue(f"epochs={recipe.epochs!r} is undefined when the batch changes. Give steps.")
    for name in ("rho_noise", "rho_clip"):
        rho = getattr(recipe, name)
        if rho is not None:
            _check.positive(**{name: rho})
            if rho < 1:
                raise InvalidValue(f"{name}={rho!r} must be >= 1: the largest over the least value. Try {1 / rho:g}.")
    if isinstance(recipe.batch_size, float) and recipe.batch_size > recipe.dataset_size:
        raise InvalidValue(
            f"batch_size={recipe.batch_size:g} must be at most dataset_size={recipe.dataset_size}. Each "
            f"{recipe.budget.unit} takes part at most once in a step. Use a smaller batch."
        )
    _ = recipe.count  # refuses an endless number of epochs


def _check_sampling(recipe: Recipe) -> None:
    """Raise if a cap is priced for fewer records than there are: it would overflow more often than was charged."""
    chosen = sampling_of(recipe.sampling)
    object.__setattr__(recipe, "sampling", str(chosen))
    joins = recipe.budget.adjacency == "add-remove"  # then a neighbour may have one record more
    least, who = recipe.dataset_size + joins, recipe.budget.unit
    if isinstance(chosen, TruncatedPoisson) and chosen.size < least:
        raise InvalidValue(
            f"sampling={str(chosen)!r} has a size below {least}, the number of {who}s{' and one more' * joins}. Its "
            f"cap would overflow more often than was charged. Write size={least}."
        )


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise InvalidValue(f"{name}={value!r} must be at most {most:.0e}. Use fewer.")


# --- as people write it: TOML, its [budget] unfolded, flags that win over it --------------------------
def override(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table with flags on top. A flag replaces what says the same (steps: epochs), and so does `solve`."""
    merged = dict(table)
    flags = {key: value for key, value in overrides.items() if value is not None}
    if "solve" in flags and flags["solve"] != merged.get("solve", "noise"):
        for key in GIVEN.get(str(flags["solve"]), ()):
            merged.pop(key, None)
    for group in (*GIVEN.values(), ("trials", "trials_mean")):
        if any(key in flags for key in group):
            for key in group:
                merged.pop(key, None)
    return merged | flags


def read_table(path: Path) -> dict[str, Any]:
    """The flat keys of a TOML file, its [budget] unfolded and its numbers written as text read."""
    try:
        text = read_text(
            path, most=MOST_BYTES, advice="A recipe is a page of text.", wanted="Give a TOML file in UTF-8."
        )
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"not TOML: {one_line(error)}. Correct it.") from None
    except RecursionError:
        raise InvalidValue("nested too deeply. A recipe has flat keys.") from None
    return _flatten_table(table)


def _flatten_table(table: dict[str, Any]) -> dict[str, Any]:
    table.pop("about", None)  # for people
    version = table.pop("version", VERSION)
    if version != VERSION:
        raise InvalidValue(f"version={version!r} must be {VERSION}. Use the Privet it was written for.")
    budget = table.pop("budget", {})
    if not isinstance(budget, Mapping):
        raise InvalidValue(f"budget={budget!r} must be a table. Write [budget] with epsilon and delta below it.")
    for key in budget:
        if key not in BUDGET:
            raise InvalidValue(
                f"budget.{key} is not known.{_check.suggestion(key, BUDGET)} Known: {', '.join(BUDGET)}."
            )
        if key in table:
            raise InvalidValue(f"{key} is given twice, in [budget] and above it. Keep one.")
    merged = table | dict(budget)
    for key in ("epsilon", "delta", "sample_rate", "epochs", "rho_noise", "rho_clip", "trials_mean"):
        if isinstance(merged.get(key), str):  # a fraction, such as "256/60000"
            merged[key] = parse_value(merged[key])
    return merged


# --- flat keywords ----------------------------------------------------------------------------------
def require_size(given: Mapping[str, Any], unit: str = "example") -> Any:
    if given.get("dataset_size") is None:
        raise InvalidValue(
            f"dataset_size is missing. It is the public number of {unit}s. Give dataset_size=60000, for example."
        )
    return given["dataset_size"]


def take_budget(given: dict[str, Any]) -> Budget:
    """The budget in flat keywords, which it takes out of them."""
    wanted = {key: given.pop(key) for key in BUDGET if key in given}
    if given.get("solve") == "epsilon":
        if "epsilon" in wanted:
            raise InvalidValue(
                f"solve='epsilon' asks for epsilon, but epsilon={wanted['epsilon']!r} is given. Leave it out."
            )
        wanted["epsilon"] = NO_LIMIT
    elif "epsilon" not in wanted:
        raise InvalidValue("epsilon is missing. It is the budget. Give epsilon=1, for example, or solve='epsilon'.")
    if "delta" not in wanted:
        _check.whole(dataset_size=require_size(given, str(wanted.get("unit", "example"))))
        wanted["delta"] = 1 / (10 * given["dataset_size"])
    return Budget(**wanted)


def to_plain_table(table: Any) -> dict[str, Any]:
    """The training table as plain values that JSON can hold."""
    if not isinstance(table, Mapping):
        raise InvalidValue(f"training={table!r} must be a table. Write [training] and keys below it.")
    try:
        kept: dict[str, Any] = json.loads(json.dumps(dict(table), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"training: {one_line(error)}. Use numbers, words, true, false, lists and tables.") from None
    return kept
