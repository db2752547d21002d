"""A shadow: what a loop makes of its batch with half of the records exchanged, to see whom else that moves.

Gradients tell of coupling only where they flow. A detached mean of the batch, classes counted in it or inputs that were
mixed before the model move the losses of all, and autograd does not know. So in some steps every torch operation of the
loop is made for the batch and for its shadow, and the model is called on both: a record that was not exchanged must
have the same loss.

Numbers that leave torch (`item`, `tolist`, `numpy`) are the same for both: what they do to other records is not seen.
Nor is what a loop does after it has put its records in order.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from privet.engine.apart import SMALL, TOLERANCE, moved
from privet.engine.batches import mapped
from privet.engine.survey import Mode, devices_of, exchanged, same_start
from privet.engine.tape import tensors_in
from privet.errors import Unsupported

Randomness = tuple[Any, Any, Any]
_keys = itertools.count()


class Shadow(Mode):
    """Follows one batch and its shadow through a loop.

    Args:
        data: the batch, a nest of tensors with `rows` rows, those of a record (`views`) together.
        turn: other records are exchanged in each turn.
    """

    supports_higher_order_operators = True  # they are let through

    def __init__(self, data: Any, *, rows: int, views: int = 1, turn: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        half = torch.randperm(rows // views, generator=torch.Generator().manual_seed(turn)) % 2 == 0
        self._exchanged = half.repeat_interleave(views)
        self._others: dict[int, Tensor] = {}
        self._start: Randomness | None = None  # of the model's call that is going on
        self._versions: list[tuple[Tensor, int]] = []
        self._data: list[tuple[Tensor, int, Tensor]] = []
        for t in tensors_in([data]):
            if t.dim() and len(t) == rows:
                with suppress(Exception):  # a kind of tensor that cannot be exchanged has no shadow
                    self._put(t, exchanged(self._exchanged)(t))
                    self._data.append((t, t._version, t.clone()))

    @contextmanager
    def following(self) -> Iterator[None]:
        """What the loop does inside is done for the shadow too."""
        self.__enter__()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self._leave()
            self._others.clear()

    def check(self, found: Any) -> None:
        """Raise if a row of a record that was not exchanged is another in the shadow."""
        self._leave()
        self._give_up_if_written()
        rows = len(self._exchanged)
        for t in tensors_in([found]):
            other = self._other(t)
            if other is None or other.shape != t.shape or not t.dim() or len(t) != rows:
                continue
            differ = moved(t.detach(), other, 0, TOLERANCE, SMALL).cpu()
            if bool(differ[~self._exchanged].any()):
                raise Unsupported(
                    "the loss of one example depends on the records of others in this loop, by values that no gradient "
                    "tells of: a mean of the batch, its hardest example, classes counted in it, inputs mixed or scaled "
                    "over the batch. So no clip bounds what one record does. Compute it from one example at a time or "
                    "from public constants, and keep the losses in the order of the batch."
                )

    # --- the loop's own operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entering = tensors_in([args, kwargs])
        if self._start is not None or all(self._other(t) is None for t in entering):
            return func(*args, **kwargs)
        others = None
        if getattr(func, "overloadpacket", None) is torch.ops.aten.sort and not entering[0].is_floating_point():
            self._others.clear()  # records are put in order by their length: row i of both is not one record any more
            return func(*args, **kwargs)
        if isinstance(func, OpOverload) and func.namespace == "aten":
            with suppress(Exception):  # other values may be refused, or have another shape: there is no shadow then
                others = self._of_shadow(func, args, kwargs)
        out = func(*args, **kwargs)
        if others is None:
            for t in _written(func, args, kwargs) if isinstance(func, OpOverload) else entering:
                self._forget(t)
            return out
        there, written = others
        for t, other in itertools.chain(_pairs(out, there), written):
            self._put(t, other)
        return out

    def _of_shadow(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
        """What the operation gives for the shadow, with the same random numbers, and the tensors it wrote into."""
        written = _written(func, args, kwargs)
        own = {id(t): t.clone() for t in written if self._other(t) is None}  # must not be written into twice

        def other(t: Tensor) -> Tensor:
            found = own.get(id(t)) if id(t) in own else self._other(t)
            return t if found is None else found

        there = mapped(args, other), {name: mapped(value, other) for name, value in kwargs.items()}
        with _same_randomness(func, [*tensors_in([args, kwargs])], kwargs.get("generator")):
            out = func(*there[0], **there[1])
        return out, [(t, other(t)) for t in written]

    # --- the model, called once more on each of both ---

    def before_model(self, model: nn.Module, inputs: Any) -> None:
        """The model's own operations are not followed one by one."""
        self._start = _randomness(model)
        self._versions = [(t, t._version) for t in tensors_in([inputs])]
        self._give_up_if_written()

    def after_model(self, model: nn.Module, inputs: tuple[Any, Any], out: Any) -> None:
        """Ask the model for the outputs of the shadow; calls of it must not be recorded meanwhile."""
        start = self._start
        for t, version in self._versions:
            if t._version != version:
                self._forget(t)
        if start is not None and any(self._other(t) is not None for t in tensors_in([inputs])):
            with suppress(Exception):
                again, there = (_asked(model, mapped(inputs, to), start) for to in (lambda t: t, self._or_same))
                if _alike(out, again):  # else the model is never twice the same, and nothing can be said
                    for t, other in _pairs(out, there):
                        self._put(t, other)
        self._start = None

    # --- whose shadow is whose ---

    def _give_up_if_written(self) -> None:
        """What is written into the batch by NumPy, say, is not seen: then nothing can be said."""
        if any(t._version == version and bool(moved(t, kept, 0, 0.0).any()) for t, version, kept in self._data):
            self._others.clear()

    def _other(self, t: Tensor) -> Tensor | None:
        return self._others.get(getattr(t, "privet_shadow", -1))

    def _or_same(self, t: Tensor) -> Tensor:
        other = self._other(t)
        return t if other is None else other

    def _put(self, t: Tensor, other: Tensor) -> None:
        key = next(_keys)
        t.privet_shadow = key  # type: ignore[attr-defined]
        self._others[key] = other.detach()

    def _forget(self, t: Tensor) -> None:
        self._others.pop(getattr(t, "privet_shadow", -1), None)

    def _leave(self) -> None:
        """Off the stack of modes, wherever it lies there: a loop may have put its own above."""
        stack = _get_current_dispatch_mode_stack()
        if not any(mode is self for mode in stack):
            return
        above = [_pop_mode() for _ in itertools.takewhile(lambda mode: mode is not self, reversed(stack))]
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)


def _pairs(out: Any, there: Any) -> "zip[tuple[Tensor, Tensor]]":
    return zip(tensors_in([out]), tensors_in([there]), strict=False)


def _written(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes into, by its schema."""
    found: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors_in([args[i] if i < len(args) else kwargs.get(argument.name)])
    return found


def _alike(out: Any, again: Any) -> bool:
    a, b = tensors_in([out]), tensors_in([again])
    return len(a) == len(b) and all(
        s.shape == t.shape and not bool(moved(s.detach().reshape(1, -1), t.reshape(1, -1), 0).any())
        for s, t in zip(a, b, strict=True)
    )


def _asked(model: nn.Module, inputs: tuple[Any, Any], start: Randomness) -> Any:
    args, kwargs = inputs
    with same_start(model), torch.no_grad():
        for module in model.modules():
            for name, b in module._buffers.items():  # autograd may have kept it: it must not be written into
                module._buffers[name] = None if b is None else b.clone()
        _put_back(start, model)
        return model(*args, **kwargs)


# --- randomness -------------------------------------------------------------------------------------


def _randomness(model: nn.Module) -> Randomness:
    devices = devices_of(model.parameters())
    return random.getstate(), np.random.get_state(), [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _put_back(start: Randomness, model: nn.Module) -> None:
    random.setstate(start[0])
    np.random.set_state(start[1])
    torch.set_rng_state(start[2][0])
    for device, state in zip(devices_of(model.parameters()), start[2][1:], strict=True):
        torch.cuda.set_rng_state(state, device)


class _Rewound:
    """A generator of the loop's own, put back where it was."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._state = generator, generator.get_state()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._generator.set_state(self._state)


def _same_randomness(func: OpOverload, tensors: list[Tensor], generator: torch.Generator | None) -> Any:
    """The operation may draw inside; after it all random numbers are as before."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return nullcontext()
    return torch.random.fork_rng(devices=devices_of(tensors)) if generator is None else _Rewound(generator)
