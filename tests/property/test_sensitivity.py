"""The promise: one example moves the clipped sum by at most l2_bound, whatever it is."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from engine_oracle import CrossEntropy, Fn, apart, size
from privet.clipping.clipped_sum import clipped_sum

SLACK = 1 + 1e-6
R = torch.randn


def dense_net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 3)), (width,)


def tied_net(width: int) -> nn.Module:
    return Fn(lambda m, x: (torch.tanh(x @ m.w) @ m.w.T)[:, :3] * m.g, w=R(3 + width, 4), g=R(())), (3 + width,)


def sequence_net(width: int) -> nn.Module:
    """Gram norms: three positions, wide layers."""
    return Fn(lambda m, x: m.o(m.a(x).relu().sum(1)), a=nn.Linear(20, 30), o=nn.Linear(30, 3)), (3, 20)


def image_net(width: int) -> nn.Module:
    layers = nn.Conv2d(width, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(*layers), (width, 4, 4)


def attention_net(width: int) -> nn.Module:
    block = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    return Fn(lambda m, x: m.o(m.t(x).mean(1)), t=block, o=nn.Linear(4, 3)), (width, 4)


NETS = [dense_net, tied_net, sequence_net, image_net, attention_net]
KINDS = ["ordinary", "huge", "nan", "inf", "one inf", "aligned", "opposed", "cancelling"]


def odd_one(kind: str, x: torch.Tensor, scale: float) -> torch.Tensor:
    """One more example, (1, ...), made to do harm."""
    like = R(1, *x.shape[1:])
    if kind in ("aligned", "opposed"):
        return x.mean(0, keepdim=True) * (scale if kind == "aligned" else -scale)
    if kind == "cancelling":  # positions that differ in the last digits only
        return scale * like[:, :1].expand_as(like) * (1 + 1e-7 * torch.arange(like[0].numel()).view(like.shape))
    if kind == "one inf":
        return like.index_fill_(-1, torch.tensor([0]), torch.inf)
    return {"ordinary": like, "huge": scale * like, "nan": like * torch.nan, "inf": like * torch.inf}[kind]


@pytest.mark.slow
@given(
    net=st.sampled_from(NETS), kind=st.sampled_from(KINDS), rule=st.sampled_from(["flat", "per_layer", "normalised"]),
    width=st.integers(1, 4), batch=st.integers(0, 6), clip=st.sampled_from([1e-3, 0.5, 100.0]),
    scale=st.sampled_from([10.0, 1e4, 1e10, 3e20, 1e37]), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=100)
def test_one_example_moves_the_sum_by_at_most_the_bound(net, kind, rule, width, batch, clip, scale, seed):
    torch.manual_seed(seed)
    model, shape = net(width)
    x, y = R(batch + 1, *shape), torch.randint(3, (batch + 1,))
    more = torch.cat([x, odd_one(kind, x, scale)]), torch.cat([y, torch.randint(3, (1,))])
    without = clipped_sum(model, CrossEntropy, (x, y), rule, clip)
    with_it = clipped_sum(model, CrossEntropy, more, rule, clip)
    moved = apart(with_it.grads, without.grads)
    # float32 sums of the others round too: a few units in the last place of each
    assert moved <= with_it.l2_bound * SLACK + 4e-7 * size(without.grads)
    assert with_it.l2_bound <= clip
    if kind in ("nan", "inf"):
        assert moved <= 4e-7 * size(without.grads)


@pytest.mark.slow
@given(
    net=st.sampled_from(NETS), kind=st.sampled_from(KINDS), rule=st.sampled_from(["flat", "per_layer"]),
    scale=st.sampled_from([1.0, 1e6, 3e20]), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=40)
def test_one_example_alone_is_within_the_bound(net, kind, rule, scale, seed):
    """Nothing to hide behind: the sum is one example's share."""
    torch.manual_seed(seed)
    model, shape = net(2)
    x = odd_one(kind, R(2, *shape), scale)
    found = clipped_sum(model, CrossEntropy, (x, torch.randint(3, (1,))), rule, 0.1)
    assert size(found.grads) <= found.l2_bound * SLACK
    assert all(bool(grad.isfinite().all()) for grad in found.grads.values())


@pytest.mark.parametrize("views", [2, 3])
def test_views_of_an_example_share_one_bound(views):
    torch.manual_seed(0)
    model, shape = dense_net(4)
    x, y = 100 * R(views, *shape), torch.randint(3, (views,))
    found = clipped_sum(model, CrossEntropy, (x, y), "flat", 0.1, augmentations=views)
    assert found.raw_batch_size == 1
    assert size(found.grads) <= 0.1 * SLACK


def test_a_wrong_bound_would_be_seen():
    """The test's own test: the sum of two examples is beyond the bound of one."""
    torch.manual_seed(0)
    model, shape = dense_net(4)
    x = (100 * R(1, *shape)).expand(2, *shape)
    found = clipped_sum(model, CrossEntropy, (x, torch.zeros(2, dtype=torch.int64)), "flat", 0.1)
    assert size(found.grads) > 0.1 * SLACK
