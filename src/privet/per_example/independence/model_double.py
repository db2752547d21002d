"""A double of a model, to ask it about other records: calls of it leave nothing in the user's own model."""

import copy
import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from privet.per_example.forward_record import tensors_in
from privet.per_example.independence.model import changed_rows
from privet.per_example.trial_pass import Mode, cuda_devices, same_random_state


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where the random numbers of Python, NumPy and torch stood, and what the model's buffers held."""

    python: Any
    numpy: Any
    torch: list[Tensor]
    buffers: list[Tensor]

    def restore(self, model: nn.Module) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch[0])
        for device, state in zip(cuda_devices(model.parameters()), self.torch[1:], strict=True):
            torch.cuda.set_rng_state(state, device)


def random_state(model: nn.Module) -> Start:
    devices = cuda_devices(model.parameters())
    return Start(
        random.getstate(), np.random.get_state(), [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)],
        [b.detach().clone() for b in model.buffers()],
    )  # fmt: skip


def call_double(model: nn.Module, inputs: tuple[Any, Any], start: Start) -> Any:
    """What the model gives for other inputs, with the same random numbers; nothing of it is left."""
    args, kwargs = inputs
    double = _make_double(model, {})
    with same_random_state(double), torch.no_grad():
        start.restore(double)
        for buffer, before in zip(double.buffers(), start.buffers, strict=True):
            buffer.copy_(before)
        return double(*args, **kwargs)


def capture(model: nn.Module, inputs: tuple[Any, Any], start: Start) -> list[Tensor]:
    """All that a call computes on its way, in order."""
    seen = _Capture()
    with seen:
        call_double(model, inputs, start)
    return seen.made


def find_equal(t: Tensor, among: list[Tensor]) -> int | None:
    """The first of the tensors that holds the same."""
    for place, one in enumerate(among):
        if one.shape == t.shape and one.dtype == t.dtype and not bool(changed_rows(t[None], one[None], 0).any()):
            return place
    return None


def same_outputs(out: Any, again: Any) -> bool:
    """Whether two calls gave the same, up to rounding."""
    a, b = tensors_in([out]), tensors_in([again])
    return len(a) == len(b) and all(
        s.shape == t.shape and not bool(changed_rows(s.detach().reshape(1, -1), t.reshape(1, -1), 0).any())
        for s, t in zip(a, b, strict=True)
    )


class _Capture(Mode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made += [t.detach() for t in tensors_in([out])]
        return out


def _make_double(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """A module of the same weights with buffers and attributes of its own and without hooks."""
    if id(module) not in made:
        made[id(module)] = found = object.__new__(type(module))
        inside = {
            name: OrderedDict() if "_hooks" in name else copy.copy(value) if isinstance(value, (list, dict)) else value
            for name, value in vars(module).items()
        }
        inside["_buffers"] = {name: None if b is None else b.clone() for name, b in module._buffers.items()}
        inside["_modules"] = {name: None if m is None else _make_double(m, made) for name, m in module._modules.items()}
        vars(found).update(inside)
    return made[id(module)]


@contextmanager
def _rewind(generator: torch.Generator) -> Iterator[None]:
    """A generator of the loop's own, put back where it was."""
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


def preserve_randomness(func: OpOverload, tensors: list[Tensor], generator: torch.Generator | None) -> Any:
    """The operation may draw inside; after it all random numbers are as before."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return nullcontext()
    return torch.random.fork_rng(devices=cuda_devices(tensors)) if generator is None else _rewind(generator)
