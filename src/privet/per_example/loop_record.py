"""Recording: a user's own forward pass, watched, so that losses alone are enough for the clipped sum.

with recording(model):
    losses = loss_fn(model(x), y)          # one per example
c = clipped_sum(model, losses, (x, y))
"""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from privet.errors import InvalidValue, Unsupported
from privet.per_example.forms import PerExampleGradient
from privet.per_example.forward_record import (
    ForwardRecord,
    batch_size_of,
    call_names,
    map_tensors,
    tensor_kinds,
    tensors_in,
)
from privet.per_example.independence.buffers import BufferGuard
from privet.per_example.independence.loop import LoopCheck
from privet.per_example.interception import track_parameters
from privet.per_example.layers.base import ParameterUse, UnseenCall
from privet.per_example.model_facts import AGREE, ROUGH, model_facts, per_example_gradients, trainable_parameters
from privet.per_example.trial_pass import MANY

_finished: "weakref.WeakKeyDictionary[nn.Module, LoopRecord]" = weakref.WeakKeyDictionary()
Way = tuple[Any, ...]
_apart: "weakref.WeakKeyDictionary[nn.Module, set[Way]]" = weakref.WeakKeyDictionary()
_sizes: "weakref.WeakKeyDictionary[nn.Module, dict[int, set[float]]]" = weakref.WeakKeyDictionary()
MOST_NODES, MOST_WAYS, ENOUGH_SIZES = 200, 1000, 4
POWERS = 1.0, -1.0, 0.5, -0.5  # of the number of rows
WAY_OUT = "Give the loss function and the batch in place of losses."


@dataclass(slots=True, weakref_slot=True, eq=False)
class LoopRecord:
    """The uses of a model's parameters in the calls of it so far."""

    forced: Mapping[str, str]
    uses: list[ParameterUse] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    tape: ForwardRecord | None = None
    held: BufferGuard | None = None
    check: LoopCheck | None = None
    probing: bool = False
    named: Mapping[str, nn.Parameter] = field(default_factory=dict)  # what is tracked

    def __deepcopy__(self, memo: dict[int, Any]) -> "LoopRecord":
        return LoopRecord({}, probing=True)  # hooks of a copied model see nothing

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.probing:
            return func(*args, **kwargs)
        if self.tape is None:
            raise Unsupported(
                f"{getattr(func, '__name__', func)}: a trainable parameter is used outside of model(...), where its "
                f"examples cannot be followed. {WAY_OUT}"
            )
        try:
            return self.tape.call(func, args, kwargs)
        except UnseenCall as error:
            raise Unsupported(f"the model took another way than before: {error}. {WAY_OUT}") from None

    def before_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.probing:
            return
        if self.check is not None:
            self.check.before_model(model, (args, kwargs))
        if not torch.is_grad_enabled():
            return
        rows = batch_size_of((args, kwargs))
        if rows == 0:
            raise InvalidValue("batch has no example. An empty batch is released without a call of the model.")
        self.probing = True
        try:
            named = self.named
            signature = (
                "recorded", model.training, tuple(named), tuple(sorted(self.forced)), tensor_kinds((args, kwargs)),
                rows > MANY,
            )  # fmt: skip

            def run(model: nn.Module, take: Callable[[Tensor], Tensor]) -> Tensor:
                return _probe_loss(
                    model(*map_tensors(args, take), **map_tensors(kwargs, take)), batch_size_of((args, kwargs)), take
                )

            known = model_facts(model, signature, run, self.forced)
        finally:
            self.probing = False
        if known.facts is None:
            raise Unsupported(f"the rules do not cover this model: {known.why}. {WAY_OUT}")
        self.tape = ForwardRecord(call_names(named), known.facts, rows, rows, self.forced, self.uses)
        self.held = BufferGuard(model, known.writes)

    def after_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self.probing:
            return
        if self.tape is not None and self.held is not None:
            self.held.check()
            self.tape = self.held = None
            self.outputs += tensors_in(out)
        if self.check is not None:
            self.probing = True
            try:
                self.check.after_model((args, kwargs), out)
            finally:
                self.probing = False


def _probe_loss(out: Any, rows: int, take: Callable[[Tensor], Tensor]) -> Tensor:
    """Some loss of each row of the output, for the probe: the user's own is not known yet."""
    count = take(torch.zeros(rows, 1)).shape[0]
    total = torch.zeros(count)
    for i, t in enumerate(tensors_in(out)):
        if t.is_floating_point() and t.dim() and t.shape[0] == count:
            flat = t.reshape(count, -1).float()
            total = total + (flat * torch.cos(torch.arange(flat.shape[1]) + i).to(flat)).sum(1) + flat.square().mean(1)
    if not total.requires_grad:
        raise Unsupported(f"the model's output has no row for each example along dimension 0. {WAY_OUT}")
    return total


@contextmanager
def recording(
    model: nn.Module, *, force: Mapping[str, str] | None = None, check: LoopCheck | None = None,
    named: Mapping[str, nn.Parameter] | None = None,
) -> Iterator[LoopRecord]:  # fmt: skip
    """Watch the model's calls inside, until `clipped_sum(model, losses, ...)` takes what was seen.

    `named` are its trainable parameters, where they are known already.
    """
    watch = LoopRecord(force or {}, check=check, named=trainable_parameters(model) if named is None else named)
    hooks = [
        model.register_forward_pre_hook(watch.before_forward, with_kwargs=True),
        model.register_forward_hook(watch.after_forward, with_kwargs=True),
    ]
    try:
        with (
            track_parameters(list(watch.named.values()), watch),
            nullcontext() if check is None else check.follow_loop(),
        ):
            yield watch
        _finished[model] = watch
    finally:
        for hook in hooks:
            hook.remove()


def gradients_of_recorded_losses(
    model: nn.Module, losses: Tensor, named: Mapping[str, nn.Parameter], *, augmentations: int
) -> tuple[dict[str, PerExampleGradient], int]:
    """Shares and the number of examples, from losses of a recorded pass, which is then used up.

    `named` are the model's trainable parameters now.
    """
    watch = _finished.pop(model, None)
    if watch is None:
        raise InvalidValue("losses were not computed inside `with recording(model):`. Put the forward pass there.")
    rows = watch.uses[0].rows if watch.uses else 0
    if losses.dim() != 1 or losses.shape[0] != rows or rows % augmentations:
        raise InvalidValue(
            f"losses={tuple(losses.shape)} must be one loss for each of {rows} examples. Use reduction='none'."
        )
    for use in watch.uses:
        if use.rows != rows:
            raise Unsupported(
                f"the model was called with {sorted({use.rows for use in watch.uses})} rows, so it is not known whose "
                f"they are. Call it with one row for each example every time. {WAY_OUT}"
            )
        if augmentations > 1:
            use.group_rows(augmentations)
    _check_rows_apart(model, losses, watch.outputs)
    try:
        shares = per_example_gradients(
            watch.uses, losses / augmentations if augmentations > 1 else losses, named, rows // augmentations
        )
    except UnseenCall as error:
        raise Unsupported(f"the model took another way than before: {error}. {WAY_OUT}") from None
    return shares, rows // augmentations


def _check_rows_apart(model: nn.Module, losses: Tensor, outputs: list[Tensor]) -> None:
    """Raise if the loss of one example depends on another example's output; asked once for each way of computing it."""
    rows, watched, ends = len(losses), list[Tensor](), set[Any]()
    for t in outputs:
        if t.requires_grad and t.dim() and t.shape[0] == rows:
            watched.append(t)
            ends.add(t.grad_fn)
    nodes = _graph_nodes(losses, ends)
    _check_size(model, nodes, rows)
    way = _graph_signature(nodes)
    if way in _apart.setdefault(model, set()):
        return
    signs = torch.randn(len(losses), generator=torch.Generator().manual_seed(0)).to(losses)
    usual = torch.autograd.grad(losses.sum(), watched, retain_graph=True, allow_unused=True)
    mixed = torch.autograd.grad(losses @ signs, watched, retain_graph=True, allow_unused=True)
    for one, other in zip(usual, mixed, strict=True):
        if (
            one is not None
            and other is not None
            and _rows_differ(_flatten_examples(one) * signs.to(one)[:, None], _flatten_examples(other))
        ):
            raise Unsupported(
                "the loss of one example depends on the outputs of others, so no clip bounds what one of them does. "
                "Use a loss of one example at a time."
            )
    if len(losses) >= MANY:  # of one row or two it would not say much of larger batches
        if len(_apart[model]) >= MOST_WAYS:  # a number that changes in each step
            _apart[model].clear()
        _apart[model].add(way)


def _flatten_examples(t: Tensor) -> Tensor:
    return t.reshape(len(t), -1)


def _rows_differ(one: Tensor, other: Tensor) -> bool:
    """Whether the weights of the losses went elsewhere than to their own rows."""
    fine = one.isfinite().all(1) & other.isfinite().all(1)
    scale = torch.maximum(one[fine].abs(), other[fine].abs()).amax() if bool(fine.any()) else 0.0
    return bool(((one - other)[fine].abs() > AGREE.get(one.dtype, ROUGH) * scale).any())


def _graph_nodes(losses: Tensor, ends: set[Any]) -> list[Any]:
    """Autograd's nodes from the losses down to the model's outputs."""
    found: list[Any] = []
    left = [losses.grad_fn]
    while left and len(found) < MOST_NODES:
        node = left.pop()
        if node is not None and node not in ends:
            found.append(node)
            for below, _ in node.next_functions:
                left.append(below)
    return found


def _graph_signature(nodes: list[Any]) -> Way:
    """The nodes' names and the numbers they were given: a mean over dimension 1 and one over 0 are called alike."""
    found: list[Any] = []
    for node in nodes:
        kind = type(node)
        found.append(node.name())
        for name in _names[kind] if kind in _names else _saved_names(kind, node):
            value = getattr(node, name)
            found.append(value if type(value) in _SIMPLE else _comparable_value(value))
    return tuple(found)


def _check_size(model: nn.Module, nodes: list[Any], rows: int) -> None:
    """Raise if losses are scaled by the number of rows or its root, in batches of two sizes: that is no chance."""
    seen = _sizes.setdefault(model, {})
    if rows < MANY or rows in seen or len(seen) >= ENOUGH_SIZES:
        return
    factors = [float(t) for t in (getattr(node, "_saved_other", None) for node in nodes) if _is_number(t)]
    seen[rows] = {power for power in POWERS if any(math.isclose(f, rows**power, rel_tol=1e-6) for f in factors)}
    if any(sum(power in powers for powers in seen.values()) > 1 for power in POWERS):
        raise Unsupported(
            "the losses are scaled by the number of rows of the batch, which is private: the others move when one is "
            "added. Leave len(batch) out of the loss; the plan divides by the batch it expects."
        )


def _is_number(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.dim() and not value.is_complex()


_names: dict[type, tuple[str, ...]] = {}
_SIMPLE = {int, float, bool, str, type(None)}


def _saved_names(kind: type, node: Any) -> tuple[str, ...]:
    kept = [name for name in dir(node) if name.startswith("_saved_")]
    _names[kind] = tuple(name for name in kept if not tensors_in([getattr(node, name)]))
    return _names[kind]


def _comparable_value(value: Any) -> Any:
    """What can be compared and holds no tensor."""
    return value if isinstance(value, (int, float, str, tuple, type(None))) and not tensors_in([value]) else type(value)
