"""How good a trial is, where the score itself must be private; and how one of the trials is chosen."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privet.data.task import Measure, Task
from privet.errors import Unsupported
from privet.noise.gaussian import draw, noise_std
from privet.noise.randomness import Randomness
from privet.planning.planned_steps import PlannedSteps
from privet.training.checks import count_records
from privet.training.evaluation import Scores, evaluate


def exact_scores(model: nn.Module, task: Task, validation_fraction: Any) -> Scores:
    """What the model does on the records that judge; they are public, or what is done with it is private."""
    return evaluate(model, replace(task, held_out=validation_fraction))


def correct_counts(model: nn.Module, task: Task, validation_fraction: Any) -> int:
    """How many of the records that judge are answered rightly: one record moves it by one at most. Not private.

    A measure of the user's own that is called accuracy may count in percent, or each place of a record. Here a record
    counts as one or as none, whatever the measure gives for it.
    """

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        found = task.measure.each(outputs, targets)
        if found.shape != (len(targets),):
            raise Unsupported(
                f"task={task.name!r} is judged by {task.measure.name} of shape {tuple(found.shape)} for {len(targets)} "
                "examples. One example must move the count by one at most. Give one value for each example, or public."
            )
        return (found > 0.5).double()

    counted = replace(task, measure=Measure(name=task.measure.name, each=each))
    return round(exact_scores(model, counted, validation_fraction).measure * count_records(validation_fraction))


def noisy_accuracy(right: int, *, size: int, steps: PlannedSteps, source: Randomness) -> float:
    """The share of right answers among `size` records, by the very releases that the steps of a run charge.

    At step t each record takes part with chance q_t, those of them that are right are counted, and noise is added:

        c_t = Binomial(right, q_t) + N(0, sigma_t^2),    share = sum_t w_t c_t / (size sum_t w_t q_t)

    A record moves a count by one, so that c_t is the sampled Gaussian mechanism of step t with clip 1. A record that
    judges is charged what a record that trains is, by the same ledger; no record does both, so a trial with its score
    costs what a run costs, by every accountant. Public weights: w_t = q_t / (sigma_t^2 + size q_t (1 - q_t) / 4).
    """
    rates, noises, weights = _step_weights(size, steps)
    counts = source.numpy_generator().binomial(right, rates).astype(np.float64)
    std = noise_std(steps[0], l2_bound=1.0) / steps[0].noise_multiplier  # 1, rounded up
    normal = draw(torch.empty(len(steps), dtype=torch.float64), std=std, generator=source).numpy()
    return float(np.dot(weights, counts + noises * normal) / (size * np.dot(weights, rates)))


def noisy_accuracy_std(size: int, steps: PlannedSteps) -> float:
    """The standard deviation of `noisy_share` at most, over both sampling and noise: public."""
    rates, noises, weights = _step_weights(size, steps)
    variance = np.dot(weights**2, noises**2 + size * rates * (1 - rates) / 4)
    return float(np.sqrt(variance) / (size * np.dot(weights, rates)))


def _step_weights(size: int, steps: PlannedSteps) -> tuple[Any, Any, Any]:
    rates, noises = np.asarray(steps.sample_rates), np.asarray(steps.noise_multipliers)
    return rates, noises, rates / (noises**2 + size * rates * (1 - rates) / 4)


def best_index(scores: Sequence[float | None], *, higher_is_better: bool) -> int:
    """The place of the best score; one that is not finite is never better. Of equals the first.

    Trials are drawn alike and independently, so the first of equals is as good as a fair draw among them.
    """
    sign = 1.0 if higher_is_better else -1.0
    values = [-math.inf if s is None or not math.isfinite(s) else sign * s for s in scores]
    return values.index(max(values))


def exponential_mechanism(right: Sequence[int], *, epsilon: float, source: Randomness) -> int:
    """A place at random, place i with chance proportional to exp(epsilon right_i / 2): the exponential mechanism.

    One record moves each number of right answers by one at most, so the draw is epsilon-private. Source: McSherry,
    Talwar 2007, as used by Chaudhuri et al. 2011 and Auto DP-SGD, appendix D.
    """
    logs = epsilon * (np.asarray(right, dtype=np.float64) - max(right)) / 2
    chances = np.exp(logs)
    return int(source.numpy_generator().choice(len(right), p=chances / chances.sum()))


def draw_run_count(law: str, mean: float, source: Randomness) -> int:
    """A number from the law: geometric from 1 on, or Poisson from 0 on, with this mean."""
    numbers = source.numpy_generator()
    return int(numbers.geometric(1 / mean) if law == "geometric" else numbers.poisson(mean))
