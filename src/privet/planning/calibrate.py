"""Calibration: the peak of a noise shape that meets a budget, and a recipe solved for one knob, given the others.

The peak is never above the budget, and within 1e-4 below. The search is a secant in log-log, kept in a bracket and
started from the extended central limit theorem. What it returns has been priced by the accountant itself: an estimate
can cost time, never privacy.

`steps` and `batch` are the largest that fit, for costs that rise with them (all shapes here, but for a step or two
where a schedule is evaluated on few points).
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import optimize

from privet import _check
from privet.accounting import gdp
from privet.accounting.accountant import refuse_unsupported
from privet.accounting.guarantee import format_outward
from privet.accounting.ledger import Ledger
from privet.accounting.pld import accountant as pld
from privet.accounting.pld.accountant import Pld
from privet.accounting.pld.levels import LossLevels, loss_levels
from privet.errors import InvalidValue, NoSolution, PrivetError, Unsupported
from privet.planning.planned_steps import MOST_SCHEDULED, MOST_STEPS, PlannedSteps
from privet.planning.pricing import PricedRecipe
from privet.planning.recipe import steps_in_epochs

RTOL = 1e-4
AIM = 0.3 * RTOL  # below the target: within reach of a secant, and clear of rounding
LEAST_PEAK, MOST_PEAK = 2.0**-20, 2.0**20
MOST_TRIES = 150
REACH = 3.0
_CLOSEST = 1e-13  # heights nearer than this are one peak

CHEAP = ("zcdp", "tcdp")  # formulas: as near the target as floating point can see costs nothing
FINE = 1e-12
ROUGH = 0.05  # advice need not be exact, only true

EpsilonAt = Callable[[float], float]
AttackEvidence = list[tuple[float, float]]  # (logarithm of what was tried, that of its cost over the aim)


def scale_levels(levels: LossLevels, peak: float) -> LossLevels:
    """The levels with every noise multiplied by `peak`: mu_t / peak."""
    return LossLevels(levels.rate, levels.mu / peak, levels.count, levels.gaussian / peak**2)


def pld_epsilon_at(ledger: Ledger, delta: float) -> EpsilonAt:
    """The certified upper bound as a function of the peak; the distinct levels are found once."""
    levels = loss_levels(ledger)
    return lambda peak: pld.epsilon_bounds(scale_levels(levels, peak), delta)[1]


def proactive_noise(*, epsilon: float, delta: float) -> float:
    """The noise that the closed form asks for, whatever the number of rounds T.

        noise = sqrt(2 (epsilon + log(1/delta)) / epsilon)

    Published for epsilon = Omega(T / N^2), N the size of the dataset, with a constant that depends on the batch: at
    epsilon 2, delta 1e-5 and T = N = 60,000 it is enough for batches of 256 and too little for batches of 600.
    `privet.published.accountants.closed_form_holds` decides a given case. Source: van Dijk, Nguyen, Nguyen, Nguyen 2021
    (abstract).

    >>> round(proactive_noise(epsilon=2.0, delta=1e-5), 3)
    3.676
    """
    _check.positive(epsilon=epsilon)
    _check.delta(delta)
    return math.sqrt(2 * (epsilon - math.log(delta)) / epsilon)


def clt_height(ledger: Ledger, *, epsilon: float, delta: float) -> float:
    """The peak at which the extended central limit theorem gives exactly (epsilon, delta).

        mu_tot^2 = sum over rate < 1 of q_t^2 (e^(mu_t^2 / h^2) - 1)  +  sum over rate 1 of mu_t^2 / h^2

    mu_tot follows from (epsilon, delta) by duality; h = 1/mu_0 by root finding, since the right side falls with h.
    Source: Du et al. 2021, eq. (12) and Algorithm 1 (with one rate). Approximate: no bound in either direction.

    >>> from privet.accounting import Step
    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.0, sample_rate=256 / 60000), count=14063)
    >>> round(clt_height(ledger, epsilon=2.32, delta=1e-5), 2)
    1.1
    """
    levels, goal = loss_levels(ledger), 2 * math.log(gdp.mu_of(epsilon, delta))

    def excess(log_height: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            at = scale_levels(levels, math.exp(log_height))
            total = float(at.count @ (at.rate**2 * np.expm1(at.mu**2))) + at.gaussian
        if math.isnan(total):  # a rate whose square vanishes, and a noise at which that would not matter
            total = math.inf
        return math.log(min(max(total, 1e-300), 1e300)) - goal

    low, high = math.log(1e-12), math.log(1e12)
    if excess(low) < 0 or excess(high) > 0:
        return 1.0
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14)))


def calibrate(epsilon_at: EpsilonAt, *, epsilon: float, start: float = 1.0, rtol: float = RTOL) -> float:
    """A peak with epsilon (1 - rtol) <= epsilon_at(peak) <= epsilon.

    `epsilon_at` must not rise with the peak; where it is refused (Unsupported) it counts as infinite. If it jumps
    over the interval, the least peak on the private side to 13 digits.

    >>> round(calibrate(lambda peak: 3 / peak, epsilon=2.0), 3)
    1.5

    Raises:
        NoSolution: even a peak of 2^20 costs more, or 2^-20 less.
    """
    low, high = LEAST_PEAK, MOST_PEAK  # too little noise, and enough: both ends are checked when they are reached
    aim = math.log(epsilon) + math.log1p(-AIM * rtol / RTOL)
    tried: AttackEvidence = []
    here = min(max(start, low), high)
    while len(tried) < MOST_TRIES and high > low * (1 + _CLOSEST):
        found = _cost(epsilon_at, here)
        if epsilon * (1 - rtol) <= found <= epsilon:
            return here
        if here == (LEAST_PEAK if found <= epsilon else MOST_PEAK):
            raise NoSolution(_unreachable_message(epsilon, here, found))
        low, high = (low, here) if found <= epsilon else (here, high)
        tried.append((math.log(here), (math.log(found) if found > 0 else -math.inf) - aim))
        here = _next_height(tried, low, high)
    return high


def _unreachable_message(epsilon: float, peak: float, found: float) -> str:
    if found <= epsilon:
        return (
            f"epsilon={epsilon!r} needs no noise to speak of: noise x{peak:.3g} costs {found:.6g} and less. "
            "Use a smaller epsilon."
        )
    return f"epsilon={epsilon!r} cannot be reached: even noise x{peak:.0f} costs {found:.6g}."


def raise_until_met(make: Callable[[float], float], *, epsilon: float, peak: float) -> float:
    """`peak`, moved up by as many ulps as it takes for make(peak), the accountant's own epsilon, to meet it."""
    for step in (0.0, *(1e-16 * 4.0**k for k in range(20))):
        if make(peak * (1 + step)) <= epsilon:
            return peak * (1 + step)
    raise NoSolution(f"epsilon={epsilon!r} cannot be reached near noise_multiplier={peak:.6g}. Use accountant='pld'.")


def _cost(epsilon_at: EpsilonAt, peak: float) -> float:
    try:
        found = epsilon_at(peak)
    except Unsupported:
        if peak >= MOST_PEAK / 2:
            raise
        return math.inf
    return math.inf if math.isnan(found) else found


def _slope(tried: AttackEvidence, default: float) -> float:
    """The slope of the line through the last two tries, in log-log."""
    if len(tried) < 2 or tried[-2][0] == tried[-1][0]:
        return default
    return (tried[-1][1] - tried[-2][1]) / (tried[-1][0] - tried[-2][0])


def _next_height(tried: AttackEvidence, low: float, high: float) -> float:
    """The next peak: where a straight line in log-log meets the aim; the middle of the bracket if that is no help."""
    left, right = math.log(low), math.log(high)
    x, y = tried[-1]
    slope = _slope(tried, -1.0)  # epsilon falls about like 1 / noise
    guess = x - y / slope if math.isfinite(y) and math.isfinite(slope) and slope < 0 else math.nan
    if math.isnan(guess) or abs(guess - x) > REACH:  # the line is an estimate: no farther than e^REACH at once
        guess = x + math.copysign(REACH, y)
    if guess <= left or guess >= right:
        ends = (low == LEAST_PEAK and guess <= left) or (high == MOST_PEAK and guess >= right)
        if ends:  # never tried
            return low if guess <= left else high
        guess = (left + right) / 2
    if len(tried) > 8 and len(tried) % 2:
        guess = (left + right) / 2  # a curve with jumps: halve
    return math.exp(guess)


# --- a recipe solved for one knob -------------------------------------------------------------------
def solve(question: PricedRecipe) -> PlannedSteps:
    """The steps that answer the question, at most the budget's epsilon."""
    recipe = question.recipe
    if recipe.solve == "steps":
        rate = recipe.base_rate
        assert rate is not None
        most = (
            MOST_STEPS
            if question.steps(peak_noise_multiplier=1.0, count=1, sample_rate=rate).is_constant
            else MOST_SCHEDULED
        )
        return _solve_whole(
            question, lambda count: question.steps(peak_noise_multiplier=1.0, count=count, sample_rate=rate), most,
            power=1.0,
        )  # fmt: skip
    if recipe.solve == "batch":
        power = 2.0 if recipe.epochs is None else 1.0
        return _solve_whole(question, partial(_steps_of_batch, question), recipe.dataset_size, power=power)
    steps = question.own_steps(1.0)
    if recipe.solve == "epsilon":
        return steps
    try:
        return question.own_steps(solve_peak(question))
    except NoSolution as error:
        raise _infeasible_error(question, error, scale=MOST_PEAK, count=steps.length, rate=steps.sample_rate) from None


def _steps_of_batch(question: PricedRecipe, batch: int) -> PlannedSteps:
    recipe, rate = question.recipe, batch / question.recipe.dataset_size
    count = recipe.steps if recipe.epochs is None else steps_in_epochs(recipe.epochs, rate)
    assert count is not None
    return question.steps(peak_noise_multiplier=1.0, count=count, sample_rate=rate)


def _solve_whole(
    question: PricedRecipe, make: Callable[[int], PlannedSteps], most: int, *, power: float
) -> PlannedSteps:
    """The steps of the largest number that fits; if even 1 is too many, an error with the reason and what would fit."""
    epsilon = question.recipe.budget.epsilon
    start = _starting_guess(question, make, power)
    found = largest_affordable(lambda n: _cost_of(question, make, n), epsilon=epsilon, most=most, start=start)
    if found:
        return make(found)
    one, size = make(1), question.recipe.dataset_size
    cost = format_outward(question.cost(one).epsilon, up=True)  # a shape or accountant that refuses says why here
    least = "1 step" if question.recipe.solve == "steps" else f"a batch of 1 of {size} over {one.length} steps"
    error = NoSolution(f"epsilon={epsilon!r} cannot be reached: even {least} costs {cost}.")
    raise _infeasible_error(question, error, scale=1.0, count=one.length, rate=one.sample_rate)


# --- noise ------------------------------------------------------------------------------------------
def solve_peak(question: PricedRecipe) -> float:
    """The peak of the noise shape: priced at most epsilon, and within 1e-4 of it unless the price jumps there."""
    budget, accountant = question.recipe.budget, question.accountant
    unit = question.own_steps(1.0)
    ledger = question.charged_ledger(unit)

    def cost(peak: float) -> float:
        return question.cost(question.own_steps(peak)).epsilon

    if question.has_claim or accountant in CHEAP:
        return calibrate(cost, epsilon=budget.epsilon, start=1.0, rtol=FINE)
    if accountant == "proactive":
        peak = proactive_noise(epsilon=budget.epsilon, delta=budget.delta) / float(unit.noise_multipliers.min())
        return raise_until_met(cost, epsilon=budget.epsilon, peak=peak)
    start = clt_height(ledger, epsilon=budget.epsilon, delta=budget.delta)
    if accountant == "gdp" and unit.sampling.name == "poisson":
        return raise_until_met(cost, epsilon=budget.epsilon, peak=start)
    if accountant != "pld" or unit.sampling.name == "truncated-poisson":
        return calibrate(cost, epsilon=budget.epsilon, start=start)
    refuse_unsupported(Pld(), ledger, adjacency=budget.adjacency, accountant="pld")
    peak = calibrate(pld_epsilon_at(ledger, budget.delta), epsilon=budget.epsilon, start=start)
    return raise_until_met(cost, epsilon=budget.epsilon, peak=peak)


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
    tried: AttackEvidence = []
    here = max(1, min(most, start))
    while fails - fits > max(1.0, within * fits):
        found = cost(here)
        fits, fails = (here, fails) if found <= epsilon else (fits, here)
        tried.append((math.log(here), math.log(max(found, 1e-300)) - math.log(epsilon)))
        here = _next_whole(tried, fits, fails, most)
    return fits


def _next_whole(tried: AttackEvidence, fits: int, fails: int, most: int) -> int:
    """Where a line in log-log meets the target, within the bracket; its middle every other time once it is slow."""
    x, y = tried[-1]
    slope = _slope(tried, 0.5)  # epsilon grows about like sqrt(n)
    guess = x - y / slope if slope > 0 and math.isfinite(y) else math.nan
    middle = math.sqrt(max(fits, 1) * fails) if fails > 4 * max(fits, 1) else (fits + fails) / 2
    if math.isnan(guess) or (len(tried) > 8 and len(tried) % 2):
        chosen = middle
    else:
        chosen = math.exp(min(max(guess, x - 5), x + 5))
    return max(fits + 1, min(fails - 1, most, math.floor(chosen)))


def _starting_guess(question: PricedRecipe, make: Callable[[int], PlannedSteps], power: float) -> int:
    """About where the central limit theorem meets the budget: mu^2 grows like n^power. Anything will do."""
    budget, trial = question.recipe.budget, min(100, question.recipe.dataset_size)
    try:
        costs = gdp.extended_clt_mu(question.charged_ledger(make(trial)))
        grown = (gdp.mu_of(budget.epsilon, budget.delta) / costs) ** (2 / power)
    except (PrivetError, ArithmeticError):
        return 1000
    return int(min(max(trial * grown, 1), 1e12)) if math.isfinite(grown) else 1000


def _cost_of(question: PricedRecipe, make: Callable[[int], PlannedSteps], n: int) -> float:
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
            return question.quick_upper_bound(
                question.steps(peak_noise_multiplier=scale, count=count, sample_rate=rate)
            )
        except (InvalidValue, Unsupported):
            return math.inf

    nearest: list[str] = []
    if knob != "noise":
        with contextlib.suppress(PrivetError):
            nearest.append(f"noise_multiplier >= {_quick_noise(question, count, rate)}")
    if knob != "steps":
        found = largest_affordable(lambda n: at(count=n), epsilon=epsilon, most=count, start=count, within=ROUGH)
        nearest += [f"steps <= {found}"] if found else []
    if knob != "batch" and not isinstance(recipe.batch_size, str):
        most = max(1, int(rate * recipe.dataset_size))
        found = largest_affordable(
            lambda n: at(rate=n / recipe.dataset_size), epsilon=epsilon, most=most, start=most, within=ROUGH
        )
        nearest += [f"batch_size <= {found}"] if found else []
    least = at()
    nearest += [f"epsilon >= {format_outward(least, up=True)}"] if math.isfinite(least) else []
    return NoSolution(f"{error} Nearest that fits, the rest unchanged: {', '.join(nearest) or 'nothing'}.")


def _quick_noise(question: PricedRecipe, count: int, rate: float) -> str:
    peak = calibrate(
        lambda h: question.quick_upper_bound(question.steps(peak_noise_multiplier=h, count=count, sample_rate=rate)),
        epsilon=question.recipe.budget.epsilon, start=1.0, rtol=ROUGH,
    )  # fmt: skip
    return format_outward(
        question.steps(peak_noise_multiplier=peak, count=count, sample_rate=rate).peak_noise_multiplier, up=True
    )
