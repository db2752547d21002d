"""The law of the noise. Each test states how often right noise fails it, and rejects a wrong one."""

import multiprocessing
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import special, stats

from privet.noise.discrete import Grid, add_secure_noise, rounded_gaussian
from privet.noise.gaussian import TAIL, _redraw_tail, add_noise, draw, std_per_rank
from privet.noise.randomness import Randomness, os_randomness, seeded

ALARM = 1e-6  # how often one statistic raises a false alarm


def drawn_in(flat: torch.Tensor, *, std: float, generator: Randomness, secure: bool = False) -> np.ndarray:
    if not secure:
        return draw(flat, std=std, generator=generator).double().numpy().copy()
    grid = Grid(width=2.0**-18, spread=std * 2.0**18)
    return add_secure_noise({"w": torch.zeros_like(flat)}, grid=grid, randomness=generator)["w"].double().numpy()


def noise(count: int, *, std: float = 1.0, seed: int = 0, secure: bool = False, dtype: torch.dtype = torch.float32):
    return drawn_in(torch.empty(count, dtype=dtype), std=std, generator=seeded(seed), secure=secure)


def right_spread(drawn: np.ndarray, std: float) -> bool:
    """sum (x / std)^2 is chi-square."""
    low, high = stats.chi2(drawn.size).ppf([ALARM / 2, 1 - ALARM / 2])
    return bool(low <= ((drawn / std) ** 2).sum() <= high)


def right_law(drawn: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> bool:
    return bool(stats.kstest(drawn, cdf, method="asymp").pvalue > ALARM)


def tail_cdf(size: np.ndarray) -> np.ndarray:
    """P[|z| <= size given |z| > TAIL]."""
    return 1 - special.ndtr(-size) / special.ndtr(-TAIL)


def apart(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the correlation is that of independent values, normal with deviation 1 / sqrt(n)."""
    correlation = float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
    return abs(correlation) * np.sqrt(a.size) <= stats.norm.isf(ALARM / 2)


WAYS = pytest.mark.parametrize(
    "way", [{}, {"secure": True}, {"dtype": torch.float64}], ids=["plain", "secure", "double"]
)


@WAYS
@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (0.99, False), (1.01, False)])
def test_noise_has_the_promised_spread(way, factor, passes):
    """Fails once in a million; a spread wrong by 1 % is caught. 2 is promised."""
    assert right_spread(noise(600_000, std=2.0 * factor, **way), 2.0) == passes


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (0.999, False), (1.001, False)])
def test_noise_has_the_promised_spread_to_a_thousandth(factor, passes):
    """Fails once in a million; a spread wrong by 0.1 % is caught, with 40 million values."""
    source, flat, total, count = seeded(1), torch.empty(4_000_000), 0.0, 40_000_000
    for _ in range(10):
        total += float((draw(flat, std=factor, generator=source) ** 2).sum(dtype=torch.float64))
    low, high = stats.chi2(count).ppf([ALARM / 2, 1 - ALARM / 2])
    assert bool(low <= total <= high) == passes


@WAYS
@pytest.mark.parametrize("count", [1, 7, 16, 50_000])
def test_noise_is_normal(way, count):
    """Kolmogorov-Smirnov, fails once in a million. Short tensors take another path through torch."""
    drawn = np.concatenate([noise(count, std=3.0, seed=seed, **way) for seed in range(max(1, 700 // count))])
    assert right_law(drawn, stats.norm(scale=3.0).cdf)


def test_what_is_not_normal_is_caught():
    """A uniform and a Laplace law of the same spread, and noise that is off centre by 2 % of it."""
    numbers = np.random.default_rng(0)
    for drawn in (
        numbers.uniform(-3, 3, 100_000) / np.sqrt(3),
        numbers.laplace(size=100_000) / np.sqrt(2),
        numbers.normal(0.02, size=100_000),
    ):
        assert not right_law(drawn, special.ndtr)


def test_the_tail_is_neither_cut_nor_heavy():
    """8 million values: about 507 beyond 4 deviations, spread as a normal tail is; each fails once in a million."""
    drawn = np.abs(noise(8_000_000, seed=2))
    beyond = drawn[drawn > TAIL]
    chance = 2 * stats.norm.sf(TAIL)
    assert abs(beyond.size - 8e6 * chance) < stats.norm.isf(ALARM / 2) * np.sqrt(8e6 * chance)
    assert right_law(beyond, tail_cdf)
    assert not right_law(beyond + 0.1, tail_cdf)


def test_values_are_redrawn_past_the_end_of_torchs_own():
    """torch's float32 normals end at 5.77: of 200,000 in the tail 25 lie beyond, fewer than 5 once in 1e6."""
    block = torch.full((200_000,), 4.5)
    block[::2] *= -1
    _redraw_tail(block, 1.0, seeded(0).torch_generator())
    assert right_law(block.abs().double().numpy(), tail_cdf)
    assert torch.equal(block.sign()[:4], torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    assert int((block.abs() > 5.77).sum()) >= 5
    ends = max(
        float(torch.empty(1_000_000).normal_(generator=seeded(3).torch_generator()).abs().max()) for _ in range(3)
    )
    assert ends < 5.77


def test_noise_is_normal_where_it_is_drawn_again(monkeypatch):
    """With the tail moved in to half a deviation; fails once in a million. What lies within is torch's own."""
    monkeypatch.setattr("privet.noise.gaussian.TAIL", 0.5)
    drawn, own = (
        noise(40_000, std=3.0, seed=5),
        torch.empty(40_000).normal_(0.0, 3.0, generator=seeded(5).torch_generator()),
    )
    assert right_law(drawn, stats.norm(scale=3.0).cdf)
    assert ((drawn == own.numpy()) == (own.abs().numpy() <= 1.5)).all()


@WAYS
def test_steps_and_neighbours_are_not_correlated(way):
    """Two steps, and each value with the next and the 16th next: three statistics, each fails once in a million."""
    source, flat = seeded(4), torch.empty(500_000, dtype=way.get("dtype", torch.float32))
    secure = way.get("secure", False)
    first, second = (drawn_in(flat, std=1.0, generator=source, secure=secure) for _ in range(2))
    assert apart(first, second)
    assert apart(first[1:], first[:-1])
    assert apart(first[16:], first[:-16])
    assert not apart(first, second + 0.02 * first)  # known wrong: one part in fifty of the last step's noise
    assert not apart(first, first)


def test_the_parameters_of_a_step_are_not_correlated():
    """Noise of one tensor says nothing about another's; fails once in a million."""
    grads = {"a": torch.zeros(200_000), "b": torch.zeros(200_000), "c": torch.zeros(200_000, dtype=torch.float64)}
    found = {name: grad.double().numpy() for name, grad in add_noise(grads, std=1.0, randomness=seeded(8)).items()}
    assert apart(found["a"], found["b"])
    assert apart(found["a"], found["c"])


def test_the_noise_of_all_ranks_adds_up():
    """Five ranks' shares have the promised spread together; fails once in a million. Full noise from each does not."""
    flat = torch.empty(200_000)

    def summed(std: float) -> np.ndarray:
        return sum(draw(flat, std=std, generator=seeded(0, rank)).double().numpy().copy() for rank in range(5))

    assert right_spread(summed(std_per_rank(0.7, 5)), 0.7)
    assert not right_spread(summed(0.7 / 5), 0.7)
    assert not right_spread(summed(0.7), 0.7)


# --- whole numbers ---------------------------------------------------------------------------------


def chances(values: np.ndarray, spread: float) -> np.ndarray:
    """P[Z = j] = Phi((j + 1/2) / s) - Phi((j - 1/2) / s)."""
    return special.ndtr((values + 0.5) / spread) - special.ndtr((values - 0.5) / spread)


def right_cells(drawn: np.ndarray, spread: float) -> bool:
    """Chi-square over all cells that should hold 20 or more, and the rest as one."""
    reach = int(9 * spread) + 1
    values = np.arange(-reach, reach + 1)
    expected, seen = chances(values, spread) * drawn.size, np.bincount(drawn + reach, minlength=values.size)
    many = expected >= 20
    rest = drawn.size - expected[many].sum(), drawn.size - seen[many].sum()
    statistic = ((seen[many] - expected[many]) ** 2 / expected[many]).sum() + (rest[1] - rest[0]) ** 2 / max(
        rest[0], 20
    )
    return bool(stats.chi2(many.sum()).sf(statistic) > ALARM)


@pytest.mark.parametrize("spread", [0.4, 1.0, 3.7, 25.0])
def test_each_whole_number_has_its_chance(spread):
    """Fails once in a million; a spread wrong by 2 %, or noise off by a cell, is caught."""
    drawn = rounded_gaussian(400_000, spread=spread, randomness=seeded(6))
    assert right_cells(drawn, spread)
    assert not right_cells(drawn, spread * 1.02)
    assert not right_cells(drawn, spread / 1.02)
    assert not right_cells(drawn + 1, spread)


def test_the_discrete_gaussian_is_another_law():
    """Densities at whole numbers, made to add up to 1, are caught where they differ: at a small spread."""
    values = np.arange(-9, 10)
    weights = np.exp(-(values**2) / 2 / 0.4**2)
    drawn = np.random.default_rng(0).choice(values, size=400_000, p=weights / weights.sum())
    assert not right_cells(drawn, 0.4)


# --- nothing repeats --------------------------------------------------------------------------------


def told(source: Randomness) -> tuple[float, ...]:
    flat = draw(torch.empty(20), std=1.0, generator=source)
    secure = rounded_gaussian(4, spread=1e9, randomness=source)
    return (*flat.tolist(), *secure.tolist(), *source.numpy_generator().random(4).tolist())


def in_forks(source: Randomness) -> list[tuple[float, ...]]:
    """What a source tells in two forked processes, each with the copy it was born with."""
    context = multiprocessing.get_context("fork")
    found = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=lambda end: end.send(told(source)), args=(theirs,))
        process.start()
        found.append(ours.recv())
        process.join()
    return found


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_workers_do_not_repeat():
    """Agreement in all 28 numbers by chance: never. A seeded source is copied by a fork, and does repeat."""
    source = os_randomness()
    told(source)
    seen = [*in_forks(source), told(source), told(os_randomness())]
    assert len(set(seen)) == 4
    assert not any(set(a) & set(b) for a in seen for b in seen if a is not b)
    copied = in_forks(seeded(1))
    assert copied[0] == copied[1]
