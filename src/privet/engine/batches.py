"""Batches: nests of tensors, each with its examples along dimension 0."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from privet.errors import InvalidValue


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, lists and dicts with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return value


def tensors_with_keys(value: Any, key: str = "") -> Iterator[tuple[str, Tensor]]:
    """(place, tensor) for each tensor of the nest."""
    if isinstance(value, Tensor):
        yield key, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from tensors_with_keys(item, f"{key}[{i}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from tensors_with_keys(item, f"{key}[{name!r}]")


def size_of(batch: Any) -> int:
    """The number of rows, which all tensors share."""
    sizes = [t.shape[0] if t.dim() else None for _, t in tensors_with_keys(batch)]
    if not sizes or len(set(sizes)) != 1 or sizes[0] is None:
        raise InvalidValue(
            f"batch has tensors of sizes {sizes} along dimension 0; all must be the number of examples. "
            "Keep what is not per example out of the batch."
        )
    return sizes[0]
