"""The release: the right noise, once, over a public batch; what it costs is what the step is charged."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privet.accounting import Ledger, Step, spent
from privet.clipping.clipped_sum import ClippedSum, clipped_sum
from privet.clipping.quantile import Quantile
from privet.clipping.rule import clipping_rule
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness, seeded
from privet.noise.release import gradient_noise, release

LOSS = nn.CrossEntropyLoss(reduction="none")
MANY = 2_000_000


def sum_for(rule, *, clip=1.0, grads=None, norms=(), statistics=None):
    """A clipped sum as the engine would give it, from norms alone."""
    grads = {"w": torch.zeros(3)} if grads is None else grads
    norms = torch.as_tensor(norms, dtype=torch.float64)
    adaptive = getattr(rule, "adaptive", False)
    clip = rule.current_clip(clip) if adaptive else clip
    if adaptive and statistics is None:
        statistics = rule.statistics(norms, clip).sum(0)
    return ClippedSum(
        grads=grads, l2_bound=rule.l2_bound(clip, len(rule.groups(list(grads)))), raw_norms=norms,
        raw_batch_size=len(norms),
        raw_statistics=statistics if adaptive else None,
    )  # fmt: skip


def has_std(values, std):
    """Whether the values may be N(0, std^2): wrong once in a million, and 0.5 % off is caught (below)."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], df=values.numel()) * std**2
    return low <= float(values.double().square().sum()) <= high


# --- how much noise ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "adjacency", "std"),
    [
        ("flat", "zero-out", 1.5 * 0.4),
        ("flat", "replace-one", 1.5 * 0.8),
        ("per_layer", "add-remove", 1.5 * 0.4),
        ("normalised", "zero-out", 1.5 * 0.4),
        ("adaclip", "zero-out", 1.5 * 0.4),
        ("quantile:count_noise=2.5", "zero-out", 1.5 / 0.8 * 0.4),  # 3-4-5: sqrt(1 - (1.5 / 2.5)^2) = 0.8
        ("quantile:count_noise=2.5", "replace-one", 1.5 / 0.8 * 0.8),
        ("per_layer_c", "zero-out", 1.5 * 0.4),  # as published: for C, though the bound is sqrt(2) C
        ("l2_max", "zero-out", 1.5 * 0.25),
        ("own_norm", "zero-out", 1.5 * 0.15),
    ],
)
def test_the_noise_is_of_the_size_that_is_charged(name, adjacency, std):
    rule = clipping_rule(name, uncertified=True)
    grads = {"a.w": torch.zeros(MANY // 2), "b.w": torch.zeros(MANY // 2)}
    c = sum_for(rule, clip=0.4, grads=grads, norms=[0.05, 0.25])
    step = Step(noise_multiplier=1.5, clipping_norm=0.4)
    got = release(c, rule, step=step, batch_size=64, adjacency=adjacency, randomness=seeded(1), uncertified=True)
    drawn = torch.cat(list(got.grads.values())) * 64
    assert has_std(drawn, std)
    assert not has_std(drawn, std * 1.005)
    assert not has_std(drawn, std * 0.995)
    assert got.std is None or got.std == pytest.approx(std)


class ManyBits(Quantile):
    """Keeps the noisy statistics that it is told."""

    def learn(self, grads, statistics, **rest):
        self.told = statistics
        return dict(grads)


@pytest.mark.parametrize(("adjacency", "bound"), [("zero-out", 0.5), ("replace-one", 1.0)])
def test_the_bits_have_their_own_noise(adjacency, bound):
    rule = ManyBits(count_noise=6.0)
    c = sum_for(rule, statistics=torch.zeros(MANY, dtype=torch.float64))
    release(c, rule, step=Step(noise_multiplier=1.0), batch_size=10, adjacency=adjacency, randomness=seeded(2))
    assert has_std(rule.told * 10, 6 * bound)
    assert not has_std(rule.told * 10, 6 * bound * 1.005)


def test_gradient_and_count_do_not_share_their_draws():
    rule = ManyBits(count_noise=6.0)
    c = sum_for(rule, grads={"w": torch.zeros(10_000, dtype=torch.float64)}, statistics=torch.zeros(10_000).double())
    got = release(c, rule, step=Step(noise_multiplier=1.0), batch_size=1, randomness=seeded(3))
    assert abs(float(torch.corrcoef(torch.stack([got.grads["w"], rule.told]))[0, 1])) < 0.05


def test_pieces_get_one_noise():
    """Ten pieces, one release: not ten noises, which would be sqrt(10) times as wide."""
    rule = clipping_rule("flat")
    pieces = [sum_for(rule, grads={"w": torch.full((MANY,), 0.1)}, norms=[1.0]) for _ in range(10)]
    got = release(
        sum(pieces[1:], pieces[0]), rule, step=Step(noise_multiplier=2.0), batch_size=10, randomness=seeded(4)
    )
    assert has_std(got.grads["w"] * 10 - 1.0, 2.0)


def test_the_divisor_is_the_planned_batch():
    rule = clipping_rule("flat")
    for realised in (0, 5, 500):
        c = sum_for(rule, grads={"w": torch.ones(3)}, norms=[1.0] * realised)
        got = release(c, rule, step=Step(noise_multiplier=1e-6), batch_size=64, randomness=seeded(5))
        torch.testing.assert_close(got.grads["w"], torch.full((3,), 1 / 64), rtol=1e-4, atol=0)


def test_two_releases_differ_unless_seeded():
    rule, step = clipping_rule("flat"), Step(noise_multiplier=1.0)
    c = sum_for(rule)
    one, two = (release(c, rule, step=step, batch_size=1, randomness=Randomness()).grads["w"] for _ in range(2))
    assert not torch.equal(one, two)
    assert torch.equal(c.grads["w"], torch.zeros(3))  # the sum is left as it was


# --- gradient and count are one step ----------------------------------------------------------------


def delta_of_pair(shift, std, epsilon):
    """The hockey-stick divergence of two 2-D Gaussians, summed over a fine grid: knows nothing of mu."""
    axes = [np.linspace(-9, 9 + s / d, 601) * d for s, d in zip(shift, std, strict=True)]
    x, y = np.meshgrid(*axes, indexing="ij")
    p = stats.norm.pdf(x, shift[0], std[0]) * stats.norm.pdf(y, shift[1], std[1])
    q = stats.norm.pdf(x, 0, std[0]) * stats.norm.pdf(y, 0, std[1])
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1.5), (0.7, 8.0), (2.0, 2.1)])
def test_the_pair_is_one_gaussian_step_at_the_charged_noise(noise, count):
    std = (gradient_noise(noise, count) * 3.0, count * 0.5)  # one example: a gradient of norm 3, a bit of 1/2
    exact = stats.norm.cdf(-noise + 0.5 / noise) - math.e * stats.norm.cdf(-noise - 0.5 / noise)  # epsilon 1
    assert delta_of_pair((3.0, 0.5), std, 1.0) == pytest.approx(exact, rel=2e-3)


def test_charging_two_steps_would_tell_less_than_the_truth():
    """Rate 0.01, both multipliers 1, 1,000 steps, delta 1e-5: two steps 2.58, the truth 4.48."""
    one, two = Ledger(), Ledger()
    one.add(Step(noise_multiplier=math.sqrt(0.5), sample_rate=0.01), count=1000)
    two.add(Step(noise_multiplier=1.0, sample_rate=0.01), count=2000)
    assert gradient_noise(math.sqrt(0.5), 1.0) == pytest.approx(1.0)
    truth = spent(one, 1e-5)
    assert truth.epsilon_lower == pytest.approx(4.48, abs=0.01)
    assert spent(two, 1e-5).epsilon == pytest.approx(2.58, abs=0.01)


@pytest.mark.parametrize("target", [0.5, 0.8])
def test_the_clip_settles_at_the_quantile(target):
    """Norms of a known law, batches of changing size, noise as by default: the mean of the last clips is near."""
    rule, draw = clipping_rule(f"quantile:target={target}"), np.random.default_rng(0)
    clips = []
    for t in range(300):
        norms = np.exp(draw.normal(1.0, 0.5, size=draw.binomial(10_000, 0.01)))
        step = Step(noise_multiplier=1.0, sample_rate=0.01, clipping_norm=0.1)
        got = release(sum_for(rule, clip=0.1, norms=norms), rule, step=step, batch_size=100, randomness=seeded(t))
        clips.append(math.log(got.clipping_norm))
    assert clips[0] == pytest.approx(math.log(0.1))
    assert np.mean(clips[100:]) == pytest.approx(1.0 + 0.5 * stats.norm.ppf(target), abs=0.03)


# --- adaclip ----------------------------------------------------------------------------------------


def test_adaclip_gives_back_the_mean_when_nothing_is_clipped():
    """Next to no noise, a wide clip, and as many examples as planned: the plain average, whatever was learnt."""
    torch.manual_seed(0)
    model, rule = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), clipping_rule("adaclip")
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    step = Step(noise_multiplier=1e-6, clipping_norm=1000.0)
    rule.learn({name: torch.randn_like(p) for name, p in model.named_parameters()}, torch.zeros(0), clip=1000.0,
                  std=1.0, batch_size=8)  # fmt: skip
    model.zero_grad()
    LOSS(model(x), y).mean().backward()
    state = rule.state_dict()
    for size, rest in ((8, 0.0), (6, 2 / 8)):  # of the 2 that are missing, the centre stays: public, not their number
        rule.load_state_dict(state)
        c = clipped_sum(model, LOSS, (x[:size], y[:size]), rule=rule, clipping_norm=1000.0)
        got = release(c, rule, step=step, batch_size=8, randomness=seeded(0))
        grads = torch.autograd.grad(LOSS(model(x[:size]), y[:size]).sum() / 8, list(model.parameters()))
        for (name, _), grad in zip(model.named_parameters(), grads, strict=True):
            torch.testing.assert_close(got.grads[name], grad + rest * state[f"mean.{name}"], rtol=1e-3, atol=1e-3)
            assert float(state[f"mean.{name}"].abs().max()) > 5e-3


# --- refusals ---------------------------------------------------------------------------------------


def test_a_sum_clipped_otherwise_is_refused():
    rule = clipping_rule("flat")
    with pytest.raises(InvalidValue, match=r"l2_bound=2\.0 of the sum must be 1\.0, the rule's at clipping_norm=1\.0"):
        release(
            sum_for(rule, clip=2.0),
            rule,
            step=Step(noise_multiplier=1.0, clipping_norm=1.0),
            batch_size=8,
            randomness=seeded(0),
        )


def test_a_sum_is_released_before_the_clip_moves():
    rule, step = clipping_rule("quantile"), Step(noise_multiplier=1.0)
    stale = sum_for(rule, norms=[0.1] * 8)
    release(stale, rule, step=step, batch_size=8, randomness=seeded(0))
    with pytest.raises(InvalidValue, match="release it once"):
        release(stale, rule, step=step, batch_size=8, randomness=seeded(0))


def test_an_adaptive_rule_is_given_as_an_object():
    c = sum_for(clipping_rule("quantile"))
    with pytest.raises(InvalidValue, match=r"rule='quantile' must be the object .*Make it once with rule_for"):
        release(c, "quantile", step=Step(noise_multiplier=1.0), batch_size=8, randomness=seeded(0))


def test_a_count_noise_below_the_steps_is_refused_and_nothing_is_learnt():
    rule = clipping_rule("quantile:count_noise=1")
    with pytest.raises(InvalidValue, match=r"count_noise=1 must be above the step's noise_multiplier=1\.0"):
        release(sum_for(rule), rule, step=Step(noise_multiplier=1.0), batch_size=8, randomness=seeded(0))
    assert rule.state_dict() == {"moved": 0.0}


def test_bits_that_were_lost_are_missed():
    rule = clipping_rule("quantile")
    bare = dataclasses.replace(sum_for(rule), raw_statistics=None)
    with pytest.raises(InvalidValue, match="raw_statistics=None"):
        release(bare, rule, step=Step(noise_multiplier=1.0), batch_size=8, randomness=seeded(0))
    assert rule.state_dict() == {"moved": 0.0}


@pytest.mark.parametrize("batch", [0, -1, math.nan, math.inf])
def test_a_batch_is_a_number_above_zero(batch):
    with pytest.raises(InvalidValue, match="batch_size="):
        release(
            sum_for(clipping_rule("flat")),
            "flat",
            step=Step(noise_multiplier=1.0),
            batch_size=batch,
            randomness=seeded(0),
        )


@pytest.mark.parametrize("name", ["flat", "adaclip", "own_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_released(name, value):
    rule = clipping_rule(name, uncertified=True)
    c = sum_for(rule, grads={"w": torch.tensor([0.0, value])}, norms=[1.0])
    with pytest.raises(InvalidValue, match=r"grads\['w'\] is not finite"):
        release(c, rule, step=Step(noise_multiplier=1.0), batch_size=8, randomness=seeded(0), uncertified=True)
    assert not hasattr(rule, "state") or rule.state_dict() == {}


def test_large_numbers_that_are_finite_are_released():
    c = sum_for(clipping_rule("flat"), grads={"w": torch.full((4,), 3e38)})
    assert (
        release(c, "flat", step=Step(noise_multiplier=1.0), batch_size=1, randomness=seeded(0))
        .grads["w"]
        .isfinite()
        .all()
    )


def test_replacing_a_record_below_rate_one_has_no_theorem():
    with pytest.raises(Unsupported, match="adjacency='replace-one'"):
        release(sum_for(clipping_rule("flat")), "flat", step=Step(noise_multiplier=1.0, sample_rate=0.1), batch_size=8,
                adjacency="replace-one", randomness=seeded(0))  # fmt: skip


def test_a_rule_that_bounds_nothing_gets_no_noise_that_would_hide_it():
    class Endless(type(clipping_rule("flat"))):
        def l2_bound(self, clip, groups):
            return math.inf

    with pytest.raises(InvalidValue, match="l2_bound=inf must be finite"):
        release(sum_for(Endless()), Endless(), step=Step(noise_multiplier=1.0), batch_size=8, randomness=seeded(0))


# --- the unsound ones are as bad as their reputation ------------------------------------------------


@pytest.mark.parametrize("name", ["own_norm", "l2_max"])
def test_a_quiet_batch_betrays_the_newcomer(name):
    """Batches of zeros but for one example: without it there is no noise, so its presence is seen with certainty."""
    rule, step = clipping_rule(name, uncertified=True), Step(noise_multiplier=1.0)
    without = release(
        sum_for(rule, norms=[0.0] * 9), rule, step=step, batch_size=10, randomness=seeded(0), uncertified=True
    )
    c = sum_for(rule, norms=[0.0] * 9 + [0.5], grads={"w": torch.tensor([0.5, 0.0, 0.0])})
    present = release(c, rule, step=step, batch_size=10, randomness=seeded(0), uncertified=True)
    assert (without.grads["w"] == 0).all()
    assert (present.grads["w"] != 0).all()


# --- in place ---------------------------------------------------------------------------------------


def test_sums_are_left_alone_unless_they_may_be_used_up():
    """The same release either way; in place, it lies where the sums were."""
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.randint(2, (5,))
    c = clipped_sum(model, LOSS, (x, y), clipping_norm=0.5)
    before = {name: grad.clone() for name, grad in c.grads.items()}
    step = Step(noise_multiplier=2.0, clipping_norm=0.5)
    usual = release(c, "flat", step=step, batch_size=6, randomness=seeded(0))
    assert all(torch.equal(grad, before[name]) for name, grad in c.grads.items())
    quick = release(c, "flat", step=step, batch_size=6, randomness=seeded(0), in_place=True)
    assert quick.std == usual.std
    for name, grad in usual.grads.items():
        assert torch.equal(quick.grads[name], grad)
        assert quick.grads[name].data_ptr() == c.grads[name].data_ptr()


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_one_buffer_that_is_not_finite_is_refused_by_the_name_of_its_part(bad):
    pieces = torch.zeros(10).split_with_sizes([4, 6])
    grads = {"a": pieces[0], "b": pieces[1]}
    grads["b"][2] = bad
    with pytest.raises(InvalidValue, match=r"grads\['b'\] is not finite"):
        release(sum_for(clipping_rule("flat"), grads=grads), "flat", step=Step(noise_multiplier=1.0), batch_size=4,
                randomness=seeded(0), in_place=True)  # fmt: skip
