"""Loops of one's own that couple records by values alone, which no gradient tells of: half of them are exchanged."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from privet import Training, plan
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded
from privet.per_example.independence.counterfactuals import VARIANTS
from privet.per_example.independence.loop import LoopCheck
from privet.per_example.loop_record import recording
from privet.training.loop_watch import LoopGuard

SIZE, CLASSES, STEPS = 120, 3, 10
OWN = torch.Generator().manual_seed(0)
SIDE = nn.Sequential(nn.BatchNorm1d(5, affine=False))


def each(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, CLASSES))


def loop(losses, *, model=None, **options):
    """A training whose body gives `losses(model, x, y)` to `step`."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(SIZE, 5, generator=generator), torch.randint(CLASSES, (SIZE,), generator=generator)
    model = network() if model is None else model
    planned = plan(delta=1e-3, dataset_size=SIZE, batch_size=30, steps=STEPS, noise_multiplier=2.0, solve="epsilon")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with Training(model, optimizer, (x, y), planned, randomness=seeded(1), **options) as training:
            for inputs, targets in training:
                given = losses(model, inputs, targets)
                training.step(*given) if isinstance(given, tuple) else training.step(given)
    finally:
        assert not _get_current_dispatch_mode_stack()
    return [p.detach().clone() for p in model.parameters()]


def over_the_mean(m, x, y):
    return each(m(x), y) / each(m(x), y).mean().detach()


def over_the_largest(m, x, y):
    losses = each(m(x), y)
    return losses / losses.detach().max()


def the_hardest(m, x, y):
    losses = each(m(x), y)
    return losses * (losses >= losses.detach().topk(5).values[-1])


def weights_written_into_a_new_tensor(m, x, y):
    losses, weights = each(m(x), y), torch.zeros(len(x))
    weights[losses.detach() > losses.detach().median()] = 1.0
    return losses * weights


def weights_written_through_a_view(m, x, y):
    losses, weights = each(m(x), y), torch.zeros(len(x))
    weights[:20] = (losses / losses.mean()).detach()[:20]
    return losses * weights


def weights_written_one_by_one(m, x, y):
    losses, weights = each(m(x), y), torch.zeros(len(x))
    rows = weights.view(-1)
    for i, weight in enumerate((losses / losses.mean()).detach()):
        weights[i] = weight
    return losses * rows


def after_an_order_that_nobody_uses(m, x, y):
    y.argsort()
    return over_the_mean(m, x, y)


def counted_classes(m, x, y):
    return each(m(x), y) / torch.bincount(y, minlength=CLASSES)[y]


def mixed_inputs(m, x, y):
    other = torch.randperm(len(x))
    return each(m(0.7 * x + 0.3 * x[other]), y)


def mixed_targets(m, x, y):
    other = torch.randperm(len(x))
    outputs = m(x)
    return 0.7 * each(outputs, y) + 0.3 * each(outputs, y[other])


def scaled_inputs(m, x, y):
    return each(m((x - x.mean(0)) / x.std(0)), y)


def scaled_in_place(m, x, y):
    x -= x.mean(0)
    return each(m(x), y)


def scaled_for_a_loss_function(m, x, y):
    return each, x - x.mean(0), y


@pytest.mark.parametrize(
    "losses",
    [
        over_the_mean, over_the_largest, the_hardest, weights_written_into_a_new_tensor, weights_written_through_a_view,
        weights_written_one_by_one, after_an_order_that_nobody_uses, counted_classes, mixed_inputs, mixed_targets,
        scaled_inputs, scaled_in_place, scaled_for_a_loss_function,
    ],
)  # fmt: skip
def test_coupling_by_values_is_refused(losses):
    with pytest.raises(Unsupported, match="depends on the records of others"):
        loop(losses)


@pytest.mark.parametrize("scaled", [lambda n: n, lambda n: 1 / n, lambda n: n**0.5], ids=["n", "1/n", "root"])
def test_losses_scaled_by_the_rows_of_the_batch_are_refused(scaled):
    with pytest.raises(Unsupported, match="scaled by the number of rows"):
        loop(lambda m, x, y: each(m(x), y) * scaled(len(x)))


# --- what is sound is let be ------------------------------------------------------------------------


def by_class(m, x, y):
    return each(m(x), y) * torch.tensor([1.0, 2.0, 3.0])[y]


def with_noise(m, x, y):
    return each(m(x + 0.1 * torch.randn_like(x) + 0.1 * torch.randn(x.shape, generator=OWN)), y)


def masked(m, x, y):
    return each(m(F.dropout(x, 0.3)), y)


def written(m, x, y):
    weights = torch.zeros(len(x))
    weights[y == 1] = 2.0
    losses = each(m(x), y)
    losses.mean().item()  # to be looked at
    return losses * weights


def written_by_numpy(m, x, y):
    x.numpy()[:] *= 2
    return each(m(x), y)


def by_length(m, x, y):
    order = (10 * x[:, 0]).long().argsort()
    return each(m(x[order]), y[order])


def written_where_the_shadow_cannot(m, x, y):
    torch.zeros(int((y == 1).sum())).copy_(x[y == 1, 0])  # of exchanged records there are more or fewer
    return each(m(x), y)


def in_random_order(m, x, y):
    order = torch.randperm(len(x))
    return each(m(x[order]), y[order])


def in_an_order_by_numpy(m, x, y):
    order = torch.from_numpy(np.argsort(x[:, 0].numpy()))
    return each(m(x[order]), y[order])


def in_an_order_by_floats(m, x, y):
    order = x[:, 0].argsort()
    return each(m(x[order]), y[order])


def drawn_unevenly(m, x, y):
    return each(m(torch.poisson(x.abs()) + torch.randn(x.shape)), y)


def beside_inference(m, x, y):
    with torch.inference_mode():
        sure = m(x + 0).softmax(1).amax(1).clone()
    return each(m(x), y) * torch.from_numpy(sure.numpy().copy())


def beside_a_model_with_statistics(m, x, y):
    SIDE(x)
    return each(m(x), y) + SIDE[0].running_mean.sum()


def two_calls(m, x, y):
    with torch.no_grad():
        sure = m(x).softmax(1).amax(1)
    return each(m(x), y) * sure


def copied(m, x, y):
    copy.deepcopy(m)(x)
    return each(m(x), y)


def in_a_mode(m, x, y):
    with TorchDispatchModeOfOnesOwn():
        return each(m(x), y)


class TorchDispatchModeOfOnesOwn(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


SOUND = [
    by_class, with_noise, masked, written, written_where_the_shadow_cannot, in_random_order, in_an_order_by_floats,
    drawn_unevenly, by_length, two_calls, copied, in_a_mode,
]  # fmt: skip


@pytest.mark.parametrize("losses", SOUND)
def test_sound_loops_are_followed_and_nothing_of_it_is_left(losses, monkeypatch):
    """The same weights as without a shadow: random numbers, buffers and data are as they were."""

    def ran():
        OWN.manual_seed(0)
        torch.manual_seed(3)
        SIDE[0].reset_running_stats()
        return loop(losses)

    watched = ran()
    monkeypatch.setattr(LoopGuard, "wants_check", lambda _: False)
    assert all(torch.equal(a, b) for a, b in zip(watched, ran(), strict=True))


@pytest.mark.parametrize(
    "losses", [written_by_numpy, in_an_order_by_numpy, beside_inference, beside_a_model_with_statistics]
)
def test_what_cannot_be_followed_is_refused(losses):
    """Sound or not: what left torch, or was kept from one step to the next, could hide anything."""
    with pytest.raises(Unsupported, match=r"could not be followed|depends on its place"):
        loop(losses)


class Leaving(nn.Module):
    """What a pass leaves behind: an attribute, a list, and what a hook keeps."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.passed = nn.Linear(5, 6), nn.Linear(6, CLASSES), []
        self.first.register_forward_hook(lambda _, __, out: self.passed.append(out))

    def forward(self, x):
        found = self.last(torch.tanh(self.first(x)))
        self.sure = found.softmax(1).amax(1)
        self.passed.append(found)
        return found


@pytest.mark.parametrize("leaves", [lambda m: m.sure, lambda m: m.passed[-2].square().sum(1)], ids=["said", "hooked"])
def test_what_the_users_own_call_left_behind_is_what_the_loop_finds(leaves, monkeypatch):
    """A call on exchanged records must not leave another's numbers, or numbers without a gradient, in its place."""

    def run():
        torch.manual_seed(0)
        model = Leaving()
        counts = []

        def losses(m, x, y):
            found = each(m(x), y) + leaves(m)
            counts.append(len(m.passed))
            return found

        return [*loop(losses, model=model), torch.tensor(counts[1:]) - counts[0]]

    watched = run()
    monkeypatch.setattr(LoopGuard, "wants_check", lambda _: False)
    assert all(torch.equal(a, b) for a, b in zip(watched, run(), strict=True))


def test_counterfactual_batches_lie_in_memory_of_their_own():
    data = torch.randn(8, 2)
    check = LoopCheck([data], rows=8)
    before = data.clone()
    for variant in VARIANTS:
        check._counterfactual(data, variant).zero_()
    assert torch.equal(data, before)


def test_what_is_known_of_a_tensor_dies_with_it():
    alive = []

    def losses(m, inputs, targets):
        h = inputs
        for _ in range(50):
            h = torch.tanh(h + 1)
        (check,) = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, LoopCheck)]
        alive.append(check._mirrors.count())
        raise KeyError

    with pytest.raises(KeyError):
        loop(losses)
    assert alive[0] <= 4  # inputs, targets, h, and what is at hand


class Drifting(nn.Module):
    """A buffer that every pass moves, whatever the data; and Python's coins decide."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, CLASSES)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        self.scale.mul_(1.01)
        return self.layer(x) * self.scale.clone() * (1 + (random.random() < 0.5))


def test_a_model_that_moves_its_buffers_is_as_without_a_shadow(monkeypatch):
    def run():
        torch.manual_seed(0)
        random.seed(0)
        model = Drifting()
        return [*loop(lambda m, x, y: each(m(x), y), model=model), model.scale.clone()]

    watched = run()
    monkeypatch.setattr(LoopGuard, "wants_check", lambda _: False)
    assert all(torch.equal(a, b) for a, b in zip(watched, run(), strict=True))


def test_views_of_a_record_may_be_alike():
    """The rows of a record are exchanged together: what they share is not another's."""
    loop(lambda m, x, y: each(m(x - x.view(-1, 2, 5).mean(1).repeat_interleave(2, 0)), y), augmentations=2)


def test_a_step_inside_of_a_mode_leaves_that_mode():
    model = network()
    x, y = torch.randn(SIZE, 5), torch.randint(CLASSES, (SIZE,))
    planned = plan(delta=1e-3, dataset_size=SIZE, batch_size=30, steps=2, noise_multiplier=2.0, solve="epsilon")
    with Training(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), planned) as training:
        for inputs, targets in training:
            with TorchDispatchModeOfOnesOwn() as mine:
                training.step(each(model(inputs), targets))
                assert _get_current_dispatch_mode_stack() == [mine]
    assert not _get_current_dispatch_mode_stack()


@pytest.mark.parametrize("threshold", [-0.5, 0.5])
def test_one_check_sees_a_sign_whichever_it_is(threshold):
    """Later steps are checked one by one: a check that saw half of the signs would find a loop in twice the steps."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(30, 5, generator=generator), torch.randint(CLASSES, (30,), generator=generator)
        model = network()
        check = LoopCheck((x, y), rows=30, model=model)
        with pytest.raises(Unsupported, match="depends on the records of others"), recording(model, check=check):
            check.check(each(model(x), y) * torch.sign(x.mean() - threshold))


def test_a_step_in_another_thread_is_refused_and_leaves_nothing_behind():
    def in_a_thread():
        for x, y in training:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda x=x, y=y: training.step(each(model(x), y))).result()

    model = network()
    planned = plan(delta=1e-3, dataset_size=60, batch_size=20, steps=3, noise_multiplier=2.0, solve="epsilon")
    data = torch.randn(60, 5), torch.randint(CLASSES, (60,))
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), data, planned)
    with pytest.raises(InvalidValue, match="in another thread"):
        in_a_thread()
    assert not _get_current_dispatch_mode_stack()
    for x, y in training:
        training.step(each(model(x), y))
    assert training.facts.lost == 1
