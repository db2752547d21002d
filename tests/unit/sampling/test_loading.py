"""From indices to data: every kind of dataset, workers, physical pieces, and batches of nothing."""

from collections import namedtuple

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import seeded
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.loading import gather, physical_batches
from privet.sampling.samplers import Sampler

X, Y = torch.arange(60.0).reshape(20, 3), torch.arange(20)
Named = namedtuple("Named", "x y")


class Slow(Dataset):
    """Map-style: a picture, a number, a word, and more in a dictionary."""

    def __getitem__(self, index):
        return X[index], int(Y[index]), str(index), {"more": X[index] + 1, "pair": Named(x=Y[index], y=0.5)}

    def __len__(self):
        return len(X)


class Many(Slow):
    """Reads a whole batch at once, as datasets on disk do."""

    def __getitems__(self, indices):
        return tuple(Slow.__getitem__(self, index) for index in indices)

    def __getitem__(self, index):
        assert index == 0, "only the empty batch asks for one record"
        return super().__getitem__(index)


def steps(rate: float = 0.2, length: int = 6) -> Sampler:
    return Sampler(dataset_size=20, steps=PlannedSteps(length=length, sample_rate=rate), randomness=seeded(1))


WANTED = torch.tensor([1, 4, 4, 19])


@pytest.mark.parametrize("dataset", [(X, Y), TensorDataset(X, Y)], ids=["tuple", "TensorDataset"])
@pytest.mark.parametrize("indices", [WANTED, WANTED[:0]], ids=["some", "none"])
def test_tensors_are_selected(dataset, indices):
    x, y = gather(dataset, indices)
    assert torch.equal(x, X[indices])
    assert torch.equal(y, Y[indices])
    assert torch.equal(gather(X, indices), x)


@pytest.mark.parametrize("dataset", [Slow(), Many()], ids=["one by one", "at once"])
def test_any_dataset_is_stacked(dataset):
    x, y, words, rest = gather(dataset, WANTED)
    assert torch.equal(x, X[WANTED])
    assert torch.equal(y, Y[WANTED])
    assert list(words) == ["1", "4", "4", "19"]
    assert torch.equal(rest["more"], X[WANTED] + 1)
    assert torch.equal(rest["pair"].x, Y[WANTED])


@pytest.mark.parametrize("dataset", [Slow(), Many()], ids=["one by one", "at once"])
def test_no_records_are_zero_rows_of_the_same_kind(dataset):
    full, none = gather(dataset, WANTED), gather(dataset, WANTED[:0])
    assert type(full) is type(none)
    for some, empty in ((full[0], none[0]), (full[1], none[1]), (full[3]["more"], none[3]["more"])):
        assert empty.shape == (0, *some.shape[1:])
        assert empty.dtype == some.dtype
        assert empty.untyped_storage().nbytes() == 0, "the first record must not ride along"
    assert list(none[2]) == []
    assert none[3]["pair"]._fields == ("x", "y")
    assert none[3]["pair"].y.dtype == torch.float64


def test_a_list_of_records_is_not_a_tuple_of_columns():
    assert torch.equal(gather([X[0], X[1]], torch.tensor([1])), X[1:2])


def test_an_empty_dataset_has_no_shape_unless_it_is_tensors():
    assert gather((X[:0], Y[:0]), WANTED[:0])[0].shape == (0, 3)
    with pytest.raises(InvalidValue, match="has no record 0"):
        gather([], WANTED[:0])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


@pytest.mark.parametrize("dataset", [Stream(), iter(X), 5])
def test_what_has_no_index_is_refused(dataset):
    with pytest.raises(Unsupported, match="cannot be read by index"):
        gather(dataset, WANTED)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(InvalidValue, match="Give tensors of one length"):
        gather((X, Y[:-1]), WANTED)


# --- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [(X, Y), Slow()], ids=["tensors", "records"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_step_arrives_in_order_also_the_empty_ones(dataset, workers):
    """With and without workers the same: 6 steps at rate 0.05, some of them empty."""
    found = list(physical_batches(dataset, steps(rate=0.05), workers=workers))
    expected = list(steps(rate=0.05))
    assert 0 in [len(batch) for batch in expected]
    assert len(found) == 6
    for piece, indices in zip(found, expected, strict=True):
        assert piece.is_last
        assert torch.equal(piece.indices, indices)
        assert torch.equal(piece.data[0], X[indices])
        assert torch.equal(piece.data[1], Y[indices])


@pytest.mark.parametrize("physical", [1, 3, 20])
@pytest.mark.parametrize("workers", [0, 1])
def test_pieces_make_up_the_batch_and_the_last_says_so(physical, workers):
    logical, held = [], []
    for piece in physical_batches(X, steps(rate=0.3), physical=physical, workers=workers):
        assert len(piece.data) == len(piece.indices) <= physical
        held.append(piece.indices)
        if piece.is_last:
            logical.append(torch.cat(held))
            held = []
    assert held == []
    assert all(map(torch.equal, logical, steps(rate=0.3)))


def test_a_step_without_records_is_one_piece():
    pieces = list(physical_batches(X, steps(rate=1e-9), physical=4))
    assert [(len(piece.data), piece.is_last) for piece in pieces] == [(0, True)] * 6


def test_batches_are_read_when_they_are_asked_for():
    endless = Sampler(dataset_size=20, steps=PlannedSteps(length=10**12, sample_rate=0.2))
    assert len(next(physical_batches(X, endless)).data) <= 20


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"physical": 0}, {"physical": 2.5}])
def test_wrong_numbers_are_refused_at_once(wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        physical_batches(X, steps(), **wrong)
