"""Optimizers and learning rates by name, and that nothing else can be called by a plan."""

import warnings

import pytest
import torch
from torch import nn

from privet import plan
from privet.errors import InvalidValue
from privet.training.settings import Settings
from privet.training.setup import (
    LearningRateSchedule,
    build_optimizer,
    learning_rate_schedule,
    optimizers,
    schedulers,
    steps_per_epoch,
)


@pytest.fixture(scope="module")
def p():
    return plan(delta=1e-3, dataset_size=100, batch_size=10, steps=30, noise_multiplier=2.0, solve="epsilon")


def made(p, **table):
    return build_optimizer(Settings.of(table), p, nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("table", "kind", "group"),
    [
        ({}, "SGD", {"lr": 0.1, "momentum": 0.9}),
        ({"lr": 0.5, "momentum": 0}, "SGD", {"lr": 0.5, "momentum": 0}),
        ({"optimizer": "sgd:nesterov=true", "weight_decay": 0.1}, "SGD", {"nesterov": True, "weight_decay": 0.1}),
        ({"optimizer": "adam:betas=(0.8, 0.95)"}, "Adam", {"lr": 0.005, "betas": (0.8, 0.95)}),
        ({"optimizer": "adamw:lr=0.3"}, "AdamW", {"lr": 0.3}),
        ({"optimizer": "adagrad"}, "Adagrad", {"lr": 0.02}),
        ({"optimizer": "rmsprop", "momentum": 0.5}, "RMSprop", {"momentum": 0.5}),
        ({"optimizer": "torch.optim:NAdam:lr=0.7"}, "NAdam", {"lr": 0.7}),
    ],
)
def test_optimizers_by_name(p, table, kind, group):
    found = made(p, **table)
    assert type(found).__name__ == kind
    assert {key: found.param_groups[0][key] for key in group} == group


def test_noisy_adam_is_adam_unless_said_otherwise():
    p = plan(epsilon=2.0, dataset_size=100, batch_size=10, steps=3, method="noisy-adam")
    assert type(made(p)).__name__ == "Adam"
    assert type(made(p, optimizer="sgd")).__name__ == "SGD"


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_steps_in_one_pass_are_the_same_steps(p, name):
    """torch's own three ways agree to rounding; who names one gets it."""
    weights = []
    for spelling in (name, f"{name}:fused=false", f"{name}:foreach=true"):
        model = nn.Linear(3, 2)
        nn.init.constant_(model.weight, 0.5)
        nn.init.constant_(model.bias, 0.5)
        optimizer = build_optimizer(Settings.of({"optimizer": spelling, "weight_decay": 0.1}), p, model)
        assert bool(optimizer.param_groups[0]["fused"]) == (spelling == name)
        for number in range(1, 6):
            model.weight.grad, model.bias.grad = torch.full((2, 3), 1.0 / number), torch.full((2,), -1.0)
            optimizer.step()
        weights.append(torch.cat([model.weight.detach().flatten(), model.bias.detach()]))
    assert not torch.allclose(weights[0], torch.full((8,), 0.5))
    for other in weights[1:]:
        torch.testing.assert_close(weights[0], other, rtol=1e-5, atol=1e-6)


def test_every_optimizer_and_scheduler_of_torch_has_a_name():
    ours = {optimizers.maker(name) for name in optimizers.names()}
    assert {torch.optim.SGD, torch.optim.Adam, torch.optim.RAdam, torch.optim.Adadelta} <= ours
    named = set(schedulers.names())
    assert {"cosine", "step", "multi-step", "exponential", "one-cycle", "linear", "polynomial", "cyclic"} <= named
    assert {"reduce-on-plateau", "constant", "cosine-annealing-warm-restarts"} <= named
    assert "lambda" not in named


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"optimizer": "adm"}, "Did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.9}, "has no option 'momentum'"),
        ({"optimizer": "sgd:lr=0.1", "lr": 0.2}, "Give one"),
        ({"optimizer": "sgd:momentum=2"}, "momentum=2 must be >= 0 and < 1"),
        ({"optimizer": "sgd:nesterov=true", "momentum": 0}, "refused by torch"),
        ({"optimizer": "adam:betas=(a,b)"}, "numbers with commas"),
        ({"optimizer": "os:system"}, "must be a class made from torch's Optimizer"),
        ({"optimizer": "torch.nn:Linear:in_features=3"}, "must be a class made from torch's Optimizer"),
        ({"optimizer": "no.such:Thing"}, "cannot be imported"),
        ({"scheduler": "cosin"}, "Did you mean 'cosine'"),
        ({"scheduler": "step"}, "needs the option 'step_size'"),
        ({"scheduler": "step:step_size=2,unit=day"}, "unit='day' must be one of epoch, step"),
        ({"scheduler": "os:system"}, "must be a class made from torch's LRScheduler"),
        ({"scheduler": "one-cycle:pct_start=3"}, "refused by torch"),
        ({"scheduler": "step:step_size=0"}, "refused by torch"),
        ({"scheduler": "step:step_size=x"}, "refused by torch"),
        ({"scheduler": "cosine:T_max=0"}, "refused by torch"),
        ({"scheduler": "step:step_size=2,optimizer=3"}, "gives optimizer. It is the run's"),
        ({"optimizer": "sgd:params=3"}, "gives params. It is the run's"),
        ({"optimizer": "adam:betas=(0.9,)"}, "refused by torch"),
    ],
)
def test_what_cannot_be_made_is_refused(p, table, words):
    with pytest.raises(InvalidValue) as caught:
        learning_rate_schedule(Settings.of(table), p, made(p, **table))
    assert words in str(caught.value)


def rates(p, scheduler, numbers):
    optimizer = made(p, lr=1.0)
    pace = learning_rate_schedule(Settings(scheduler=scheduler), p, optimizer)
    found = []
    for number in numbers:
        optimizer.step()
        pace.follow(number)
        found.append(round(optimizer.param_groups[0]["lr"], 6))
    return found


def test_the_rate_follows_the_number_of_the_step(p):
    assert steps_per_epoch(p) == 10
    steps = list(range(1, 31))
    by_step = rates(p, "cosine", steps)
    assert by_step[14] == pytest.approx(0.5)
    assert by_step[-1] == pytest.approx(0.0, abs=1e-6)
    by_epoch = rates(p, "step:step_size=1,gamma=0.5", steps)
    assert by_epoch[:21] == [1.0] * 9 + [0.5] * 10 + [0.25] * 2
    assert rates(p, "step:step_size=1,gamma=0.5,unit=step", [1, 2]) == [0.5, 0.25]
    polynomial = rates(p, "polynomial", steps)
    assert (polynomial[14], polynomial[-1]) == (pytest.approx(0.5), pytest.approx(0.0, abs=1e-6))
    assert rates(p, "one-cycle", steps)[28] < 1e-4 < rates(p, "one-cycle", steps)[9]  # of the 30th step, of the 11th


def test_a_warm_up_takes_the_epochs_of_torch_and_not_the_whole_run():
    """Auto DP-SGD, Table 11: LinearLR goes from a third of the rate to all of it in 5 epochs, ConstantLR jumps then."""
    long = plan(delta=1e-3, dataset_size=100, batch_size=10, steps=80, noise_multiplier=2.0, solve="epsilon")
    steps = list(range(1, 81))
    linear, constant = rates(long, "linear", steps), rates(long, "constant", steps)
    assert [linear[at - 1] for at in (9, 10, 25, 40, 50, 80)] == [0.333333, 0.466667, 0.6, 0.866667, 1.0, 1.0]
    assert [constant[at - 1] for at in (1, 49, 50, 80)] == [0.333333, 0.333333, 1.0, 1.0]
    assert rates(long, "linear:start_factor=1,end_factor=0.1,total_iters=80,unit=step", steps)[-1] == pytest.approx(0.1)


def test_steps_that_were_lost_have_moved_it_too(p):
    assert rates(p, "cosine", [1, 9])[-1] == rates(p, "cosine", range(1, 10))[-1]


def test_catching_up_before_the_first_step_does_not_warn(p):
    optimizer = made(p, lr=1.0)
    pace = learning_rate_schedule(Settings(scheduler="cosine"), p, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pace.catch_up(15)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5)


def test_a_plateau_is_seen_at_evaluations_only(p):
    optimizer = made(p, lr=1.0)
    pace = learning_rate_schedule(Settings(scheduler="reduce-on-plateau:patience=0,factor=0.1"), p, optimizer)
    pace.follow(30)
    assert optimizer.param_groups[0]["lr"] == 1.0
    for loss in (1.0, 0.5, 0.6):
        pace.observe_loss(loss)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_without_a_scheduler_the_rate_stays():
    pace = LearningRateSchedule(None)
    pace.follow(7)
    pace.observe_loss(1.0)
    assert pace.scheduler is None
