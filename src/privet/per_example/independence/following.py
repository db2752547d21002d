"""A user's own loop, followed: in a checked step each torch operation is made for other batches too.

Counterfactual batches go through the loop beside the real one, operation by operation, with the same random numbers. A
tensor that no followed operation made is a number, a constant that must be the same in later checked steps
(`LoopMemory`), or not followed.

Numbers that leave torch (`item`, `tolist`) are the same for all: what they do to other records is not seen.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from privet.per_example.forward_record import map_tensors, tensors_in
from privet.per_example.independence.counterfactuals import (
    EXCHANGED,
    ORDER,
    ORDERS,
    Known,
    checksum,
    fills_memory,
    storage_of,
)
from privet.per_example.independence.loop_calls import FollowedBatch, numbers_of, preserve_randomness
from privet.per_example.independence.model import changed_rows

_UNEVEN = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}  # how much they draw depends on the data
_SHAPES_ALONE = {  # of their argument they take shape and type alone
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
_TELLING = {"_local_scalar_dense", "equal"}  # they give numbers that are no tensors
_EXPORTS = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist}
_ARITHMETIC = {"mul", "div", "add", "sub", "rsub", "pow", "mul_", "div_", "add_", "sub_", "pow_"}


@dataclass(slots=True, eq=False)
class _Work:
    """One operation on its way."""

    name: str
    written: list[Tensor]
    is_data: bool = False
    is_random: bool = False
    is_given: bool = False
    needs_gradient: bool = False
    reason: str = ""
    numbers: frozenset[int] = frozenset()
    made: dict[int, list[Tensor]] = field(default_factory=dict)  # by variant: what it gives there


class Following(FollowedBatch):  # type: ignore[no-untyped-call]
    """Follows one batch and its counterfactuals through a loop."""

    supports_higher_order_operators = True  # they are let through, and what they give is not followed

    @contextmanager
    def follow_loop(self) -> Iterator[None]:
        """What the loop does inside is done for the counterfactual batches too."""
        self.__enter__()  # type: ignore[no-untyped-call]
        try:
            with _Exports(self):
                yield
        finally:
            self._leave_mode_stack()
            self._mirrors.close()
            self._calls.clear()
            self._kept.clear()

    # --- the loop's own operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_busy:
            return func(*args, **kwargs)
        work = None if self._depth else self._run_guarded(self._before_operation, func, args, kwargs)
        out = func(*args, **kwargs)
        if self._depth:
            self._run_guarded(self._mark_inside, (args, kwargs), out)
        elif work is not None:
            self._run_guarded(self._after_operation, out, work)
        return out

    def _before_operation(self, func: Any, args: Any, kwargs: Any) -> _Work:
        """What the operation gives in each counterfactual batch; before the real one, which may write in place."""
        is_plain = isinstance(func, OpOverload)
        name = func.overloadpacket.__name__ if is_plain else str(func)
        entering = [] if name in _SHAPES_ALONE else tensors_in([args, kwargs])
        if name == "copy_" and fills_memory(args[0]):  # what was there before does not matter
            storage = storage_of(args[0])
            self._mirrors.learn(storage, Known(checksum(storage)))
        knowns = [self._lookup(t) for t in entering]
        work = _Work(name, _written_tensors(func, args, kwargs) if is_plain else [], any(k.is_data for k in knowns))
        work.reason = next((known.reason for known in knowns if known.reason), "")
        work.numbers = numbers_of(knowns)
        if work.is_data:
            work.numbers |= self._note_numbers(name, args, zip(entering, knowns, strict=True))
            work.needs_gradient = any(t.requires_grad for t in entering)
            if not is_plain:
                work.reason = work.reason or f"{name}, an operation without a schema"
        else:
            work.is_given = any(k.is_given and self._rows in t.shape for t, k in zip(entering, knowns, strict=True))
        work.is_random = is_plain and torch.Tag.nondeterministic_seeded in func.tags
        if not work.reason:
            for variant in sorted(self._active):
                if any(known.mirrors[variant] is not None for known in knowns):
                    self._make_counterfactual(variant, func, args, kwargs, work)
        return work

    def _note_numbers(self, name: str, args: Any, entering: Iterator[tuple[Tensor, Known]]) -> set[int]:
        self.seen.path.append(name)
        self.seen.taken_out |= name in _TELLING
        given = list(entering)
        numbers: list[float] = []
        if name in _ARITHMETIC:
            numbers += [value for value in args if isinstance(value, (int, float)) and not isinstance(value, bool)]
            numbers += [float(t) for t, known in given if known.is_given and not t.dim()]
        numbers += [float(t.detach().abs().amax()) for t, known in given if _is_made_of_shapes(t, known)]
        self.seen.numbers += [(name, float(value)) for value in numbers]
        return {len(self.seen.numbers) - k for k in range(1, len(numbers) + 1)}

    def _make_counterfactual(self, variant: int, func: OpOverload, args: Any, kwargs: Any, work: _Work) -> None:
        if self._is_drawn(work, variant):  # the real numbers, at the rows of their records
            if work.name in _UNEVEN and variant not in ORDERS and not self._draws_independently(args, kwargs, variant):
                work.reason = f"{work.name}, random numbers of one example that depend on others"
            return
        for t in work.written:
            known = self._lookup(t)
            if known.mirrors[variant] is None:
                self._mirrors.copy(known, t, variant)
        hidden = "batch_norm" in work.name  # its schema hides what it writes

        def other(t: Tensor) -> Tensor:
            return (
                t.clone() if hidden and self._lookup(t).mirrors[variant] is None else self._counterfactual(t, variant)
            )

        try:
            there = map_tensors(args, other), {name: map_tensors(value, other) for name, value in kwargs.items()}
            with preserve_randomness(func, tensors_in([args, kwargs]), kwargs.get("generator")):
                work.made[variant] = tensors_in([func(*there[0], **there[1])])
        except Exception:  # other values may be refused
            if variant == EXCHANGED:
                work.reason = f"{work.name} fails for other records of the batch"
            else:
                self._active.discard(variant)

    def _draws_independently(self, args: Any, kwargs: Any, variant: int) -> bool:
        """Whether what a draw is made from is the same for all records that stay."""
        stays = self._others.real_rows(variant) >= 0
        for t in tensors_in([args, kwargs]):
            if self._lookup(t).mirrors[variant] is not None:
                there = self._counterfactual(t, variant)
                if self._rows not in t.shape or there.shape != t.shape:
                    return False
                dim = t.shape.index(self._rows)
                if bool((changed_rows(t.detach().movedim(dim, 0), there.movedim(dim, 0), 0).cpu() & stays).any()):
                    return False
        return True

    @staticmethod
    def _is_drawn(work: _Work, variant: int) -> bool:
        return work.name in _UNEVEN or (work.is_random and variant == ORDER)

    def _after_operation(self, out: Any, work: _Work) -> None:
        outputs = tensors_in([out])
        if work.needs_gradient:
            self._kept += outputs
        for t in work.written:
            if (storage := storage_of(t)) is not None and (known := self._mirrors.lookup(storage)) is not None:
                known.checksum = None if known.checksum is None else checksum(storage)
                known.is_data |= work.is_data
                known.numbers |= work.numbers
                known.reason = known.reason or work.reason
        for place, t in enumerate(outputs):
            storage = storage_of(t)
            if storage is None:
                continue  # it is not followed: `_known` says so
            known = self._mirrors.lookup(storage)
            is_new = known is None
            if known is None:
                if work.name.startswith("set_"):
                    continue  # it lies in memory that is looked at when it is used
                found = Known(checksum(storage), is_data=work.is_data, is_given=work.is_given, reason=work.reason)
                known = self._mirrors.learn(storage, found)
            known.numbers |= work.numbers
            for variant in sorted(self._active) if not known.reason else ():
                self._store_output(variant, known, t, place, work, is_new=is_new)

    def _store_output(self, variant: int, known: Known, t: Tensor, place: int, work: _Work, *, is_new: bool) -> None:
        """Keep what an output is in a counterfactual batch; a view of what is known needs nothing."""
        if self._is_drawn(work, variant):
            is_written = is_new or any(t is one for one in work.written)
            if is_written and self._rows in t.shape and (work.is_data or variant == ORDER):
                self._mirrors.write(known, t, variant, self._others.exchange_draw(t, variant))
            return
        made = work.made.get(variant, [])
        if place >= len(made):
            return
        is_like = made[place].shape == t.shape and made[place].dtype == t.dtype
        self.seen.shapes_tell |= not is_like
        if self._mirrors.is_odd(known, variant) or not is_like:
            if not self._mirrors.write_odd(known, t, variant, made[place], is_new=is_new):
                known.reason = f"{work.name} gives another shape for other records of the batch"
        elif is_new:
            self._mirrors.write(known, t, variant, made[place])

    def note_export(self, t: Any) -> None:
        """The numbers of a tensor are about to leave torch."""
        if isinstance(t, Tensor) and self._lookup(t).is_data:
            self.seen.taken_out = True

    def _leave_mode_stack(self) -> None:
        """Off the stack of modes, wherever it lies there: a loop may have put its own above."""
        stack = _get_current_dispatch_mode_stack()
        if not any(mode is self for mode in stack):
            return
        above = [_pop_mode() for _ in itertools.takewhile(lambda mode: mode is not self, reversed(stack))]
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)


class _Exports(TorchFunctionMode):
    """Tells when numbers leave torch in a way that is no operation of it."""

    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _EXPORTS:
            self._following._run_guarded(self._following.note_export, args[0])
        return func(*args, **(kwargs or {}))


def _is_made_of_shapes(t: Tensor, known: Known) -> bool:
    """Whether a tensor was made from neither records nor numbers, and holds one beside 0: 1 / n, say, for n rows."""
    is_own = known.checksum is None  # of the model
    if not t.is_floating_point() or not t.numel() or known.is_data or known.is_given or is_own:
        return False
    sizes = t.detach().abs()
    return bool(((sizes == 0) | (sizes == sizes.amax())).all())


def _written_tensors(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors_in([args[i] if i < len(args) else kwargs.get(argument.name)])
    return found
