"""No example adds more than a rule's bound, whatever the rule says: those of the package, and those of users."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from outside_parts import HELD, REFUSED, Asks, Careful, Fails, HalfAdaptive, NoOp, NotANumber, Remembers
from privet import Step, Training, plan
from privet.clipping.clipped_sum import Clipper, clipped_sum
from privet.clipping.rule import LEAST_NORM, bounded, clipping_rule
from privet.errors import InvalidValue, Unsupported
from privet.federated.clipped_updates import clipped_updates
from privet.noise.randomness import seeded
from privet.noise.release import release
from privet.per_example.forms import Dense
from privet.planning.clipping_rules import SOUND_RULES, registry

CLIP, SIZE = 0.5, 24
HOSTILE = [0.0, 1e-45, 1e-30, 1e-19, 1e-14, 0.3, 0.5, 7.0, 1e10, 1e15, 1e18, 3e38, math.inf, -math.inf, math.nan]

sound = [*SOUND_RULES, *HELD]
every_sound_rule = pytest.mark.parametrize(
    "kind", sound, ids=lambda kind: kind if isinstance(kind, str) else kind.__name__
)


def made(kind):
    return clipping_rule(kind if isinstance(kind, str) else kind())


def scales(rule, norms, clip=CLIP):
    bound = bounded(rule).bound(clip, norms.shape[1])
    return bounded(rule).scales(norms, clip, bound=bound, dtype=norms.dtype)


class Layers(nn.Module):
    """Two layers of three parameters in all; only their names and shapes matter."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.a, self.b = nn.Linear(4, 1, dtype=dtype), nn.Linear(3, 1, bias=False, dtype=dtype)


def named(dtype=torch.float32):
    return dict(Layers(dtype).named_parameters())


def summed(grads, rule, dtype=torch.float32):
    """The engine's way from gradients (B, 8) to their clipped sum, as one vector."""
    there, shares, at = named(dtype), {}, 0
    for name, p in there.items():
        shares[name] = Dense(grads[:, at : at + p.numel()].reshape(-1, *p.shape).to(dtype))
        at += p.numel()
    clipper = Clipper(rule, there)
    found = clipper.sum(shares, len(grads), clipper.rule.clip_in_force(CLIP))
    return torch.cat([grad.flatten().double() for grad in found.grads.values()]), found


def hostile_gradients():
    """For each hostile number a gradient full of it, and one with it in a single place."""
    full = torch.stack([torch.full((8,), size, dtype=torch.float64) for size in HOSTILE])
    single = torch.full((len(HOSTILE), 8), 0.01, dtype=torch.float64)
    single[:, 5] = torch.tensor(HOSTILE)
    return torch.cat([full, single])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_sound_rule
def test_what_one_example_adds_is_within_the_bound(kind, dtype):
    for row in hostile_gradients().split(1):
        total, found = summed(row, made(kind), dtype)
        assert total.isfinite().all()
        assert float(total.norm()) <= found.l2_bound, row[0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_sound_rule
def test_an_example_adds_the_same_alone_and_among_others(kind, dtype):
    """The sum of a hostile batch is the sum of what each adds alone: so one more moves it by its bound at most."""
    rows = hostile_gradients()
    total, found = summed(rows, made(kind), dtype)
    apart = torch.stack([summed(row, made(kind), dtype)[0] for row in rows.split(1)]).sum(0)
    torch.testing.assert_close(total, apart, rtol=1e-5, atol=1e-5 * found.l2_bound)


@every_sound_rule
def test_factors_of_a_row_are_the_same_to_the_bit_in_any_batch(kind):
    rule = made(kind)
    groups = len(rule.groups(list(named())))
    norms = torch.rand(9, groups, generator=torch.Generator().manual_seed(0)) * 3
    whole = scales(rule, norms)
    assert whole.shape == norms.shape
    assert whole.dtype == norms.dtype
    assert torch.equal(whole, torch.cat([scales(rule, row) for row in norms.split(1)]))


def test_without_the_projection_the_same_contributions_are_far_above_the_bound(monkeypatch):
    """So the tests above do see a rule that is not held."""
    rule = made(NoOp)
    monkeypatch.setattr(
        type(bounded(rule)), "scales", lambda held, norms, *_, **__: held.unbounded_scales(norms, CLIP).float()
    )
    total, found = summed(torch.full((1, 8), 7.0), rule)
    assert float(total.norm()) > 30 * found.l2_bound


# --- the package's own are left as they are ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SOUND_RULES)
def test_our_rules_are_multiplied_by_exactly_one(name, dtype):
    """Their room of 8 roundings is more than they use, so the projection changes no bit of them."""
    rule, generator = clipping_rule(name), torch.Generator().manual_seed(1)
    safety = 1 - 8 * torch.finfo(dtype).eps
    for groups in (1, 3, 1000) if name == "per_layer" else (1,):
        for clip in (1e-6, 0.1, 0.3, 1.0, 3.7, 1e6):
            norms = clip * torch.rand(4000, groups, generator=generator, dtype=dtype) * 2 / math.sqrt(groups)
            norms[:5] = clip * torch.tensor([0.0, 1.0, safety, 1e9, 1e-9], dtype=dtype)[:, None] / math.sqrt(groups)
            said = rule.scales(norms, clip * safety)
            assert torch.equal(scales(rule, norms, clip), said)


def test_a_published_rule_is_not_held_and_one_of_a_users_own_cannot_ask_for_it():
    norms = torch.tensor([[7.0]])
    rule = clipping_rule("own_norm", uncertified=True)
    assert scales(rule, norms).tolist() == [[1.0]]
    for published in (False, True):
        with pytest.raises(Unsupported, match="caveat='because'"):
            clipping_rule(Asks(), uncertified=published)


def test_a_subclass_of_ours_is_not_ours():
    class Mine(type(clipping_rule("flat"))):
        def scales(self, norms, clip):
            return torch.ones_like(norms)

    assert registry.is_ours(clipping_rule("flat"))
    total, found = summed(torch.full((1, 8), 7.0), clipping_rule(Mine()))
    assert float(total.norm()) <= found.l2_bound


# --- held --------------------------------------------------------------------------------------------


def test_a_rule_that_clips_nothing_is_flat_clipping():
    grads = torch.randn(20, 8, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 20)[:, None]
    torch.testing.assert_close(summed(grads, made(NoOp))[0], summed(grads, made("flat"))[0], rtol=1e-5, atol=1e-6)


def test_a_sound_rule_of_ones_own_keeps_its_factors():
    norms = torch.tensor([[0.1], [0.5], [9.0]])
    said = Careful().scales(norms, CLIP * (1 - 8 * torch.finfo(torch.float32).eps))
    assert torch.equal(scales(made(Careful), norms), said)


def test_what_is_not_a_number_counts_as_zero():
    assert scales(made(NotANumber), torch.ones(3, 2)).tolist() == [[0.0] * 2] * 3


def test_a_norm_whose_square_vanished_does_not_hide_a_huge_factor():
    """Entries of 1e-23 have a norm of zero in float32; times 1e30 they would be far above the bound."""
    assert 0 < float(scales(made(HELD[2]), torch.zeros(1, 1))) <= CLIP / LEAST_NORM


def test_a_rule_that_fails_on_some_records_counts_them_as_zero_and_says_nothing():
    norms = torch.tensor([[0.1], [7.0], [0.2]])
    together = scales(made(Fails), norms)
    assert together.tolist() == [[1.0], [0.0], [1.0]]


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_held_is_refused_whatever_the_records_are(kind):
    said = set()
    for grads in (torch.zeros(3, 8), torch.full((3, 8), 1234.5), torch.full((3, 8), math.nan)):
        with pytest.raises(InvalidValue, match=REFUSED[kind]) as caught:
            summed(grads, made(kind))
        said.add(str(caught.value))
    assert len(said) == 1
    assert "\n" not in said.pop()


def test_an_adaptive_rule_must_have_all_methods():
    with pytest.raises(InvalidValue, match="current_clip, transform, statistics"):
        clipping_rule(HalfAdaptive())


# --- with a memory -----------------------------------------------------------------------------------


def test_a_hostile_rule_with_a_memory_is_held_too():
    """What it makes of gradients and what it tells beside them: within the bounds for any record, each on its own."""
    rule = made(Remembers)
    for row in hostile_gradients().split(1):
        total, found = summed(row, rule)
        assert float(total.norm()) <= found.l2_bound
        assert found.raw_statistics.shape == (2,)
        assert float(found.raw_statistics.norm()) <= rule.statistics_bound
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    statistics = [summed(row, rule)[1].raw_statistics for row in rows.split(1)]
    torch.testing.assert_close(summed(rows, rule)[1].raw_statistics, torch.stack(statistics).sum(0))


def test_it_is_released_and_an_empty_batch_too():
    rule, model = made(Remembers), nn.Linear(3, 2)
    for size in (5, 0):
        data = torch.randn(size, 3), torch.randint(2, (size,))
        whole = clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), data, rule=rule, clipping_norm=CLIP)
        assert whole.raw_statistics.shape == (2,)
        found = release(
            whole, rule, step=Step(noise_multiplier=1.0, clipping_norm=CLIP), batch_size=5, randomness=seeded(0)
        )
        assert all(grad.isfinite().all() for grad in found.grads.values())
    assert [len(statistics) for statistics in rule.heard] == [2, 2]


# --- in a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["outside_parts:NoOp", "outside_parts:ByLayer", "outside_parts:Remembers"])
def test_training_with_a_hostile_rule_keeps_every_contribution_within_the_bound(kind, monkeypatch):
    """Records a thousand times too loud, each clipped alone as it was in its batch."""
    seen, add_up = [], Clipper.sum

    def watched(clipper, shares, size, clip):
        for i in range(size):
            part = {name: share.select(torch.tensor([i]), torch.float32) for name, share in shares.items()}
            alone = add_up(clipper, part, 1, clip)
            seen.append(float(sum(grad.square().sum() for grad in alone.grads.values()) ** 0.5))
        return add_up(clipper, shares, size, clip)

    monkeypatch.setattr(Clipper, "sum", watched)
    x = 1000 * torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(4))
    p = plan(epsilon=8.0, delta=1e-3, dataset_size=SIZE, batch_size=8, steps=3, clipping_norm=CLIP, rule=kind)
    assert (p.rule, p.is_unsound, p.guarantee.label) == (kind, False, "certified")
    model, loss = nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none")
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(x, (x[:, 0] > 0).long()), p)
    for inputs, targets in training:
        training.step(loss(model(inputs), targets))
    assert len(seen) > 10
    assert max(seen) <= CLIP
    assert max(seen) > 0.99 * CLIP
    assert training.spent().label == "certified"


def test_clients_updates_go_the_same_way():
    there = dict(nn.Linear(8, 1, bias=False).named_parameters())
    updates = [{"weight": row[None].float()} for row in hostile_gradients()]
    for update in updates:
        found = clipped_updates([update], there, made(NoOp), CLIP)
        assert float(found.grads["weight"].double().norm()) <= found.l2_bound == CLIP
