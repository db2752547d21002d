"""A user's own forward pass, recorded: the same sum, and refused where it could not be."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from engine_oracle import CrossEntropy, Fn, apart, size, slow_sum
from privet.clipping.clipped_sum import clipped_sum
from privet.errors import InvalidValue, Unsupported
from privet.per_example.loop_record import recording

R = torch.randn
CLIP = 0.5


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return R(8, 4), torch.randint(3, (8,))


@pytest.fixture
def model(batch):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def recorded(model, losses_of, *, views: int = 1):
    with recording(model):
        losses = losses_of(model)
    return clipped_sum(model, losses, (), "flat", CLIP, augmentations=views)


def test_losses_alone_give_the_sum(model, batch):
    x, y = batch
    found = recorded(model, lambda m: CrossEntropy(m(x), y))
    true = slow_sum(model, CrossEntropy, batch, "flat", CLIP)
    assert apart(found.grads, true) <= 1e-5 * size(true)
    assert (found.raw_batch_size, found.l2_bound) == (8, CLIP)


def test_two_calls_of_the_model_are_one_contribution(model, batch):
    x, y = batch
    found = recorded(model, lambda m: CrossEntropy(m(x) + m(2 * x), y))
    twice = Fn(lambda f, x: f.m(x) + f.m(2 * x), m=model)
    true = slow_sum(twice, CrossEntropy, batch, "flat", CLIP)
    assert apart(found.grads, {name.removeprefix("m."): grad for name, grad in true.items()}) <= 1e-5 * size(true)


def test_two_kinds_of_call_in_one_recording(batch):
    """The trial passes for the second kind come between the first call and its gradients, and must not disturb them."""
    x, y = batch
    model = Fn(lambda m, x: m.l(x.float()), l=nn.Linear(4, 3))
    whole = torch.randint(3, (8, 4))
    found = recorded(model, lambda m: CrossEntropy(m(x) + m(whole), y))
    both = Fn(lambda f, x, w: f.m(x) + f.m(w), m=model)
    true = slow_sum(both, CrossEntropy, ((x, whole), y), "flat", CLIP)
    assert apart(found.grads, {name.removeprefix("m."): grad for name, grad in true.items()}) <= 1e-5 * size(true)


def test_views_are_averaged_before_clipping(model, batch):
    x, y = batch
    found = recorded(model, lambda m: CrossEntropy(m(x), y), views=2)
    true = slow_sum(model, CrossEntropy, batch, "flat", CLIP, views=2)
    assert apart(found.grads, true) <= 1e-5 * size(true)


def test_passes_without_gradients_are_not_recorded(model, batch):
    """Pseudo-labels from the model itself, say."""
    x, _ = batch
    with torch.no_grad():
        labels = model(x).argmax(1)

    def losses(m):
        with torch.no_grad():
            own = m(x).argmax(1)
        return CrossEntropy(m(x), own)

    true = slow_sum(model, CrossEntropy, (x, labels), "flat", CLIP)
    assert apart(recorded(model, losses).grads, true) <= 1e-5 * size(true)


def test_a_call_that_failed_counts_for_nothing(model, batch):
    x, y = batch

    def losses(m):
        with pytest.raises(RuntimeError):
            m(R(8, 5))
        return CrossEntropy(m(x), y)

    true = slow_sum(model, CrossEntropy, batch, "flat", CLIP)
    assert apart(recorded(model, losses).grads, true) <= 1e-5 * size(true)


@pytest.mark.parametrize(
    "losses",
    [
        lambda m, x, y: CrossEntropy(m(x) - m(x).mean(0), y),
        lambda m, x, y: -(m(x) @ m(x).T).log_softmax(1).diagonal(),
        lambda m, x, y: CrossEntropy(m(x), y) + m(x)[3, 0] * (torch.arange(8) == 4),
    ],
    ids=["centred", "contrastive", "one in the middle sees another"],
)
def test_losses_that_mix_examples_are_refused(model, batch, losses):
    with pytest.raises(Unsupported, match="depends on the outputs of others"):
        recorded(model, lambda m: losses(m, *batch))


def test_calls_with_other_numbers_of_rows_are_refused(model, batch):
    """Sixteen rows of eight examples: lying together or one set after the other? It cannot be known."""
    x, y = batch

    def losses(m):
        return CrossEntropy(m(x) + m(torch.cat([x, 2 * x])).view(2, 8, 3).sum(0), y)

    with pytest.raises(Unsupported, match=r"\[8, 16\] rows"):
        recorded(model, losses)


@pytest.mark.parametrize(
    "losses",
    [
        lambda m, x, y: CrossEntropy(m[2](m[1](m[0](x))), y),
        lambda m, x, y: CrossEntropy(m(x), y) + m[0].weight.square().sum(),
    ],
    ids=["its parts one by one", "weight decay"],
)
def test_parameters_outside_of_the_model_are_refused(model, batch, losses):
    with pytest.raises(Unsupported, match="outside of model"):
        recorded(model, lambda m: losses(m, *batch))
    assert type(model[0].weight) is nn.Parameter


def test_models_that_no_rule_covers_are_refused(batch):
    x, y = batch
    model = Fn(lambda m, x: m.l(x) if x.sum() > 0 else m.l(-x), l=nn.Linear(4, 3))
    with pytest.raises(Unsupported, match="path depends on the data"):
        recorded(model, lambda m: CrossEntropy(m(x), y))


def test_a_recording_is_used_once(model, batch):
    x, y = batch
    recorded(model, lambda m: CrossEntropy(m(x), y))
    with pytest.raises(InvalidValue, match="recording"):
        clipped_sum(model, torch.zeros(8), batch)


def test_a_mean_is_no_loss_per_example(model, batch):
    x, y = batch
    with pytest.raises(InvalidValue, match="one loss for each of 8"):
        recorded(model, lambda m: CrossEntropy(m(x), y).mean())


def test_an_empty_batch_says_what_to_do(model):
    with pytest.raises(InvalidValue, match="no example"):
        recorded(model, lambda m: CrossEntropy(m(R(0, 4)), torch.zeros(0, dtype=torch.int64)))


def test_a_copy_made_while_recording_is_an_ordinary_model(model, batch):
    """For an average of the weights, say: no hook and no watched parameter comes along."""
    x, y = batch
    copies = []
    recorded(model, lambda m: (copies.append(copy.deepcopy(m)), CrossEntropy(m(x), y))[1])
    assert type(copies[0][0].weight) is nn.Parameter
    found = recorded(copies[0], lambda m: CrossEntropy(m(x), y))
    true = slow_sum(model, CrossEntropy, batch, "flat", CLIP)
    assert apart(found.grads, true) <= 1e-5 * size(true)


def test_a_recording_does_not_keep_a_model_alive(batch):
    x, y = batch
    model = nn.Linear(4, 3)
    with recording(model):
        CrossEntropy(model(x), y)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_loss_under_autocast_is_its_own():
    """bfloat16 rounds to three digits: that is no sign that examples see each other."""
    model, loss_fn = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 4)), nn.CrossEntropyLoss(reduction="none")
    x, y = torch.randn(16, 6), torch.randint(4, (16,))
    with recording(model), torch.autocast("cpu", dtype=torch.bfloat16):
        losses = loss_fn(model(x), y)
    found = clipped_sum(model, losses, (x, y), clipping_norm=0.1)
    assert found.grads["0.weight"].dtype == torch.float32
    assert bool(found.grads["0.weight"].isfinite().all())
