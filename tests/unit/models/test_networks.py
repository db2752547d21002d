"""The networks of the papers: as large as written, gone through by the engine's own rules, never example by example."""

import math
import sys
from types import ModuleType

import pytest
import safetensors.torch
import torch
from torch import nn

from engine_oracle import CrossEntropy, apart, size, slow_sum
from privet.clipping.clipped_sum import clipped_sum
from privet.errors import InvalidValue
from privet.models import from_checkpoint, model, registry
from privet.per_example.gradients import explain

GREY = {"shape": (1, 28, 28), "classes": 10}
COLOUR = {"shape": (3, 32, 32), "classes": 10}

# spelling, facts, parameters: those of the papers' text or program where they say, else those of the docstring.
NETWORKS = [
    ("cnn", GREY, 26_010),
    ("cnn:activation=tanh", GREY, 26_010),
    ("shallow-cnn", GREY, 9_814),
    ("shallow-cnn:activation=relu", COLOUR | {"classes": 62}, 12_214 + 52 * 769),
    ("pool-cnn", GREY, 14_538),
    ("tanh-cnn", GREY, 7_934),
    ("resnet", COLOUR, 272_282),
    ("linear", {"shape": (123,), "classes": 2}, 248),
    ("mlp", {"shape": (123,), "classes": 2}, 2_018),
    ("mlp:layers=2,hidden=128", {"shape": (600,), "classes": 100}, 106_340),
    ("embedding-mlp", {"words": 10_000, "classes": 2}, 160_306),
    ("bag", {"words": 10_000, "classes": 2}, 20_000),
    ("bag:bias=learned", {"words": 10_000, "classes": 2}, 20_002),
    ("char-lstm", {"words": 60, "classes": 18}, 105_490),
    ("bilstm", {"words": 10_000, "classes": 4}, 707_076),
    ("ncf", {"users": 6_040, "movies": 3_706, "classes": 5}, 146_320),
    ("stars", {"users": 6_040, "movies": 3_952, "classes": 5}, 49_965),
]


def batch(facts, count=3):
    """`count` examples such as the network reads, and their classes."""
    generator = torch.Generator().manual_seed(1)
    if "users" in facts:
        limits = torch.tensor([facts["users"], facts["movies"]])
        inputs = torch.randint(2**30, (count, 2), generator=generator) % limits
    elif "words" in facts:
        inputs = torch.randint(facts["words"], (count, 12), generator=generator)
        inputs[0, :5] = 0  # padding
        inputs[1, 3] = inputs[1, 4]  # a word twice
    else:
        inputs = torch.rand(count, *facts["shape"], generator=generator)
    return inputs, torch.randint(facts["classes"], (count,), generator=generator)


@pytest.mark.parametrize(("spelling", "facts", "parameters"), NETWORKS, ids=[row[0] for row in NETWORKS])
def test_a_network_has_the_parameters_it_says(spelling, facts, parameters):
    assert sum(p.numel() for p in model(spelling, **facts).parameters()) == parameters


SMALL = {"resnet": ("resnet:depth=8,width=8", COLOUR | {"shape": (3, 8, 8)})}  # the same layers, fewer


@pytest.mark.parametrize(
    ("spelling", "facts"),
    [
        pytest.param(*SMALL.get(row[0], row[:2]), id=row[0], marks=[pytest.mark.slow] if row[0] in SMALL else [])
        for row in NETWORKS
    ],
)
def test_the_engine_has_a_rule_for_every_layer_and_agrees_with_one_example_at_a_time(spelling, facts):
    torch.manual_seed(0)
    network, (x, y) = model(spelling, **facts), batch(facts)
    explained = explain(network, CrossEntropy, (x, y))
    assert explained.whole == ""
    assert not [line for line in explained.uses if "vmap" in line.rule]
    norms = clipped_sum(network, CrossEntropy, (x, y), clipping_norm=1.0).raw_norms
    clip = float(norms.median())  # some are clipped, some are not
    wanted = slow_sum(network, CrossEntropy, (x, y), "flat", clip)
    assert apart(clipped_sum(network, CrossEntropy, (x, y), clipping_norm=clip).grads, wanted) <= 1e-5 * size(wanted)


def test_every_registered_network_is_tested_here():
    ours = {
        name for name in registry.names() if registry.maker(name).__module__.startswith(("privet.", "privet_papers."))
    }
    assert ours == {spelling.partition(":")[0] for spelling, *_ in NETWORKS}


@pytest.mark.parametrize("name", registry.names())
def test_a_network_says_where_it_comes_from_and_how_large_it_is(name):
    assert "parameters" in (registry.maker(name).__doc__ or "")


def test_padding_in_front_does_not_change_what_a_bag_says():
    network = model("bag", words=50, classes=3)
    nn.init.normal_(network.scores.weight)
    words = torch.tensor([[7, 9, 9, 4]])
    padded = torch.cat([torch.zeros(1, 6, dtype=torch.int64), words], 1)
    with torch.no_grad():
        network.scores.weight[0] = 0
        torch.testing.assert_close(network(words), network(padded))


def test_standardised_filters_have_mean_zero_and_variance_one():
    conv = next(m for m in model("resnet:depth=8", **COLOUR).modules() if isinstance(m, nn.Conv2d))
    conv.weight.data.mul_(3).add_(5)  # neither scale nor shift of a filter matters
    one = torch.zeros(1, 3, 32, 32)
    one[0, 0, 16, 16] = 1
    taps = conv(one)[0, :, 15:18, 15:18]  # the first channel of each filter, turned
    standard = (conv.weight - conv.weight.mean((1, 2, 3), keepdim=True)) / conv.weight.std(
        (1, 2, 3), keepdim=True, unbiased=False
    )
    torch.testing.assert_close(taps, standard[:, 0].flip(1, 2), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("spelling", "facts", "match"),
    [
        ("cnn", {"shape": (123,), "classes": 2}, "does not suit the model 'cnn'"),
        ("cnn", {"shape": (1, 8, 8), "classes": 2}, "at least 14 x 14"),
        ("cnn:activation=soft", GREY, "must be one of relu"),
        ("resnet:depth=9", COLOUR, "must be 6 n"),
        ("resnet:groups=5", COLOUR, "must divide width"),
        ("mlp:hidden=0", GREY, "whole number"),
        ("mlp:layers=1.5", GREY, "whole number"),
        ("embedding-mlp", {"shape": (3,), "classes": 2}, "needs the option 'words'"),
        ("nets", GREY, "not known"),
        ("builtins:dict", GREY, "must be a class made from torch"),
        ("test_models_own:Net:height=3", GREY, "no option 'height'"),
    ],
)
def test_a_mistake_is_one_clear_line(spelling, facts, match):
    with pytest.raises(InvalidValue, match=match) as caught:
        model(spelling, **facts)
    assert "\n" not in str(caught.value)


@pytest.fixture(autouse=True)
def own(monkeypatch):
    """A module of the user's: a network, and a function that counts its calls."""

    class Net(nn.Linear):
        def __init__(self, classes: int, width: int = 3) -> None:
            super().__init__(width, classes)

    def call(classes: int) -> nn.Module:
        module.calls += 1
        return Net(classes)

    module = ModuleType("test_models_own")
    module.Net, module.call, module.calls = Net, call, 0
    monkeypatch.setitem(sys.modules, "test_models_own", module)
    return module


def test_a_network_of_the_users_own():
    assert model("test_models_own:Net:width=5", **GREY).weight.shape == (10, 5)


def test_an_address_in_a_recipe_calls_nothing_but_networks(own, tmp_path):
    """A recipe may come from elsewhere."""
    with pytest.raises(InvalidValue, match="must not call just anything"):
        model(f'os:system:command="touch {tmp_path}/run"', **GREY)
    with pytest.raises(InvalidValue, match="must not call just anything"):
        model("test_models_own:call", **GREY)
    assert own.calls == 0
    assert not list(tmp_path.iterdir())


# --- fine-tuning ------------------------------------------------------------------------------------


def small(outputs=2, inputs=4):
    return nn.Sequential(nn.Linear(inputs, 3), nn.ReLU(), nn.Linear(3, outputs))


@pytest.fixture
def saved(tmp_path):
    """A small network and the file of its weights."""
    network, path = small(), tmp_path / "body.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    return network, path


def test_weights_are_loaded_and_all_but_the_chosen_are_frozen(saved):
    old, path = saved
    new = small()
    loaded = from_checkpoint(new, path, train=["2.*"])
    for name, tensor in old.state_dict().items():
        assert torch.equal(new.state_dict()[name], tensor)
    assert loaded.loaded == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert (loaded.trained, loaded.frozen, loaded.fresh) == (("2.weight", "2.bias"), ("0.weight", "0.bias"), ())
    assert [p.requires_grad for p in new.parameters()] == [False, False, True, True]
    assert "4 tensors loaded" in str(loaded)
    c = clipped_sum(new, CrossEntropy, (torch.randn(5, 4), torch.randint(2, (5,))), clipping_norm=1.0)
    assert sorted(c.grads) == ["2.bias", "2.weight"]


def test_a_new_output_layer_is_left_as_it_was_made(saved):
    old, path = saved
    new = small(outputs=7)
    made = new[2].weight.clone()
    loaded = from_checkpoint(new, path, train=["2.*", "*.bias"], fresh=["2.*"])
    assert torch.equal(new[2].weight, made)
    assert torch.equal(new[0].weight, old[0].weight)
    assert loaded.fresh == ("2.weight", "2.bias")
    assert loaded.trained == ("0.bias", "2.weight", "2.bias")


def test_by_default_everything_trains(saved):
    assert from_checkpoint(small(), saved[1]).frozen == ()


def spoiled(path, **changes):
    tensors = safetensors.torch.load_file(path)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    safetensors.torch.save_file(tensors, path)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda path: spoiled(path, **{"2.bias": None}), r"lacks 2\.bias"),
        (lambda path: spoiled(path, more=torch.ones(2)), "has more, which the model has not"),
        (lambda path: spoiled(path, **{"2.bias": torch.ones(3)}), r"2\.bias has the shape \(3,\)"),
        (lambda path: spoiled(path, **{"2.bias": torch.tensor([1.0, math.nan])}), "not finite"),
        (lambda path: spoiled(path, **{"2.bias": torch.tensor([1.0, 1e300], dtype=torch.float64)}), "not finite"),
        (lambda path: spoiled(path, **{"2.bias": torch.ones(2, dtype=torch.int64)}), "kind torch.int64"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "damaged or no safetensors"),
        (lambda path: path.write_bytes(b""), "damaged or no safetensors"),
        (lambda path: path.write_bytes(b"\xff" * 64), "damaged or no safetensors"),
        (lambda path: torch.save({"2.bias": torch.ones(2)}, path), "is a pickle"),
        (lambda path: path.unlink(), "cannot be read: No such file"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(saved, spoil, match):
    _, path = saved
    spoil(path)
    network = small()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(InvalidValue, match=match) as caught:
        from_checkpoint(network, path, train=["2.*"])
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"train": ["3.*"]}, r"train='3\.\*' matches no name"),
        ({"fresh": ["head"]}, "fresh='head' matches no name"),
        ({"train": []}, "must be a list of patterns"),
        ({"train": "2.*"}, "must be a list of patterns"),
    ],
)
def test_a_pattern_that_chooses_nothing_is_a_mistake(saved, options, match):
    with pytest.raises(InvalidValue, match=match):
        from_checkpoint(small(), saved[1], **options)
