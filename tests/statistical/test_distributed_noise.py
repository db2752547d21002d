"""The noise and the sample of many ranks are those of one process. Each test states its false-alarm rate."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privet import Training, plan
from privet.noise.randomness import seeded
from privet.training import distributed, processes, training
from ranks import fine, on_ranks

ALARM = 1e-6  # how often one statistic raises a false alarm
FRESH = 1e-9  # the same, where nothing is seeded: it is new in every run of the tests
LOSS = nn.CrossEntropyLoss(reduction="none")
SIZE, STEPS, NOISE, CLIP = 40, 3, 1.3, 0.4
X, Y = torch.zeros(SIZE, 1500), torch.zeros(SIZE, dtype=torch.int64)  # zeros move no weight: noise is all there is


def steps_of(size, *, sample_rate=0.5, rule="flat", columns=1500, **given):
    """What each step took off the weights, times the planned batch, by plain SGD with learning rate 1; on rank 0."""
    planned = plan(
        delta=1e-3, dataset_size=SIZE, sample_rate=sample_rate, steps=STEPS, noise_multiplier=NOISE, clipping_norm=CLIP,
        rule=rule, solve="epsilon"
    )  # fmt: skip

    def work(g):
        model = nn.Linear(columns, 50, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = (X[:, :columns], Y)
        training = Training(model, optimizer, data, planned, group=g, **given)
        found, before = [], [model.weight.detach().clone()]

        def after(*_):
            found.append((before[0] - model.weight.detach()).double() * sample_rate * SIZE)
            before[0] = model.weight.detach().clone()

        optimizer.register_step_post_hook(after)
        for x, y in training:
            training.step(LOSS(model(x), y))
        return torch.stack(found)

    told = fine(on_ranks(size, work))
    assert all(torch.equal(told[0], other) for other in told)
    return told[0]


def right_spread(drawn, std, significance=ALARM):
    """sum (x / std)^2 is chi-square."""
    low, high = stats.chi2(drawn.numel()).ppf([significance / 2, 1 - significance / 2])
    return bool(low <= float((drawn / std).square().sum()) <= high)


@pytest.mark.parametrize(
    ("size", "given", "std"),
    [
        (2, {}, NOISE * CLIP),
        (3, {"sample_rate": 1.0, "max_physical_batch_size": 3}, NOISE * CLIP),
        (2, {"sample_rate": 1e-9}, NOISE * CLIP),  # empty batches
        (2, {"rule": "quantile:count_noise=2.6,speed=1e-9"}, NOISE * CLIP / (1 - 0.5**2) ** 0.5),
        (2, {"secure_noise": True, "columns": 1000}, NOISE * CLIP * 1.0005),  # the grid takes a little more
    ],
    ids=str,
)
def test_the_sum_over_ranks_has_the_noise_of_one(size, given, std):
    """Right noise fails once in a million; noise that is 2 % off is caught."""
    drawn = steps_of(size, randomness=seeded(11), **given)
    assert right_spread(drawn, std)
    assert not right_spread(drawn, std * 1.02)
    assert not right_spread(drawn, std * 0.98)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda std, world: std,  # every rank adds all of it
        lambda std, world: std / world,  # half of the variance is missing
        lambda std, world: 0.98 * std / world**0.5,
    ],
)
def test_shares_of_another_size_are_caught(monkeypatch, wrong):
    monkeypatch.setattr(processes, "std_per_rank", wrong)
    assert not right_spread(steps_of(2, randomness=seeded(11)), NOISE * CLIP)


def test_ranks_that_draw_the_same_noise_are_caught(monkeypatch):
    """Two equal shares add up to another variance than two independent ones."""
    join = distributed.join_run

    def alike(group, *given):
        join(group, *given)
        return seeded(11)

    monkeypatch.setattr(training, "join_run", alike)
    assert not right_spread(steps_of(2, randomness=seeded(11)), NOISE * CLIP)


def test_private_noise_is_new_in_every_step_and_run():
    """Correlations of independent noises are normal with deviation 1 / sqrt(n); no two may be the same draw."""
    flat = torch.cat([steps_of(2).flatten(1), steps_of(2).flatten(1)])
    assert right_spread(flat, NOISE * CLIP, FRESH)
    correlations = torch.corrcoef(flat)
    pairs = correlations[torch.triu(torch.ones_like(correlations), 1) > 0]
    assert float(pairs.abs().max()) * flat.shape[1] ** 0.5 < stats.norm.isf(FRESH / 2 / len(pairs))


@pytest.mark.slow
def test_ranks_together_toss_one_coin_for_each_record():
    """Inclusion counts are binomial (chi-square, near one false alarm in a million); no record is in two parts."""
    size, rounds, rate, records = 3, 200, 0.3, 24
    planned = plan(
        delta=1e-3, dataset_size=records, sample_rate=rate, steps=rounds, noise_multiplier=5.0, solve="epsilon"
    )
    x = torch.eye(records)

    def work(g):
        model = nn.Linear(records, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        training = Training(model, optimizer, (x, Y[:records]), planned, group=g, randomness=seeded(3))
        seen = np.zeros((rounds, records), int)
        for inputs, targets in training:
            number, is_padding = training.steps_done, training._is_lent
            training.step(LOSS(model(inputs), targets))
            seen[number] += 0 if is_padding else inputs.sum(0).int().numpy()
        return seen

    parts = np.stack(fine(on_ranks(size, work)))
    seen = parts.sum(0)
    assert seen.max() == 1
    assert np.ptp(parts.sum(2), axis=0).max() <= 1  # equal work
    spread = (seen.sum(0) - rounds * rate) ** 2 / (rounds * rate * (1 - rate))
    assert spread.sum() < stats.chi2(records).isf(ALARM)
    together = np.corrcoef(seen.T)[np.triu_indices(records, 1)] * rounds**0.5
    assert (together**2).sum() < stats.chi2(len(together)).isf(ALARM)
