"""Solving a question for one knob, given the other three: noise, steps, batch or epsilon.

Every answer has been priced by the question's own accountant. `steps` and `batch` are the largest that fit, for costs
that rise with them (all shapes here, but for a step or two where a schedule is evaluated on few points).
"""

import math
from collections.abc import Callable
from typing import TypeVar

from privet.accounting import gdp
from privet.accounting.base import refuse_unsupported
from privet.accounting.guarantee import rounded
from privet.accounting.pld import Pld
from privet.errors import InvalidValue, NoSolution, PrivetError, Unsupported
from privet.planning.calibrate import MOST_HEIGHT, calibrate, clt_height, exact, pld_epsilon_at, proactive_noise
from privet.planning.question import Question
from privet.planning.recipe import steps_of
from privet.planning.steps import MOST_SCHEDULED, MOST_STEPS, Steps

CHEAP = ("zcdp", "tcdp")  # formulas: as near the target as floating point can see costs nothing
FINE = 1e-12
Number = TypeVar("Number", int, float)
ROUGH = 0.05  # advice need not be exact, only true


def solve(question: Question) -> Steps:
    """The steps that answer the question, at most the budget's epsilon."""
    answers = {"noise": _noise, "steps": _steps, "batch": _batch, "epsilon": _epsilon}
    return answers[question.recipe.solve](question)


def _epsilon(question: Question) -> Steps:
    count, rate = _count_and_rate(question)
    return question.steps(scale=1.0, count=count, rate=rate)


def _noise(question: Question) -> Steps:
    count, rate = _count_and_rate(question)
    try:
        return question.steps(scale=height_of(question, count=count, rate=rate), count=count, rate=rate)
    except NoSolution as error:
        raise _blocked(question, error, scale=MOST_HEIGHT, count=count, rate=rate) from None


def _steps(question: Question) -> Steps:
    rate = _known(question.recipe.base_rate)
    most = MOST_STEPS if question.steps(scale=1.0, count=1, rate=rate).is_constant else MOST_SCHEDULED

    def make(count: int) -> Steps:
        return question.steps(scale=1.0, count=count, rate=rate)

    count = largest(lambda n: _cost(question, make, n), epsilon=question.recipe.budget.epsilon, most=most,
                    start=_start(question, make, 1.0))  # fmt: skip
    return make(count) if count else _refused(question, make, scale=1.0, count=1, rate=rate)


def _batch(question: Question) -> Steps:
    recipe = question.recipe

    def make(batch: int) -> Steps:
        rate = batch / recipe.size
        count = recipe.steps if recipe.epochs is None else steps_of(recipe.epochs, rate)
        return question.steps(scale=1.0, count=_known(count), rate=rate)

    batch = largest(lambda n: _cost(question, make, n), epsilon=recipe.budget.epsilon, most=recipe.size,
                    start=_start(question, make, 2.0 if recipe.epochs is None else 1.0))  # fmt: skip
    if batch:
        return make(batch)
    one = make(1)
    return _refused(question, make, scale=1.0, count=one.length, rate=one.rate)


# --- noise ------------------------------------------------------------------------------------------


def height_of(question: Question, *, count: int, rate: float) -> float:
    """The height of the noise shape: priced at most epsilon, and within 1e-4 of it unless the price jumps there."""
    budget, accountant = question.recipe.budget, question.accountant
    unit = question.steps(scale=1.0, count=count, rate=rate)
    ledger = question.charged(unit)

    def priced(height: float) -> float:
        return question.price(question.steps(scale=height, count=count, rate=rate)).epsilon

    if question.has_claim or accountant in CHEAP:
        return calibrate(priced, epsilon=budget.epsilon, start=1.0, rtol=FINE)
    if accountant == "proactive":
        height = proactive_noise(epsilon=budget.epsilon, delta=budget.delta) / float(unit.noises.min())
        return exact(priced, epsilon=budget.epsilon, height=height)
    start = clt_height(ledger, epsilon=budget.epsilon, delta=budget.delta)
    if accountant == "gdp" and unit.sampling.name == "poisson":
        return exact(priced, epsilon=budget.epsilon, height=start)
    if accountant != "pld" or unit.sampling.name == "truncated-poisson":
        return calibrate(priced, epsilon=budget.epsilon, start=start)
    refuse_unsupported(Pld(), ledger, relation=budget.relation, accountant="pld")
    height = calibrate(pld_epsilon_at(ledger, budget.delta), epsilon=budget.epsilon, start=start)
    return exact(priced, epsilon=budget.epsilon, height=height)


# --- whole numbers ----------------------------------------------------------------------------------


def largest(cost: Callable[[int], float], *, epsilon: float, most: int, start: int = 1000, within: float = 0) -> int:
    """The largest n in 1 .. most with cost(n) <= epsilon, for a cost that rises with n; 0 if there is none.

    `within`: one that is smaller by at most this share will do.

    >>> largest(lambda n: 0.1 * n**0.5, epsilon=1.0, most=10**9)
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


def _start(question: Question, make: Callable[[int], Steps], power: float) -> int:
    """About where the central limit theorem meets the budget: mu^2 grows like n^power. Anything will do."""
    budget, trial = question.recipe.budget, min(100, question.recipe.size)
    try:
        grown = (gdp.mu_of(budget.epsilon, budget.delta) / gdp.extended_clt_mu(question.charged(make(trial)))) ** (
            2 / power
        )
    except (PrivetError, ArithmeticError):
        return 1000
    return int(min(max(trial * grown, 1), 1e12)) if math.isfinite(grown) else 1000


def _cost(question: Question, make: Callable[[int], Steps], n: int) -> float:
    """The price of `make(n)`; infinite where the shape ends, the accountant refuses or epsilon overflows."""
    try:
        return question.price(make(n)).epsilon
    except (InvalidValue, Unsupported):
        return math.inf


# --- what is out of reach ---------------------------------------------------------------------------


def _refused(question: Question, make: Callable[[int], Steps], *, scale: float, count: int, rate: float) -> Steps:
    """Even one step, or one record: raise with the reason and what would fit."""
    knob, epsilon = question.recipe.solve, question.recipe.budget.epsilon
    found = question.price(make(1)).epsilon  # a shape or accountant that refuses says why here
    size = question.recipe.size
    least = "1 step" if knob == "steps" else f"a batch of 1 of {size} over {count} steps"
    error = NoSolution(f"epsilon={epsilon!r} cannot be reached: even {least} costs {rounded(found, up=True)}.")
    raise _blocked(question, error, scale=scale, count=count, rate=rate)


def _blocked(question: Question, error: NoSolution, *, scale: float, count: int, rate: float) -> NoSolution:
    """The same error with the nearest feasible value of each other knob, the knob solved for held at its limit."""
    if "Use " in str(error):
        return error
    knob, recipe = question.recipe.solve, question.recipe
    epsilon = recipe.budget.epsilon

    def at(*, count: int = count, rate: float = rate) -> float:
        try:
            return question.roughly(question.steps(scale=scale, count=count, rate=rate))
        except (InvalidValue, Unsupported):
            return math.inf

    nearest: list[str] = []
    if knob != "noise":
        nearest += _try(lambda: f"noise >= {_noise_there(question, count, rate)}")
    if knob != "steps":
        found = largest(lambda n: at(count=n), epsilon=epsilon, most=count, start=count, within=ROUGH)
        nearest += [f"steps <= {found}"] if found else []
    if knob != "batch" and not isinstance(recipe.batch, str):
        most = max(1, int(rate * recipe.size))
        found = largest(lambda n: at(rate=n / recipe.size), epsilon=epsilon, most=most, start=most, within=ROUGH)
        nearest += [f"batch <= {found}"] if found else []
    least = at()
    nearest += [f"epsilon >= {rounded(least, up=True)}"] if math.isfinite(least) else []
    return NoSolution(f"{error} Nearest that fits, the rest unchanged: {', '.join(nearest) or 'nothing'}.")


def _noise_there(question: Question, count: int, rate: float) -> str:
    """Enough noise, by the quick bound."""
    height = calibrate(
        lambda h: question.roughly(question.steps(scale=h, count=count, rate=rate)),
        epsilon=question.recipe.budget.epsilon, start=1.0, rtol=ROUGH,
    )  # fmt: skip
    return rounded(question.steps(scale=height, count=count, rate=rate).scale, up=True)


def _try(text: Callable[[], str]) -> list[str]:
    try:
        return [text()]
    except PrivetError:
        return []


def _count_and_rate(question: Question) -> tuple[int, float]:
    return _known(question.recipe.count), _known(question.recipe.base_rate)


def _known(value: Number | None) -> Number:
    assert value is not None  # the recipe was checked: all knobs but one are given
    return value
