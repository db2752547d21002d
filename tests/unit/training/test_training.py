"""Training: the weights are those of the obvious loop; what plan, model or batch do not allow is refused."""

import copy
import gc
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from engine_oracle import slow_sum
from privet import Training, _files, plan
from privet.errors import BudgetExceeded, InvalidValue, Unsupported
from privet.ledger.file import LedgerFile
from privet.ledger.reading import read_ledger
from privet.noise import discrete, gaussian as engine_noise, release as engine_release
from privet.noise.gaussian import add_noise, noise_std
from privet.noise.randomness import seeded
from privet.per_example.interception import TrackedParameter
from privet.sampling.samplers import sampler

LOSS = nn.CrossEntropyLoss(reduction="none")
SIZE = 60


def a_plan(**given):
    return plan(**{"delta": 1e-3, "dataset_size": SIZE, "batch_size": 12, "steps": 6, "noise_multiplier": 0.7,
                "clipping_norm": 0.5,
                   "solve": "epsilon", **given})  # fmt: skip


PLAN = a_plan()
OWN_NORM = plan(
    delta=1e-3, dataset_size=SIZE, batch_size=12, steps=3, epsilon=2.0, method="auto-linear", uncertified=True
)


def a_dataset(size=SIZE, seed=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=g, dtype=torch.float64), torch.randint(3, (size,), generator=g)


def a_model(dtype=torch.float64):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def sgd(model, lr=0.3, **given):
    return torch.optim.SGD(model.parameters(), lr=lr, **given)


def a_training(model=None, dataset=None, planned=PLAN, optimizer=sgd, **given):
    model = a_model() if model is None else model
    dataset = a_dataset() if dataset is None else dataset
    return Training(model, optimizer(model), dataset, planned, **given)


def run(training, after=lambda: None):
    for x, y in training:
        if training.step(LOSS(training.model(x), y)):
            after()
    return weights(training.model)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def by_hand(model, optimizer, dataset, planned, generator, after=lambda: None, *, views=1, augment=lambda x: x):
    """The obvious loop: one example at a time, clipped, summed, noise, the planned batch, the optimizer's own step."""
    x, y = dataset
    for step, chosen in zip(planned.steps, sampler(planned, records=len(x), randomness=generator), strict=True):
        rows = chosen.repeat_interleave(views)
        total = slow_sum(model, LOSS, (augment(x[rows]), y[rows]), "flat", step.clipping_norm, views=views)
        std = noise_std(step, l2_bound=step.clipping_norm)
        noisy = add_noise(total, std=std, randomness=generator, divisor=step.sample_rate * planned.recipe.dataset_size)
        for name, p in model.named_parameters():
            p.grad = noisy[name]
        optimizer.step()
        after()
    return weights(model)


def each(training, action):
    """A loop whose body is `action(x, y)`."""
    for x, y in training:
        action(x, y)


def is_clean(model):
    return all(type(p) is nn.Parameter for p in model.parameters()) and not any(
        m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )


class Reading(Dataset):
    """A map-style dataset that is not tensors."""

    def __init__(self, data):
        self.x, self.y = data

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


# --- the same weights as the obvious loop -----------------------------------------------------------

OPTIMIZERS = {
    "momentum": lambda m: sgd(m, momentum=0.9, weight_decay=0.1),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.05),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.05),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("physical", [None, 5])
def test_the_weights_are_those_of_the_obvious_loop(name, physical):
    found = run(a_training(optimizer=OPTIMIZERS[name], randomness=seeded(7), max_physical_batch_size=physical))
    model = a_model()
    wanted = by_hand(model, OPTIMIZERS[name](model), a_dataset(), PLAN, seeded(7))
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(found, weights(a_model()), atol=1e-2)


SCHEDULED = a_plan(
    noise_multiplier="exponential:start=1,end=0.5",
    clipping_norm="linear:start=1,end=0.2",
    batch_size="6 * linear:end=3",
)


def test_noise_clip_and_batch_follow_their_schedules():
    """The divisor is each step's own expected batch."""
    found = run(a_training(planned=SCHEDULED, randomness=seeded(7)))
    model = a_model()
    assert torch.allclose(found, by_hand(model, sgd(model), a_dataset(), SCHEDULED, seeded(7)), rtol=1e-10)


def test_a_learning_rate_scheduler_works_unchanged():
    model, oracle = a_model(), a_model()
    training = a_training(model, randomness=seeded(7), max_physical_batch_size=5)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=2, gamma=0.1)
    found = run(training, scheduler.step)
    optimizer = sgd(oracle)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    wanted = by_hand(oracle, optimizer, a_dataset(), PLAN, seeded(7), scheduler.step)
    assert torch.allclose(found, wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("physical", "rule"),
    [(1, "flat"), (11, "flat"), (1000, "flat"), (4, "per_layer"), (4, "normalised"), (4, "quantile"), (4, "adaclip")],
)
def test_pieces_of_any_size_give_the_same_update(physical, rule):
    planned = a_plan(rule=rule, steps=3)
    whole = run(a_training(planned=planned, randomness=seeded(7)))
    pieces = run(a_training(planned=planned, randomness=seeded(7), max_physical_batch_size=physical))
    assert torch.allclose(whole, pieces, rtol=1e-9)


@pytest.mark.parametrize(
    "dataset", [a_dataset(), TensorDataset(*a_dataset()), Reading(a_dataset()), list(zip(*a_dataset(), strict=True))]
)
def test_any_map_style_dataset(dataset):
    assert torch.allclose(
        run(a_training(dataset=dataset, randomness=seeded(7))), run(a_training(randomness=seeded(7))), rtol=1e-10
    )


def test_workers_read_and_a_loop_that_is_left_ends_them():
    training = a_training(dataset=Reading(a_dataset()), workers=1, max_physical_batch_size=8)
    for x, y in training:
        training.step(LOSS(training.model(x), y))
        if training.steps_done == 2:
            break
    run(training)
    assert training.steps_done == len(training) == 6


def test_the_loss_function_may_be_given_in_place_of_losses():
    training = a_training(randomness=seeded(7), max_physical_batch_size=5)
    for x, y in training:
        training.step(LOSS, x, y)
    assert torch.allclose(weights(training.model), run(a_training(randomness=seeded(7))), rtol=1e-10)


def test_what_cannot_be_recorded_is_done_by_the_loss_function():
    training = a_training(randomness=seeded(7))
    for x, y in training:
        with pytest.raises(Unsupported, match="outside of model"):
            training.step(LOSS(training.model[2](training.model[1](training.model[0](x))), y))
        training.step(LOSS, x, y)
    assert torch.allclose(weights(training.model), run(a_training(randomness=seeded(7))), rtol=1e-10)


@pytest.mark.parametrize("physical", [None, 7])
def test_views_of_a_record_are_clipped_as_one(physical):
    def augment(x):
        return x * torch.tensor([1.0, -0.5]).repeat(len(x) // 2)[:, None]

    training = a_training(randomness=seeded(7), augmentations=2, max_physical_batch_size=physical)
    for x, y in training:
        assert torch.equal(x[::2], x[1::2])
        assert physical is None or len(x) <= physical
        training.step(LOSS(training.model(augment(x)), y))
    model = a_model()
    wanted = by_hand(model, sgd(model), a_dataset(), PLAN, seeded(7), views=2, augment=augment)
    assert torch.allclose(weights(training.model), wanted, rtol=1e-9)


def test_half_precision_gets_its_gradient_in_its_own_type():
    model = a_model(torch.bfloat16)
    training = a_training(model, (a_dataset()[0].bfloat16(), a_dataset()[1]), ema_decay=0.9)
    seen = []
    training.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["params"][0].grad.dtype))
    for x, y in training:
        training.step(LOSS, x, y)
    assert weights(model).isfinite().all()
    assert set(seen) == {torch.bfloat16}
    assert all(p.grad is None for p in model.parameters())


def test_an_example_that_is_not_finite_counts_as_zero():
    x, y = a_dataset()
    broken = x.clone()
    broken[5] = torch.nan
    training = a_training(dataset=(broken, y), randomness=seeded(7))
    found = run(training)
    assert found.isfinite().all()
    oracle, fifth = a_training(dataset=(x, y), randomness=seeded(7)), x[5].clone()
    for inputs, targets in oracle:
        others = (inputs != fifth).any(1)  # example 5 has no loss, hence no gradient
        oracle.step(LOSS(oracle.model(inputs), targets) * others)
    assert torch.allclose(found, weights(oracle.model), rtol=1e-9)


def test_an_empty_batch_is_a_step_of_noise_that_is_charged():
    planned = a_plan(batch_size=None, sample_rate=1e-9, steps=5)
    training = a_training(planned=planned, randomness=seeded(7))
    stepped = []
    training.optimizer.register_step_post_hook(lambda *_: stepped.append(weights(training.model)))
    assert not list(training)
    assert training.steps_done == training.spent().steps == 5
    assert len({tuple(w.tolist()) for w in stepped}) == 5
    model = a_model()
    assert torch.allclose(stepped[-1], by_hand(model, sgd(model), a_dataset(), planned, seeded(7)), rtol=1e-10)


def test_nothing_but_the_release_reaches_the_weights():
    """Neither a backward pass of the user's nor a gradient left over on a frozen parameter."""
    model = a_model()
    training = a_training(model, randomness=seeded(7))
    model[2].bias.requires_grad_(False)
    with pytest.raises(InvalidValue, match="not those of the start"):
        next(iter(training))
    model[2].bias.grad = torch.ones(3, dtype=torch.float64)
    frozen = model[2].bias.clone()
    training = a_training(model, randomness=seeded(7))
    other = a_training(copy.deepcopy(model), randomness=seeded(7))
    for x, y in training:
        losses = LOSS(model(x), y)
        losses.sum().backward(retain_graph=True)
        training.step(losses)
    assert torch.equal(model[2].bias, frozen)
    assert torch.allclose(weights(model), run(other), rtol=1e-10)


def test_adaptive_rules_learn_over_the_run_and_the_ledger_has_the_clip_in_force(tmp_path):
    training = a_training(planned=a_plan(rule="quantile:target=0.9,count_noise=2.0", clipping_norm=0.01), out=tmp_path)
    run(training)
    clips = [step.clipping_norm for step, count in read_ledger(tmp_path).ledger for _ in range(count)]
    assert clips[0] == 0.01
    assert len(set(clips)) == 6


@pytest.mark.parametrize("rule", ["flat", "quantile"])
def test_users_take_part_with_one_record_each(rule):
    owners = [i // 3 for i in range(SIZE)]
    planned = a_plan(dataset_size=20, batch_size=5, unit="user", rule=rule)
    training = a_training(planned=planned, users=owners)
    x, _ = a_dataset()
    for inputs, targets in training:
        places = (inputs[:, None] == x).all(2).nonzero()[:, 1] // 3
        assert len(places.unique()) == len(inputs)
        training.step(LOSS(training.model(inputs), targets))
    assert training.spent().unit == "user"


# --- order and ledger -------------------------------------------------------------------------------


@pytest.fixture
def order(monkeypatch):
    """What happens on the disk and to the noise, in order."""
    seen = []
    sync, fill = _files.sync, engine_noise._fill
    monkeypatch.setattr(_files, "sync", lambda number: (sync(number), seen.append("sync"))[0])
    monkeypatch.setattr(engine_noise, "_fill", lambda *given: (seen.append("draw"), fill(*given))[1])
    return seen


@pytest.mark.parametrize(("physical", "batch"), [(None, 12), (3, 12), (None, 1)])
def test_a_line_is_on_the_disk_before_its_noise_is_drawn(tmp_path, order, physical, batch):
    training = a_training(planned=a_plan(batch_size=batch), out=tmp_path, max_physical_batch_size=physical)
    order.clear()
    run(training)
    assert order == ["sync", *["sync", "draw"] * 6]  # the first says that nothing is known of the loop yet


@pytest.mark.parametrize("secure", [False, True])
def test_secure_noise_is_asked_for(monkeypatch, secure):
    add, asked = discrete.add_secure_noise, []
    monkeypatch.setattr(engine_release, "add_secure_noise", lambda *a, **given: asked.append(given) or add(*a, **given))
    training = a_training(secure_noise=secure)
    run(training)
    assert len(asked) == 6 * secure
    assert training.spent().label == "certified"


def test_one_line_may_reserve_some_steps(tmp_path, order):
    training = a_training(out=tmp_path, steps_per_line=4)
    order.clear()
    run(training)
    assert order == ["sync", "sync", *["draw"] * 4, "sync", *["draw"] * 2]
    assert read_ledger(tmp_path).ledger.steps == 6


def test_no_noise_is_drawn_for_a_line_that_cannot_be_written(tmp_path, order, monkeypatch):
    training = a_training(out=tmp_path)
    before = weights(training.model)
    order.clear()

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files, "sync", full)
    with pytest.raises(InvalidValue, match="No space left"):
        run(training)
    assert order == []
    assert torch.equal(weights(training.model), before)
    assert is_clean(training.model)


def test_a_step_that_fails_after_its_charge_is_not_done_again(tmp_path):
    training = a_training(out=tmp_path)
    training.optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    for wanted in (1, 2):
        with pytest.raises(ZeroDivisionError):
            run(training)
        assert training.steps_done == read_ledger(tmp_path).ledger.steps == wanted


def test_a_dataset_that_fails_costs_the_step_whose_batch_it_saw(tmp_path):
    class Broken(Dataset):
        def __len__(self):
            return SIZE

        def __getitem__(self, index):
            raise OSError("a file is gone")

    training = a_training(dataset=Broken(), out=tmp_path)
    for wanted in (1, 2):
        with pytest.raises(OSError, match="a file is gone"):
            next(iter(training))
        assert training.steps_done == training.facts.lost == read_ledger(tmp_path).ledger.steps == wanted
    assert any("never released" in text for text in training.spent().assumptions)


def test_what_is_spent_is_read_from_the_ledger(tmp_path):
    with a_training(out=tmp_path / "a") as training:
        assert training.spent().epsilon == 0
        found = []
        for x, y in training:
            training.step(LOSS(training.model(x), y))
            found.append(training.spent())
    assert [g.steps for g in found] == [1, 2, 3, 4, 5, 6]
    assert all(a.epsilon < b.epsilon for a, b in pairwise(found))
    assert replace(found[-1], assumptions=()) == replace(training.guarantee, assumptions=()) == PLAN.guarantee
    assert training.spent() == found[-1]  # also once it is closed
    with pytest.raises(InvalidValue, match="is there already"):
        a_training(out=tmp_path / "a")


def test_a_ledger_that_is_open_goes_on_where_it_stands(tmp_path):
    with a_training(out=tmp_path) as training:
        for x, y in training:
            training.step(LOSS(training.model(x), y))
            if training.steps_done == 2:
                break
    training = a_training(out=tmp_path, ledger=LedgerFile.open(tmp_path, PLAN))
    assert training.steps_done == 2
    run(training)
    assert training.spent().steps == 6
    training.close()
    with pytest.raises(InvalidValue, match="another plan"):
        a_training(out=tmp_path, planned=a_plan(steps=7), ledger=LedgerFile.open(tmp_path, PLAN))


@pytest.mark.parametrize("out", [None, "run"])
def test_a_training_that_is_closed_makes_no_step(tmp_path, out):
    training = a_training(out=out and tmp_path / out)
    training.close()
    with pytest.raises(InvalidValue, match="closed"):
        run(training)
    assert training.steps_done == 0
    assert is_clean(training.model)


# --- leaving and coming back ------------------------------------------------------------------------


def test_a_loop_that_is_left_goes_on_in_the_next(order):
    training = a_training(max_physical_batch_size=4)
    for number, _ in enumerate(training):  # left in the middle of a batch: that is lost, and never drawn anew
        if number == 0:
            break
    assert is_clean(training.model)
    assert (training.steps_done, training.facts.lost, training.spent().steps, order) == (1, 1, 1, [])
    while training.steps_done < len(training):
        for x, y in training:
            if training.step(LOSS(training.model(x), y)):
                break
    assert order == ["draw"] * 5
    assert not list(training)  # the plan is at its end
    with pytest.raises(BudgetExceeded, match="beyond the plan's 6"):
        training.step(torch.zeros(3))
    assert replace(training.spent(), assumptions=()) == PLAN.guarantee


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["loss", "model"])
def test_an_error_in_the_loop_leaves_the_model_clean(error, place):
    training = a_training()

    def fails(*_):
        raise error

    hook = training.model[1].register_forward_hook(fails) if place == "model" else None

    def body(x, y):
        assert type(training.model[0].weight) is TrackedParameter
        training.step((fails if place == "loss" else LOSS)(training.model(x), y))

    with pytest.raises(error):
        each(training, body)
    if hook is not None:
        hook.remove()
    assert is_clean(training.model)
    run(training)
    assert training.steps_done == 6


def test_an_iterator_that_is_closed_or_lost_leaves_the_model_clean():
    training = a_training()
    one = iter(training)
    next(one)
    assert not is_clean(training.model)
    one.close()
    assert is_clean(training.model)
    next(iter(training))
    gc.collect()
    assert is_clean(training.model)
    with training:
        held = iter(training)
        next(held)
    assert is_clean(training.model)


def test_two_models_at_once_need_their_loss_functions():
    """Recordings of two models cannot be told apart: refused, and both models are clean after it."""
    one, other = a_training(randomness=seeded(7)), a_training(randomness=seeded(7))
    with pytest.raises(Unsupported):
        each(zip(one, other, strict=True), lambda a, b: one.step(LOSS(one.model(a[0]), a[1])))
    assert is_clean(one.model)
    assert is_clean(other.model)
    one, other = a_training(randomness=seeded(7)), a_training(randomness=seeded(7))
    for a, b in zip(one, other, strict=True):
        one.step(LOSS, *a)
        other.step(LOSS, *b)
    alone = run(a_training(randomness=seeded(7)))
    assert torch.allclose(weights(one.model), alone, rtol=1e-10)
    assert torch.allclose(weights(other.model), alone, rtol=1e-10)


def test_autocast_goes_by_the_loss_function():
    def found(*, autocast):
        training = a_training(a_model(torch.float32), (a_dataset()[0].float(), a_dataset()[1]), randomness=seeded(7))
        for x, y in training:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                training.step(LOSS, x, y)
        return weights(training.model)

    assert torch.allclose(found(autocast=True), found(autocast=False), atol=0.01)


def test_evaluation_and_zero_grad_between_batch_and_step_are_fine():
    training = a_training(randomness=seeded(7))
    x_all, _ = a_dataset()
    for x, y in training:
        training.optimizer.zero_grad()  # a habit, and harmless
        with torch.no_grad():
            training.model.eval()(x_all)
        training.model.train()
        training.step(LOSS(training.model(x), y))
    assert torch.allclose(weights(training.model), run(a_training(randomness=seeded(7))), rtol=1e-10)


# --- the gate ---------------------------------------------------------------------------------------


def refused(match, error=InvalidValue, **given):
    with pytest.raises(error, match=match):
        a_training(**given)


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


def test_what_does_not_fit_is_refused_at_the_start(tmp_path):
    refused("plan=None must be a Plan", planned=None)
    refused("randomness=7 must be a Randomness", randomness=7)
    refused("examples=59 must be the plan's dataset_size=60", dataset=a_dataset(59))
    refused("Use SGD", Unsupported, optimizer=lambda m: torch.optim.LBFGS(m.parameters()))
    refused("not the model's", optimizer=lambda m: sgd(a_model()))
    refused("no trainable", model=a_model().requires_grad_(False))
    refused("no length", Unsupported, dataset=Endless())
    refused("max_physical_batch_size=1 must be at least augmentations=2", max_physical_batch_size=1, augmentations=2)
    refused("augmentations=0", augmentations=0)
    refused("ema_decay=1.5", ema_decay=1.5)
    refused("steps_per_line=0", steps_per_line=0)
    refused("steps_per_line=5000", steps_per_line=5000, out=tmp_path)
    refused("workers=-1", workers=-1)
    refused("clients", Unsupported, planned=a_plan(unit="client"))
    refused("Give users=", planned=a_plan(unit="user"))
    refused("users=3 must be one owner for each of 60", planned=a_plan(unit="user"), users=[1, 2, 3])
    refused("unit='example' protects records", users=list(range(60)))
    refused("has no guarantee", Unsupported, planned=OWN_NORM)
    assert list(tmp_path.iterdir()) == []


def test_the_size_is_never_asked_for_under_add_remove():
    planned = a_plan(adjacency="add-remove")
    training = a_training(dataset=a_dataset(37), planned=planned)
    run(training)
    assert replace(training.spent(), assumptions=()) == planned.guarantee


def test_losses_must_be_those_of_the_batch_at_hand():
    training, x_all, y_all = a_training(), *a_dataset()
    old = LOSS(training.model(x_all[:3]), y_all[:3])
    with pytest.raises(InvalidValue, match="without a batch"):
        training.step(old)

    def one(losses, match):
        for x, y in training:
            with pytest.raises(InvalidValue, match=match):
                training.step(losses(x, y))
            assert is_clean(training.model)
            with pytest.raises(InvalidValue, match="used up by a `step` that failed"):
                training.step(LOSS(training.model(x), y))
            break

    one(lambda x, y: LOSS(training.model(x), y).mean(), "must be one for each")
    one(lambda x, y: LOSS(training.model(x), y)[1:], "must be one for each")
    one(lambda x, y: LOSS(training.model(x[:1]), y[:1]), "must be one for each")
    one(lambda x, y: LOSS(training.model(x), y).detach(), "do not come from a call of the model")
    one(lambda x, y: torch.zeros(len(x)), "do not come from a call of the model")
    one(lambda x, y: old.sum() * torch.ones(len(x)), "do not come from a call of the model")
    assert (training.steps_done, training.facts.steps, training.facts.lost) == (6, 0, 6)


@pytest.mark.parametrize("given", [(), (1,), (1, 2, 3)])
def test_a_loss_function_needs_inputs_and_targets_of_the_batch_at_hand(given):
    training = a_training()
    next(held := iter(training))
    with pytest.raises(InvalidValue, match="a loss function, inputs and targets"):
        training.step(LOSS, *given)
    with pytest.raises(InvalidValue, match="must be one for each"):
        training.step(LOSS, *a_dataset())
    held.close()


def test_one_step_for_each_batch():
    training = a_training()

    def twice(x, y):
        losses = LOSS(training.model(x), y)
        training.step(losses)
        training.step(losses)

    def with_an_error_swallowed(x, y):
        with suppress(InvalidValue):
            training.step(x)

    for lost, (body, match) in enumerate(
        (
            (twice, "twice for one"),
            (lambda x, y: None, "passed over"),
            (with_an_error_swallowed, "or `step` failed"),
        )
    ):
        with pytest.raises(InvalidValue, match=match):
            each(training, body)
        assert training.steps_done == 1 + lost  # what was handed out and not made is lost
        assert training.spent().steps == 1 + lost
        assert training.facts.lost == lost
        assert is_clean(training.model)


def test_one_loop_at_a_time():
    training = a_training()
    for x, y in training:
        with pytest.raises(InvalidValue, match="iterated over already"):
            next(iter(training))
        training.step(LOSS(training.model(x), y))
    assert training.steps_done == 6


@torch.no_grad()
def change_shape(model):
    model[2].bias.data = torch.zeros(1, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[0].weight.requires_grad_(False),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.zeros(5, 4, dtype=torch.float64))),
        lambda m: m.append(nn.Linear(3, 3)),
        change_shape,
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_model_that_was_changed_is_refused(change, inside):
    training = a_training()

    def body(x, y):
        losses = LOSS(training.model(x), y)
        if inside:
            change(training.model)
        training.step(losses)
        change(training.model)

    with pytest.raises(InvalidValue, match="not those of the start"):
        each(training, body)
    assert training.steps_done == training.spent().steps == 1
    assert training.facts.lost == int(inside)
    assert is_clean(training.model)


def test_a_rule_without_a_guarantee_says_so_everywhere():
    training = a_training(planned=OWN_NORM, uncertified=True)
    run(training)
    for said in (training.spent(), training.guarantee):
        assert said.label == "claimed"
        assert "guarantee: none" in str(said)
    assert "guarantee: none" in str(training)


def test_a_seeded_run_says_that_it_is_not_private(tmp_path):
    training = a_training(randomness=seeded(7), out=tmp_path)
    assert not training.noise_is_secret
    assert "reproducible, not private" in str(training)
    assert training.spent().label == training.guarantee.label == "claimed"
    assert "not private" in str(training.spent())
    assert read_ledger(tmp_path).header.seeded
    assert a_training().noise_is_secret
    assert "not private" not in str(a_training())
    one, other = run(a_training()), run(a_training())
    assert not torch.equal(one, other)


# --- the average ------------------------------------------------------------------------------------


def test_the_average_of_the_weights():
    training = a_training(randomness=seeded(7), ema_decay=0.5)
    mean, t = weights(training.model), 0

    def after():
        nonlocal mean, t
        t += 1
        d = min(0.5, (1 + t) / (10 + t))
        mean = d * mean + (1 - d) * weights(training.model)

    own = run(training, after)
    assert torch.allclose(own, run(a_training(randomness=seeded(7))), rtol=1e-10)  # it changes nothing
    with training.ema_weights() as model:
        assert torch.allclose(weights(model), mean, rtol=1e-12)
        with pytest.raises(InvalidValue, match="twice"), training.ema_weights():
            pass
    assert torch.equal(weights(training.model), own)


def test_the_average_is_for_looking_at():
    with pytest.raises(InvalidValue, match="ema_decay=None"), a_training().ema_weights():
        pass
    training = a_training(ema_decay=0.9)
    for _ in training:
        with pytest.raises(InvalidValue, match="inside a batch"), training.ema_weights():
            pass
        break
    with training.ema_weights(), pytest.raises(InvalidValue, match="averaged weights"):
        run(training)
    assert run(training).isfinite().all()


def test_secure_noise_for_a_rule_without_a_guarantee_is_refused_before_anything_is_charged(tmp_path):
    with pytest.raises(Unsupported, match="secure"):
        a_training(planned=OWN_NORM, uncertified=True, secure_noise=True, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


# --- memory ------------------------------------------------------------------------------------------


def channels_last_weights(fused):
    torch.manual_seed(1)
    body = nn.Conv2d(2, 5, 2), nn.Tanh(), nn.Conv2d(5, 4, 2), nn.Flatten(), nn.Linear(16, 3)
    model = nn.Sequential(*body).to(memory_format=torch.channels_last)
    g = torch.Generator().manual_seed(3)
    dataset = torch.randn(SIZE, 2, 4, 4, generator=g), torch.randint(3, (SIZE,), generator=g)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, fused=fused)
    return run(Training(model, optimizer, dataset, PLAN, randomness=seeded(4)))


def test_a_fused_optimizer_sees_gradients_as_their_parameters_lie_in_memory():
    assert torch.allclose(channels_last_weights(fused=True), channels_last_weights(fused=False), atol=1e-6)
