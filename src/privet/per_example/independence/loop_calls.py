"""One batch and its counterfactuals in a loop that is followed: what is known of each tensor, and the model's calls.

The operations of the loop are followed one by one (`loop_following`). The model is asked as a whole what it gives for
exchanged records, with the same random numbers: its own rules say how it treats each example.
"""

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils._python_dispatch import _disable_current_modes

from privet.per_example.forward_record import map_tensors, tensors_in
from privet.per_example.independence.counterfactuals import (
    EXCHANGED,
    EXTREMES,
    ORDERS,
    VARIANTS,
    Counterfactuals,
    Known,
    Mirrors,
    checksum,
    match_rows,
    row_keys,
    storage_of,
)
from privet.per_example.independence.loop_memory import LoopMemory, OwnMemory, Seen, describe, has_hooks, nodes_below
from privet.per_example.independence.model import changed_rows
from privet.per_example.trial_pass import Mode, cuda_devices, same_random_state

# --- a double of a model, to ask it about other records: calls of it leave nothing in the user's own ---


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


# --- a batch ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Call:
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


class FollowedBatch(Mode):
    """What is known of one batch and its counterfactuals.

    Args:
        data: the batch, a nest of tensors with `rows` rows, those of a record (`augmentations`) together.
        memory: what earlier checked steps of this training have seen.
        model: its parameters and buffers are functions of earlier releases.
    """

    def __init__(
        self, data: Any, *, rows: int, augmentations: int = 1, memory: LoopMemory | None = None,
        model: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = LoopMemory() if memory is None else memory
        self.seen = Seen(rows=rows)
        self._others = Counterfactuals(rows=rows, augmentations=augmentations, generator=self.memory.generator)
        self._rows, self._active = rows, set(VARIANTS)
        self._mirrors = Mirrors()
        self._calls: list[Call] = []
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
                        self._mirrors.write(known, t, variant, self._others.exchange_batch(t, variant))
                else:
                    known.reason = f"a tensor of the batch that has no row for each example, {describe(t)}"

    @property
    def has_power(self) -> bool:
        """Whether something could be seen: one record has no other."""
        return self._others.has_power

    def _run_guarded(self, part: Callable[..., Any], *given: Any) -> Any:
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

    # --- calls of the model ---

    def before_model(self, model: nn.Module, inputs: Any) -> None:
        """The model's own operations are not followed one by one."""
        if not self._depth:
            self._calls.append(Call(model, inputs, random_state(model)))
            self._run_guarded(self._begin_call, self._calls[-1])
        self._depth += 1

    def after_model(self, inputs: tuple[Any, Any], out: Any) -> None:
        """Find what the model gives for the counterfactual batches; calls of it must not be recorded meanwhile."""
        self._depth -= 1
        if not self._depth:
            with _disable_current_modes():
                self._run_guarded(self._follow_model, self._calls[-1], inputs, out, torch.is_grad_enabled())

    def _begin_call(self, call: Call) -> None:
        call.given = {t.untyped_storage().data_ptr() for t in tensors_in([call.inputs]) if storage_of(t) is not None}
        if name := self._own.find_changed():
            call.reason = f"{name} was changed before a call of the model"

    def _follow_model(self, call: Call, inputs: Any, out: Any, is_recorded: bool) -> None:
        entering = tensors_in([inputs])
        knowns = [self._lookup(t) for t in entering]
        reason = call.reason or next((known.reason for known in knowns if known.reason), "")
        self._own.accept()
        for t, known in zip(entering, knowns, strict=True):
            if is_recorded and known.is_given and t.dim() and len(t) == self._rows:
                reason = reason or f"an input of the model that does not come from the batch, {describe(t)}"
        if reason and is_recorded:
            self._refuse(reason)
        call.is_data, call.outputs = any(known.is_data for known in knowns), tensors_in([out])
        call.numbers = numbers_of(knowns)
        call.hooked = [node for node in nodes_below([t.grad_fn for t in call.outputs]) if has_hooks(node)]
        call.edges = [get_gradient_edge(t) for t in call.outputs if t.requires_grad]
        for t in call.outputs:
            if (storage := storage_of(t)) is not None:
                known = Known(checksum(storage), is_data=call.is_data, reason=reason, numbers=call.numbers)
                self._mirrors.learn(storage, known)
        if reason or not call.is_data:
            return
        call.rows = {variant: self._match_model_rows(entering, variant) for variant in self._active}
        there = self._call_exchanged(call, inputs, out)
        for place, t in enumerate(call.outputs):
            known = self._lookup(t)
            if there is None:
                known.reason = "the model gives other outputs for the same inputs, or fails for other records"
                continue
            rows = call.rows[EXCHANGED]
            if rows is not None and t.dim() and len(t) == self._rows:  # random numbers go with their record
                stays = (rows >= 0).to(t.device).view(-1, *[1] * (t.dim() - 1))
                there[place] = torch.where(stays, t.detach()[rows.clamp(min=0).to(t.device)], there[place])
            self._mirrors.write(known, t, EXCHANGED, there[place])
            self._store_rows(call, known, t)

    def _store_rows(self, call: Call, known: Known, t: Tensor) -> None:
        """What comes of a call in the other batches, where it has one row for each that the model was given."""
        for variant in (*EXTREMES, *ORDERS):
            rows = call.rows.get(variant)
            if variant in self._active and rows is not None and (not t.dim() or len(t) == self._rows):
                self._mirrors.write(known, t, variant, self._others.exchange_output(t, rows, variant))
                if variant in ORDERS and bool((rows < 0).any()):
                    self._misplaced.add(variant)
            else:
                self._active.discard(variant)

    def _call_exchanged(self, call: Call, inputs: Any, out: Any) -> list[Tensor] | None:
        """The model's outputs for exchanged records; None if it is not the same twice."""
        try:
            there = tensors_in(
                [call_double(call.model, map_tensors(inputs, lambda t: self._counterfactual(t, EXCHANGED)), call.start)]
            )
        except Exception:
            return None
        rows = call.rows[EXCHANGED]
        if [t.shape for t in there] != [t.shape for t in call.outputs]:
            return None
        if rows is not None and all(
            not bool((changed_rows(t.detach()[rows.clamp(min=0).to(t.device)], o, 0).cpu() & (rows >= 0)).any())
            for t, o in zip(call.outputs, there, strict=True)
            if t.dim() and len(t) == self._rows
        ):
            return there
        return there if same_outputs(out, call_double(call.model, inputs, call.start)) else None

    def _match_model_rows(self, entering: Sequence[Tensor], variant: int) -> Tensor | None:
        """For each row of a counterfactual batch the real row that the model was given there, or -1."""
        usual, most = self._others.source_places(variant), self._others.most_changed(variant)
        pairs = [(t.detach(), self._counterfactual(t, variant)) for t in entering if t.dim() and len(t) == self._rows]
        if any(t.shape != there.shape for t, there in pairs):
            return None
        same = torch.ones(self._rows, dtype=torch.bool)
        for t, there in pairs:
            same &= (t[usual.to(t.device)] == there).reshape(self._rows, -1).all(1).cpu()
        if int((~same).sum()) > most:
            same.fill_(True)
            for t, there in pairs:
                same &= ~changed_rows(t[usual.to(t.device)], there, 0).cpu()
        if int((~same).sum()) <= most:
            return torch.where(same, usual, -1)
        keys = [torch.stack([row_keys(t, i) for i, t in enumerate(one)]).sum(0) for one in zip(*pairs, strict=True)]
        return torch.where(same, usual, match_rows(*keys))  # a loop may have put its rows in order

    def _mark_inside(self, entering: Any, out: Any) -> None:
        call = self._calls[-1]
        for t in tensors_in([entering]):
            storage = storage_of(t)
            known = None if storage is None else self._mirrors.lookup(storage)
            if known is not None and known.is_data and known.call is None and storage.data_ptr() not in call.given:
                call.reason = f"a tensor of the loop that the model takes, and not as an input, {describe(t)}"
        for t in tensors_in([out]):
            storage = storage_of(t)
            if storage is not None and self._mirrors.lookup(storage) is None and storage not in self._own:
                self._mirrors.learn(storage, Known(call=len(self._calls) - 1))

    def _open_inside(self, t: Tensor, known: Known) -> None:
        """A tensor that a pass has left in an attribute or a hook: what it would have left of exchanged records."""
        assert known.call is not None
        call, known.call = self._calls[known.call], None
        known.checksum, known.is_data, known.numbers = checksum(storage_of(t)), call.is_data, call.numbers
        if not call.is_data:
            return
        if call.captured is None:
            other = map_tensors(call.inputs, lambda one: self._counterfactual(one, EXCHANGED))
            call.captured = capture(call.model, call.inputs, call.start), capture(call.model, other, call.start)
        place = find_equal(t.detach(), call.captured[0])
        if place is None or place >= len(call.captured[1]) or call.captured[1][place].shape != t.shape:
            known.reason = f"a tensor that the model left in an attribute or a hook, {describe(t)}"
            return
        if t.requires_grad:
            call.edges.append(get_gradient_edge(t))
        self._mirrors.write(known, t, EXCHANGED, call.captured[1][place])
        self._store_rows(call, known, t)

    # --- what is known of a tensor ---

    def _lookup(self, t: Tensor) -> Known:
        storage = storage_of(t)
        if storage is None:
            return Known(reason=f"a tensor without memory of its own, {describe(t)}")
        known = self._mirrors.lookup(storage)
        if known is None:
            known = self._mirrors.learn(storage, self._learn_tensor(t, storage))
        if known.call is not None:
            self._open_inside(t, known)
        if known.checksum is not None and known.checksum != checksum(storage) and not known.reason:
            known.reason = f"{describe(t)} was written into by something else than torch in this thread: NumPy, say"
        return known

    def _learn_tensor(self, t: Tensor, storage: Any) -> Known:
        if storage in self._own or not storage.nbytes():
            return Known()
        found = checksum(storage)
        if not t.dim():  # a Python number
            return Known(found, is_given=True)
        return Known(found, is_given=True, reason=self.memory.inspect_tensor(t, storage, found, self.seen))

    def _counterfactual(self, t: Tensor, variant: int) -> Tensor:
        return self._mirrors.read(self._lookup(t), t, variant)

    def _refuse(self, reason: str) -> None:
        self._failure = self._failure or reason


def numbers_of(knowns: Sequence[Known]) -> frozenset[int]:
    return frozenset[int]().union(*(known.numbers for known in knowns))
