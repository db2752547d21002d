"""Scores that are private, and choices that are: their laws, against the obvious ones. Seeds are fixed."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privet.data.task import Measure, Task
from privet.errors import Unsupported
from privet.noise.randomness import Randomness
from privet.planning.planned_steps import PlannedSteps
from privet.tuning.choice import (
    best_index,
    correct_counts,
    draw_run_count,
    exponential_mechanism,
    noisy_accuracy,
    noisy_accuracy_std,
)


def estimates(right: int, size: int, steps: PlannedSteps, number: int) -> np.ndarray:
    source = Randomness(5)
    return np.array([noisy_accuracy(right, size=size, steps=steps, source=source) for _ in range(number)])


def test_one_release_on_all_records_has_the_planned_noise_on_the_count():
    """Rate 1, one step: the count of right answers plus N(0, noise^2), exactly the Gaussian mechanism."""
    drawn = estimates(60, 100, PlannedSteps(length=1, sample_rate=1.0, peak_noise_multiplier=3.0), 1000) * 100 - 60
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=len(drawn)) * 3.0**2
    assert low <= (drawn**2).sum() <= high
    assert not low <= (drawn**2 * 1.25**2).sum() <= high  # noise wrong by a quarter would be seen
    assert stats.kstest(drawn / 3.0, "norm").pvalue > 1e-6


def test_many_releases_are_one_estimate_without_bias():
    """Sampling and noise by hand: sums of Poisson-sampled counts, weighted as the docstring says."""
    steps = PlannedSteps(length=40, sample_rate=0.3, peak_noise_multiplier=4.0, noise_schedule="exponential:end=0.25")
    size, right = 200, 150
    drawn = estimates(right, size, steps, 800)
    q, sigma = 0.3, np.array(steps.noise_multipliers)
    w = q / (sigma**2 + size * q * (1 - q) / 4)
    variance = (w**2 * (sigma**2 + right * q * (1 - q))).sum() / (size * (w * q).sum()) ** 2
    assert abs(drawn.mean() - right / size) < 5 * math.sqrt(variance / len(drawn))
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=len(drawn) - 1) * variance
    assert low <= ((drawn - drawn.mean()) ** 2).sum() <= high


def test_the_spread_is_that_of_the_worst_case():
    steps = PlannedSteps(length=20, sample_rate=1.0, peak_noise_multiplier=2.0)
    assert noisy_accuracy_std(100, steps) == pytest.approx(2.0 / math.sqrt(20) / 100)
    drawn = estimates(50, 100, steps, 800)
    assert drawn.std() == pytest.approx(noisy_accuracy_std(100, steps), rel=0.15)


def is_right(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float()


@pytest.mark.parametrize(
    "measure",
    [
        Measure(name="accuracy", each=is_right),
        Measure(name="accuracy", each=lambda *both: 100 * is_right(*both)),
        Measure(name="accuracy", each=is_right, finish=lambda mean: 100 * mean),
        Measure(name="accuracy", each=lambda *both: is_right(*both) / (is_right(*both) != 0)),  # NaN where wrong
    ],
)
def test_a_record_counts_as_one_or_as_none_whatever_an_accuracy_counts_in(measure):
    x, y = torch.eye(4), torch.tensor([0, 1, 2, 0])
    own = Task(name="own", train=(x, y), held_out=(x, y), evaluation="made up", model=nn.Identity, measure=measure)
    assert correct_counts(own.network(), own, (x, y)) == 3
    assert correct_counts(own.network(), own, (x, torch.tensor([0, 1, 0, 0]))) == 2  # one record moved it by one


def test_a_count_that_compares_records_with_each_other_is_refused():
    x, y = torch.eye(4), torch.tensor([[0], [1], [2], [0]])  # (4,) against (4, 1) would be all of 16 pairs
    own = Task(
        name="own", train=(x, y), held_out=(x, y), evaluation="made up", model=nn.Identity,
        losses=lambda outputs, targets: nn.functional.cross_entropy(outputs, targets[:, 0], reduction="none"),
    )  # fmt: skip
    with pytest.raises(Unsupported, match="one value for each example"):
        correct_counts(own.network(), own, (x, y))


def test_the_best_is_the_highest_or_the_lowest_and_never_what_diverged():
    assert best_index([0.1, None, 0.3, 0.3], higher_is_better=True) == 2
    assert best_index([0.1, math.nan, 0.3], higher_is_better=False) == 0
    assert best_index([None, None], higher_is_better=True) == 0


def test_merit_is_the_exponential_mechanism():
    right, epsilon, number = [10, 12, 9], 1.0, 4000
    source = Randomness(1)
    seen = np.bincount(
        [exponential_mechanism(right, epsilon=epsilon, source=source) for _ in range(number)], minlength=3
    )
    weights = np.array([math.exp(epsilon * score / 2) for score in right])
    assert stats.chisquare(seen, number * weights / weights.sum()).pvalue > 1e-6
    wrong = np.array([math.exp(epsilon * score) for score in right])  # twice the epsilon would be seen
    assert stats.chisquare(seen, number * wrong / wrong.sum()).pvalue < 1e-6


def test_merit_survives_large_counts():
    assert exponential_mechanism([10**6, 10**6 - 10**5], epsilon=1.0, source=Randomness(0)) == 0


@pytest.mark.parametrize("mean", [1.0, 3.0])
def test_the_number_of_runs_has_the_law_of_the_plan(mean):
    """P[k] = (1 - 1/m)^(k-1) / m, k >= 1; or Poisson."""
    source, number = Randomness(2), 4000
    for law in ("geometric", "poisson"):
        seen = np.bincount([draw_run_count(law, mean, source) for _ in range(number)], minlength=8)
        k = np.arange(7)
        chance = (1 - 1 / mean) ** np.maximum(k - 1, 0) / mean if law == "geometric" else stats.poisson.pmf(k, mean)
        if law == "geometric":
            chance = np.where(k == 0, 0.0, chance)
        for count, p in zip(seen[:7], chance, strict=True):
            assert stats.binom.cdf(count, number, p) > 1e-8
            assert stats.binom.sf(count - 1, number, p) > 1e-8
