"""Search: the parameters of a shape that the utility estimate likes best, at a fixed budget.

Candidates are scored at a peak guessed by the central limit theorem; the best few are planned in earnest, and the one
that is returned is certified. So a poor guess can cost utility, never privacy.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from privet import _check
from privet.errors import InvalidValue, NoSolution, PrivetError, Unsupported
from privet.planning.calibrate import MOST_PEAK, clt_height
from privet.planning.methods import method
from privet.planning.plan import Plan, plan
from privet.planning.planned_steps import MOST_SCHEDULED
from privet.planning.pricing import PricedRecipe
from privet.planning.recipe import Recipe
from privet.planning.utility import Profile, Utility, estimate, utility

PARAMETERS = ("rho_noise", "rho_clip", "steps", "batch_size")
RHO = (1.0, 10.0)  # Du et al. swept 1/rho from 0.1 to 0.8
AROUND = 8.0  # steps and batch: so many times fewer and more than the recipe's
GRID = {1: 13, 2: 7, 3: 5, 4: 3}  # points along each axis, by the number of axes
CLOSE = math.log(1.02)  # the refinement stops here
APART = math.log(1.1)  # finalists differ by this in some parameter

Values = dict[str, float]
Limits = dict[str, tuple[float, float]]
Progress = Callable[[str, int, int], None]  # (what, done, of)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTrial:
    """One choice of parameters. `utility` is the estimate, None if it was refused; `noise_multiplier` the peak of
    the shape.

    Unless `certified`, the peak is a guess, and so is what follows from it.
    """

    values: Mapping[str, float]
    noise_multiplier: float | None = None
    utility: float | None = None
    certified: bool = False
    refused: str | None = None

    def as_dict(self) -> dict[str, Any]:
        said = {
            "values": dict(self.values), "noise_multiplier": self.noise_multiplier, "utility_estimate": self.utility,
        }  # fmt: skip
        return said | {"certified": self.certified, "refused": self.refused}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The plan that was found, the estimate for it, and all that was tried: first what was planned, best first."""

    plan: Plan
    utility: Utility
    trials: tuple[SearchTrial, ...]
    values: Mapping[str, float]
    edges: tuple[str, ...]  # the parameters that stand at a limit: the best may lie beyond it

    @property
    def recipe(self) -> Recipe:
        """The recipe of the plan: the one given, with the parameters that were found."""
        return self.plan.recipe


def search(
    recipe: Recipe, *, over: "Iterable[str] | Mapping[str, tuple[float, float] | None]" = ("rho_noise", "rho_clip"),
    profile: Profile | None = None, most: int = 150, finalists: int = 3, progress: Progress | None = None,
) -> SearchResult:  # fmt: skip
    """The certified plan whose utility estimate is best, over some of rho_noise, rho_clip, steps and batch.

    A grid, then a walk from its best point with ever smaller steps; at most `most` candidates. The same
    question has the same answer. What the recipe says itself is planned too, so the answer is never worse.

    Args:
        over: names, or names with their (least, largest) value. Default: rho from 1 to 10; steps and batch from an
            eighth of the recipe's to eight times.
        finalists: how many are planned in earnest, beside the recipe itself.
        progress: called with (what, done, of).

    >>> recipe = Recipe.of(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=60000, steps=200,
    ...                    method="sensitivity-decay")
    >>> best = search(recipe, over=["rho_clip"])
    >>> best.plan.guarantee.label, best.plan.guarantee.epsilon <= 2.0, 1 <= best.recipe.rho_clip <= 10
    ('certified', True, True)

    Raises:
        InvalidValue: a name that is not known, or that the method has no use for.
        NoSolution: no candidate meets the budget.
    """
    _check.whole(most=most, finalists=finalists)
    _check_recipe(recipe)
    limits = _limits(recipe, over)
    hunt = GridThenRefine(recipe, limits, profile or Profile(), most, progress or (lambda what, done, of: None))
    hunt.explore()
    return hunt.choose_plan(finalists)


class GridThenRefine:
    """The state of one search: what was tried, and how far the guessed heights are off."""

    def __init__(self, recipe: Recipe, limits: Limits, profile: Profile, most: int, progress: Progress) -> None:
        self.recipe, self.limits, self.profile, self.most, self.progress = recipe, limits, profile, most, progress
        self.tried: dict[tuple[float, ...], SearchTrial] = {}
        self.plans: dict[tuple[float, ...], Plan] = {}
        self.off = 1.0
        progress("planning the start", 0, most)
        first = self.certify(_start_values(recipe, limits))
        if first is not None:
            self.off = first.peak_noise_multiplier / _guess_peak(PricedRecipe(first.recipe))

    def explore(self) -> None:
        for values in _grid(self.limits):
            self.score(values)
        names, cells = list(self.limits), GRID[len(self.limits)] - 1
        width = {name: math.log(high / low) / cells / 2 for name, (low, high) in self.limits.items()}
        here = self.best_values()
        while here and len(self.tried) < self.most and max(width.values()) > CLOSE:
            moves = [{**here, name: here[name] * math.exp(sign * width[name])} for name in names for sign in (-1, 1)]
            for values in moves:
                self.score(values)
            found = self.best_values()
            if found == here:
                width = {name: value / 2 for name, value in width.items()}
            here = found

    def best_values(self) -> Values:
        """The values with the best estimate so far; none if all were refused."""
        ranked = self.rank_trials()
        return dict(ranked[0].values) if ranked and ranked[0].utility is not None else {}

    def rank_trials(self) -> list[SearchTrial]:
        return sorted(self.tried.values(), key=lambda trial: -1.0 if trial.utility is None else trial.utility,
                      reverse=True)  # fmt: skip

    def score(self, values: Values) -> None:
        """Try values at a guessed peak, once."""
        values = _round_values(values, self.limits)
        key = tuple(values.values())
        if key in self.tried or len(self.tried) >= self.most:
            return
        self.progress("trying", len(self.tried), self.most)
        try:
            question = PricedRecipe(_replace_parameters(self.recipe, values))
            peak = self.off * _guess_peak(question)
            if peak > MOST_PEAK:
                raise NoSolution(f"epsilon={question.recipe.budget.epsilon!r} needs noise above x{MOST_PEAK:.0f}.")
            steps = question.own_steps(peak)
            twice = 2.0 if question.recipe.budget.adjacency == "replace-one" else 1.0
            found = estimate(
                steps, dataset_size=self.recipe.dataset_size, sensitivity=twice, rule=question.rule,
                profile=self.profile,
            )  # fmt: skip
            self.tried[key] = SearchTrial(values=values, noise_multiplier=peak, utility=found.utility)
        except PrivetError as error:
            self.tried[key] = SearchTrial(values=values, refused=str(error))

    def certify(self, values: Values) -> Plan | None:
        """The real plan at these values; None if there is none."""
        key = tuple(values.values())
        try:
            found = plan(_replace_parameters(self.recipe, values))
        except PrivetError as error:
            self.tried[key] = SearchTrial(values=values, refused=str(error))
            return None
        if found.guarantee.label != "certified":
            raise Unsupported(
                f"accountant={found.recipe.accountant!r} gives an epsilon that is {found.guarantee.label} here. "
                "A search returns what is certified. Leave it out."
            )
        self.plans[key] = found
        score = utility(found, self.profile).utility
        self.tried[key] = SearchTrial(
            values=values, noise_multiplier=found.peak_noise_multiplier, utility=score, certified=True
        )
        return found

    def choose_plan(self, finalists: int) -> SearchResult:
        """Plan the best few that are not neighbours, and return the best of those and the recipe itself."""
        planned: list[Values] = []
        for trial in self.rank_trials():
            if len(planned) == finalists or trial.utility is None:
                break
            is_near = (  # a neighbour of one that is planned
                all(abs(math.log(trial.values[name] / other[name])) < APART for name in other) for other in planned
            )
            if not trial.certified and not any(is_near):
                self.progress("planning the finalists", len(planned), finalists)
                planned.append(dict(trial.values))
                self.certify(planned[-1])
        if not self.plans:
            raise NoSolution(next(t.refused for t in self.tried.values() if t.refused is not None))
        key = max(self.plans, key=lambda one: self.tried[one].utility or 0.0)
        found, values = self.plans[key], dict(self.tried[key].values)
        trials = tuple(sorted(self.rank_trials(), key=lambda trial: not trial.certified))
        edges = tuple(name for name, (low, high) in self.limits.items() if values[name] in (low, high) and low < high)
        return SearchResult(plan=found, utility=utility(found, self.profile), trials=trials, values=values,
                    edges=edges)  # fmt: skip


# --- values -----------------------------------------------------------------------------------------
def _guess_peak(question: PricedRecipe) -> float:
    """The peak of the noise shape by the central limit theorem: a guide, no bound."""
    budget = question.recipe.budget
    return clt_height(question.own_steps(1.0).ledger(), epsilon=budget.epsilon, delta=budget.delta)


def _replace_parameters(recipe: Recipe, values: Mapping[str, float]) -> Recipe:
    """The recipe with these parameters. Steps replace epochs; with another batch the epochs, if given, stay."""
    changes: dict[str, Any] = dict(values)
    if "steps" in changes:
        changes |= {"steps": int(changes["steps"]), "epochs": None}
    if "batch_size" in changes:
        changes["sample_rate"] = None
    return replace(recipe, **changes)


def _recipe_value(recipe: Recipe, name: str) -> float | None:
    if name == "batch_size" and recipe.sample_rate is not None:
        return recipe.sample_rate * recipe.dataset_size
    return recipe.count if name == "steps" else getattr(recipe, name)


def _start_values(recipe: Recipe, limits: Limits) -> Values:
    """What the recipe says, moved inside the limits; their middle where it says nothing."""
    middle = {name: math.sqrt(low * high) for name, (low, high) in limits.items()}
    own = {name: _recipe_value(recipe, name) for name in limits}
    if any(value is None or not limits[name][0] <= value <= limits[name][1] for name, value in own.items()):
        return _round_values({name: own[name] or middle[name] for name in limits}, limits)
    return {name: value for name, value in own.items() if value is not None}


def _round_values(values: Values, limits: Limits) -> Values:
    """Three digits (whole numbers for steps and batch), inside the limits: a recipe people can read."""
    kept: Values = {}
    for name, (low, high) in limits.items():
        value = min(max(float(f"{values[name]:.3g}"), low), high)
        kept[name] = float(round(value)) if name in ("steps", "batch_size") else value
    return kept


def _grid(limits: Limits) -> Iterator[Values]:
    points = GRID[len(limits)]
    axes = [
        [low * (high / low) ** (k / (points - 1)) for k in range(points)] if high > low else [low]
        for low, high in limits.values()
    ]
    return (dict(zip(limits, chosen, strict=True)) for chosen in itertools.product(*axes))


# --- checks -----------------------------------------------------------------------------------------
def _check_recipe(recipe: Recipe) -> None:
    if not isinstance(recipe, Recipe):
        raise InvalidValue(f"recipe={recipe!r} must be a Recipe. Use Recipe.of, or Recipe.load for a file.")
    if recipe.solve != "noise":
        raise InvalidValue(f"solve={recipe.solve!r} does not apply to a search, which finds the noise. Leave it out.")
    if recipe.uncertified:
        raise Unsupported("uncertified does not apply to a search: it returns what is certified. Leave it out.")


def _limits(recipe: Recipe, over: "Iterable[str] | Mapping[str, tuple[float, float] | None]") -> Limits:
    given = dict(over) if isinstance(over, Mapping) else dict.fromkeys([over] if isinstance(over, str) else over)
    if not given:
        raise InvalidValue(f"over={over!r} names nothing to search over. Give some of {', '.join(PARAMETERS)}.")
    for name in given:
        _check.one_of(PARAMETERS, over=name)
    return {name: _limit(recipe, name, limits) for name, limits in given.items()}


def _limit(recipe: Recipe, name: str, limits: tuple[float, float] | None) -> tuple[float, float]:
    if name.startswith("rho"):
        row = None if recipe.method is None else method(recipe.method)
        if row is None or name not in row.needs:
            raise InvalidValue(
                f"over={name!r} does not apply to method={recipe.method!r}. Leave it out, or use method='dynamic'."
            )
    if name == "batch_size" and isinstance(recipe.batch_size, str):
        raise InvalidValue(
            f"over='batch_size' needs one batch size, but batch_size={recipe.batch_size!r} changes. Give a number."
        )
    least = 1.0
    largest = {"steps": float(MOST_SCHEDULED), "batch_size": float(recipe.dataset_size)}.get(name, math.inf)
    if limits is None:
        own = _recipe_value(recipe, name) or 1.0
        return RHO if name.startswith("rho") else (max(least, own / AROUND), min(largest, own * AROUND))
    low, high = limits
    _check.positive(**{name: low})
    _check.positive(**{name: high})
    if not least <= low <= high <= largest:
        raise InvalidValue(f"over={name}={low:g}..{high:g} must rise from {least:g} or more to at most {largest:g}.")
    return float(low), float(high)
