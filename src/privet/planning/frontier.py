"""Planning ahead: the noise that a fixed budget asks for, against the number of rounds and the batch size.

Every cell is calibrated and certified on its own. Beside it stands the closed form of van Dijk et al. 2021, which does
not mention the rounds, and what the certified accountant says of it there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from privet import _check
from privet.accounting import Budget, Guarantee, Ledger, Step, compose_ledgers, gdp
from privet.accounting.accountant import warn_large_delta
from privet.accounting.guarantee import format_outward
from privet.errors import InvalidValue, NoSolution, PrivetError, Unsupported
from privet.planning.calibrate import calibrate, largest_affordable, proactive_noise, solve_peak
from privet.planning.plan import Plan
from privet.planning.planned_steps import MOST_STEPS, PlannedSteps
from privet.planning.pricing import PricedRecipe, guarantee_for, try_guarantee
from privet.planning.recipe import MOST_SIZE, Recipe, as_recipe, steps_in_epochs

BATCHES = (64, 256, 1024, 4096)
STEPS = (300, 1000, 3000, 10_000, 30_000, 100_000)
BATCHES_AROUND = (0.25, 0.5, 2, 4)  # times a recipe's own batch, which is there too
STEPS_AROUND = (0.1, 0.3, 1, 3, 10)  # times a recipe's own steps
MOST_CELLS = 1000
SLACK = 1.05  # less noise by a smaller factor is not worth more records a round

Progress = Callable[[int, int], None]  # (cells done, cells in all)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One choice of rounds and batch: the noise that meets the budget there, or `why` there is none.

    `noise_multiplier` and `noise_last` are the multipliers of the first and the last step. `std` is the standard
    deviation of the noise in a coordinate of the averaged gradient, noise * clip / batch (root of the mean square).
    `signal` is how far the run stands out of its noise, over what a run on full batches has at the same budget:

        signal = sqrt(sum_t (batch / noise_t)^2) / (size mu),   mu the Gaussian privacy of (epsilon, delta)

    `closed` is the certified guarantee at the closed form's noise, and `holds` whether it keeps the budget.
    `frontier`: of the cells with as many rounds or more, whose `std` is within 5 % of the least, the one with the least
    work (steps * batch). The others have more noise, or more work, for no more rounds.
    """

    steps: int
    batch_size: float
    epochs: float
    noise_multiplier: float | None = None
    noise_last: float | None = None
    std: float | None = None
    signal: float | None = None
    guarantee: Guarantee | None = None
    closed: Guarantee | None = None
    holds: bool | None = None
    frontier: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The plan-ahead view: one budget, one method, and the cells in order of batch, then steps."""

    budget: Budget
    dataset_size: int
    method: str | None
    closed_noise: float
    cells: tuple[FrontierPoint, ...]

    @property
    def best(self) -> tuple[FrontierPoint, ...]:
        return tuple(cell for cell in self.cells if cell.frontier)

    @property
    def batches(self) -> tuple[float, ...]:
        return tuple(sorted({cell.batch_size for cell in self.cells}))

    def row(self, batch_size: float) -> tuple[FrontierPoint, ...]:
        return tuple(cell for cell in self.cells if cell.batch_size == batch_size)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ahead(
    recipe: Recipe | None = None, /, *, batches: Sequence[float] | None = None, steps: Sequence[int] | None = None,
    epochs: Sequence[float] | None = None, progress: Progress | None = None, **given: Any,
) -> Frontier:  # fmt: skip
    """The certified noise of a budget for every batch size and number of rounds, and which choices stand out.

    Args:
        recipe: or the keywords of `Recipe.of` without batch and steps. Left out, `batches` and `steps` lie around
            the recipe's own, or are 64 to 4096 and 300 to 100,000.
        epochs: in place of `steps`: the rounds are then ceil(epochs * size / batch), other for each batch.

    >>> found = ahead(epsilon=2.0, delta=1e-5, dataset_size=60000, batches=[256, 600], steps=[60000])
    >>> round(found.closed_noise, 3), [(round(cell.noise_multiplier, 3), cell.holds) for cell in found.cells]
    (3.676, [(2.203, True), (4.941, False)])

    Raises:
        NoSolution, InvalidValue, Unsupported: no cell has an answer; the reason of the first.
    """
    if steps is not None and epochs is not None:
        raise InvalidValue("steps and epochs are both given. They say the same. Give one.")
    base = _base_recipe(recipe, given, batches, steps, epochs)
    places = _grid(base, batches, steps, epochs, is_centre=recipe is not None)
    warn_large_delta(base.budget.delta, base.dataset_size, unit=base.budget.unit)
    closed_noise = proactive_noise(epsilon=base.budget.epsilon, delta=base.budget.delta)
    mu = gdp.mu_of(base.budget.epsilon, base.budget.delta)
    cells, errors = [], []
    for done, (batch, count) in enumerate(places):
        if progress is not None:
            progress(done, len(places))
        cell, error = _frontier_point(base, batch, count, closed_noise, mu)
        cells.append(cell)
        errors += [error] if error else []
    if len(errors) == len(cells):
        hint = "" if "Use " in str(errors[0]) else " Use fewer rounds, smaller batches, or a larger epsilon or delta."
        raise type(errors[0])(f"{errors[0]}{hint}")
    if progress is not None:
        progress(len(places), len(places))
    return Frontier(
        budget=base.budget, dataset_size=base.dataset_size, method=base.method, closed_noise=closed_noise,
        cells=mark_frontier(cells),
    )  # fmt: skip


def mark_frontier(cells: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """The cells with those on the frontier marked: one for each number of rounds, unless more rounds beat it.

    At some number of rounds, the cells with as many or more whose `std` is within 5 % of the least are as good as each
    other; the one with the least work wins. Less noise alone would always choose the largest batch.
    """
    able = [cell for cell in cells if cell.std is not None]
    chosen = {id(_cheapest_point([other for other in able if other.steps >= cell.steps])) for cell in able}
    return tuple(replace(cell, frontier=id(cell) in chosen) for cell in cells)


def _cheapest_point(cells: Sequence[FrontierPoint]) -> FrontierPoint:
    least = min(cell.std for cell in cells if cell.std is not None)
    near = [cell for cell in cells if cell.std is not None and cell.std <= SLACK * least]
    return min(near, key=lambda cell: (cell.steps * cell.batch_size, -cell.steps))


# --- the grid ---------------------------------------------------------------------------------------
def _base_recipe(
    recipe: Recipe | None, given: dict[str, Any], batches: Sequence[float] | None, steps: Sequence[int] | None,
    epochs: Sequence[float] | None,
) -> Recipe:  # fmt: skip
    """The recipe of one cell; all others differ from it in batch and steps alone."""
    for name, values in (("batches", batches), ("steps", steps), ("epochs", epochs)):
        _check_values(name, values)
    if recipe is None:
        for name in ("batch_size", "sample_rate", "solve"):
            if name in given:
                hint = "Leave it out." if name == "solve" else "Give batches=[64, 256], for example."
                raise InvalidValue(
                    f"{name}={given[name]!r} does not apply here: it is what the exploration varies or finds. {hint}"
                )
        return Recipe.of(**given, batch_size=1, steps=1)
    recipe = as_recipe(recipe, given)
    if recipe.solve != "noise":
        raise InvalidValue(
            f"solve={recipe.solve!r} asks for {recipe.solve}, but the exploration finds the noise. Leave it out."
        )
    if recipe.uncertified:
        raise InvalidValue(
            "uncertified does not apply here: the exploration certifies the noise it shows. Leave it out."
        )
    if isinstance(recipe.batch_size, str):
        raise InvalidValue(
            f"batch_size={recipe.batch_size!r} changes over the steps. The exploration compares batch sizes. Give a "
            "number."
        )
    return recipe


def _check_values(name: str, values: Sequence[float] | None) -> None:
    if values is None:
        return
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise InvalidValue(
            f"{name}={values!r} must be a list of at least one number. Give {name}=[64, 256], for example."
        )
    for value in values:
        if name == "steps":
            _check.whole(steps=value)  # type: ignore[arg-type]
        else:
            _check.positive(**{name: value})
        if value > MOST_SIZE:
            raise InvalidValue(f"{name}={value!r} must be at most {MOST_SIZE:.0e}. Use fewer.")


def _grid(
    base: Recipe, batches: Sequence[float] | None, steps: Sequence[int] | None, epochs: Sequence[float] | None, *,
    is_centre: bool,
) -> list[tuple[float, int]]:  # fmt: skip
    """The (batch, steps) of every cell, each once, in order."""
    size, centre = base.dataset_size, _centre_point(base) if is_centre else None
    if batches is None:
        batches = BATCHES if centre is None else [centre[0], *(max(1, round(centre[0] * by)) for by in BATCHES_AROUND)]
        batches = [min(size, batch) for batch in batches]
    for batch in batches:
        if batch > size:
            raise InvalidValue(
                f"batches={batch:g} must be at most dataset_size={size}. Each {base.budget.unit} takes part at most "
                "once in a step. Use a smaller batch."
            )
    if steps is None and epochs is None:
        steps = STEPS if centre is None else [max(1, round(centre[1] * by)) for by in STEPS_AROUND]
    given = {b: [*(steps or ()), *(steps_in_epochs(passes, b / size) for passes in epochs or ())] for b in batches}
    places = sorted({(b, t) for b, counts in given.items() for t in counts})
    if len(places) > MOST_CELLS:
        raise InvalidValue(f"batches and steps make {len(places)} cells, must be at most {MOST_CELLS}. Give fewer.")
    return places


def _centre_point(base: Recipe) -> tuple[float, int]:
    assert base.base_rate is not None
    assert base.count is not None
    return base.base_rate * base.dataset_size if base.batch_size is None else base.batch_size, base.count


# --- one cell ---------------------------------------------------------------------------------------
def _frontier_point(
    base: Recipe, batch: float, count: int, closed_noise: float, mu: float
) -> tuple[FrontierPoint, PrivetError | None]:
    """The cell, and the error if it has no answer."""
    recipe = replace(base, batch_size=batch, sample_rate=None, steps=count, epochs=None)
    question, rate = PricedRecipe(recipe), batch / base.dataset_size
    closed = _closed_form_guarantee(question, count, rate, closed_noise)
    bare = FrontierPoint(
        steps=count, batch_size=float(batch), epochs=count * rate, closed=closed,
        holds=None if closed is None else closed.epsilon <= base.budget.epsilon,
    )  # fmt: skip
    try:
        steps = question.own_steps(solve_peak(question))
        guarantee = question.cost(steps)
    except PrivetError as error:
        why = "no noise reaches it: " if isinstance(error, NoSolution) else ""
        return replace(bare, why=f"{why}{error}"), error
    std, strength = _average_noise(steps, batch)
    found = replace(
        bare, noise_multiplier=float(steps.noise_multipliers[0]), noise_last=float(steps.noise_multipliers[-1]),
        std=std,
        signal=strength / (base.dataset_size * mu), guarantee=guarantee,
    )  # fmt: skip
    return found, None


def _average_noise(steps: PlannedSteps, batch: float) -> tuple[float, float]:
    """The root mean square of noise_t clip_t / batch, and sqrt(sum_t (batch / noise_t)^2)."""
    if steps.is_constant:  # up to 1e12 steps, held once
        noise, clip = float(steps.noise_multipliers[0]), float(steps.clipping_norms[0])
        return noise * clip / batch, math.sqrt(steps.length) * batch / noise
    std = float(np.sqrt(np.mean((steps.noise_multipliers * steps.clipping_norms) ** 2))) / batch
    return std, float(np.sqrt(np.sum(steps.noise_multipliers**-2.0))) * batch


def _closed_form_guarantee(question: PricedRecipe, count: int, rate: float, noise: float) -> Guarantee | None:
    """What is certified at the closed form's noise; None where no theorem covers it, or several runs are charged."""
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=question.recipe.sampling), count)  # type: ignore[arg-type]
    return None if question.recipe.tuning is not None else try_guarantee(ledger, question.recipe.budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionCost:
    """The whole run with `rounds` more than planned.

    `guarantee`: the rounds more are like the plan's last one. `noise_multiplier`: the least noise of those rounds that
    keeps the whole run within the larger epsilon asked for, and `within` its guarantee; or `why` there is none.
    """

    rounds: int
    guarantee: Guarantee
    noise_multiplier: float | None = None
    within: Guarantee | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A plan's own guarantee, its last step, and what more rounds would cost.

    `most` is how many more rounds like the last stay within `epsilon`, if one was given.
    """

    planned: Guarantee
    last: Step
    rows: tuple[ExtensionCost, ...]
    epsilon: float | None = None
    most: int | None = None

    def as_dict(self) -> dict[str, Any]:
        last = {name: getattr(self.last, name) for name in ("noise_multiplier", "sample_rate", "clipping_norm")}
        return asdict(self) | {"last": last | {"sampling": str(self.last.sampling)}}


def extend_rounds(plan: Plan, rounds: Sequence[int], *, within: float | None = None) -> Extension:
    """What `plan` costs with so many more rounds, and the noise that keeps the whole run `within` a larger epsilon.

    The number of rounds, and their noise, must not depend on what the plan's rounds have shown. Rows at the last noise
    are parts of one another, so where the results decide how many of them there are, the longest is the price.

    >>> from privet.planning import plan
    >>> p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=256, steps=10000)
    >>> found = extend_rounds(p, [1000], within=2.2)
    >>> row = found.rows[0]
    >>> round(row.guarantee.epsilon, 2), row.noise_multiplier < p.steps[-1].noise_multiplier, found.most
    (2.11, True, 1918)

    Raises:
        InvalidValue: `within` is not above what is planned.
        Unsupported: no proof covers the plan's clipping rule, or the plan charges for several runs.
    """
    if isinstance(rounds, (str, bytes)) or not isinstance(rounds, Sequence) or not rounds:
        raise InvalidValue(
            f"more={rounds!r} must be a list of at least one number of rounds. Give [500, 1000], for example."
        )
    for count in rounds:
        _check.whole(more=count)
        if count + len(plan.steps) > MOST_STEPS:
            raise InvalidValue(f"more={count!r} must keep the steps within {MOST_STEPS:.0e}. Use fewer.")
    if plan.is_unsound:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee, so the cost of more rounds is unknown. Plan a sound rule."
        )
    if plan.recipe.tuning is not None:
        raise Unsupported("trials: the plan charges for several runs, and rounds of one are asked for. Plan one run.")
    planned = _extended_guarantee(plan, 0)
    if within is not None:
        _check.positive(within=within)
        if within <= planned.epsilon:
            raise InvalidValue(
                f"within={within!r} must be above {format_outward(planned.epsilon, up=True)}, which the planned "
                "rounds spend already. Give a larger epsilon."
            )
    rows = tuple(_extension_cost(plan, count, within) for count in sorted(set(rounds)))
    most = None if within is None else _most_rounds(plan, within)
    return Extension(planned=planned, last=plan.steps[-1], rows=rows, epsilon=within, most=most)


def _extended_guarantee(plan: Plan, rounds: int, noise: float | None = None) -> Guarantee:
    """The guarantee of the plan's steps and `rounds` more, like the last one but for the noise.

    The rounds more are a run of their own: where batches are shuffled they begin with a new epoch.
    """
    ledger = plan.ledger()
    if rounds:
        last, further = plan.steps[-1], Ledger()
        further.add(last if noise is None else replace(last, noise_multiplier=noise), rounds)
        ledger = compose_ledgers(ledger, further)
    return guarantee_for(ledger, plan.recipe.budget, "pld" if plan.certified is not None else plan.guarantee.method)


def _extension_cost(plan: Plan, rounds: int, within: float | None) -> ExtensionCost:
    guarantee = _extended_guarantee(plan, rounds)
    found = ExtensionCost(rounds=rounds, guarantee=guarantee)
    if within is None:
        return found
    try:
        noise = calibrate(
            lambda noise: _extended_guarantee(plan, rounds, noise).epsilon,
            epsilon=within,
            start=plan.steps[-1].noise_multiplier,
        )
    except NoSolution as error:
        return replace(found, why=f"no noise reaches it: {error}")
    return replace(found, noise_multiplier=noise, within=_extended_guarantee(plan, rounds, noise))


def _most_rounds(plan: Plan, within: float) -> int:
    """How many more rounds like the last one stay within `within`."""

    def cost(rounds: int) -> float:
        try:
            return _extended_guarantee(plan, rounds).epsilon
        except PrivetError:
            return math.inf

    planned = len(plan.steps)
    return largest_affordable(cost, epsilon=within, most=MOST_STEPS - planned, start=max(1, planned // 10))
