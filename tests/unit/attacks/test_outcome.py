"""Measures of pictures against slow ways, and intervals against SciPy's."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from privet.attacks.outcome import (
    difference_interval,
    match_records,
    mse,
    psnr,
    ranks_by_distance,
    ranks_by_score,
    rate_interval,
    ssim,
)


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def slow_ssim(a: Tensor, b: Tensor) -> float:
    """Window by window, pixel by pixel."""
    channels, height, width = a.shape
    weights = {}
    for i, j in itertools.product(range(11), repeat=2):
        weights[i, j] = math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2))
    total = sum(weights.values())
    found = []
    for c, top, left in itertools.product(range(channels), range(height - 10), range(width - 10)):
        m = n = p = q = r = 0.0
        for (i, j), weight in weights.items():
            x, y, w = float(a[c, top + i, left + j]), float(b[c, top + i, left + j]), weight / total
            m, n, p, q, r = m + w * x, n + w * y, p + w * x * x, q + w * y * y, r + w * x * y
        c1, c2 = 0.01**2, 0.03**2
        found.append((2 * m * n + c1) * (2 * (r - m * n) + c2) / ((m * m + n * n + c1) * (p - m * m + q - n * n + c2)))
    return sum(found) / len(found)


def test_ssim_is_the_slow_one() -> None:
    a, b = pictures(1, 2, 14, 13), pictures(1, 2, 14, 13, seed=1)
    near = (a + 0.1 * b).clamp(0, 1)
    for other in (b, near):
        assert float(ssim(other, a)) == pytest.approx(slow_ssim(other[0], a[0]), abs=1e-5)


def test_ssim_knows_the_same_picture_and_takes_small_ones() -> None:
    x = pictures(3, 1, 8, 8)
    assert torch.allclose(ssim(x, x), torch.ones(3))
    assert float(ssim(pictures(1, 1, 28, 28), pictures(1, 1, 28, 28, seed=1))) < 0.2


def test_errors_are_of_what_a_viewer_sees() -> None:
    x = pictures(2, 1, 4, 4)
    assert torch.allclose(mse(x + 0.1, x), ((x + 0.1).clamp(max=1) - x).square().mean((1, 2, 3)))
    assert mse(torch.full_like(x, torch.nan), x).isfinite().all()
    assert float(psnr(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1))) == pytest.approx(20, abs=1e-4)


def test_ranks_count_the_nearer_candidates_and_ties_do_not_help() -> None:
    candidates = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1).expand(3, 1, 2, 2)
    found = torch.full((1, 1, 2, 2), 0.4)
    assert [int(ranks_by_distance(found, candidates, torch.tensor([k]))) for k in range(3)] == [1, 0, 2]
    assert int(ranks_by_score(torch.zeros(1, 5), torch.tensor([2]))) == 4


def test_records_of_one_victim_are_matched_as_well_as_can_be() -> None:
    true = pictures(3, 3, 1, 4, 4)
    shuffled = torch.stack([true[0][[2, 0, 1]], true[1], true[2][[1, 0, 2]]])
    order = match_records(shuffled + 0.01, true)
    assert torch.equal(shuffled[torch.arange(3)[:, None], order], true)


@pytest.mark.parametrize(("count", "trials"), [(0, 100), (3, 100), (100, 100), (7, 9)])
def test_limits_are_those_of_clopper_and_pearson(count: int, trials: int) -> None:
    peer = stats.binomtest(count, trials).proportion_ci(confidence_level=0.95, method="exact")
    assert rate_interval(count, trials) == pytest.approx((peer.low, peer.high))


def test_the_interval_of_a_difference_covers_it() -> None:
    """Over 2,000 draws, less than 95 % would be a coverage that failed; the interval is cautious."""
    source = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        low, high = difference_interval(int(source.binomial(50, 0.3)), int(source.binomial(50, 0.1)), 50)
        covered += low <= 0.2 <= high
    assert covered >= 1900
    low, high = difference_interval(0, 0, 100)
    assert low < 0 < high < 0.05


def test_scores_that_are_no_numbers_identify_nobody() -> None:
    scores = torch.tensor([[torch.nan] * 3, [0.5, torch.nan, torch.nan], [0.5, 0.1, 0.2]])
    assert ranks_by_score(scores, torch.tensor([0, 0, 0])).tolist() == [2, 2, 0]
