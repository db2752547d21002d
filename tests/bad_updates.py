"""Tensors that a client may send in place of plain ones, made anew each time: reading some of them changes them."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

SECRET = "2.718281828"  # what no log may have


class Sub(Tensor):
    """A subclass runs its own code, whatever is asked of it."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        raise RuntimeError(SECRET)


def csr(t: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return t.to_sparse_csr()


def freed(t: Tensor) -> Tensor:
    t.untyped_storage().resize_(0)
    return t


def quantized(t: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)


def nested(t: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(list(t))


UNREADABLE: dict[str, Callable[[Tensor], Any]] = {  # from ones of the parameter's shape
    "sparse": lambda t: t.to_sparse(),
    "csr": csr,
    "meta": lambda t: t.to("meta"),
    "subclass": lambda t: t.as_subclass(Sub),
    "complex": lambda t: t.to(torch.complex64),
    "whole numbers": lambda t: t.to(torch.int64),
    "quantized": quantized,
    "nested": nested,
    "without memory": freed,
    "objects": lambda t: np.full(tuple(t.shape), object()),
    "a list": lambda t: t.tolist(),
    "other shape": lambda t: t[None],
    "nan": lambda t: t * float("nan"),
    "one inf": lambda t: t.index_fill(0, torch.tensor([0]), float("inf")),
    "beyond float32": lambda t: t.double() * 1e300,
}
READABLE: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda t: torch.ones(()).expand(t.shape),
    "overlapping": lambda t: torch.arange(9.0).as_strided(t.shape, (1,) * t.dim()),
    "transposed": lambda t: t.mT.contiguous().mT,
    "half": lambda t: t.half(),
    "with a graph": lambda t: t.requires_grad_() * 2,
    "a parameter": torch.nn.Parameter,
}
