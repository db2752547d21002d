"""Membership: scores against the slow way, limits that hold, and models that differ by nothing but their members."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from privet import plan
from privet.accounting.tradeoff import Gaussian
from privet.attacks.membership import (
    ATTACKS,
    ShadowModels,
    mean_interval,
    membership_inference,
    membership_scores,
    passed_weights,
    roc,
    score_attack,
    to_add_remove,
    total_record_weight,
    train_shadow_models,
)
from privet.data.task import Task
from privet.errors import Unsupported
from privet.training.settings import Settings

pytestmark = pytest.mark.usefixtures("few_checks")


def simulated(models: int, records: int, *, shift: float, seed: int = 0) -> ShadowModels:
    """Confidences of N(record's own mean, 1), moved by `shift` for members: a Gaussian mechanism with mu = shift."""
    source = torch.Generator().manual_seed(seed)
    members = torch.rand(models, records, generator=source) < 0.5
    own = torch.randn(records, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    noise = torch.randn(models, records, generator=source, dtype=torch.float64)
    confidence = own + noise + shift * members
    return ShadowModels(members=members, confidence=confidence, losses=-confidence)


def slow_online(x: float, inside: list[float], outside: list[float], spread_in: float, spread_out: float) -> float:
    a, b = (sum(part) / len(part) for part in (inside, outside))
    return (
        -((x - a) ** 2) / (2 * spread_in**2) - math.log(spread_in) + (x - b) ** 2 / (2 * spread_out**2)
        + math.log(spread_out)
    )  # fmt: skip


def test_scores_are_likelihood_ratios_and_leave_out_leaves_out() -> None:
    seen = simulated(12, 5, shift=1.0)
    found = membership_scores("lira-online", seen, seen, leave_out=True)
    spreads = []
    for chosen in (seen.members, ~seen.members):
        left, free = 0.0, 0
        for r in range(5):
            values = seen.confidence[chosen[:, r], r]
            left, free = left + float(((values - values.mean()) ** 2).sum()), free + len(values) - 1
        spreads.append(math.sqrt(left / free))
    for m in range(12):
        for r in range(5):
            inside, outside = (
                [float(seen.confidence[j, r]) for j in range(12) if j != m and bool(seen.members[j, r]) is word]
                for word in (True, False)
            )
            slow = slow_online(float(seen.confidence[m, r]), inside, outside, *spreads)
            assert float(found[m, r]) == pytest.approx(slow)


def test_rates_are_counts_over_counts() -> None:
    values, members = torch.tensor([3.0, 2.0, 2.0, 1.0]), torch.tensor([True, False, True, False])
    false, true = roc(values, members)
    assert false.tolist() == [0.0, 0.0, 0.5, 1.0]
    assert true.tolist() == [0.0, 0.5, 1.0, 1.0]


def test_limits_of_a_mean_hold() -> None:
    """Each may fail in 5 % of the draws: over 1,000, more than 80 would be a limit that fails."""
    source = np.random.default_rng(0)
    wrong = [0, 0]
    for _ in range(1000):
        low, high = mean_interval(source.binomial(1, 0.2, 12).astype(float), 0.05)
        wrong = [wrong[0] + (low > 0.2), wrong[1] + (high < 0.2)]
    assert max(wrong) <= 80
    assert mean_interval(np.ones(10), 0.01)[1] == 1.0


@pytest.mark.parametrize("records", [1, 2, 5])
def test_shares_weigh_both_rates_alike(records: int) -> None:
    """All sets of members one by one. Who passes depends on all coins: the law is known, and kept exactly.

    Record r passes with chance a(others) if it is out, b(others) if it is in: the expected shares over the mass are
    averages of a and b by the same weights. Counts as denominators are not: with b = a they find members more often.
    """
    coins = torch.tensor(list(itertools.product([False, True], repeat=records)))
    everyone, half = torch.ones_like(coins), coins.sum(1, keepdim=True).double()
    true, false = passed_weights(everyone, coins)
    assert (max(true), max(false)) <= (1.0, 1.0)
    assert true.mean() == pytest.approx(total_record_weight(records))
    assert false.mean() == pytest.approx(total_record_weight(records))
    others = half - coins.double()  # the same rate, in or out: the more others are in, the likelier
    chance = (1 + others) / (1 + records)
    weights = [passed_weights(everyone[:, r : r + 1] * 0 + (torch.arange(records) == r), coins) for r in range(records)]
    inside, outside = (
        sum(float((torch.as_tensor(part[k]) * chance[:, r]).mean()) for r, part in enumerate(weights)) for k in (0, 1)
    )
    assert inside == pytest.approx(outside)
    if records == 5:  # what was wrong with counts
        plain = (
            (chance * coins).sum(1) / half[:, 0].clamp(min=1),
            (chance * ~coins).sum(1) / (5 - half[:, 0]).clamp(min=1),
        )
        assert abs(float(plain[0].mean() - plain[1].mean())) > 0.05


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_claim_that_is_too_small_is_found_and_the_truth_is_not_accused(attack: str) -> None:
    learnt, targets = simulated(40, 100, shift=3.0), simulated(200, 100, shift=3.0, seed=1)
    found = score_attack(attack, learnt, targets, Gaussian(mu=0.3), significance=1e-3)
    assert found.is_violation
    assert not score_attack(attack, learnt, targets, Gaussian(mu=3.0), significance=1e-3).is_violation
    assert not score_attack(attack, learnt, targets, None, significance=1e-3).is_violation


def test_the_best_attack_comes_near_the_ceiling() -> None:
    curve = Gaussian(mu=2.0)
    learnt, targets = simulated(200, 200, shift=2.0), simulated(50, 200, shift=2.0, seed=1)
    found = score_attack("lira-online", learnt, targets, curve, significance=1e-3)
    for rate, value in found.tpr.items():
        assert 0.8 * (1 - float(curve(rate))) < value < 1.25 * (1 - float(curve(rate)))
    assert found.advantage == pytest.approx(0.683, abs=0.03)  # 2 Phi(1) - 1


# --- what the models are trained on -----------------------------------------------------------------


def points(spoilt: "list[int] | None" = None) -> Task:
    source = torch.Generator().manual_seed(2)
    x, y = torch.randn(60, 4, generator=source), torch.randint(2, (60,), generator=source)
    if spoilt is not None:
        x[spoilt] = 1e3
    return Task(
        name="points", train=(x, y), held_out=(x, y), evaluation="made up", model=lambda: nn.Linear(4, 2),
        facts={"shape": (4,), "classes": 2},
    )  # fmt: skip


PLAN = plan(delta=1e-5, dataset_size=60, sample_rate=0.2, steps=5, noise_multiplier=1.0, solve="epsilon")


@pytest.mark.parametrize("private", [True, False])
def test_a_record_that_is_left_out_has_no_part_in_a_model(private: bool) -> None:
    def made(task: Task) -> ShadowModels:
        return train_shadow_models(
            PLAN if private else None, task, sampled=PLAN, settings=Settings(device="cpu"), records=10, models=6, seed=3
        )  # fmt: skip

    first = made(points())
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    record = int(order[0])
    second = made(points([record]))
    same = [bool(torch.equal(first.losses[m, 1:], second.losses[m, 1:])) for m in range(6)]
    assert all(same[m] for m in range(6) if not first.members[m, 0])
    assert not all(same)  # some member was drawn
    assert 0 < int(first.members[:, 0].sum()) < 6


def test_rate_and_divisor_stay_those_of_the_plan() -> None:
    twin = to_add_remove(PLAN)
    assert list(twin.steps) == list(PLAN.steps)
    assert twin.recipe.dataset_size == 60
    assert twin.recipe.budget.adjacency == "add-remove"


def test_a_plan_with_other_neighbours_is_refused() -> None:
    other = plan(
        delta=1e-5,
        dataset_size=60,
        batch_size=60,
        steps=2,
        noise_multiplier=3.0,
        solve="epsilon",
        adjacency="replace-one",
    )
    with pytest.raises(Unsupported, match="membership inference needs"):
        membership_inference(other, points(), records=5, shadows=4, targets=2)


def test_ceilings_are_beside_what_was_found() -> None:
    found = membership_inference(PLAN, points(), records=10, shadows=4, targets=2)
    free, private = found.methods
    assert (free.ceilings, free.guarantee) == (None, None)
    assert private.ceilings is not None
    assert 0.01 < private.ceilings["0.01"] < 1
    assert "ceiling, certified" in str(found)
    assert found.as_dict()["methods"][1]["guarantee"]["label"] == "certified"
