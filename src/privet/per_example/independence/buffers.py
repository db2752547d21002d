"""State: what a model holds beside its trained weights is published without noise, so no pass may write data there.

A trial pass shows which buffers a pass moves whatever the data are, as spectral norm and counters do: `check_buffers`
compares what other data leave in them. Everything else must be after each pass what it was before: a running maximum
that the trial did not move, say, or a frozen table that `max_norm` writes into.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.errors import Unsupported
from privet.per_example.trial_pass import MANY, Run, first_examples, own_parameters, same_random_state

Mark = tuple[int, int, int]
_NEW: Mark = (0, 0, 0)  # of a buffer that was not there


@dataclass(frozen=True, slots=True)
class BufferWrites:
    """The buffers that a pass writes into whatever the data are: with other values, or with those they have."""

    moved: frozenset[str] = frozenset()
    steady: frozenset[str] = frozenset()


NONE = BufferWrites()


class BufferGuard:
    """What a model holds before a pass; `check` after it."""

    __slots__ = ("_buffers", "_model", "_parameters", "_writes")

    def __init__(self, model: nn.Module, writes: BufferWrites) -> None:
        self._model, self._writes = model, writes
        with torch._C.DisableTorchFunctionSubclass():  # parameters may be tracked, and this is no use of them
            self._parameters = [(name, p, _tensor_mark(p)) for name, p in own_parameters(model)]
            self._buffers = {
                name: (_tensor_mark(b), b.detach().clone() if name in writes.steady else None)
                for name, b in model.named_buffers(remove_duplicate=False)
                if name not in writes.moved
            }

    def check(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            for name, p, mark in self._parameters:
                if _tensor_mark(p) != mark:
                    raise _parameter_write_error(name)
            for name, b in self._model.named_buffers(remove_duplicate=False):
                mark, before = self._buffers.get(name, (_NEW, None))
                if name in self._writes.moved or _tensor_mark(b) == mark:
                    continue
                if before is not None and _same_values(b, before):
                    continue
                raise Unsupported(
                    f"{name}: the model wrote into this buffer now, and not in the trial pass: its data decide what is "
                    "there, without noise. Leave it out, or freeze it by eval()."
                )


def find_writes(model: nn.Module, run: Run) -> BufferWrites:
    """What a trial pass writes; raises if it writes into a parameter."""
    with same_random_state(model), torch.enable_grad():
        held = [(name, p, p.detach().clone(), _tensor_mark(p)) for name, p in own_parameters(model)]
        before: dict[str, tuple[Mark, Tensor | None]] = {
            n: (_tensor_mark(b), b.detach().clone()) for n, b in model.named_buffers(remove_duplicate=False)
        }
        run(model, first_examples(MANY))
        for name, p, old, mark in held:
            if _tensor_mark(p) != mark or not _same_values(p.detach(), old):
                raise _parameter_write_error(name)
        moved, steady = set(), set()
        for name, b in model.named_buffers(remove_duplicate=False):
            mark, value = before.get(name, (_NEW, None))
            if value is None or not _same_values(b.detach(), value):
                moved.add(name)
            elif _tensor_mark(b) != mark:
                steady.add(name)
    return BufferWrites(frozenset(moved), frozenset(steady))


def _parameter_write_error(name: str) -> Unsupported:
    return Unsupported(
        f"{name}: the forward pass writes into this parameter, before any noise, as max_norm of an embedding does. "
        "Leave that out."
    )


def _tensor_mark(t: Tensor) -> Mark:
    """What changes when a tensor is written into, or another is put in its place; not for writes by `.data`."""
    return id(t), t.data_ptr(), tensor_version(t)


def tensor_version(t: Tensor) -> int:
    """How often a tensor was written into; those of inference do not count it."""
    return 0 if t.is_inference() else t._version


def _same_values(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))
