"""Solving a question for one knob, given the other three: noise, steps, batch or epsilon.

Every answer has been priced by the question's own accountant. `steps` and `batch` are the largest that fit, for costs
that rise with them (all shapes here, but for a step or two where a schedule is evaluated on few points).
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial

from privet.accounting import gdp
from privet.accounting.accountant import refuse_unsupported
from privet.accounting.guarantee import format_outward
from privet.accounting.pld.accountant import Pld
from privet.errors import InvalidValue, NoSolution, PrivetError, Unsupported
from privet.planning.calibrate import (
    MOST_HEIGHT,
    calibrate,
    clt_height,
    pld_epsilon_at,
    proactive_noise,
    raise_until_met,
)
from privet.planning.planned_steps import MOST_SCHEDULED, MOST_STEPS, PlannedSteps
from privet.planning.pricing import PricedRecipe
from privet.planning.recipe import steps_in_epochs

CHEAP = ("zcdp", "tcdp")  # formulas: as near the target as floating point can see costs nothing
FINE = 1e-12
ROUGH = 0.05  # advice need not be exact, only true


def solve(question: PricedRecipe) -> PlannedSteps:
    """The steps that answer the question, at most the budget's epsilon."""
    recipe = question.recipe
    if recipe.solve == "steps":
        rate = recipe.base_rate
        assert rate is not None
        most = MOST_STEPS if question.steps(scale=1.0, count=1, rate=rate).is_constant else MOST_SCHEDULED
        return _solve_whole(question, lambda count: question.steps(scale=1.0, count=count, rate=rate), most, power=1.0)
    if recipe.solve == "batch":
        power = 2.0 if recipe.epochs is None else 1.0
        return _solve_whole(question, partial(_steps_of_batch, question), recipe.size, power=power)
    steps = question.own_steps(1.0)
    if recipe.solve == "epsilon":
        return steps
    try:
        return question.own_steps(solve_height(question))
    except NoSolution as error:
        raise _infeasible_error(question, error, scale=MOST_HEIGHT, count=steps.length, rate=steps.rate) from None


def _steps_of_batch(question: PricedRecipe, batch: int) -> PlannedSteps:
    recipe, rate = question.recipe, batch / question.recipe.size
    count = recipe.steps if recipe.epochs is None else steps_in_epochs(recipe.epochs, rate)
    assert count is not None
    return question.steps(scale=1.0, count=count, rate=rate)


def _solve_whole(
    question: PricedRecipe, make: Callable[[int], PlannedSteps], most: int, *, power: float
) -> PlannedSteps:
    """The steps of the largest number that fits; if even 1 is too many, an error with the reason and what would fit."""
    epsilon = question.recipe.budget.epsilon
    start = _starting_guess(question, make, power)
    found = largest_affordable(lambda n: _cost(question, make, n), epsilon=epsilon, most=most, start=start)
    if found:
        return make(found)
    one, size = make(1), question.recipe.size
    cost = format_outward(question.cost(one).epsilon, up=True)  # a shape or accountant that refuses says why here
    least = "1 step" if question.recipe.solve == "steps" else f"a batch of 1 of {size} over {one.length} steps"
    error = NoSolution(f"epsilon={epsilon!r} cannot be reached: even {least} costs {cost}.")
    raise _infeasible_error(question, error, scale=1.0, count=one.length, rate=one.rate)


# --- noise ------------------------------------------------------------------------------------------
def solve_height(question: PricedRecipe) -> float:
    """The height of the noise shape: priced at most epsilon, and within 1e-4 of it unless the price jumps there."""
    budget, accountant = question.recipe.budget, question.accountant
    unit = question.own_steps(1.0)
    ledger = question.charged_ledger(unit)

    def price(height: float) -> float:
        return question.cost(question.own_steps(height)).epsilon

    if question.has_claim or accountant in CHEAP:
        return calibrate(price, epsilon=budget.epsilon, start=1.0, rtol=FINE)
    if accountant == "proactive":
        height = proactive_noise(epsilon=budget.epsilon, delta=budget.delta) / float(unit.noises.min())
        return raise_until_met(price, epsilon=budget.epsilon, height=height)
    start = clt_height(ledger, epsilon=budget.epsilon, delta=budget.delta)
    if accountant == "gdp" and unit.sampling.name == "poisson":
        return raise_until_met(price, epsilon=budget.epsilon, height=start)
    if accountant != "pld" or unit.sampling.name == "truncated-poisson":
        return calibrate(price, epsilon=budget.epsilon, start=start)
    refuse_unsupported(Pld(), ledger, relation=budget.relation, accountant="pld")
    height = calibrate(pld_epsilon_at(ledger, budget.delta), epsilon=budget.epsilon, start=start)
    return raise_until_met(price, epsilon=budget.epsilon, height=height)


# --- whole numbers ----------------------------------------------------------------------------------
def largest_affordable(
    cost: Callable[[int], float], *, epsilon: float, most: int, start: int = 1000, within: float = 0
) -> int:
    """The largest n in 1 .. most with cost(n) <= epsilon, for a cost that rises with n; 0 if there is none.

    `within`: one that is smaller by at most this share will do.

    >>> largest_affordable(lambda n: 0.1 * n**0.5, epsilon=1.0, most=10**9)
    100
    """
    fits, fails = 0, most + 1
    tried: list[tuple[float, float]] = []  # (log n, log cost - log epsilon)
    here = max(1, min(most, start))
    while fails - fits > max(1.0, within * fits):
        found = cost(here)
        fits, fails = (here, fails) if found <= epsilon else (fits, here)
        tried.append((math.log(here), math.log(max(found, 1e-300)) - math.log(epsilon)))
        here = _next_whole(tried, fits, fails, most)
    return fits


def _next_whole(tried: list[tuple[float, float]], fits: int, fails: int, most: int) -> int:
    """Where a line in log-log meets the target, within the bracket; its middle every other time once it is slow."""
    x, y = tried[-1]
    slope = 0.5  # epsilon grows about like sqrt(n)
    if len(tried) > 1 and tried[-2][0] != x:
        slope = (y - tried[-2][1]) / (x - tried[-2][0])
    guess = x - y / slope if slope > 0 and math.isfinite(y) else math.nan
    middle = math.sqrt(max(fits, 1) * fails) if fails > 4 * max(fits, 1) else (fits + fails) / 2
    if math.isnan(guess) or (len(tried) > 8 and len(tried) % 2):
        chosen = middle
    else:
        chosen = math.exp(min(max(guess, x - 5), x + 5))
    return max(fits + 1, min(fails - 1, most, math.floor(chosen)))


def _starting_guess(question: PricedRecipe, make: Callable[[int], PlannedSteps], power: float) -> int:
    """About where the central limit theorem meets the budget: mu^2 grows like n^power. Anything will do."""
    budget, trial = question.recipe.budget, min(100, question.recipe.size)
    try:
        costs = gdp.extended_clt_mu(question.charged_ledger(make(trial)))
        grown = (gdp.mu_of(budget.epsilon, budget.delta) / costs) ** (2 / power)
    except (PrivetError, ArithmeticError):
        return 1000
    return int(min(max(trial * grown, 1), 1e12)) if math.isfinite(grown) else 1000


def _cost(question: PricedRecipe, make: Callable[[int], PlannedSteps], n: int) -> float:
    """The price of `make(n)`; infinite where the shape ends, the accountant refuses or epsilon overflows."""
    try:
        return question.cost(make(n)).epsilon
    except (InvalidValue, Unsupported):
        return math.inf


# --- what is out of reach ---------------------------------------------------------------------------
def _infeasible_error(
    question: PricedRecipe, error: NoSolution, *, scale: float, count: int, rate: float
) -> NoSolution:
    """The same error with the nearest feasible value of each other knob, the knob solved for held at its limit."""
    if "Use " in str(error):
        return error
    knob, recipe = question.recipe.solve, question.recipe
    epsilon = recipe.budget.epsilon

    def at(*, count: int = count, rate: float = rate) -> float:
        try:
            return question.quick_upper_bound(question.steps(scale=scale, count=count, rate=rate))
        except (InvalidValue, Unsupported):
            return math.inf

    nearest: list[str] = []
    if knob != "noise":
        with contextlib.suppress(PrivetError):
            nearest.append(f"noise >= {_quick_noise(question, count, rate)}")
    if knob != "steps":
        found = largest_affordable(lambda n: at(count=n), epsilon=epsilon, most=count, start=count, within=ROUGH)
        nearest += [f"steps <= {found}"] if found else []
    if knob != "batch" and not isinstance(recipe.batch, str):
        most = max(1, int(rate * recipe.size))
        found = largest_affordable(
            lambda n: at(rate=n / recipe.size), epsilon=epsilon, most=most, start=most, within=ROUGH
        )
        nearest += [f"batch <= {found}"] if found else []
    least = at()
    nearest += [f"epsilon >= {format_outward(least, up=True)}"] if math.isfinite(least) else []
    return NoSolution(f"{error} Nearest that fits, the rest unchanged: {', '.join(nearest) or 'nothing'}.")


def _quick_noise(question: PricedRecipe, count: int, rate: float) -> str:
    height = calibrate(
        lambda h: question.quick_upper_bound(question.steps(scale=h, count=count, rate=rate)),
        epsilon=question.recipe.budget.epsilon, start=1.0, rtol=ROUGH,
    )  # fmt: skip
    return format_outward(question.steps(scale=height, count=count, rate=rate).scale, up=True)
