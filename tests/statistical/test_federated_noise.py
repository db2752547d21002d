"""The noise on the aggregate has the promised spread, whoever answers, and clients are sampled at the plan's rate."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privet import plan
from privet.federated.server import Server

CLIENTS, BATCH, VALUES, ROUNDS = 40, 10, 5000, 20
NOISE, CLIP = 1.5, 0.3
ALARM = 1e-8  # chance that right noise, or a right rate, is rejected, in each test


def released(*, answer: bool, noise: float = NOISE) -> tuple[np.ndarray, list[int]]:
    """What the optimizer is given in each round, less what the clients that answered put in; and who was asked."""
    p = plan(
        delta=1e-2,
        dataset_size=CLIENTS,
        batch_size=BATCH,
        steps=ROUNDS,
        noise_multiplier=noise,
        clipping_norm=CLIP,
        solve="epsilon",
        unit="client",
    )
    model = nn.Linear(VALUES, 1, bias=False)
    nn.init.zeros_(model.weight)
    server = Server(model, torch.optim.SGD(model.parameters(), lr=1.0), p, clients=CLIENTS)
    update = torch.zeros(1, VALUES)
    update[0, 0] = 1.0  # clipped to CLIP in one entry, which is left out below
    seen, asked = [], []
    for chosen in server:
        before = model.weight.detach().clone()
        server.step((k, {"weight": update}) for k in chosen if answer)
        seen.append((before - model.weight.detach())[0, 1:].double().numpy())
        asked += chosen
    return np.concatenate(seen), asked


def is_right(drawn: np.ndarray, std: float) -> bool:
    squares = float((drawn**2).sum()) / std**2
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], df=drawn.size)
    return bool(low <= squares <= high)


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.slow
def test_the_noise_is_noise_times_clip_over_the_expected_count(answer: bool) -> None:
    """Whether all that were asked answer, or nobody does. A spread wrong by 3 % would be seen."""
    drawn, _ = released(answer=answer)
    std = NOISE * CLIP / BATCH
    assert is_right(drawn, std)
    assert not is_right(drawn * 1.03, std)
    assert not is_right(drawn / 1.03, std)
    assert stats.kstest(drawn[:20_000] / std, "norm").pvalue > ALARM
    rounds = drawn.reshape(ROUNDS, -1)
    worst = np.abs(np.corrcoef(rounds)[np.triu_indices(ROUNDS, 1)]).max()
    assert worst < stats.norm.isf(ALARM / 2 / 190) / np.sqrt(rounds.shape[1])  # no two rounds share noise


def test_clients_are_asked_at_the_plans_rate() -> None:
    """Each with chance 1/4 in each of 20 rounds: the total is binomial, and so is every client's own count."""
    _, asked = released(answer=False)
    tossed = CLIENTS * ROUNDS
    low, high = stats.binom.ppf([ALARM / 2, 1 - ALARM / 2], tossed, BATCH / CLIENTS)
    assert low <= len(asked) <= high
    assert not low <= tossed * 0.5 <= high
    counts = np.bincount(asked, minlength=CLIENTS)
    assert counts.max() <= stats.binom.isf(ALARM / CLIENTS, ROUNDS, BATCH / CLIENTS)
