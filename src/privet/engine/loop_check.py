"""Does a user's own loop keep its examples apart? In a checked step each torch operation is made for other batches too.

Four counterfactual batches go through the loop beside the real one, operation by operation, with the same random
numbers:

- *exchanged*: half of the records are other records of the batch. It must be followed to the losses, else the step is
  refused: what cannot be followed could hide anything.
- *extreme*: the same half holds values far from the real ones, so that a sign, a maximum or a count moves.
- *order*, twice: the records in another order, with random numbers that go with their record, and without.

A record that was not exchanged must keep its loss, wherever it stands. What a tensor holds in a counterfactual batch is
kept on its memory (`mirrors`), so views, `.data`, `deepcopy` and writes in place are followed; a checksum tells when
NumPy or another thread has written there. A tensor that no followed operation made is a number, a constant that must
be the same in later checked steps (`LoopMemory`), or it is not followed.

Numbers that leave torch (`item`, `tolist`) are the same for all: what they do to other records is not seen.
"""

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from privet.engine.apart import SMALL, TOLERANCE, moved
from privet.engine.batches import mapped
from privet.engine.loop_memory import LoopMemory, Seen, Unknown, describe
from privet.engine.model_double import Start, ask, capture, find_alike, random_state, same_outputs, same_randomness
from privet.engine.survey import Mode
from privet.engine.tape import tensors_in
from privet.errors import Unsupported

EXCHANGED, EXTREME, ORDER, ORDER_OF_PLACES = range(4)
VARIANTS = (EXCHANGED, EXTREME, ORDER, ORDER_OF_PLACES)
FAR = -50.0  # what records of the extreme batch are multiplied by
_UNEVEN = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}  # how much they draw depends on the data
_SHAPES_ALONE = {  # of their argument they take shape and type alone
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
_ARITHMETIC = {"mul", "div", "add", "sub", "rsub", "pow", "mul_", "div_", "add_", "sub_", "pow_"}
WAY_OUT = "Compute it with torch operations from the batch in this loop, or in the dataset, one record at a time."
COUPLED = (
    "the loss of one example depends on the records of others in this loop, by values that no gradient tells of: a "
    "mean of the batch, its hardest example, classes counted in it, inputs mixed or scaled over the batch. So no clip "
    "bounds what one record does. Compute it from one example at a time or from public constants."
)
ORDERED = (
    "the loss of one example depends on its place in the batch in this loop: on the order or the number of rows. Both "
    "move when a record is added, so no clip bounds what one record does. Treat every row alike."
)
SCALED = (
    "what the loop does follows the number of rows of the batch, as losses or inputs that are scaled by the number of "
    "rows do. That number is private: the others move when one is added. Leave len(batch) out; the plan divides by the "
    "batch it expects."
)


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of a piece of memory: its checksum, and what it holds in each counterfactual batch."""

    checksum: int | None = None  # None: of the model itself, which its own guards watch
    mirrors: list[Any] = field(default_factory=lambda: [None] * len(VARIANTS))  # a storage; None: as in the real batch
    is_data: bool = False  # made from the batch
    is_given: bool = False  # came from outside of torch or of this round
    reason: str = ""  # why it is not followed
    call: int | None = None  # of the model, inside of which it was made


_numbers = itertools.count()
_ODD = object()  # in place of a mirror: another shape, kept on the tensor itself


@dataclass(slots=True, eq=False)
class _Call:
    """One call of the model: whose rows its outputs are in each counterfactual batch."""

    model: nn.Module
    inputs: Any
    start: Start
    is_data: bool = False
    rows: dict[int, Tensor | None] = field(default_factory=dict)  # by variant: the real row of each row, or -1
    captured: tuple[list[Tensor], list[Tensor]] | None = None
    outputs: list[Tensor] = field(default_factory=list)


class LoopCheck(Mode):
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
        self._rows, self._active = rows, set(VARIANTS)
        records = rows // views
        shuffled = torch.randperm(records, generator=self.memory.generator)
        self._exchanged = (shuffled % 2 == 0).repeat_interleave(views)
        order = torch.randperm(records, generator=self.memory.generator)
        self._order = (order[:, None] * views + torch.arange(views)).flatten()
        self._roll = max(1, records // 2) * views
        self._slot = f"privet_known_{next(_numbers)}"  # two trainings may follow one loop
        self._storages: list[Any] = []
        self._calls: list[_Call] = []
        self._depth, self._is_busy = 0, False
        self._misplaced: set[int] = set()
        self._kept: list[Tensor] = []  # on the way from the model to the losses: their hooks are looked at
        self._failure = ""  # why the step is refused, whatever becomes of the losses
        self._own = {
            storage.data_ptr()
            for t in (() if model is None else itertools.chain(model.parameters(), model.buffers()))
            if (storage := _storage(t)) is not None
        }
        for t in tensors_in([data]):
            if (storage := _storage(t)) is not None:
                known = self._attach(storage, _Known(_checksum(storage), is_data=True))
                if t.dim() and len(t) == rows:
                    for variant in VARIANTS:
                        self._mirror(known, variant, t, self._counterfactual(t, variant))
                else:
                    known.reason = f"a tensor of the batch that has no row for each example, {describe(t)}"

    @property
    def has_power(self) -> bool:
        """Whether something was exchanged: one record has no other."""
        return self._rows > 1 and bool(self._exchanged.any()) and not bool(self._exchanged.all())

    @contextmanager
    def following(self) -> Iterator[None]:
        """What the loop does inside is done for the counterfactual batches too."""
        self.__enter__()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self._leave()
            for reference in self._storages:
                if (storage := reference()) is not None and hasattr(storage, self._slot):
                    delattr(storage, self._slot)
            self._calls.clear()
            self._kept.clear()

    # --- the verdict ---

    def check(self, losses: Tensor) -> None:
        """Raise if a record that was not exchanged has another loss, or if that could not be followed."""
        self._leave()
        with torch._C.DisableTorchFunctionSubclass():
            known = self._known(losses)
            self._raise_unless_followed(known)
            if not known.is_data:
                raise Unsupported(
                    "losses do not come from the batch at hand: nothing of it enters them. Its records were sampled, "
                    "and others would be trained on. Compute them from the batch that the loop was given."
                )
            self._check_backward(losses)
            fails = {v: v in self._misplaced or not self._agrees(losses, v) for v in self._active}
        if fails.get(EXCHANGED) or fails.get(EXTREME):
            raise Unsupported(COUPLED)
        orders = [fails[variant] for variant in (ORDER, ORDER_OF_PLACES) if variant in fails]
        if orders and all(orders):
            raise Unsupported(ORDERED)
        if not orders:
            self.seen.not_followed.append("the order of the examples")
        if self.memory.follows_rows(self.seen):
            raise Unsupported(SCALED)

    def check_inputs(self, batch: Any) -> None:
        """Raise unless inputs and targets that are given to a loss function come from the batch at hand."""
        for t in tensors_in([batch]):
            known = self._known(t)
            self._raise_unless_followed(known)
            if known.is_given and t.dim() and len(t) == self._rows:
                self._refuse(f"an input that does not come from the batch, {describe(t)}")
        self._raise_unless_followed()

    def _raise_unless_followed(self, known: _Known | None = None) -> None:
        reason = self._failure or ("" if known is None else known.reason)
        if reason:
            self.memory.suspect_since = reason.since if isinstance(reason, Unknown) else None
            raise Unsupported(
                f"the loop could not be followed from its batch to its losses: {reason}. So it is not known whether "
                f"one example's loss depends on others. {WAY_OUT}"
            )

    def _check_backward(self, losses: Tensor) -> None:
        """Raise if code of the user's own runs on the way back from the losses: nothing follows that."""
        ends = {t.grad_fn for call in self._calls for t in call.outputs}
        left, seen = [losses.grad_fn], {None}
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, torch.autograd.function.BackwardCFunction) and node not in ends:
                self._refuse(f"{node.name()}, a backward pass of one's own")
            if _has_hooks(node):
                self._refuse(f"a hook on {node.name()}, which changes gradients")
            if node not in ends:
                left += [below for below, _ in node.next_functions]
        made = (*self._kept, losses, *[t for call in self._calls for t in call.outputs])
        if any(t.grad_fn is not None and t._backward_hooks for t in made):
            self._refuse("a hook on a tensor, which changes gradients")
        self._raise_unless_followed()

    def _agrees(self, losses: Tensor, variant: int) -> bool:
        """Whether each record that stayed has its loss, at its place or where the model was given it."""
        other = self._other(losses, variant)
        if other.shape != losses.shape:
            return False
        stays = torch.arange(self._rows)
        own = self._order if variant in (ORDER, ORDER_OF_PLACES) else torch.where(self._exchanged, -1, stays)
        left = int((own < 0).sum())
        for rows in (own, *[call.rows.get(variant) for call in self._calls]):
            if rows is not None and int((rows < 0).sum()) <= left:
                at = (rows >= 0).to(losses.device)
                expected = losses.detach()[rows.clamp(min=0).to(losses.device)]
                if not bool((moved(expected, other, 0, TOLERANCE, SMALL) & at).any()):
                    return True
        return False

    # --- the loop's own operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._is_busy:
            return func(*args, **kwargs)
        work = None
        with torch._C.DisableTorchFunctionSubclass():
            if not self._depth:
                work = self._guarded(self._before, func, args, kwargs)
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            if self._depth:
                self._guarded(self._mark_inside, out)
            elif work is not None:
                self._guarded(self._after, func, args, kwargs, out, work)
        return out

    def _guarded(self, part: Callable[..., Any], *given: Any) -> Any:
        """Nothing that goes wrong here may reach the user's loop, or pass for a check: the step is refused."""
        self._is_busy = True
        try:
            return part(*given)
        except Exception as error:
            self._refuse(f"{type(error).__name__} in an operation on counterfactual records")
            return None
        finally:
            self._is_busy = False

    def _before(self, func: Any, args: Any, kwargs: Any) -> "_Work":
        """What the operation gives in each counterfactual batch; before the real one, which may write in place."""
        name = func.overloadpacket.__name__ if isinstance(func, OpOverload) else str(func)
        entering = [] if name in _SHAPES_ALONE else tensors_in([args, kwargs])
        written = _written(func, args, kwargs) if isinstance(func, OpOverload) else []
        if name == "copy_" and _fills(args[0]):  # what was there before does not matter
            self._forget(args[0])
        knowns = [self._known(t) for t in entering]
        work = _Work(name=name, written=written, is_data=any(known.is_data for known in knowns))
        work.reason = next((known.reason for known in knowns if known.reason), "")
        work.is_given = not work.is_data and any(
            known.is_given and self._rows in t.shape for t, known in zip(entering, knowns, strict=True)
        )
        if work.is_data and name == "_local_scalar_dense":
            self.seen.taken_out = True
        if work.is_data:
            self.seen.path.append(name)
        work.needs_gradient = any(t.requires_grad for t in entering)
        if work.is_data and name in _ARITHMETIC:
            numbers = [value for value in args if isinstance(value, (int, float)) and not isinstance(value, bool)]
            numbers += [
                float(t) for t, known in zip(entering, knowns, strict=True) if known.is_given and not t.dim()
            ]
            self.seen.numbers += [(name, float(value)) for value in numbers]
        if not isinstance(func, OpOverload):
            work.reason = work.reason or (f"{name}, an operation without a schema" if work.is_data else "")
        work.is_random = isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags
        if not work.reason:
            for variant in sorted(self._active):
                if any(known.mirrors[variant] is not None for known in knowns):
                    self._make(variant, func, args, kwargs, work)
        return work

    def _make(self, variant: int, func: OpOverload, args: Any, kwargs: Any, work: "_Work") -> None:
        if work.name in _UNEVEN or (work.is_random and variant == ORDER):
            return  # the real numbers, at the rows of their records
        hidden = tensors_in([args, kwargs]) if "batch_norm" in work.name else []  # its schema hides what it writes
        own: dict[int, Tensor] = {}
        for t in (*work.written, *hidden):
            known = self._known(t)
            if known.mirrors[variant] is None:
                if any(t is one for one in work.written):
                    self._mirror(known, variant, t, t, whole=True)
                else:
                    own[id(t)] = t.clone()

        def other(t: Tensor) -> Tensor:
            return own[id(t)] if id(t) in own else self._other(t, variant)

        try:
            there = mapped(args, other), {name: mapped(value, other) for name, value in kwargs.items()}
            with same_randomness(func, tensors_in([args, kwargs]), kwargs.get("generator")):
                work.made[variant] = tensors_in([func(*there[0], **there[1])])
        except Exception:  # other values may be refused
            self._give_up(variant, work, f"{work.name} fails for other records of the batch")

    def _give_up(self, variant: int, work: "_Work", reason: str) -> None:
        if variant == EXCHANGED:
            work.reason = work.reason or reason
        else:
            self._active.discard(variant)

    def _after(self, func: Any, args: Any, kwargs: Any, out: Any, work: "_Work") -> None:
        outputs = tensors_in([out])
        if work.needs_gradient and work.is_data:
            self._kept += outputs
        for t in work.written:
            if (storage := _storage(t)) is not None and (known := self._held(storage)) is not None:
                known.checksum = None if known.checksum is None else _checksum(storage)
                known.is_data |= work.is_data
                known.reason = known.reason or work.reason
        for place, t in enumerate(outputs):
            storage = _storage(t)
            if storage is None:
                continue  # it is not followed: `_known` says so
            known = self._held(storage)
            is_new = known is None
            if known is None:
                if work.name.startswith("set_"):
                    continue  # it lies in memory that is looked at when it is used
                known = self._attach(storage, _Known(_checksum(storage), is_data=work.is_data, is_given=work.is_given))
                known.reason = work.reason
            for variant in sorted(self._active) if not known.reason else ():
                self._put(variant, known, t, place, work, is_new=is_new)

    def _put(self, variant: int, known: _Known, t: Tensor, place: int, work: "_Work", *, is_new: bool) -> None:
        made = work.made.get(variant)
        is_drawn = work.is_random and variant == ORDER or work.name in _UNEVEN
        if is_drawn and (is_new or any(t is one for one in work.written)):
            if self._rows in t.shape and (work.is_data or variant == ORDER):
                self._mirror(known, variant, t, self._drawn(t, variant))
        elif made is not None and place < len(made):
            if made[place].shape != t.shape or made[place].dtype != t.dtype:
                if is_new:
                    known.mirrors[variant] = _ODD
                if known.mirrors[variant] is _ODD:
                    alternatives = getattr(t, "privet_others", None) or {}
                    t.privet_others = alternatives | {variant: (weakref.ref(self), made[place])}  # type: ignore[attr-defined]
                else:
                    known.reason = f"{work.name} gives another shape for other records of the batch"
            elif known.mirrors[variant] is _ODD:
                alternatives = getattr(t, "privet_others", None) or {}
                t.privet_others = alternatives | {variant: (weakref.ref(self), made[place])}  # type: ignore[attr-defined]
            elif is_new:
                self._mirror(known, variant, t, made[place])

    def _drawn(self, t: Tensor, variant: int) -> Tensor:
        """Random numbers as they are in a counterfactual batch: each goes with its record."""
        dim = t.shape.index(self._rows)
        if variant in (ORDER, ORDER_OF_PLACES):
            return t.index_select(dim, self._order.to(t.device))
        shape = [1] * t.dim()
        shape[dim] = self._rows
        return torch.where(self._exchanged.to(t.device).view(shape), t.roll(self._roll, dim), t)

    # --- calls of the model ---

    def before_model(self, model: nn.Module, inputs: Any) -> None:
        """The model's own operations are not followed one by one."""
        if not self._depth:
            self._calls.append(_Call(model, inputs, random_state(model)))
        self._depth += 1

    def after_model(self, inputs: tuple[Any, Any], out: Any) -> None:
        """Find what the model gives for the counterfactual batches; calls of it must not be recorded meanwhile."""
        self._depth -= 1
        if not self._depth:
            with torch._C.DisableTorchFunctionSubclass():
                self._guarded(self._follow_model, self._calls[-1], inputs, out, torch.is_grad_enabled())

    def _follow_model(self, call: _Call, inputs: Any, out: Any, is_recorded: bool) -> None:
        entering = [t for t in tensors_in([inputs]) if t.dim()]
        knowns = [self._known(t) for t in tensors_in([inputs])]
        call.is_data = any(known.is_data for known in knowns)
        reason = next((known.reason for known in knowns if known.reason), "")
        for t, known in zip(tensors_in([inputs]), knowns, strict=True):
            if known.is_given and t.dim() and len(t) == self._rows and is_recorded:
                reason = reason or f"an input of the model that does not come from the batch, {describe(t)}"
        if reason and is_recorded:
            self._refuse(reason)
        for variant in sorted(self._active) if call.is_data and not reason else ():
            call.rows[variant] = self._match(entering, variant)
        call.outputs = outputs = tensors_in([out])
        for t in outputs:
            if (storage := _storage(t)) is not None:
                known = self._attach(storage, _Known(_checksum(storage), is_data=call.is_data, reason=reason))
        if not call.is_data or reason:
            return
        is_plain = all(not t.dim() or len(t) == self._rows for t in outputs)
        there = self._ask(call, inputs, out)
        for place, t in enumerate(outputs):
            known = self._known(t)
            if there is None or place >= len(there):
                known.reason = "the model gives other outputs for the same inputs, or fails for other records"
                continue
            at = call.rows[EXCHANGED]
            if at is not None and t.dim() and len(t) == self._rows:  # random numbers go with their record
                there[place] = torch.where(
                    (at >= 0).to(t.device).view(-1, *[1] * (t.dim() - 1)),
                    t.detach()[at.clamp(min=0).to(t.device)],
                    there[place],
                )
            self._mirror(known, EXCHANGED, t, there[place])
            for variant in (EXTREME, ORDER, ORDER_OF_PLACES):
                rows = call.rows.get(variant)
                if variant in self._active and is_plain and rows is not None:
                    self._mirror(known, variant, t, self._by_rows(t, rows, variant))
                else:
                    self._active.discard(variant)

    def _ask(self, call: _Call, inputs: Any, out: Any) -> list[Tensor] | None:
        """The model's outputs for exchanged records; None if it is not the same twice."""
        try:
            there = ask(call.model, mapped(inputs, lambda t: self._other(t, EXCHANGED)), call.start)
        except Exception:
            return None
        outputs, rows = tensors_in([out]), call.rows[EXCHANGED]
        given = tensors_in([there])
        if [t.shape for t in given] != [t.shape for t in outputs]:
            return None
        if rows is not None and all(
            not bool((moved(t.detach()[rows.clamp(min=0).to(t.device)], o, 0).cpu() & (rows >= 0)).any())
            for t, o in zip(outputs, given, strict=True)
            if t.dim() and len(t) == self._rows
        ):
            return given
        return given if same_outputs(out, ask(call.model, inputs, call.start)) else None

    def _match(self, entering: Sequence[Tensor], variant: int) -> Tensor | None:
        """For each row of a counterfactual batch the real row that the model was given there, or -1."""
        real, other = torch.zeros(self._rows, dtype=torch.float64), torch.zeros(self._rows, dtype=torch.float64)
        usual = self._order if variant in (ORDER, ORDER_OF_PLACES) else torch.arange(self._rows)
        same = torch.ones(self._rows, dtype=torch.bool)
        for place, t in enumerate(entering):
            if len(t) != self._rows:
                continue
            there = self._other(t, variant)
            if there.shape != t.shape:
                return None
            same &= ~moved(t.detach()[usual.to(t.device)], there, 0).cpu()
            real += _key(t.detach(), place)
            other += _key(there, place)
        rows = torch.where(same, usual, -1)
        if int((~same).sum()) <= (0 if variant in (ORDER, ORDER_OF_PLACES) else int(self._exchanged.sum())):
            return rows
        order = real.argsort()
        found = torch.searchsorted(real[order], other).clamp(max=self._rows - 1)
        for shift in (0, -1, 1):
            at = order[(found + shift).clamp(0, self._rows - 1)]
            close = (real[at] - other).abs() <= 1e-6 * (1 + real.abs().amax())
            rows = torch.where((rows < 0) & close, at, rows)
        return rows

    def _by_rows(self, t: Tensor, rows: Tensor, variant: int) -> Tensor:
        if not t.dim():
            return t
        found = t.detach()[rows.clamp(min=0).to(t.device)]
        if variant == EXTREME and bool((rows < 0).any()):
            lost = (rows < 0).to(t.device).view(-1, *[1] * (t.dim() - 1))
            found = torch.where(lost, self._far(t.detach().roll(self._roll, 0)), found)
        elif bool((rows < 0).any()):  # the model was given what no record is at its own place
            self._misplaced.add(variant)
        return found

    def _mark_inside(self, out: Any) -> None:
        for t in tensors_in([out]):
            storage = _storage(t)
            if storage is not None and self._held(storage) is None and storage.data_ptr() not in self._own:
                self._attach(storage, _Known(None, call=len(self._calls) - 1))

    def _open_inside(self, t: Tensor, known: _Known) -> None:
        """A tensor that a pass has left in an attribute or a hook: what it would have left of exchanged records."""
        assert known.call is not None
        call, known.call = self._calls[known.call], None
        storage = _storage(t)
        known.checksum, known.is_data = None if storage is None else _checksum(storage), call.is_data
        if not call.is_data:
            return
        if call.captured is None:
            other = mapped(call.inputs, lambda one: self._other(one, EXCHANGED))
            call.captured = capture(call.model, call.inputs, call.start), capture(call.model, other, call.start)
        place = find_alike(t.detach(), call.captured[0])
        if place is None or place >= len(call.captured[1]) or call.captured[1][place].shape != t.shape:
            known.reason = f"a tensor that the model left in an attribute or a hook, {describe(t)}"
            return
        self._mirror(known, EXCHANGED, t, call.captured[1][place])
        for variant in (EXTREME, ORDER, ORDER_OF_PLACES):
            rows = call.rows.get(variant)
            if variant in self._active and rows is not None and t.dim() and len(t) == self._rows:
                self._mirror(known, variant, t, self._by_rows(t, rows, variant))
            else:
                self._active.discard(variant)

    # --- a loss function in place of losses ---

    def follow_function(self, model: nn.Module, loss_fn: Callable[..., Any], inputs: Any, targets: Any) -> None:
        """Check what `loss_fn(model(inputs), targets)` gives, with all that it takes from the loop around it."""
        self.check_inputs([inputs, targets])
        given = ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
        start = random_state(model)
        with self._kept_randomness(model):
            self.before_model(model, given)
            try:
                out = ask(model, given, start)
            finally:
                with torch.enable_grad():
                    self.after_model(given, out := locals().get("out"))
            for t in tensors_in([out]):
                if t.is_floating_point() or t.is_complex():
                    t.requires_grad_()  # so that the way back to it can be looked at
            with torch.enable_grad():
                losses = loss_fn(out, targets)
        if isinstance(losses, Tensor) and losses.shape == (self._rows,):
            self.check(losses)

    @contextmanager
    def _kept_randomness(self, model: nn.Module) -> Iterator[None]:
        start = random_state(model)
        try:
            yield
        finally:
            start.restore(model)

    # --- what is known of a tensor ---

    def _known(self, t: Tensor) -> _Known:
        storage = _storage(t)
        if storage is None:
            return _Known(reason=f"a tensor without memory of its own, {describe(t)}")
        known = self._held(storage)
        if known is None:
            known = self._attach(storage, self._first_sight(t, storage))
        if known.call is not None:
            self._open_inside(t, known)
        if known.checksum is not None and known.checksum != _checksum(storage) and not known.reason:
            known.reason = f"{describe(t)} was written into by something else than torch in this thread: NumPy, say"
        return known

    def _first_sight(self, t: Tensor, storage: Any) -> _Known:
        if storage.data_ptr() in self._own or not storage.nbytes():
            return _Known()
        checksum = _checksum(storage)
        if not t.dim():  # a Python number
            return _Known(checksum, is_given=True)
        return _Known(checksum, is_given=True, reason=self.memory.look_at(t, storage, checksum, self.seen))

    def _held(self, storage: Any) -> _Known | None:
        found: _Known | None = getattr(storage, self._slot, None)
        return found

    def _forget(self, t: Tensor) -> None:
        if (storage := _storage(t)) is not None:
            self._attach(storage, _Known(_checksum(storage)))

    def _attach(self, storage: Any, known: _Known) -> _Known:
        setattr(storage, self._slot, known)
        self._storages.append(weakref.ref(storage))
        return known

    def _other(self, t: Tensor, variant: int) -> Tensor:
        """What a tensor holds in a counterfactual batch: in memory of its own, or itself."""
        mirror = self._known(t).mirrors[variant]
        if mirror is None:
            return t.detach()
        if mirror is _ODD:
            owner, found = (getattr(t, "privet_others", None) or {}).get(variant, (lambda: None, None))
            if owner() is not self or found is None:
                raise Unsupported("a view of a tensor that has another shape for other records")
            return found  # type: ignore[no-any-return]
        return _view(t, mirror)

    def _mirror(self, known: _Known, variant: int, t: Tensor, other: Tensor, *, whole: bool = False) -> None:
        """Keep what `t` holds in a counterfactual batch, in memory laid out as its own."""
        real = t.untyped_storage()
        known.mirrors[variant] = mirror = real.clone() if whole or other.numel() * t.element_size() < real.nbytes() else (
            torch.UntypedStorage(real.nbytes(), device=t.device)
        )  # fmt: skip
        if not whole:
            _view(t, mirror).copy_(other.detach())

    def _counterfactual(self, t: Tensor, variant: int) -> Tensor:
        if variant in (ORDER, ORDER_OF_PLACES):
            return t.detach()[self._order.to(t.device)]
        chosen = self._exchanged.to(t.device).view(-1, *[1] * (t.dim() - 1))
        if variant == EXCHANGED:
            return torch.where(chosen, t.detach().roll(self._roll, 0), t.detach())
        return torch.where(chosen, self._far(t.detach()), t.detach())

    def _far(self, t: Tensor) -> Tensor:
        """Values far from the real ones; of whole numbers, all those of one record."""
        if t.is_floating_point() or t.is_complex():
            return FAR * t + t.abs().mean().nan_to_num(0.0, 1.0) * FAR if t.numel() else t
        return t[self._roll % len(t)].expand_as(t)

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


@dataclass(slots=True, eq=False)
class _Work:
    """One operation on its way."""

    name: str
    written: list[Tensor]
    is_data: bool
    is_random: bool = False
    is_given: bool = False
    needs_gradient: bool = False
    reason: str = ""
    made: dict[int, list[Tensor]] = field(default_factory=dict)  # by variant: what it gives there


def _storage(t: Tensor) -> Any:
    try:
        return None if t.layout != torch.strided or t.is_conj() or t.is_neg() else t.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _has_hooks(node: Any) -> bool:
    """Whether somebody else has hooks on a node of autograd's graph: ours would not be alone there."""
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *_: None)
        hooks = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            return True
    return False


def _fills(t: Tensor) -> bool:
    """Whether a tensor is all that lies in its memory."""
    storage = _storage(t)
    return storage is not None and t.numel() * t.element_size() == storage.nbytes() and t.is_contiguous()


def _view(t: Tensor, mirror: Any) -> Tensor:
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(mirror, t.storage_offset(), t.shape, t.stride())


def _checksum(storage: Any) -> int:
    """One number for the bits of a piece of memory."""
    size = storage.nbytes()
    words = torch.empty(0, dtype=torch.int64, device=storage.device).set_(storage, 0, (size // 8,), (1,))
    rest = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, size // 8 * 8, (size % 8,), (1,))
    return int(words.sum()) + 31 * int(rest.sum())


def _key(t: Tensor, place: int) -> Tensor:
    """A number for each row that tells rows apart."""
    flat = t.reshape(len(t), -1).to(torch.float64).nan_to_num(0.0, 0.0, 0.0).cpu()
    angles = torch.arange(flat.shape[1], dtype=torch.float64) * 0.7548776662 + place
    return (flat * torch.cos(angles)).sum(1) + flat.abs().sum(1) * 0.137


def _written(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes into, by its schema."""
    found: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors_in([args[i] if i < len(args) else kwargs.get(argument.name)])
    return found
