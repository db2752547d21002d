"""Replacements: what takes a layer's place, that names and weights stay, and that old checkpoints still load."""

import copy
import pickle

import pytest
import torch
from torch import nn

from privet.clipping.clipped_sum import clipped_sum
from privet.diagnosis.replace_layers import replace_layers
from privet.errors import InvalidValue, Unsupported

LOSS = nn.CrossEntropyLoss(reduction="none")


class WithRelu(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


class Renamed(nn.BatchNorm2d):
    pass


def network() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Sequential(nn.SyncBatchNorm(16), nn.BatchNorm2d(16, affine=False)),
        nn.InstanceNorm2d(16, affine=True, track_running_stats=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.BatchNorm1d(16), nn.Linear(16, 2),
    )  # fmt: skip
    for p in made.parameters():
        p.data.normal_()
    return made


def test_each_change_is_reported() -> None:
    changes = {change.name: change for change in replace_layers(network())[1]}
    assert {name: (change.before, change.after) for name, change in changes.items()} == {
        "1": ("BatchNorm2d(16)", "GroupNorm(8, 16)"),
        "2.0": ("SyncBatchNorm(16)", "GroupNorm(8, 16)"),
        "2.1": ("BatchNorm2d(16)", "GroupNorm(8, 16, affine=False)"),
        "3": ("InstanceNorm2d(16, track_running_stats=True)", "InstanceNorm2d(16, track_running_stats=False)"),
        "6": ("BatchNorm1d(16)", "GroupNorm(1, 16)"),
    }
    assert changes["1"].weights == "weights are kept; running statistics are dropped"
    assert "no weights" in changes["2.1"].weights


def test_names_and_weights_stay_and_the_given_model_is_left_alone() -> None:
    model = network()
    before, was = copy.deepcopy(model.state_dict()), repr(model)
    made, _ = replace_layers(model)
    assert repr(model) == was
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert {name: p.tolist() for name, p in made.named_parameters()} == {
        name: p.tolist() for name, p in model.named_parameters()
    }
    assert not list(made.buffers())


def test_the_fixed_model_can_be_clipped_and_the_given_one_cannot() -> None:
    batch = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 1, 0])
    with pytest.raises(Unsupported):
        clipped_sum(network(), LOSS, batch)
    assert clipped_sum(replace_layers(network())[0], LOSS, batch).l2_bound == 1.0


@pytest.mark.parametrize("plain", [False, True], ids=["with torch's metadata", "names and tensors alone"])
@pytest.mark.parametrize("passed_on", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_checkpoint_from_before_loads_strictly(plain: bool, passed_on) -> None:
    model, other = network(), network()
    for p in other.parameters():
        p.data.add_(1.0)
    state = dict(other.state_dict()) if plain else other.state_dict()
    made = passed_on(replace_layers(model)[0])
    made.load_state_dict(state, strict=True)
    assert torch.equal(made[1].weight, other[1].weight)
    inside, outside = nn.Sequential(made), nn.Sequential(other)
    inside.load_state_dict(dict(outside.state_dict()), strict=True)


def test_a_checkpoint_with_other_names_is_still_refused() -> None:
    state = network().state_dict() | {"1.more": torch.zeros(1)}
    with pytest.raises(RuntimeError, match=r"1\.more"):
        replace_layers(network())[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("norm", "groups"),
    [
        (nn.BatchNorm2d(64), 32), (nn.BatchNorm3d(48), 24), (nn.BatchNorm2d(32), 16), (nn.BatchNorm2d(7), 1),
        (nn.BatchNorm1d(64), 1), (nn.BatchNorm2d(2), 1), (Renamed(64), 32),
    ],
)  # fmt: skip
def test_groups_fit_the_channels(norm: nn.Module, groups: int) -> None:
    made = replace_layers(norm)[0]
    assert isinstance(made, nn.GroupNorm)
    assert made.num_groups == groups


def test_after_a_dense_layer_more_than_signs_is_left() -> None:
    out = replace_layers(nn.BatchNorm1d(64))[0](torch.randn(5, 64))
    assert len(out.detach().abs().mul(100).round().unique()) > 20


def test_settings_are_carried_over() -> None:
    norm = nn.BatchNorm2d(4, eps=0.5).double()
    norm.weight.requires_grad_(False)
    made = replace_layers(norm)[0]
    assert made.eps == 0.5
    assert made.weight.dtype == torch.float64
    assert [p.requires_grad for p in made.parameters()] == [False, True]


def test_a_norm_without_bias() -> None:
    norm = nn.BatchNorm2d(4)
    norm.register_parameter("bias", None)
    made = replace_layers(norm)[0]
    assert [name for name, _ in made.named_parameters()] == ["weight"]
    assert made(torch.randn(2, 4, 3, 3)).shape == (2, 4, 3, 3)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4).eval(), WithRelu(4), nn.BatchNorm1d(1), nn.InstanceNorm2d(4), nn.Embedding(3, 2)]
)
def test_what_is_left_as_it_is(norm: nn.Module) -> None:
    """A frozen batch norm, one that computes more, one that would be zero everywhere, and what is private already."""
    made, changes = replace_layers(nn.Sequential(norm))
    assert changes == ()
    assert type(made[0]) is type(norm)


def test_one_layer_under_two_names_stays_one() -> None:
    norm = nn.BatchNorm2d(4)
    made, changes = replace_layers(nn.ModuleList([norm, nn.Sequential(norm)]))
    assert made[0] is made[1][0]
    assert isinstance(made[0], nn.GroupNorm)
    assert len(changes) == 1


def test_instance_norm_computes_the_same_and_keeps_nothing() -> None:
    norm, x = nn.InstanceNorm2d(3, affine=True, track_running_stats=True), torch.randn(2, 3, 4, 4)
    made = replace_layers(norm)[0]
    assert torch.equal(made(x), norm(x))
    assert torch.equal(made.eval()(x), made.train()(x))


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_lose_what_reads_the_batch(options: dict) -> None:
    table = nn.Embedding(5, 2, **options)
    made, (change,) = replace_layers(table)
    assert (made.max_norm, made.scale_grad_by_freq) == (None, False)
    assert torch.equal(made.weight, table.weight)
    assert next(iter(options)) in change.before


def test_lazy_layers_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^1: LazyBatchNorm2d does not know its sizes yet"):
        replace_layers(nn.Sequential(nn.Conv2d(1, 2, 1), nn.LazyBatchNorm2d()))


def test_a_model_that_cannot_be_copied_is_one_line() -> None:
    model = nn.Linear(2, 2)
    model.kept = model.weight * 2  # a tensor that autograd has computed
    with pytest.raises(InvalidValue, match="cannot be copied"):
        replace_layers(model)
