"""What a tuning tries: lists, ranges and words as people write them; parts of the records; nonsense in one line."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet.tuning.job import select_records, split_into_parts, train_validation_split
from privet.tuning.space import Range, Space, format_candidate, split_candidate


def numbered(size: int, *, train: object = None) -> Task:
    """A task whose records are their own numbers."""
    x = torch.arange(size, dtype=torch.float32).unsqueeze(1)
    data = (x, torch.zeros(size, dtype=torch.int64))
    return Task(
        name="numbered", train=data if train is None else train, held_out=data, evaluation="made up",
        model=lambda: nn.Linear(1, 2), users=torch.arange(size),
    )  # fmt: skip


def test_a_grid_has_every_candidate_once():
    space = Space.of({"lr": "0.1,0.2", "clipping_norm": [1.0, 2.0, 4.0]})
    found = list(space.grid())
    assert (space.size, len(found)) == (6, 6)
    assert found[0] == {"lr": 0.1, "clipping_norm": 1.0}
    assert len({tuple(c.items()) for c in found}) == 6
    assert Space.of(space.as_dict()) == space


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cosine,step:step_size=10,gamma=0.5,one-cycle", ("cosine", "step:step_size=10,gamma=0.5", "one-cycle")),
        ("multi-step:milestones=(50,75),cosine", ("multi-step:milestones=(50,75)", "cosine")),
        ("cosine", ("cosine",)),
    ],
)
def test_a_word_keeps_its_options(text, values):
    assert Space.of({"scheduler": text}).values["scheduler"] == values


def test_a_range_is_drawn_by_factors_within_its_ends():
    space = Space.of({"lr": "0.01..1", "momentum": "0,0.9"})
    assert space.size is None
    assert space.values["lr"] == Range(low=0.01, high=1.0)
    source = np.random.default_rng(0)
    drawn = [space.draw(source) for _ in range(2000)]
    assert all(0.01 <= c["lr"] <= 1.0 for c in drawn)
    assert 900 < sum(c["lr"] < 0.1 for c in drawn) < 1100  # half of them below the middle factor
    assert 900 < sum(c["momentum"] == 0 for c in drawn) < 1100
    assert {c["lr"] for c in space.grid()} == {0.01, 1.0}


def test_some_candidates_are_different_and_every_one_is_as_likely():
    space = Space.of({"lr": [1.0, 2.0, 3.0, 4.0]})
    source = np.random.default_rng(0)
    seen = Counter()
    for _ in range(1000):
        found = [c["lr"] for c in space.draw_some(2, source)]
        assert len(set(found)) == 2
        seen.update(found)
    assert all(420 < seen[v] < 580 for v in (1.0, 2.0, 3.0, 4.0))
    assert [c["lr"] for c in space.draw_some(4, source)] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "space is empty"),
        ({"learning_rate": "1"}, "'learning_rate' cannot be tuned"),
        ({"momentun": "1"}, "Did you mean 'momentum'"),
        ({"seed": "1,2"}, "The seed is not a hyperparameter"),
        ({"dataset_size": "1,2"}, "It is that of the part"),
        ({"lr": []}, "must be a list of values"),
        ({"lr": 0.1}, "must be a list of values"),
        ({"lr": "0.1,,0.2"}, "has an empty value"),
        ({"lr": "0.1,0.10"}, "has a value twice"),
        ({"lr": [float("nan")]}, "must be a finite number or a word"),
        ({"lr": [True]}, "must be a finite number or a word"),
        ({"lr": "1..0.1"}, "from a smaller number to a larger one"),
        ({"lr": "0..1"}, "low=0.0 must be finite and > 0"),
        ({"lr": "a..b"}, "must be two numbers"),
        ({"augmentations": "1..4"}, "cannot be a range"),
        ({"batch_size": "10,20", "sample_rate": "0.1,0.2"}, "They say the same"),
        ({"lr": list(range(1, 102)), "clipping_norm": list(range(1, 102))}, "at most 10000"),
    ],
)
def test_nonsense_is_refused_in_one_line(given, words):
    with pytest.raises(InvalidValue) as error:
        Space.of(given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_candidate_is_parted_and_said():
    assert split_candidate({"lr": 0.1, "clipping_norm": 1.0, "rho_noise": 2}) == (
        {"clipping_norm": 1.0, "rho_noise": 2},
        {"lr": 0.1},
    )
    assert format_candidate({"lr": 0.1, "model": "cnn", "augmentations": 2}) == "lr 0.1, model cnn, augmentations 2"


# --- parts of the records ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 39, 1000])
def test_no_record_both_trains_and_judges(size):
    rest, judging = train_validation_split(numbered(size))
    trained, validation_fraction = (set(data[0].flatten().int().tolist()) for data in (rest.train, judging))
    assert not trained & validation_fraction
    assert trained | validation_fraction == set(range(size))
    assert len(validation_fraction) == size // 10
    assert rest.users.tolist() == rest.train[0].flatten().int().tolist()


def test_the_split_does_not_depend_on_what_is_in_the_records():
    before, after = numbered(50), numbered(50)
    after.train[0].mul_(-1)
    assert torch.equal(train_validation_split(before)[0].users, train_validation_split(after)[0].users)


def test_parts_are_disjoint_and_of_one_size():
    parts = split_into_parts(numbered(23), 4)
    seen = [set(part.train[0].flatten().int().tolist()) for part in parts]
    assert [len(s) for s in seen] == [5] * 4
    assert len(set().union(*seen)) == 20


def test_a_map_style_dataset_can_be_split():
    data = TensorDataset(torch.arange(20.0), torch.zeros(20))
    rest, judging = train_validation_split(numbered(20, train=data))
    assert (len(rest.train), len(judging)) == (18, 2)
    assert {float(x) for x, _ in rest.train} | {float(x) for x, _ in judging} == set(map(float, range(20)))


def test_what_cannot_be_split_is_refused():
    with pytest.raises(Unsupported, match="cannot be split"):
        select_records(iter([1, 2]), torch.tensor([0]))
    with pytest.raises(InvalidValue, match="fewer than the 30 parts"):
        split_into_parts(numbered(20), 30)
    with pytest.raises(InvalidValue, match="leaves 0 of 5"):
        train_validation_split(numbered(5))
