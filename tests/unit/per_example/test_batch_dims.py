"""What the trial passes find: where examples lie, what data decide, and that they leave no trace."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from engine_oracle import CrossEntropy, Fn
from privet.errors import Unsupported
from privet.per_example.gradients import explain
from privet.per_example.independence.model import changed_rows, growing_dim
from privet.per_example.layers.base import BatchDim, NoLayerRule
from privet.per_example.model_facts import find_batch_dims
from privet.per_example.trial_pass import (
    change_example,
    exchange_rows,
    first_examples,
    preserving_state,
    swap_example,
    trial_pass,
)

R = torch.randn


def run_on(inputs):
    """A run of the model on what is taken of the inputs: the sum over all but the examples is the loss."""
    return lambda model, take: model(take(inputs)).flatten(1).sum(1)


def facts_of(model, inputs):
    facts, _ = find_batch_dims(model, run_on(inputs), forced={})
    return [fact for ways in facts.values() for fact in ways if fact.is_use]


@pytest.mark.parametrize(
    ("forward", "where"),
    [
        (lambda m, x: m.l(x), BatchDim(0)),
        (lambda m, x: m.l(x.transpose(0, 1)).transpose(0, 1), BatchDim(1)),
        (lambda m, x: m.l(x.flatten(0, 1)).view(len(x), -1, 2), BatchDim(0, True)),
        (lambda m, x: m.l(x.transpose(0, 1).flatten(0, 1)).view(-1, len(x), 2).transpose(0, 1), BatchDim(0, False)),
    ],
    ids=["first", "second", "rows together", "rows strided"],
)
@pytest.mark.parametrize("length", [2, 3, 6])
def test_where_examples_lie(forward, where, length):
    torch.manual_seed(0)
    found = facts_of(Fn(forward, l=nn.Linear(4, 2)), R(5, length, 4))
    assert [fact.inputs for fact in found] == [(where,)]
    assert [fact.outputs for fact in found] == [(where,)]


def test_place_is_where_the_size_grows():
    assert growing_dim(R(2, 3), R(3, 3)) == 0
    assert growing_dim(R(4, 6), R(4, 9)) == 1
    assert growing_dim(R(3, 2), R(3, 2)) is None
    for few, many in [(R(2), R(3, 1)), (R(2, 2), R(3, 3)), (R(2), R(5))]:
        with pytest.raises(NoLayerRule):
            growing_dim(few, many)


def test_moved_sees_values_and_what_is_not_finite():
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0], [torch.nan, 0.0]])
    b = a.clone()
    b[1, 0] += 1e-7
    assert changed_rows(a, b, 0).tolist() == [False, False, False]
    b[1, 0] += 1e-2
    b[2, 0] = 0.0
    assert changed_rows(a, b, 0).tolist() == [False, True, True]
    assert changed_rows(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 3]]), 1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("forward", "word"),
    [
        (lambda m, x: m.l(x) if float(x.sum()) > 0 else m.l(-x), "number"),
        (lambda m, x: m.l(x) * (1 if (x > 9).any() else 2), "number"),
        (lambda m, x: m.l(x[x[:, 0] > -9]), "index"),
        (lambda m, x: m.l(x).index_select(0, (x[:, 0] > -9).nonzero()[:, 0]), "nonzero"),
        (lambda m, x: m.l(x) + x.sign().unique().sum(), "unique"),
    ],
    ids=["if", "any", "mask", "nonzero", "unique"],
)
def test_decisions_by_the_data_are_seen(forward, word):
    with pytest.raises(NoLayerRule, match=f"depends on the data, by .*{word}"):
        facts_of(Fn(forward, l=nn.Linear(4, 2)), R(5, 4))


def test_decisions_by_other_things_are_allowed():
    """By parameters, shapes and constants."""
    mask = torch.tensor([True, False, True, True])
    model = Fn(
        lambda m, x: m.l(x[:, mask]) * m.g.item() if m.g > 0 and x.shape[1] == 4 else x,
        l=nn.Linear(3, 2),
        g=torch.ones(()),
    )
    assert len(facts_of(model, R(5, 4))) == 1


def test_sums_over_the_batch_are_named():
    model = Fn(lambda m, x: m.l(x) + (x.T @ m.l(x)).sum() * 0 + m.w @ x.sum(0), l=nn.Linear(4, 2), w=R(2, 4))
    with pytest.raises(Unsupported, match="depends on the other examples"):
        facts_of(model, R(5, 4))


def test_values_that_a_model_does_not_take_are_replaced_by_other_examples():
    """Codes in a float column: what a trial makes up is out of range, another example's is not."""
    model = Fn(lambda m, x: m.e(x[:, 0].long()) + x[:, 1:], e=nn.Embedding(3, 2))
    x = torch.cat([torch.tensor([[0.0], [2.0], [2.0], [1.0], [0.0]]), R(5, 2)], 1)
    assert len(facts_of(model, x)) == 1


@pytest.mark.parametrize(
    "values", [R(5, 3), torch.randint(7, (5, 3)), torch.rand(5, 3) > 0.5, R(1, 3), torch.arange(2)]
)
def test_a_trial_changes_one_example_only(values):
    base = first_examples(3)(values)
    for take in (change_example, swap_example):
        for which in range(3):
            rows = (take(which)(values) != base).flatten(1).any(1) if values.dim() > 1 else take(which)(values) != base
            assert not rows[[i for i in range(3) if i != which]].any()
    assert (change_example(1)(values) != base).any()


def test_trial_examples_are_tame():
    """A first batch of infinite examples would show nothing."""
    x = torch.tensor([[torch.inf, 1.0], [torch.nan, -3e20], [0.5, -torch.inf]])
    assert bool(first_examples(3)(x).isfinite().all())
    assert float(first_examples(3)(x).abs().max()) <= 1e4


def test_exchanged_rows_come_from_the_batch():
    rows = torch.tensor([True, False, True, False])
    found = exchange_rows(rows)(torch.arange(4)[:, None])
    assert found.flatten().tolist() == [2, 1, 0, 3]


def test_a_trial_puts_everything_back():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Dropout())
    before, numbers, more = copy.deepcopy(model.state_dict()), torch.get_rng_state(), np.random.get_state()[1].copy()
    version = model[0].weight._version
    with preserving_state(model):
        assert not torch.equal(model[0].weight, before["0.weight"])
        found = trial_pass(model, run_on(R(5, 4, generator=torch.Generator())), first_examples(3), {}, {})
    assert found.is_random
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(numbers, torch.get_rng_state())
    assert np.array_equal(more, np.random.get_state()[1])
    assert model[0].weight._version == version


def test_a_first_batch_of_one_or_of_what_is_not_finite_is_enough():
    y = torch.zeros(1, dtype=torch.int64)
    assert explain(nn.Linear(4, 3), CrossEntropy, (R(1, 4), y)).whole == ""
    assert explain(nn.Linear(4, 3), CrossEntropy, (torch.full((1, 4), torch.nan), y)).whole == ""
