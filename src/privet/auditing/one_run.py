"""How many guesses to make in a one-run audit: decided beforehand, by where too small a claim would show best."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor, nn

from privet import _check
from privet.accounting.tradeoff import Curve, Gaussian, tradeoff
from privet.auditing.bounds import curve_p_value, epsilon_bound, equivalent_mu, is_rejected, mu_bound
from privet.auditing.finding import ALARM, Finding, Verdict, empirical_guarantee
from privet.clipping.rule import clipping_rule, is_adaptive
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.training.checks import check_preprocessing
from privet.training.training import Training

Floats = NDArray[np.float64]

FRACTIONS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
MOST_CANARIES = 2**17
MOST_GUESSES = 20_000  # beyond, a bound takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCount:
    """The canaries with the highest scores are said to be in; if `both`, as many with the lowest to be out."""

    count: int
    both: bool

    def count_correct(self, scores: Floats, coins: NDArray[np.bool_]) -> int:
        order = np.argsort(-scores, kind="stable")
        top = self.count - self.count // 2 if self.both else self.count
        bottom = self.count - top
        return int(coins[order[:top]].sum()) + int((~coins[order[len(order) - bottom :]]).sum())

    def expected_correct(self, mu: float, canaries: int) -> int:
        """The right guesses to expect if scores are N(0, 1) without and N(mu, 1) with, rounded down."""
        share = self.count / canaries / (2 if self.both else 1)
        if share >= 0.5 and self.both:
            return int(self.count * special.ndtr(mu / 2))

        def above(t: float) -> float:
            return float(special.ndtr(-t) + special.ndtr(mu - t)) / 2 - share

        t = optimize.brentq(above, -40.0, 40.0 + mu)
        return int(self.count * min(1.0, float(special.ndtr(mu - t)) / 2 / share))


def guess_options(canaries: int) -> list[GuessCount]:
    """Some or all canaries, on both sides or the top alone."""
    counts = sorted({max(1, min(int(fraction * canaries), MOST_GUESSES)) for fraction in FRACTIONS})
    return [GuessCount(count=count, both=both) for count in counts for both in (True, False)]


def best_against_curve(curve: Curve, *, mu: float, canaries: int, significance: float) -> tuple[GuessCount, bool]:
    """The guesses that would reject the curve most clearly if the truth were G_mu; and whether they would at all."""
    found, clearest = guess_options(canaries)[0], 0.0
    for guesses in guess_options(canaries):
        right, level = guesses.expected_correct(mu, canaries), significance
        while level > 1e-60 and is_rejected(
            curve, canaries=canaries, guesses=guesses.count, right=right, significance=level
        ):
            found, clearest = (guesses, level) if not clearest or level < clearest else (found, clearest)
            level *= 1e-4
    return found, bool(clearest)


def best_for_epsilon(*, mu: float, canaries: int, delta: float, significance: float) -> GuessCount:
    """The guesses whose direct bound on epsilon would be largest if the truth were G_mu."""

    def bound(guesses: GuessCount) -> float:
        right = guesses.expected_correct(mu, canaries)
        return epsilon_bound(
            canaries=canaries, guesses=guesses.count, right=right, delta=delta, significance=significance
        )

    return max(guess_options(canaries), key=bound)


def canaries_to_reject(claimed: float, *, mu: float, significance: float, start: int) -> int | None:
    """How many canaries would reject G_claimed if the truth were G_mu, within a factor of 2; None beyond 131,072."""
    canaries = start
    while canaries <= MOST_CANARIES:
        if best_against_curve(Gaussian(mu=claimed), mu=mu, canaries=canaries, significance=significance)[1]:
            return canaries
        canaries *= 2
    return None


Coins = NDArray[np.bool_]
Kind = Literal["block", "examples"]

LEAST_CANARIES = 10
PULL = 1e3  # a canary's gradient, far above any clip
FACTOR = 4.0  # canaries must be enough to see a mu this many times the claimed one: a quarter of the noise
FACTORS = (2.0, FACTOR, 8.0)  # the number of guesses is decided for the first of these that could be seen


class Block(nn.Module):
    """One parameter for each canary, and one that stands for all other records."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.places = nn.Embedding(canaries + 1, 1)
        nn.init.zeros_(self.places.weight)

    def forward(self, place: Tensor) -> Tensor:
        out: Tensor = self.places(place)
        return out  # (B, 1)


def one_run(
    plan: Plan, *, canaries: int = 1000, kind: Kind = "block", task: Task | None = None, claim: Curve | None = None,
    significance: float = ALARM, delta: float | None = None, randomness: Randomness | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Finding:  # fmt: skip
    """Train by `plan` once with canaries, and hold the right guesses against the plan's own trade-off curve.

    The number of guesses is decided before any coin is looked at. `claim` is another curve, for a run that is charged
    for less than it does. A false alarm has at most the chance `significance`, by the bound of `curve_p_value`.

    Raises:
        InvalidValue: there are more canaries than the plan has records, or examples are asked for without a task.
        Unsupported: the plan's rule learns from releases, or its curve is not known.
    """
    _check.between(0, 1, significance=significance)
    _check.one_of(("block", "examples"), kind=kind)
    _check_plan(plan, canaries)
    start = time.perf_counter()
    curve = tradeoff(plan.ledger(), adjacency=plan.recipe.budget.adjacency) if claim is None else claim
    source = Randomness() if randomness is None else randomness
    coins = source.numpy_generator().random(canaries) < 0.5
    if kind == "block":
        scores = _block_scores(plan, coins, source, progress)
    else:
        scores = _example_scores(plan, coins, task, source, progress)
    delta = plan.recipe.budget.delta if delta is None else delta
    return _judge_guesses(scores, coins, curve, plan, kind, significance, delta, start)


def _check_plan(plan: Plan, canaries: int) -> None:
    _check.whole(least=LEAST_CANARIES, canaries=canaries)
    if canaries > plan.recipe.dataset_size:
        raise InvalidValue(
            f"canaries={canaries} must be at most the plan's dataset_size={plan.recipe.dataset_size}. Each takes an "
            "example's place. Use fewer."
        )
    if plan.recipe.budget.adjacency != "zero-out" or plan.recipe.budget.unit != "example":
        raise Unsupported(
            f"adjacency={plan.recipe.budget.adjacency!r}, unit={plan.recipe.budget.unit!r}: canaries here are examples "
            "that become null examples. Plan with adjacency='zero-out' and unit='example'."
        )
    if is_adaptive(clipping_rule(plan.rule, uncertified=plan.is_unsound)):
        raise Unsupported(
            f"rule={plan.rule!r} learns from releases, and a null example still changes it. Audit it by replay and "
            "step."
        )


# --- the run -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """Adds up what each step says of each canary: the log of how much likelier its release is with it than without.

    log(1 - q + q exp((x - 1/2) / noise^2)),   x the canary's own entry of the noisy sum, over the clip
    """

    block: Block
    plan: Plan
    progress: Callable[[int, int], None] | None
    scores: Floats = field(init=False)
    done: int = field(default=0, init=False)
    _before: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.block.places.weight.detach().clone()
        self.scores = np.zeros(len(self._before) - 1)

    def __call__(self, *_: Any) -> None:
        """After each step of the optimizer, which is SGD with learning rate 1."""
        step = self.plan.steps[self.done]
        now = self.block.places.weight.detach().clone()
        x = (now - self._before)[:-1, 0].double().numpy() * (
            step.sample_rate * self.plan.recipe.dataset_size / step.clipping_norm
        )
        with np.errstate(over="ignore"):
            ratio = (x - 0.5) / step.noise_multiplier**2
            self.scores += np.logaddexp(
                np.log1p(-step.sample_rate) if step.sample_rate < 1 else -np.inf, np.log(step.sample_rate) + ratio
            )
        self._before = now
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, len(self.plan.steps))


def _block_scores(plan: Plan, coins: Coins, source: Randomness, progress: Any) -> Floats:
    """The scores of canaries in a block of their own; all other records are null."""
    size, m = plan.recipe.dataset_size, len(coins)
    place = torch.full((size,), m)
    place[:m] = torch.arange(m)
    there = torch.zeros(size)
    there[:m] = torch.from_numpy(coins).float()
    block = Block(m)
    optimizer = torch.optim.SGD(block.parameters(), lr=1.0)
    watch = Watch(block, plan, progress)
    optimizer.register_step_post_hook(watch)
    training = Training(block, optimizer, (place, there), plan, randomness=source, uncertified=plan.is_unsound)
    for places, weights in training:
        training.step(-PULL * weights * block(places)[:, 0])  # so that its entry rises
    return watch.scores


def _example_scores(plan: Plan, coins: Coins, task: Task | None, source: Randomness, progress: Any) -> Floats:
    """The scores of mislabelled examples of a task: how far training has lowered their losses."""
    if task is None:
        raise InvalidValue("task=None has no examples to mislabel. Give a task, or use kind='block'.")
    check_preprocessing(task.non_private_preprocessing)
    if not isinstance(task.train, tuple) or task.train[1].is_floating_point():
        raise Unsupported(f"task={task.name!r} has no labels to change. Use kind='block'.")
    x, y = task.train
    if len(y) != plan.recipe.dataset_size:
        raise InvalidValue(
            f"task={task.name!r} has {len(y)} examples, the plan dataset_size={plan.recipe.dataset_size}. Plan for it."
        )
    m, classes = len(coins), int(y.max()) + 1
    y = y.clone()
    y[:m] = (y[:m] + 1) % classes
    there = torch.ones(len(y))
    there[:m] = torch.from_numpy(coins).float()
    model = task.network()
    before = _example_losses(model, task, x[:m], y[:m])
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.5), (x, there, y), plan, randomness=source,
                        uncertified=plan.is_unsound, max_physical_batch_size=512)  # fmt: skip
    for inputs, weights, targets in training:
        if training.step(task.losses(model(inputs), targets) * weights) and progress is not None:
            progress(training.steps_done, len(plan.steps))
    return before - _example_losses(model, task, x[:m], y[:m])


def _example_losses(model: nn.Module, task: Task, x: Tensor, y: Tensor) -> Floats:
    with torch.no_grad():
        found: Floats = np.nan_to_num(task.losses(model(x), y).double().numpy())
    return found


# --- the verdict ---------------------------------------------------------------------------------------


def _judge_guesses(
    scores: Floats, coins: Coins, curve: Curve, plan: Plan, kind: str, significance: float, delta: float, start: float
) -> Finding:
    m, claimed = len(coins), equivalent_mu(curve)
    guesses, enough = _choose_guesses(curve, claimed, m, significance)
    right = guesses.count_correct(scores, coins)
    p = curve_p_value(curve, canaries=m, guesses=guesses.count, right=right)
    direct = best_for_epsilon(mu=claimed, canaries=m, delta=delta, significance=significance)
    seen = {"canaries": m, "guesses": direct.count, "right": direct.count_correct(scores, coins)}
    epsilon, mu = (
        epsilon_bound(**seen, delta=delta, significance=significance),
        mu_bound(**seen, significance=significance),
    )
    verdict: Verdict = "violation" if p <= significance else "consistent" if enough else "inconclusive"
    needed = None
    if verdict == "inconclusive":
        needed = canaries_to_reject(claimed, mu=FACTOR * claimed, significance=significance, start=2 * m)
    says = _describe_result(verdict, needed, m, guesses, right, p, mu, claimed, kind, len(plan.steps))
    return Finding(
        kind="one-run", verdict=verdict, says=says, significance=significance, mu=mu, mu_claimed=claimed,
        empirical=empirical_guarantee(
            epsilon, delta=delta, significance=significance, method=f"direct bound, {direct.count} guesses",
            steps=len(plan.steps),
            sampling=str(plan.steps.sampling),
        ),
        samples_needed=needed, seconds=time.perf_counter() - start,
        numbers={"canaries": m, "guesses": guesses.count, "right": right, "p_value": p, "where": kind,
                 "advantage": _auc_advantage(scores, coins)},
    )  # fmt: skip


def _choose_guesses(curve: Curve, claimed: float, canaries: int, significance: float) -> tuple[GuessCount, bool]:
    for factor in FACTORS:
        guesses, seen = best_against_curve(curve, mu=factor * claimed, canaries=canaries, significance=significance)
        if seen:
            return guesses, factor <= FACTOR
    return GuessCount(count=max(1, canaries // 10), both=True), False


def _describe_result(
    verdict: str, needed: int | None, m: int, guesses: GuessCount, right: int, p: float, mu: float, claimed: float,
    kind: str, steps: int,
) -> str:  # fmt: skip
    outcome = {
        "violation": "the plan's own curve is rejected",
        "consistent": f"the plan's own curve is not rejected, and {FACTOR:g} times its mu would be",
        "inconclusive": f"not decided; about {needed or 'more than 131072'} canaries would",
    }[verdict]
    if kind == "examples" and verdict == "consistent":  # the power is that of the strongest canaries
        outcome = "the plan's own curve is not rejected; losses of mislabelled examples may hide even a large excess"
    side = "most and least likely" if guesses.both else "most likely"
    return (
        f"{outcome} (p <= {p:.3g}); {right} of {guesses.count} guesses right, the {side} of {m} canaries; mu >= "
        f"{mu:.3g} (Gaussian reading) against {claimed:.3g} claimed; {kind}, one run of {steps} steps"
    )


def _auc_advantage(scores: Floats, coins: Coins) -> float:
    """How often a canary that is there scores above one that is not, less a half, doubled."""
    order = scores.argsort().argsort() + 1.0
    there, gone = int(coins.sum()), int((~coins).sum())
    if not there or not gone:
        return 0.0
    return float(2 * (order[coins].sum() - there * (there + 1) / 2) / (there * gone) - 1)
