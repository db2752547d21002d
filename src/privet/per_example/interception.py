"""Interception by use of the parameter: every torch function that a tracked tensor enters passes through here.

While a model runs, its trainable parameters carry the class `TrackedParameter`. The objects stay the same, so tied
weights, functional calls, keyword calls and lists of weights inside recurrent layers are all seen. A function of
parameters alone gives another tracked tensor; a function of parameters and data is a use, and is recorded.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Listener(Protocol):
    """What is told of each function call that a tracked tensor enters."""

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any: ...


class _Here(threading.local):
    """What this thread listens with: models may train side by side."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []  # the innermost is last; empty outside of `tracking`


_here = _Here()


class _Tracked:
    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inner = _OPENED.get(func)
        if inner is not None:  # go inside: what it calls is seen one by one
            return inner(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            listeners = _here.listeners
            if not listeners or func in _SILENT or not torch.is_grad_enabled():
                return func(*args, **(kwargs or {}))
            return listeners[-1].call(func, args, kwargs or {})


class TrackedParameter(_Tracked, nn.Parameter):
    """A trainable parameter while its model runs."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        memo[id(self)] = found = nn.Parameter(self.detach().clone(), self.requires_grad)  # a copy is not watched
        return found


class TrackedTensor(_Tracked, Tensor):
    """A function of trainable parameters alone."""


def _property_getters() -> set[Any]:
    """Reading a property of a tensor is no use of it, except for the transposes."""
    named: dict[str, Any] = {name: getattr(Tensor, name, None) for name in dir(Tensor)}
    found = {value.__get__ for value in named.values() if type(value).__name__ in ("getset_descriptor", "property")}
    return found - {named[name].__get__ for name in ("T", "mT", "H", "mH", "real", "imag")}


_SILENT: set[Any] = _property_getters() | {
    Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.nelement, Tensor.is_floating_point, Tensor.__len__,
    Tensor.is_contiguous, Tensor.storage_offset, Tensor.data_ptr, Tensor.element_size, Tensor.get_device,
    Tensor.is_complex, Tensor.__repr__, Tensor.__hash__, Tensor.requires_grad_, Tensor.untyped_storage,
    Tensor.detach, Tensor.item, Tensor.tolist, torch.is_floating_point,
    torch.is_complex, torch.numel, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full,
    Tensor.new_tensor, torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, torch.rand_like,
    torch.randn_like, Tensor.register_hook, torch.isnan, torch.isfinite, torch.isinf,
}  # fmt: skip


def _skip_override_check(func: Any, **others: Any) -> Any:
    """The same Python function without its check for tracked arguments, so that it can be gone into."""
    inside = {**func.__globals__, "has_torch_function": lambda _: False, **others}
    return FunctionType(func.__code__, inside, func.__name__, func.__defaults__, func.__closure__)


def _in_projection(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor | None = None) -> Sequence[Tensor]:
    """Queries, keys and values. torch's own selects them from one tensor: on the way back, three are made and added."""
    if q is k and k is v:
        return [part.contiguous() for part in F.linear(q, weight, bias).chunk(3, -1)]
    found: Sequence[Tensor] = F._in_projection_packed(q, k, v, weight, bias)  # type: ignore[attr-defined]
    return found


_OPENED: dict[Any, Any] = {
    F.multi_head_attention_forward: _skip_override_check(
        F.multi_head_attention_forward, _in_projection_packed=_in_projection
    )
}


def is_tracked(value: Any) -> bool:
    return type(value) is TrackedParameter or type(value) is TrackedTensor


def track(value: Tensor) -> Tensor:
    """The same tensor, tracked from now on."""
    value.__class__ = TrackedTensor
    return value


def _force_eager() -> AbstractContextManager[Any]:
    """Compiled code would hide how parameters are used. Without dynamo nothing is compiled: nothing to do."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def track_parameters(parameters: Sequence[nn.Parameter], listener: Listener) -> Iterator[None]:
    """Tell `listener` of every use of the parameters inside."""
    classes = [type(p) for p in parameters]
    _here.listeners.append(listener)
    try:
        for p in parameters:
            p.__class__ = TrackedParameter
        with _force_eager():
            yield
    finally:
        for p, kind in zip(parameters, classes, strict=True):
            p.__class__ = kind
        _here.listeners.remove(listener)
