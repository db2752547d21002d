"""Batches: nests of tensors, each with its examples along dimension 0."""

import copy
from collections import UserList
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from privet.engine.tape import items_of, tensors_in
from privet.errors import InvalidValue


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, lists, mappings and dataclasses with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        parts = [mapped(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {key: mapped(item, change) for key, item in value.items()}
    if not items_of(value):
        return value
    found: Any = copy.copy(value)  # a class of its own: its constructor is not ours to call
    if isinstance(value, UserList):
        found.data = [mapped(item, change) for item in value.data]
    elif isinstance(value, Mapping):
        if isinstance(kept := getattr(value, "data", None), dict):  # UserDict shares it with a shallow copy
            object.__setattr__(found, "data", dict(kept))
        for key in value:
            found[key] = mapped(value[key], change)
    else:
        for name in fields(value):
            object.__setattr__(found, name.name, mapped(getattr(value, name.name), change))
    return found


def kinds(value: Any) -> Any:
    """The nest with (dimensions, type) in the place of each tensor: what a model's way may depend on."""
    if isinstance(value, Tensor):
        return value.dim(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple([kinds(item) for item in value])
    if isinstance(value, Mapping):
        return tuple([(key, kinds(value[key])) for key in value])
    if not isinstance(value, type) and is_dataclass(value):
        return type(value), tuple([kinds(item) for item in items_of(value)])
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
