"""From indices to data: gather the records of a batch, in this process or in workers, whole or in pieces.

Sampling runs in this process, at most a few batches ahead of the workers. Workers only read records: no coin and no
noise is drawn in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from privet import _check
from privet.errors import InvalidValue, Unsupported

T = TypeVar("T")


class BatchSampler(Protocol):
    """What `batches` needs of a sampler: batches of indices, and how to cut one."""

    def __iter__(self) -> Iterator[Tensor]: ...

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhysicalBatch(Generic[T]):
    """Part of a step's batch: its records, their indices, and whether the step ends with it."""

    data: T
    indices: Tensor
    is_last: bool


def gather(dataset: Any, indices: Tensor) -> Any:
    """The records at `indices`, stacked. No indices give zero rows of the right shapes and types.

    A tensor, a tuple of tensors and a TensorDataset are read by `index_select`; any other dataset by `__getitems__`
    or `__getitem__`, and stacked by torch's `default_collate`.
    """
    if isinstance(dataset, Tensor):
        return dataset.index_select(0, indices.to(dataset.device))
    tensors = _tensor_columns(dataset)
    if tensors is not None:
        return tuple([tensor.index_select(0, indices.to(tensor.device)) for tensor in tensors])
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise Unsupported(
            f"dataset={type(dataset).__name__} cannot be read by index. A private batch is chosen by tossing coins for "
            "every record. Give a map-style dataset."
        )
    wanted = indices.tolist()
    return default_collate(_read(dataset, wanted)) if wanted else _empty_rows(dataset)


def physical_batches(
    dataset: Any, sampler: BatchSampler, *, workers: int = 0, physical: int | None = None
) -> Iterator[PhysicalBatch[Any]]:
    """The data of every step in order, in pieces of at most `physical` records (all at once by default).

    The last piece of a step says so. A step without records is one piece of zero rows. `workers` processes read
    ahead, for datasets that are slow to read.

    >>> import torch
    >>> from privet.sampling.samplers import Sampler
    >>> from privet.planning.planned_steps import PlannedSteps
    >>> whole = Sampler(dataset_size=5, steps=PlannedSteps(length=1, sample_rate=1.0))
    >>> [(piece.data.tolist(), piece.is_last) for piece in physical_batches(torch.arange(5), whole, physical=3)]
    [([0, 1, 2], False), ([3, 4], True)]
    """
    _check.whole(least=0, workers=workers)
    if physical is not None:
        _check.whole(physical=physical)
    reader, pieces = _Reader(dataset), _cut_batches(sampler, physical)
    if workers == 0:
        return (reader[piece] for piece in pieces)
    return iter(DataLoader(reader, sampler=pieces, batch_size=None, num_workers=workers, collate_fn=_identity))


def _cut_batches(sampler: BatchSampler, physical: int | None) -> Iterator[tuple[Tensor, bool]]:
    """The indices of each piece, and whether a step ends with it."""
    for indices in sampler:
        parts = (indices,) if physical is None else sampler.split(indices, physical)
        for part in parts[:-1]:
            yield part, False
        yield parts[-1], True


class _Reader(Dataset[PhysicalBatch[Any]]):
    """A whole piece as one item, so that an empty one passes through a DataLoader like any other."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, piece: tuple[Tensor, bool]) -> PhysicalBatch[Any]:
        indices, is_last = piece
        return PhysicalBatch(data=gather(self._dataset, indices), indices=indices, is_last=is_last)


def _identity(piece: Any) -> Any:
    return piece


def _tensor_columns(dataset: Any) -> Sequence[Tensor] | None:
    """The columns of a dataset held as tensors. A list is not one of them: it is a list of records."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors
    if isinstance(dataset, tuple) and dataset and all(isinstance(part, Tensor) for part in dataset):
        if len({part.shape[:1] for part in dataset}) > 1:
            raise InvalidValue(
                f"dataset: its tensors have shapes {[tuple(part.shape) for part in dataset]}. "
                "Row i of each belongs to record i. Give tensors of one length."
            )
        return dataset
    return None


def _read(dataset: Any, wanted: list[int]) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    return list(many(wanted)) if many else [dataset[index] for index in wanted]


def _empty_rows(dataset: Any) -> Any:
    try:
        one = dataset[0]
    except (IndexError, KeyError):
        raise InvalidValue(
            f"dataset={type(dataset).__name__} has no record 0. The shape of an empty batch is read off it. "
            "Give tensors, which have a shape without records."
        ) from None
    return _drop_rows(default_collate([one]))


def _drop_rows(stacked: Any) -> Any:
    if isinstance(stacked, Tensor):
        return stacked[:0].clone()  # a view would keep the record itself in memory
    if isinstance(stacked, dict):
        return {key: _drop_rows(value) for key, value in stacked.items()}
    if isinstance(stacked, (list, tuple)):
        parts = [_drop_rows(part) for part in stacked if not isinstance(part, (str, bytes))]
        return type(stacked)(*parts) if hasattr(stacked, "_fields") else type(stacked)(parts)
    raise Unsupported(
        f"dataset: a record holds a {type(stacked).__name__}, and an empty batch of those is not known. "
        "Give tensors, numbers, words, or tuples and dictionaries of them."
    )
