"""Batches: nests of tensors, each with its examples along dimension 0."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from privet.engine.tape import tensors_in
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


def kinds(value: Any) -> Any:
    """The nest with (dimensions, type) in the place of each tensor: what a model's way may depend on."""
    if isinstance(value, Tensor):
        return value.dim(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple([kinds(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, kinds(item)) for key, item in value.items()])
    return value if isinstance(value, (int, bool, str, type(None))) else type(value)


def size_of(batch: Any) -> int:
    """The number of rows, which all tensors share."""
    sizes = [t.shape[0] if t.dim() else None for t in tensors_in(batch)]
    if not sizes or len(set(sizes)) != 1 or sizes[0] is None:
        raise InvalidValue(
            f"batch has tensors of sizes {sizes} along dimension 0; all must be the number of examples. "
            "Keep what is not per example out of the batch."
        )
    return sizes[0]
