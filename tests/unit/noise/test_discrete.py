"""Secure noise: whole cells whatever the sum, and enough of it for what rounding and floating point may add."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch import nn

from engine_oracle import CrossEntropy, Fn, apart
from privet.accounting import Step
from privet.accounting.pld.accountant import one_step_delta
from privet.clipping.clipped_sum import ClippedSum, clipped_sum
from privet.clipping.quantile import Quantile
from privet.clipping.rule import clipping_rule
from privet.errors import InvalidValue, Unsupported
from privet.noise.discrete import FURTHEST, Grid, add_secure_noise, choose_grid, round_to_grid, rounding_allowance
from privet.noise.gaussian import add_noise
from privet.noise.randomness import Randomness, os_randomness, seeded
from privet.noise.release import release
from privet.per_example.forms import Dense, OuterProduct

LOSS = nn.CrossEntropyLoss(reduction="none")


def a_sum(*, clip=0.4, grads=None, bits=None):
    grads = {"w": torch.zeros(7)} if grads is None else grads
    return ClippedSum(grads=grads, l2_bound=clip, raw_norms=torch.zeros(2), raw_batch_size=2, raw_statistics=bits)


# --- nothing of the sum is left in the last bits -----------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 1 / 3, -math.pi, 1e-9, 12345.678])
def test_every_value_is_a_whole_number_of_cells(value):
    sums = {"w": torch.full((5000,), value, dtype=torch.float64)}
    grid = choose_grid(sums, std=1.3, noise=1.3, batch=8)
    cells = add_secure_noise(sums, grid=grid, randomness=os_randomness(), divisor=8.0)["w"] * 8 / grid.width
    assert torch.equal(cells, cells.round())
    assert abs(float(cells.mean()) * grid.width - value) < 6 * grid.std / math.sqrt(5000)
    parity = float((cells % 2).mean())  # the lowest bit is a fair coin whatever the sum: wrong once in a million
    assert abs(parity - 0.5) < stats.norm.isf(5e-7) * 0.5 / math.sqrt(5000)


def test_plain_noise_is_on_no_grid():
    """The test above can fail: what a sum leaves in the last bits is there without secure noise."""
    sums = {"w": torch.full((5000,), 1 / 3, dtype=torch.float64)}
    grid = choose_grid(sums, std=1.3, noise=1.3, batch=8)
    cells = add_noise(sums, std=1.3, randomness=os_randomness(), divisor=8.0)["w"] * 8 / grid.width
    assert not torch.equal(cells, cells.round())


def test_a_sum_within_a_cell_does_not_matter_at_all():
    grid = Grid(width=2.0**-10, spread=2.0**12)
    one, two = (add_secure_noise({"w": torch.full((9,), v)}, grid=grid, randomness=seeded(1)) for v in (1.0, 1.0004))
    assert torch.equal(one["w"], two["w"])


# --- how far one record can move the cells ------------------------------------------------------------


@pytest.mark.slow
@given(
    d=st.integers(1, 3000), noise=st.floats(0.01, 100), bound=st.floats(1e-6, 1e6), batch=st.floats(1, 1e5),
    kind=st.sampled_from(["spread", "one entry", "half cells"]), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_noise_covers_what_rounding_adds(d, noise, bound, batch, kind, seed):
    """noise * |k - k'| <= spread for sums `bound` (and the allowance) apart, also where all entries round away."""
    numbers = np.random.default_rng(seed)
    like = {"w": torch.zeros(d)}
    grid = choose_grid(like, std=noise * bound, noise=noise, batch=batch)
    towards = np.zeros(d) if kind == "one entry" else np.abs(numbers.normal(size=d)) + 1e-3
    towards[0] += 1e-3
    move = torch.from_numpy(towards / np.linalg.norm(towards) * bound * (1 + rounding_allowance(batch)))
    start = torch.from_numpy(numbers.normal(size=d) * bound)
    if kind == "half cells":  # each entry goes from just below a border to just above another
        width = grid.width
        start = (start / width).floor() * width + 0.4999 * width
        move = (move / width).floor() * width + 0.0002 * width
    assert float(move.norm()) <= bound * (1 + rounding_allowance(batch)) * (
        1 + 1e-12
    ) + 0.0002 * grid.width * math.sqrt(d)
    moved = (round_to_grid(start + move, grid.width) - round_to_grid(start, grid.width)).double().norm()
    assert noise * float(moved) <= grid.spread


def test_rounding_alone_can_use_the_room():
    """Without sqrt(d) in the sensitivity the noise would be short: every entry of 10,000 moves a whole cell."""
    sums, noise = {"w": torch.zeros(10_000)}, 2.0
    grid = choose_grid(sums, std=noise * 1.0, noise=noise, batch=1)
    start = torch.full((10_000,), 0.4999, dtype=torch.float64) * grid.width
    whole = math.floor(1.0 / grid.width / 100)  # cells of each entry, so that the move has norm 1 at most
    moved = (
        (round_to_grid(start + (whole + 0.0002) * grid.width, grid.width) - round_to_grid(start, grid.width))
        .double()
        .norm()
    )
    assert float(moved) > (whole * 100) * (1 + 1e-4)
    assert noise * float(moved) <= grid.spread


@pytest.mark.parametrize("d", [1, 26_010, 10**6])
@pytest.mark.parametrize("noise", [0.3, 1.0, 7.7])
def test_the_noise_is_hardly_larger(d, noise):
    """A 4096th for the grid and the allowance, in all less than a thousandth up to batches of 3,000; never less."""
    grid = choose_grid({"w": torch.empty(d)}, std=noise * 0.7, noise=noise, batch=3000)
    assert noise * 0.7 <= grid.std <= noise * 0.7 * 1.001
    assert math.frexp(grid.width)[0] == 0.5
    assert choose_grid({"w": torch.empty(d).double()}, std=1.0, noise=1.0, batch=1e5).std <= 1 + 1 / 4096 + 1e-9


def test_all_tensors_count_and_the_coarsest_precision():
    together = {"a": torch.zeros(300), "b": torch.zeros(10, 20, dtype=torch.float64), "c": torch.zeros(0, 5)}
    assert choose_grid(together, std=1.0, noise=1.0, batch=9) == choose_grid(
        {"w": torch.zeros(500)}, std=1.0, noise=1.0, batch=9
    )
    assert choose_grid({}, std=1.0, noise=1.0, batch=9).width == 2.0**-12


def test_a_sum_beyond_all_cells_is_cut():
    """No two sums are moved apart by that."""
    cells = round_to_grid(torch.tensor([1e300, -1e300, 3.0], dtype=torch.float64), 2.0**-20)
    assert cells.tolist() == [FURTHEST, -FURTHEST, 3 * 2**20]


def sequence_net():
    return Fn(lambda m, x: m.o(m.a(x).relu().sum(1)), a=nn.Linear(20, 30), o=nn.Linear(30, 3)), (3, 20)


@pytest.mark.parametrize("batch", [1, 6, 33, 300, 1500])
@pytest.mark.parametrize("kind", ["aligned", "ordinary"])
def test_the_computed_sum_stays_within_the_allowance(batch, kind):
    """What is assumed: all of the error, in whatever direction, is less than half of what is allowed for."""
    torch.manual_seed(0)
    model, shape = sequence_net()
    x, y = torch.randn(batch + 1, *shape), torch.randint(3, (batch + 1,))
    if kind == "aligned":
        x, y = x[:1].expand(batch + 1, *shape).clone(), y[:1].expand(batch + 1).clone()
    more, less, own = (clipped_sum(model, CrossEntropy, (x[a:b], y[a:b]), "flat", 0.1).grads
                       for a, b in ((0, batch + 1), (0, batch), (batch, batch + 1)))  # fmt: skip
    error = apart({name: more[name].double() - less[name].double() for name in more}, own)
    assert error <= 0.1 * rounding_allowance(batch) / 2


@pytest.mark.parametrize("size", [2, 8, 32])
def test_many_small_pieces_stay_within_the_allowance(size):
    """The first example gone, all others move into other pieces; plainly added these were 3.4 allowances apart."""
    torch.manual_seed(0)
    rows = (torch.rand(64) + 0.5) * (1 + 1e-3 * torch.randn(4096, 64))
    rows /= rows.norm(dim=1).max()

    def summed(some):
        none = {"l2_bound": 1.0, "raw_norms": torch.zeros(0), "raw_batch_size": 0}
        parts = [ClippedSum(grads={"w": part.sum(0)}, **none) for part in some.split(size)]
        return sum(parts[1:], parts[0]).grads["w"].double()

    assert (summed(rows) - summed(rows[1:]) - rows[0].double()).norm() <= rounding_allowance(4096) / 2


@pytest.mark.parametrize("batch", [4096, 65536])
def test_a_matrix_product_of_a_large_batch_stays_within_the_allowance(batch):
    """At 65,536 aligned examples 2 eps (batch + 32) was not enough."""
    torch.manual_seed(0)
    g, a = ((torch.rand(width) + 0.5) * (1 + 1e-3 * torch.randn(batch, width)) for width in (10, 20))
    bound = float((g.norm(dim=1) * a.norm(dim=1)).max())
    more, less = (OuterProduct(a[k:], Dense(g[k:])).weighted_sum(torch.ones(batch - k)).double() for k in (0, 1))
    own = g[0].double()[:, None] * a[0].double()
    assert (more - less - own).norm() <= 0.6 * bound * rounding_allowance(batch)


# --- what it costs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.02])
@pytest.mark.parametrize(("spread", "shift"), [(1.0, 1), (3.7, 4), (40.0, 25)])
def test_the_mechanism_on_whole_numbers_costs_no_more_than_the_gaussian(rate, spread, shift):
    """Hockey-stick divergences summed over all cells, both directions, against the formulas for the Gaussian."""
    j = np.arange(-60 * spread - shift, 60 * spread + shift)
    edges = (np.abs(j) - 0.5) / spread, (np.abs(j) + 0.5) / spread
    none = stats.norm.sf(edges[0]) - stats.norm.sf(edges[1])
    one = rate * np.roll(none, shift) + (1 - rate) * none
    for direction, p, q in (("remove", one, none), ("add", none, one)):
        for epsilon in (0.01, 0.7, 2.0):
            lost = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
            lower, upper = one_step_delta(rate, shift / spread, epsilon, direction)
            assert lost <= upper * (1 + 1e-9) + 1e-16
            assert lost >= 0.3 * lower - 1e-16  # and the formula is that of this mechanism, not of a far noisier one


# --- the release ------------------------------------------------------------------------------------------


def has_std(values, std):
    """Whether the values may be N(0, std^2): wrong once in a million, and 2 % off is caught."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=values.numel()) * std**2
    return low <= float(values.double().square().sum()) <= high


@pytest.mark.parametrize(("adjacency", "factor"), [("zero-out", 1), ("replace-one", 2)])
def test_the_noise_is_of_the_size_that_is_charged(adjacency, factor):
    c = a_sum(grads={"a": torch.zeros(150_000), "b": torch.zeros(100, 500)})
    got = release(
        c,
        "flat",
        step=Step(noise_multiplier=1.5, clipping_norm=0.4),
        batch_size=64,
        adjacency=adjacency,
        randomness=seeded(1),
        secure_noise=True,
    )
    drawn = torch.cat([grad.flatten() for grad in got.grads.values()]) * 64
    assert got.std == pytest.approx(1.5 * 0.4 * factor, rel=1e-3)
    assert got.std > 1.5 * 0.4 * factor
    assert has_std(drawn, got.std)
    assert not has_std(drawn, got.std * 1.02)
    assert not has_std(drawn, got.std / 1.02)


def test_the_count_of_a_rule_is_secure_too():
    told: list[torch.Tensor] = []

    class Telling(Quantile):
        def learn(self, grads, bits, **rest):
            told.append(bits)
            return dict(grads)

    rule = Telling(count_noise=2.5)
    c = a_sum(clip=1.0, bits=torch.full((100_000,), 0.3, dtype=torch.float64))
    got = release(c, rule, step=Step(noise_multiplier=1.5), batch_size=16, randomness=seeded(2), secure_noise=True)
    grid = choose_grid({"statistics": c.raw_statistics}, std=2.5 * 0.5, noise=2.5, batch=16)
    cells = told[0] * 16 / grid.width
    assert torch.equal(cells, cells.round())
    assert has_std(told[0] * 16 - 0.3, 1.25)
    assert got.std == pytest.approx(1.5 / 0.8, rel=1e-3)  # 3-4-5


def test_nothing_comes_from_another_generator(monkeypatch):
    """Eight bytes of the operating system for each value, and no generator of torch or NumPy."""
    given_out, urandom = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: given_out.append(count) or urandom(count))
    for other in ("numpy_generator", "torch_generator", "_entropy"):
        monkeypatch.setattr(Randomness, other, None)
    release(a_sum(grads={"w": torch.zeros(1000)}), "flat", step=Step(noise_multiplier=1.0, clipping_norm=0.4),
            batch_size=4,
            randomness=os_randomness(), secure_noise=True)  # fmt: skip
    assert given_out[0] == 8000


def test_a_seed_gives_the_same_release():
    one, two, other = (
        release(
            a_sum(),
            "flat",
            step=Step(noise_multiplier=1.0, clipping_norm=0.4),
            batch_size=4,
            randomness=seeded(s),
            secure_noise=True,
        ).grads["w"]
        for s in (5, 5, 6)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_a_rule_without_a_guarantee_has_nothing_to_secure():
    rule = clipping_rule("l2_max", uncertified=True)
    c = a_sum(clip=rule.l2_bound(0.4, 1))
    with pytest.raises(Unsupported, match="secure_noise=True has nothing to prove"):
        release(
            c,
            rule,
            step=Step(noise_multiplier=1.0, clipping_norm=0.4),
            batch_size=4,
            randomness=os_randomness(),
            uncertified=True,
            secure_noise=True,
        )


def test_the_whole_engine_with_secure_noise():
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.randint(2, (5,))
    c = clipped_sum(model, LOSS, (x, y), "flat", 0.5)
    got = release(
        c,
        "flat",
        step=Step(noise_multiplier=1e-4, sample_rate=0.01, clipping_norm=0.5),
        batch_size=5,
        randomness=os_randomness(),
        secure_noise=True,
    )
    for name, grad in c.grads.items():
        torch.testing.assert_close(got.grads[name], grad / 5, atol=2e-4, rtol=0)


# --- kinds of tensors, and what is refused ---------------------------------------------------------------


def test_results_are_float32_or_better_and_the_sums_stay_as_they_are():
    sums = {
        "low": torch.ones(40, dtype=torch.bfloat16), "high": torch.ones(2, 3, dtype=torch.float64),
        "tracked": torch.ones(3, requires_grad=True), "none": torch.ones(0, 4), "one": torch.tensor(2.0),
    }  # fmt: skip
    before = {name: t.clone() for name, t in sums.items()}
    found = add_secure_noise(
        sums, grid=choose_grid(sums, std=1.0, noise=1.0, batch=2), randomness=os_randomness(), divisor=2.0
    )
    assert [t.dtype for t in found.values()] == [
        torch.float32,
        torch.float64,
        torch.float32,
        torch.float32,
        torch.float32,
    ]
    assert [t.shape for t in found.values()] == [t.shape for t in sums.values()]
    assert not found["tracked"].requires_grad
    assert all(torch.equal(sums[name], before[name]) for name in sums)
    assert add_secure_noise({}, grid=Grid(width=1.0, spread=1.0), randomness=os_randomness()) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_sum_that_is_not_finite_is_refused(bad):
    with pytest.raises(InvalidValue, match=r"grads\['w'\] is not finite"):
        add_secure_noise({"w": torch.tensor([1.0, bad])}, grid=Grid(width=1.0, spread=1.0), randomness=os_randomness())


@pytest.mark.parametrize("bad", [torch.ones(3, dtype=torch.int64), torch.eye(3).to_sparse()])
def test_what_is_not_dense_and_real_is_refused(bad):
    with pytest.raises(Unsupported, match=r"grads\['w'\]"):
        choose_grid({"w": bad}, std=1.0, noise=1.0, batch=1)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-46, 1e38, "1", True])
def test_noise_that_would_be_nothing_or_not_finite_is_refused(std):
    sums = {"w": torch.ones(3)}
    with pytest.raises(InvalidValue, match="std="):
        add_secure_noise(sums, grid=choose_grid(sums, std=std, noise=1.0, batch=1), randomness=os_randomness())


def test_what_has_no_grid_is_refused():
    wide = {"w": torch.ones(3, dtype=torch.float64)}
    with pytest.raises(InvalidValue, match="out of the range of a grid"):
        choose_grid(wide, std=1e-307, noise=1e3, batch=1)
    with pytest.raises(InvalidValue, match=r"out of the range of torch\.float32"):
        add_secure_noise(
            {"w": torch.ones(3)}, grid=Grid(width=1.0, spread=1.0), randomness=os_randomness(), divisor=1e39
        )
    with pytest.raises(InvalidValue, match=r"spread=.* must be at most 2\^40"):
        add_secure_noise(wide, grid=choose_grid(wide, std=1e9, noise=1e9, batch=1), randomness=os_randomness())
