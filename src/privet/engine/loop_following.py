"""A user's own loop, followed: in a checked step each torch operation is made for other batches too.

Counterfactual batches go through the loop beside the real one, operation by operation, with the same random numbers. A
tensor that no followed operation made is a number, a constant that must be the same in later checked steps
(`LoopMemory`), or not followed.

Numbers that leave torch (`item`, `tolist`) are the same for all: what they do to other records is not seen.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from privet.engine.apart import moved
from privet.engine.batches import mapped
from privet.engine.counterfactuals import (
    EXCHANGED,
    EXTREMES,
    ORDER,
    ORDERS,
    VARIANTS,
    Counterfactuals,
    match_rows,
    row_keys,
)
from privet.engine.loop_memory import LoopMemory, Seen, describe
from privet.engine.loop_model import OwnMemory, has_hooks, nodes_below
from privet.engine.mirrors import Known, Mirrors, checksum, fills_memory, storage_of
from privet.engine.model_double import Start, ask, capture, find_alike, random_state, same_outputs, same_randomness
from privet.engine.survey import Mode
from privet.engine.tape import tensors_in

_UNEVEN = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}  # how much they draw depends on the data
_SHAPES_ALONE = {  # of their argument they take shape and type alone
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
_TELLING = {"_local_scalar_dense", "equal"}  # they give numbers that are no tensors
_EXPORTS = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist}
_ARITHMETIC = {"mul", "div", "add", "sub", "rsub", "pow", "mul_", "div_", "add_", "sub_", "pow_"}


@dataclass(slots=True, eq=False)
class _Call:
    """One call of the model: whose rows its outputs are in each counterfactual batch."""

    model: nn.Module
    inputs: Any
    start: Start
    is_data: bool = False
    rows: dict[int, Tensor | None] = field(default_factory=dict)  # by variant: the real row of each row, or -1
    outputs: list[Tensor] = field(default_factory=list)
    edges: list[GradientEdge] = field(default_factory=list)  # where gradients of the losses come back to it
    captured: tuple[list[Tensor], list[Tensor]] | None = None
    given: set[int] = field(default_factory=set)  # places in memory of its inputs
    reason: str = ""  # why what it gives for other records is not known
    numbers: frozenset[int] = frozenset()
    hooked: list[Node] = field(default_factory=list)  # nodes of its graph that have hooks of its own


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


class Following(Mode):
    """Follows one batch and its counterfactuals through a loop.

    Args:
        data: the batch, a nest of tensors with `rows` rows, those of a record (`views`) together.
        memory: what earlier checked steps of this training have seen.
        model: its parameters and buffers are functions of earlier releases.
    """

    supports_higher_order_operators = True  # they are let through, and what they give is not followed

    def __init__(
        self, data: Any, *, rows: int, views: int = 1, memory: LoopMemory | None = None, model: nn.Module | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = LoopMemory() if memory is None else memory
        self.seen = Seen(rows=rows)
        self._others = Counterfactuals(rows=rows, views=views, generator=self.memory.generator)
        self._rows, self._active = rows, set(VARIANTS)
        self._mirrors = Mirrors()
        self._calls: list[_Call] = []
        self._depth, self._is_busy = 0, False
        self._misplaced: set[int] = set()  # orders in which the model was given what no record is
        self._kept: list[Tensor] = []  # on the way from the model to the losses: their hooks are looked at
        self._failure = ""  # why the step is refused, whatever becomes of the losses
        self._own = OwnMemory(model)
        for t in tensors_in([data]):
            if (storage := storage_of(t)) is not None:
                known = self._mirrors.learn(storage, Known(checksum(storage), is_data=True))
                if t.dim() and len(t) == rows:
                    for variant in VARIANTS:
                        self._mirrors.write(known, t, variant, self._others.of_batch(t, variant))
                else:
                    known.reason = f"a tensor of the batch that has no row for each example, {describe(t)}"

    @property
    def has_power(self) -> bool:
        """Whether something could be seen: one record has no other."""
        return self._others.has_power

    @contextmanager
    def following(self) -> Iterator[None]:
        """What the loop does inside is done for the counterfactual batches too."""
        self.__enter__()  # type: ignore[no-untyped-call]
        try:
            with _Exports(self):
                yield
        finally:
            self._leave()
            self._mirrors.close()
            self._calls.clear()
            self._kept.clear()

    # --- the loop's own operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_busy:
            return func(*args, **kwargs)
        work = None if self._depth else self._guarded(self._before, func, args, kwargs)
        out = func(*args, **kwargs)
        if self._depth:
            self._guarded(self._mark_inside, (args, kwargs), out)
        elif work is not None:
            self._guarded(self._after, out, work)
        return out

    def _guarded(self, part: Callable[..., Any], *given: Any) -> Any:
        """Nothing that goes wrong here may reach the user's loop, or pass for a check: the step is refused."""
        self._is_busy = True
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return part(*given)
        except Exception as error:
            self._refuse(f"{type(error).__name__} in an operation on counterfactual records")
            return None
        finally:
            self._is_busy = False

    def _before(self, func: Any, args: Any, kwargs: Any) -> _Work:
        """What the operation gives in each counterfactual batch; before the real one, which may write in place."""
        is_plain = isinstance(func, OpOverload)
        name = func.overloadpacket.__name__ if is_plain else str(func)
        entering = [] if name in _SHAPES_ALONE else tensors_in([args, kwargs])
        if name == "copy_" and fills_memory(args[0]):  # what was there before does not matter
            storage = storage_of(args[0])
            self._mirrors.learn(storage, Known(checksum(storage)))
        knowns = [self._known(t) for t in entering]
        work = _Work(name, _written(func, args, kwargs) if is_plain else [], any(known.is_data for known in knowns))
        work.reason = next((known.reason for known in knowns if known.reason), "")
        work.numbers = _numbers_of(knowns)
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
                    self._make(variant, func, args, kwargs, work)
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

    def _make(self, variant: int, func: OpOverload, args: Any, kwargs: Any, work: _Work) -> None:
        if self._is_drawn(work, variant):  # the real numbers, at the rows of their records
            if work.name in _UNEVEN and variant not in ORDERS and not self._draws_apart(args, kwargs, variant):
                work.reason = f"{work.name}, random numbers of one example that depend on others"
            return
        for t in work.written:
            known = self._known(t)
            if known.mirrors[variant] is None:
                self._mirrors.copy(known, t, variant)
        hidden = "batch_norm" in work.name  # its schema hides what it writes

        def other(t: Tensor) -> Tensor:
            return t.clone() if hidden and self._known(t).mirrors[variant] is None else self._other(t, variant)

        try:
            there = mapped(args, other), {name: mapped(value, other) for name, value in kwargs.items()}
            with same_randomness(func, tensors_in([args, kwargs]), kwargs.get("generator")):
                work.made[variant] = tensors_in([func(*there[0], **there[1])])
        except Exception:  # other values may be refused
            if variant == EXCHANGED:
                work.reason = f"{work.name} fails for other records of the batch"
            else:
                self._active.discard(variant)

    def _draws_apart(self, args: Any, kwargs: Any, variant: int) -> bool:
        """Whether what a draw is made from is the same for all records that stay."""
        stays = self._others.real_rows(variant) >= 0
        for t in tensors_in([args, kwargs]):
            if self._known(t).mirrors[variant] is not None:
                there = self._other(t, variant)
                if self._rows not in t.shape or there.shape != t.shape:
                    return False
                dim = t.shape.index(self._rows)
                if bool((moved(t.detach().movedim(dim, 0), there.movedim(dim, 0), 0).cpu() & stays).any()):
                    return False
        return True

    @staticmethod
    def _is_drawn(work: _Work, variant: int) -> bool:
        return work.name in _UNEVEN or (work.is_random and variant == ORDER)

    def _after(self, out: Any, work: _Work) -> None:
        outputs = tensors_in([out])
        if work.needs_gradient:
            self._kept += outputs
        for t in work.written:
            if (storage := storage_of(t)) is not None and (known := self._mirrors.known(storage)) is not None:
                known.checksum = None if known.checksum is None else checksum(storage)
                known.is_data |= work.is_data
                known.numbers |= work.numbers
                known.reason = known.reason or work.reason
        for place, t in enumerate(outputs):
            storage = storage_of(t)
            if storage is None:
                continue  # it is not followed: `_known` says so
            known = self._mirrors.known(storage)
            is_new = known is None
            if known is None:
                if work.name.startswith("set_"):
                    continue  # it lies in memory that is looked at when it is used
                found = Known(checksum(storage), is_data=work.is_data, is_given=work.is_given, reason=work.reason)
                known = self._mirrors.learn(storage, found)
            known.numbers |= work.numbers
            for variant in sorted(self._active) if not known.reason else ():
                self._put(variant, known, t, place, work, is_new=is_new)

    def _put(self, variant: int, known: Known, t: Tensor, place: int, work: _Work, *, is_new: bool) -> None:
        """Keep what an output is in a counterfactual batch; a view of what is known needs nothing."""
        if self._is_drawn(work, variant):
            is_written = is_new or any(t is one for one in work.written)
            if is_written and self._rows in t.shape and (work.is_data or variant == ORDER):
                self._mirrors.write(known, t, variant, self._others.of_draw(t, variant))
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

    # --- calls of the model ---

    def before_model(self, model: nn.Module, inputs: Any) -> None:
        """The model's own operations are not followed one by one."""
        if not self._depth:
            self._calls.append(_Call(model, inputs, random_state(model)))
            self._guarded(self._begin_call, self._calls[-1])
        self._depth += 1

    def after_model(self, inputs: tuple[Any, Any], out: Any) -> None:
        """Find what the model gives for the counterfactual batches; calls of it must not be recorded meanwhile."""
        self._depth -= 1
        if not self._depth:
            with _disable_current_modes():
                self._guarded(self._follow_model, self._calls[-1], inputs, out, torch.is_grad_enabled())

    def _begin_call(self, call: _Call) -> None:
        call.given = {t.untyped_storage().data_ptr() for t in tensors_in([call.inputs]) if storage_of(t) is not None}
        if name := self._own.moved():
            call.reason = f"{name} was changed before a call of the model"

    def _follow_model(self, call: _Call, inputs: Any, out: Any, is_recorded: bool) -> None:
        entering = tensors_in([inputs])
        knowns = [self._known(t) for t in entering]
        reason = call.reason or next((known.reason for known in knowns if known.reason), "")
        self._own.keep()
        for t, known in zip(entering, knowns, strict=True):
            if is_recorded and known.is_given and t.dim() and len(t) == self._rows:
                reason = reason or f"an input of the model that does not come from the batch, {describe(t)}"
        if reason and is_recorded:
            self._refuse(reason)
        call.is_data, call.outputs = any(known.is_data for known in knowns), tensors_in([out])
        call.numbers = _numbers_of(knowns)
        call.hooked = [node for node in nodes_below([t.grad_fn for t in call.outputs]) if has_hooks(node)]
        call.edges = [get_gradient_edge(t) for t in call.outputs if t.requires_grad]
        for t in call.outputs:
            if (storage := storage_of(t)) is not None:
                known = Known(checksum(storage), is_data=call.is_data, reason=reason, numbers=call.numbers)
                self._mirrors.learn(storage, known)
        if reason or not call.is_data:
            return
        call.rows = {variant: self._match(entering, variant) for variant in self._active}
        there = self._ask(call, inputs, out)
        for place, t in enumerate(call.outputs):
            known = self._known(t)
            if there is None:
                known.reason = "the model gives other outputs for the same inputs, or fails for other records"
                continue
            rows = call.rows[EXCHANGED]
            if rows is not None and t.dim() and len(t) == self._rows:  # random numbers go with their record
                stays = (rows >= 0).to(t.device).view(-1, *[1] * (t.dim() - 1))
                there[place] = torch.where(stays, t.detach()[rows.clamp(min=0).to(t.device)], there[place])
            self._mirrors.write(known, t, EXCHANGED, there[place])
            self._put_rows(call, known, t)

    def _put_rows(self, call: _Call, known: Known, t: Tensor) -> None:
        """What comes of a call in the other batches, where it has one row for each that the model was given."""
        for variant in (*EXTREMES, *ORDERS):
            rows = call.rows.get(variant)
            if variant in self._active and rows is not None and (not t.dim() or len(t) == self._rows):
                self._mirrors.write(known, t, variant, self._others.of_output(t, rows, variant))
                if variant in ORDERS and bool((rows < 0).any()):
                    self._misplaced.add(variant)
            else:
                self._active.discard(variant)

    def _ask(self, call: _Call, inputs: Any, out: Any) -> list[Tensor] | None:
        """The model's outputs for exchanged records; None if it is not the same twice."""
        try:
            there = tensors_in([ask(call.model, mapped(inputs, lambda t: self._other(t, EXCHANGED)), call.start)])
        except Exception:
            return None
        rows = call.rows[EXCHANGED]
        if [t.shape for t in there] != [t.shape for t in call.outputs]:
            return None
        if rows is not None and all(
            not bool((moved(t.detach()[rows.clamp(min=0).to(t.device)], o, 0).cpu() & (rows >= 0)).any())
            for t, o in zip(call.outputs, there, strict=True)
            if t.dim() and len(t) == self._rows
        ):
            return there
        return there if same_outputs(out, ask(call.model, inputs, call.start)) else None

    def _match(self, entering: Sequence[Tensor], variant: int) -> Tensor | None:
        """For each row of a counterfactual batch the real row that the model was given there, or -1."""
        usual, most = self._others.places(variant), self._others.most_changed(variant)
        pairs = [(t.detach(), self._other(t, variant)) for t in entering if t.dim() and len(t) == self._rows]
        if any(t.shape != there.shape for t, there in pairs):
            return None
        same = torch.ones(self._rows, dtype=torch.bool)
        for t, there in pairs:
            same &= (t[usual.to(t.device)] == there).reshape(self._rows, -1).all(1).cpu()
        if int((~same).sum()) > most:
            same.fill_(True)
            for t, there in pairs:
                same &= ~moved(t[usual.to(t.device)], there, 0).cpu()
        if int((~same).sum()) <= most:
            return torch.where(same, usual, -1)
        keys = [
            torch.stack([row_keys(t, place) for place, t in enumerate(one)]).sum(0) for one in zip(*pairs, strict=True)
        ]
        return torch.where(same, usual, match_rows(*keys))  # a loop may have put its rows in order

    def _mark_inside(self, entering: Any, out: Any) -> None:
        call = self._calls[-1]
        for t in tensors_in([entering]):
            storage = storage_of(t)
            known = None if storage is None else self._mirrors.known(storage)
            if known is not None and known.is_data and known.call is None and storage.data_ptr() not in call.given:
                call.reason = f"a tensor of the loop that the model takes, and not as an input, {describe(t)}"
        for t in tensors_in([out]):
            storage = storage_of(t)
            if storage is not None and self._mirrors.known(storage) is None and storage not in self._own:
                self._mirrors.learn(storage, Known(call=len(self._calls) - 1))

    def _open_inside(self, t: Tensor, known: Known) -> None:
        """A tensor that a pass has left in an attribute or a hook: what it would have left of exchanged records."""
        assert known.call is not None
        call, known.call = self._calls[known.call], None
        known.checksum, known.is_data, known.numbers = checksum(storage_of(t)), call.is_data, call.numbers
        if not call.is_data:
            return
        if call.captured is None:
            other = mapped(call.inputs, lambda one: self._other(one, EXCHANGED))
            call.captured = capture(call.model, call.inputs, call.start), capture(call.model, other, call.start)
        place = find_alike(t.detach(), call.captured[0])
        if place is None or place >= len(call.captured[1]) or call.captured[1][place].shape != t.shape:
            known.reason = f"a tensor that the model left in an attribute or a hook, {describe(t)}"
            return
        if t.requires_grad:
            call.edges.append(get_gradient_edge(t))
        self._mirrors.write(known, t, EXCHANGED, call.captured[1][place])
        self._put_rows(call, known, t)

    # --- what is known of a tensor ---

    def _known(self, t: Tensor) -> Known:
        storage = storage_of(t)
        if storage is None:
            return Known(reason=f"a tensor without memory of its own, {describe(t)}")
        known = self._mirrors.known(storage)
        if known is None:
            known = self._mirrors.learn(storage, self._first_sight(t, storage))
        if known.call is not None:
            self._open_inside(t, known)
        if known.checksum is not None and known.checksum != checksum(storage) and not known.reason:
            known.reason = f"{describe(t)} was written into by something else than torch in this thread: NumPy, say"
        return known

    def note_export(self, t: Any) -> None:
        """The numbers of a tensor are about to leave torch."""
        if isinstance(t, Tensor) and self._known(t).is_data:
            self.seen.taken_out = True

    def _first_sight(self, t: Tensor, storage: Any) -> Known:
        if storage in self._own or not storage.nbytes():
            return Known()
        found = checksum(storage)
        if not t.dim():  # a Python number
            return Known(found, is_given=True)
        return Known(found, is_given=True, reason=self.memory.look_at(t, storage, found, self.seen))

    def _other(self, t: Tensor, variant: int) -> Tensor:
        return self._mirrors.read(self._known(t), t, variant)

    def _refuse(self, reason: str) -> None:
        self._failure = self._failure or reason

    def _leave(self) -> None:
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
            self._following._guarded(self._following.note_export, args[0])
        return func(*args, **(kwargs or {}))


def _numbers_of(knowns: Sequence[Known]) -> frozenset[int]:
    return frozenset[int]().union(*(known.numbers for known in knowns))


def _is_made_of_shapes(t: Tensor, known: Known) -> bool:
    """Whether a tensor was made from neither records nor numbers, and holds one beside 0: 1 / n, say, for n rows."""
    is_own = known.checksum is None  # of the model
    if not t.is_floating_point() or not t.numel() or known.is_data or known.is_given or is_own:
        return False
    sizes = t.detach().abs()
    return bool(((sizes == 0) | (sizes == sizes.amax())).all())


def _written(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes into, by its schema."""
    found: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors_in([args[i] if i < len(args) else kwargs.get(argument.name)])
    return found
