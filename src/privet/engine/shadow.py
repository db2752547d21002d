"""A shadow: what a loop makes of its batch with half of the records exchanged, to see whom else that moves.

Gradients tell of coupling only where they flow. A detached mean of the batch, classes counted in it or inputs that were
mixed before the model move the losses of all, and autograd does not know. So in some steps every torch operation of the
loop is made for the batch and for its shadow, and the model is called on both: a record that was not exchanged must
have the same loss.

Numbers that leave torch (`item`, `tolist`, `numpy`) are the same for both: what they do to other records is not seen.
Nor are tensors that a model leaves in its attributes or hooks: calls of it are made on a double, which has its weights
and nothing else of it, so that what the user's own call leaves behind stays.
"""

import copy
import itertools
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from privet.engine.apart import SMALL, TOLERANCE, moved
from privet.engine.batches import mapped
from privet.engine.state import version_of
from privet.engine.survey import Mode, devices_of, exchanged, same_start
from privet.engine.tape import tensors_in
from privet.errors import Unsupported

Randomness = tuple[Any, Any, Any]
_UNEVEN = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}  # how much they draw depends on the data
Pairs = tuple[Any, list[tuple[Tensor, Tensor]]]
F = TypeVar("F", bound=Callable[..., Any])


def _or_give_up(method: F) -> F:
    """Nothing that goes wrong here may reach the user's loop: it is not followed any more."""

    @wraps(method)
    def tried(self: "Shadow", *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception:
            self._others.clear()
            return None

    return cast(F, tried)


class _Key:
    """Lies on a tensor that has a shadow, and dies with it."""

    __slots__ = ("__weakref__",)


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
        self._others: weakref.WeakKeyDictionary[_Key, Tensor] = weakref.WeakKeyDictionary()
        self._start: Randomness | None = None  # of the model's call that is going on
        self._versions: list[tuple[Tensor, int]] = []
        self._data: list[tuple[Tensor, int, Tensor]] = []
        for t in tensors_in([data]):
            if t.dim() and len(t) == rows:
                with suppress(Exception):  # a kind of tensor that cannot be exchanged has no shadow
                    self._put(t, exchanged(self._exchanged)(t))
                    self._data.append((t, version_of(t), t.clone()))

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
        for t, other in self._by_row(found):
            if bool(moved(t, other, 0, TOLERANCE, SMALL).cpu()[~self._exchanged].any()):
                raise Unsupported(
                    "the loss of one example depends on the records of others in this loop, by values that no gradient "
                    "tells of: a mean of the batch, its hardest example, classes counted in it, inputs mixed or scaled "
                    "over the batch. So no clip bounds what one record does. Compute it from one example at a time or "
                    "from public constants, and keep the losses in the order of the batch."
                )

    # --- the loop's own operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        others = self._followed(func, args, kwargs)
        out = func(*args, **kwargs)
        if others is not None:
            self._note(func, out, *others)
        return out

    @_or_give_up
    def _followed(self, func: Any, args: Any, kwargs: Any) -> Pairs | None:
        """(what the operation gives for the shadow, the tensors it writes into, with their shadows), if it has one."""
        entering = tensors_in([args, kwargs])
        if self._start is not None or all(self._other(t) is None for t in entering):
            return None
        if isinstance(func, OpOverload) and func.namespace == "aten" and _name(func) not in _UNEVEN:
            with suppress(Exception):  # other values may be refused, or have another shape: there is no shadow then
                return self._of_shadow(func, args, kwargs)
        for t in _written(func, args, kwargs) if isinstance(func, OpOverload) else entering:
            self._forget(t)
        return None

    @_or_give_up
    def _note(self, func: Any, out: Any, there: Any, written: list[tuple[Tensor, Tensor]]) -> None:
        pairs = list(_pairs(out, there))
        if _name(func) == "sort":  # the order of both is that of the batch, so that a row stays the same record's
            pairs = pairs[:1]
        for t, other in itertools.chain(pairs, written):
            self._put(t, other)

    def _of_shadow(self, func: OpOverload, args: Any, kwargs: Any) -> Pairs:
        """What the operation gives for the shadow, with the same random numbers, and the tensors it wrote into."""
        written = _written(func, args, kwargs)
        unseen = tensors_in([args, kwargs]) if "batch_norm" in _name(func) else []  # its schema hides what it writes
        own = {id(t): self._clone(t) for t in (*written, *unseen) if self._other(t) is None}  # not written into twice

        def other(t: Tensor) -> Tensor:
            found = own.get(id(t)) if id(t) in own else self._other(t)
            return t if found is None else found

        there = mapped(args, other), {name: mapped(value, other) for name, value in kwargs.items()}
        with _same_randomness(func, tensors_in([args, kwargs]), kwargs.get("generator")):
            out = func(*there[0], **there[1])
        return out, [(t, other(t)) for t in written]

    # --- the model, called once more on each of both ---

    @_or_give_up
    def before_model(self, model: nn.Module, inputs: Any) -> None:
        """The model's own operations are not followed one by one."""
        self._start = _randomness(model)
        self._versions = [(t, version_of(t)) for t in tensors_in([inputs])]
        self._give_up_if_written()
        self._follow_order(inputs)

    @_or_give_up
    def after_model(self, model: nn.Module, inputs: tuple[Any, Any], out: Any) -> None:
        """Ask the model for the outputs of the shadow; calls of it must not be recorded meanwhile."""
        start = self._start
        for t, version in self._versions:
            if version_of(t) != version:
                self._forget(t)
        if start is not None and any(self._other(t) is not None for t in tensors_in([inputs])):
            with suppress(Exception):
                double = _double(model, {})
                again, there = (_asked(double, mapped(inputs, to), start) for to in (lambda t: t, self._or_same))
                if _alike(out, again):  # else the model is never twice the same, and nothing can be said
                    for t, other in _pairs(out, there):
                        self._put(t, other)
        self._start = None

    def _follow_order(self, inputs: Any) -> None:
        """Rows that were put in another order: no more of them differ than were exchanged, and they are those now."""
        differ = torch.zeros_like(self._exchanged)
        for t, other in self._by_row(inputs):
            differ |= moved(t, other, 0).cpu()
        if bool((differ & ~self._exchanged).any()) and differ.sum() <= self._exchanged.sum():
            self._exchanged = differ

    # --- whose shadow is whose ---

    def _by_row(self, found: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """The tensors with a row for each of the batch, and their shadows."""
        for t in tensors_in([found]):
            other = self._other(t)
            if other is not None and other.shape == t.shape and t.dim() and len(t) == len(self._exchanged):
                yield t.detach(), other

    def _give_up_if_written(self) -> None:
        """What is written into the batch by NumPy, say, is not seen: then nothing can be said."""
        if any(version_of(t) == version and bool(moved(t, kept, 0, 0.0).any()) for t, version, kept in self._data):
            self._others.clear()

    def _own(self, t: Tensor) -> Tensor | None:
        key = getattr(t, "privet_shadow", None)
        return None if key is None else self._others.get(key)

    def _other(self, t: Tensor) -> Tensor | None:
        found = self._own(t)
        if found is None and t._base is not None and (base := self._own(t._base)) is not None:
            return _same_view(t, t._base, base)  # made before something was written into what it shows
        return found

    def _or_same(self, t: Tensor) -> Tensor:
        other = self._other(t)
        return t if other is None else other

    def _clone(self, t: Tensor) -> Tensor:
        """A shadow for what is about to be written into; of a view, in a shadow of the whole."""
        if t._base is None or self._own(t._base) is not None:
            return t.clone()
        self._put(t._base, t._base.clone())
        found = self._other(t)
        return t.clone() if found is None else found

    def _put(self, t: Tensor, other: Tensor) -> None:
        if _shares_memory(t, other):  # what is written into the shadow must never reach the user's own
            self._forget(t)
            return
        t.privet_shadow = key = _Key()  # type: ignore[attr-defined]
        self._others[key] = other.detach()

    def _forget(self, t: Tensor) -> None:
        key = getattr(t, "privet_shadow", None)
        if key is not None:
            self._others.pop(key, None)

    def _leave(self) -> None:
        """Off the stack of modes, wherever it lies there: a loop may have put its own above."""
        stack = _get_current_dispatch_mode_stack()
        if not any(mode is self for mode in stack):
            return
        above = [_pop_mode() for _ in itertools.takewhile(lambda mode: mode is not self, reversed(stack))]
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)


def _name(func: Any) -> str:
    return str(getattr(getattr(func, "overloadpacket", None), "__name__", ""))


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    try:
        place = a.untyped_storage().data_ptr()
        return place != 0 and place == b.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # it has no memory of its own: nothing is known
        return True


def _same_view(t: Tensor, base: Tensor, other: Tensor) -> Tensor | None:
    """What the view `t` of `base` shows of `other`, if that lies in memory as `base` does."""
    if other.shape != base.shape or other.stride() != base.stride():
        return None
    return other.as_strided(t.shape, t.stride(), t.storage_offset() - base.storage_offset() + other.storage_offset())


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


def _double(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """A module of the same weights with buffers and attributes of its own and without hooks.

    What a call of it leaves behind, an attention map or features that a hook keeps, must not pass for what the user's
    own call left.
    """
    if id(module) not in made:
        made[id(module)] = found = object.__new__(type(module))
        inside = {
            name: OrderedDict() if "_hooks" in name else copy.copy(value) if isinstance(value, (list, dict)) else value
            for name, value in vars(module).items()
        }
        inside["_buffers"] = {name: None if b is None else b.clone() for name, b in module._buffers.items()}
        inside["_modules"] = {name: None if m is None else _double(m, made) for name, m in module._modules.items()}
        vars(found).update(inside)
    return made[id(module)]


def _asked(double: nn.Module, inputs: tuple[Any, Any], start: Randomness) -> Any:
    args, kwargs = inputs
    with same_start(double), torch.no_grad():
        _put_back(start, double)
        return double(*args, **kwargs)


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
