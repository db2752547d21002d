"""Each rule does what its docstring says; the slow, obvious way is the oracle."""

import math

import pytest
import torch

from privet.clipping.adaclip import AdaClip, Transformed
from privet.clipping.clipped_sum import clipped_sum
from privet.clipping.fixed import Flat, Normalised, PerLayer, groups_by_layer
from privet.clipping.quantile import FURTHEST, Quantile
from privet.clipping.rule import clipping_rule
from privet.errors import InvalidValue, Unsupported
from privet.per_example.derived_forms import EmbeddingRows
from privet.per_example.forms import Dense, OuterProductSum
from privet.published.clipping import L2Max, OwnNorm, PerLayerC

NORMS = torch.tensor([[0.0], [0.5], [1.0], [4.0]])


# --- fixed ------------------------------------------------------------------------------------------


def test_flat_leaves_what_is_small_and_shrinks_what_is_large():
    assert Flat().scales(NORMS, 1.0)[:, 0].tolist() == [1.0, 1.0, 1.0, 0.25]


def test_normalised_gives_all_but_the_smallest_the_same_norm():
    """clip g / (|g| + gamma)."""
    scaled = (Normalised().scales(NORMS, 2.0) * NORMS)[:, 0]
    assert scaled.tolist() == pytest.approx([0.0, 2 * 0.5 / 0.51, 2 / 1.01, 8 / 4.01])


def test_a_layer_is_a_module_so_weight_and_bias_are_clipped_together():
    assert groups_by_layer(["0.weight", "0.bias", "2.weight", "2.bias"]) == [
        ["0.weight", "0.bias"],
        ["2.weight", "2.bias"],
    ]
    assert groups_by_layer(["weight", "bias"]) == [["weight", "bias"]]  # the model is a layer
    assert groups_by_layer(["a.b.weight", "a.weight", "a.b.bias"]) == [["a.b.weight", "a.b.bias"], ["a.weight"]]


def test_equal_shares_fill_the_clip_exactly():
    norms = torch.full((1, 4), 100.0)
    scaled = PerLayer().scales(norms, 2.0) * norms
    assert scaled[0].tolist() == pytest.approx([1.0] * 4)
    assert float(scaled.norm()) == pytest.approx(PerLayer().l2_bound(2.0, 4))


# --- as published -----------------------------------------------------------------------------------


def test_per_layer_c_tells_the_truth_and_the_claim():
    rule = PerLayerC()
    norms = torch.full((1, 9), 100.0)
    assert float((rule.scales(norms, 2.0) * norms).norm()) == pytest.approx(6.0)
    assert 6.0 <= rule.l2_bound(2.0, 9) <= 6.0 * (1 + 1e-15)
    assert rule.claimed_sensitivity(torch.tensor([7.0]), 2.0) == 2.0


def test_own_norm_scales_and_bounds_nothing():
    """Auto DP-SGD, Algorithm 1: c_b = W |g_b|, g_b <- W g_b, s = mean of c_b."""
    rule = OwnNorm(scale=0.5)
    assert (rule.scales(NORMS, 1.0) == 0.5).all()
    assert rule.l2_bound(1.0, 1) == math.inf
    assert rule.claimed_sensitivity(torch.tensor([1.0, 2.0, 6.0]), 1.0) == pytest.approx(1.5)
    assert rule.claimed_sensitivity(torch.tensor([4.0, math.inf]), 1.0) == pytest.approx(
        1.0
    )  # not finite counts as zero
    assert rule.claimed_sensitivity(torch.zeros(0), 1.0) == 0.0


@pytest.mark.parametrize("scale", [0, -1, 1.5, math.nan])
def test_own_norm_refuses_a_scale_outside_the_paper(scale):
    with pytest.raises(InvalidValue, match=r"scale=.* must be > 0 and <= 1"):
        OwnNorm(scale=scale)


def test_l2_max_reads_the_batch():
    """Wei and Liu: the smaller of the largest norm and C."""
    rule = L2Max()
    assert rule.claimed_sensitivity(torch.tensor([0.25, 0.5]), 4.0) == 0.5
    assert rule.claimed_sensitivity(torch.tensor([0.25, 9.0]), 4.0) == 4.0
    assert rule.claimed_sensitivity(torch.tensor([0.25, math.nan]), 4.0) == 0.25
    assert rule.claimed_sensitivity(torch.zeros(0), 4.0) == 0.0
    assert rule.l2_bound(4.0, 4) == pytest.approx(8.0)


# --- quantile ---------------------------------------------------------------------------------------


def told(rule, unclipped, times=1):
    """The rule after releases that say this fraction was left unclipped."""
    for _ in range(times):
        rule.learn({}, torch.tensor([unclipped - 0.5]), clip=1.0, std=1.0, batch_size=10)
    return rule


def test_the_clip_moves_geometrically_towards_the_target():
    rule = Quantile(target=0.5, speed=0.2)
    assert rule.current_clip(3.0) == 3.0
    assert told(rule, 1.0).current_clip(3.0) == pytest.approx(3 * math.exp(-0.1))
    assert told(rule, 0.0, times=2).current_clip(3.0) == pytest.approx(3 * math.exp(0.1))
    assert told(Quantile(target=0.8), 0.8).current_clip(3.0) == pytest.approx(3.0)


def test_the_clip_keeps_within_public_limits():
    assert told(Quantile(speed=50.0), 1.0, times=9).current_clip(2.0) == pytest.approx(2 / FURTHEST)
    assert told(Quantile(speed=50.0), 0.0, times=9).current_clip(2.0) == pytest.approx(2 * FURTHEST)


def test_a_bit_is_worth_a_half_whatever_the_norm():
    statistics = Quantile().statistics(torch.tensor([0.0, 1.0, 1.1, math.inf, math.nan]), 1.0)
    assert statistics.tolist() == [[0.5], [0.5], [-0.5], [-0.5], [-0.5]]
    assert (statistics.norm(dim=1) <= Quantile().statistics_bound).all()
    assert Quantile().statistics(torch.zeros(0), 1.0).sum(0).tolist() == [0.0]


def test_the_count_has_the_papers_noise_or_that_of_a_small_batch():
    """batch / 20 is the paper's standard deviation; a bit moves the count by 1/2."""
    assert Quantile().statistics_noise(1.0, 256) == 25.6
    assert Quantile().statistics_noise(4.0, 30) == 20.0
    assert Quantile(count_noise=3.0).statistics_noise(1.0, 256) == 3.0


@pytest.mark.parametrize("bad", [{"target": 0}, {"target": 1}, {"speed": 0}, {"speed": "fast"}, {"count_noise": -1}])
def test_quantile_refuses(bad):
    with pytest.raises(InvalidValue, match=next(iter(bad))):
        Quantile(**bad)


# --- adaclip ----------------------------------------------------------------------------------------

SEED = torch.Generator().manual_seed(0)
SHARES = {
    "dense": Dense(torch.randn(6, 4, 3, generator=SEED)),
    "outer": OuterProductSum(torch.randn(6, 5, 3, generator=SEED), torch.randn(6, 5, 4, generator=SEED)),
    "rows": EmbeddingRows(torch.randint(4, (6, 7), generator=SEED), torch.randn(6, 7, 3, generator=SEED), (4, 3)),
}


@pytest.mark.parametrize("kind", SHARES)
def test_a_transformed_share_is_the_transform_of_its_gradients(kind, monkeypatch):
    inner = SHARES[kind]
    mean, scale = torch.randn(4, 3, generator=SEED), torch.rand(4, 3, generator=SEED) + 0.5
    share = Transformed(inner, mean, scale)
    slow = (inner.materialize() - mean) / scale
    weights = torch.rand(6, generator=SEED)
    torch.testing.assert_close(share.materialize(), slow)
    torch.testing.assert_close(share.squared_norms(), slow.flatten(1).square().sum(1), check_dtype=False)
    torch.testing.assert_close(share.weighted_sum(weights), torch.einsum("b,bij->ij", weights, slow))
    rows = torch.tensor([4, 1])
    torch.testing.assert_close(
        share.select(rows, torch.float64).materialize(), slow[rows].double(), rtol=1e-5, atol=1e-6
    )
    monkeypatch.setattr("privet.per_example.forms.MOST_HELD", 24)  # two examples at a time
    torch.testing.assert_close(share.squared_norms(), slow.flatten(1).square().sum(1), check_dtype=False)


def trained(steps=5):
    """A rule that has seen a few releases, and what they were."""
    generator = torch.Generator().manual_seed(1)
    rule = AdaClip()
    seen = [
        {"a": torch.randn(3, 2, generator=generator), "b": torch.randn(4, generator=generator)} for _ in range(steps)
    ]
    given = [rule.learn(s, torch.zeros(0), clip=2.0, std=0.7, batch_size=8.0) for s in seen]
    return rule, seen, given


def test_adaclip_follows_its_formulas():
    """One long vector and plain Python for the running means."""
    rule, seen, given = trained()
    d, unit = 10, 4.0 / 10
    m, s2, b = [0.0] * d, [unit] * d, [1.0] * d
    for release, answer in zip(seen, given, strict=True):
        w = torch.cat([release["a"].flatten(), release["b"]]).tolist()
        g = [b[i] * w[i] + m[i] for i in range(d)]
        assert torch.cat([answer["a"].flatten(), answer["b"]]).tolist() == pytest.approx(g, rel=1e-5, abs=1e-6)
        v = [8 * ((b[i] * w[i]) ** 2 - (b[i] * 0.7 / 8) ** 2) for i in range(d)]
        s2 = [0.9 * s2[i] + 0.1 * min(max(v[i], 1e-4 * unit), 1e4 * unit) for i in range(d)]
        m = [0.99 * m[i] + 0.01 * g[i] for i in range(d)]
        total = sum(math.sqrt(s) for s in s2)
        b = [math.sqrt(math.sqrt(s) * d / total) for s in s2]
    share = rule.transform("b", Dense(torch.zeros(1, 4)))
    assert share.scale.tolist() == pytest.approx(b[6:], rel=1e-5)
    assert share.mean.tolist() == pytest.approx(m[6:], rel=1e-4, abs=1e-6)


def test_adaclip_starts_as_flat_and_keeps_the_noise_of_flat():
    share = Dense(torch.zeros(1, 4))
    assert AdaClip().transform("b", share) is share
    rule, *_ = trained()
    scales = [rule.transform(name, Dense(torch.zeros(1, *shape))).scale for name, shape in (("a", (3, 2)), ("b", (4,)))]
    assert sum(float(scale.square().sum()) for scale in scales) == pytest.approx(10, rel=1e-5)
    assert float(scales[0].std()) > 0.01


def test_estimates_made_of_noise_alone_do_not_run_away():
    """10,000 coordinates, 1,000 times the gradient's norm in noise: the scales stay near 1."""
    rule, generator = AdaClip(), torch.Generator().manual_seed(0)
    for _ in range(200):
        noise = torch.randn(10_000, generator=generator) * 10 / 256
        restored = rule.learn({"w": noise}, torch.zeros(0), clip=1.0, std=10.0, batch_size=256.0)
    scale = rule.transform("w", Dense(torch.zeros(1, 10_000))).scale
    assert 0.3 < float(scale.min()) <= float(scale.max()) < 3
    assert float(restored["w"].norm()) < 1.5 * float(noise.norm())


def test_quiet_coordinates_get_less_noise():
    """Half of the coordinates move a hundred times as much: they get most of the noise."""
    rule, generator = AdaClip(), torch.Generator().manual_seed(0)
    size = torch.cat([torch.full((50,), 1.0), torch.full((50,), 0.01)])
    for _ in range(100):
        scale = getattr(rule.transform("w", Dense(torch.zeros(1, 100))), "scale", torch.ones(100))
        seen = (
            size * torch.randn(100, generator=generator) * 16 / scale + 0.1 * torch.randn(100, generator=generator)
        ) / 256
        rule.learn({"w": seen}, torch.zeros(0), clip=1.0, std=0.1, batch_size=256.0)
    scale = rule.transform("w", Dense(torch.zeros(1, 100))).scale
    assert float(scale[:50].mean()) > 3 * float(scale[50:].mean())


def test_adaclip_refuses():
    for bad in ({"beta1": 1.0}, {"beta2": 0}, {"low": 0.0}, {"low": 2.0, "high": 1.0}):
        with pytest.raises(InvalidValue, match=next(iter(bad))):
            AdaClip(**bad)
    rule, *_ = trained()
    with pytest.raises(InvalidValue, match="parameter='c' is new to the rule"):
        rule.transform("c", Dense(torch.zeros(1, 4)))


# --- names ------------------------------------------------------------------------------------------


def test_a_rule_is_a_name_with_options_a_table_or_itself():
    assert clipping_rule("normalised:gamma=0.1") == Normalised(gamma=0.1)
    assert clipping_rule({"kind": "quantile", "target": 0.7}) == Quantile(target=0.7)
    rule = Quantile()
    assert clipping_rule(rule) is rule
    assert clipping_rule("own_norm:scale=0.5", uncertified=True) == OwnNorm(scale=0.5)


class Half:
    """A user's own rule, used by its address."""

    def groups(self, names):
        return [list(names)]

    def scales(self, norms, clip):
        return (clip / norms.clamp(min=clip)) / 2

    def l2_bound(self, clip, groups):
        return clip / 2


class Forgetful(Half):
    adaptive = True


def test_a_rule_of_ones_own_works_by_its_address(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "my_rules", sys.modules[__name__])
    assert clipping_rule("my_rules:Half").l2_bound(3.0, 1) == 1.5


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("flatt", "Did you mean 'flat'"),
        ("normalised:gama=1", "has no option 'gama'"),
        (Flat, "must be a name, or an object with groups, scales, l2_bound"),
        (7, "must be a name, or an object"),
        ("os:system", "must be a class with groups"),
        (Forgetful(), "must be a name, or an object with .*current_clip"),
    ],
)
def test_a_wrong_rule_is_explained(rule, says):
    with pytest.raises(InvalidValue, match=says):
        clipping_rule(rule)


@pytest.mark.parametrize(
    "rule", ["own_norm", "own_norm:scale=0.5", "per_layer_c", "l2_max", OwnNorm(), PerLayerC(), L2Max()]
)
def test_an_unsound_rule_must_be_asked_for_in_so_many_words(rule):
    with pytest.raises(Unsupported, match=r"has no guarantee: .*Use one of flat"):
        clipping_rule(rule)


def test_a_clip_whose_square_vanishes_is_refused():
    """In float32 the squares of entries below 1e-19 are lost, and their norm with them."""
    model, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
    with pytest.raises(InvalidValue, match="vanish in float32"):
        clipped_sum(model, lambda out, _: out[:, 0], (x, x), clipping_norm=1e-13)
    assert clipped_sum(model, lambda out, _: out[:, 0], (x, x), clipping_norm=1e-12).l2_bound == 1e-12
