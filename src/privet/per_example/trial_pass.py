"""One trial pass: a model on a few examples, and all that parameters met, that modules gave and that data decided.

All passes start from the same random numbers and buffers. Parameters are moved a little meanwhile, so that layers that
start at zero hide nothing; all is put back.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from privet.errors import PrivetError
from privet.per_example.forward_record import CallNames, call_names, is_forced, split_tracked, tensors_in
from privet.per_example.interception import track_parameters
from privet.per_example.layers.base import Key, function_name, layer_rule

FEW, MANY = 2, 3
LARGEST = 1e4  # of the numbers that trial examples are made of
T = TypeVar("T")
Take = Callable[[Tensor], Tensor]  # which examples
Run = Callable[[nn.Module, Take], Any]  # run(model, which examples) -> losses


@dataclass(slots=True)
class Call:
    """One function call that a tracked tensor entered, with copies of what went in and out."""

    key: Key
    turn: int
    is_use: bool
    inputs: list[Tensor]
    outputs: list[Tensor]
    rule: str


@dataclass(slots=True, eq=False)
class TrialPass:
    """Listens to one pass; `uses` says which calls are known to be uses, contrary to first appearance."""

    names: CallNames
    uses: dict[tuple[Key, int], bool]
    forced: Mapping[str, str]
    calls: list[Call] = field(default_factory=list)
    modules: list[tuple[str, list[Tensor], list[Tensor]]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)  # what modules save beside parameters and buffers
    decisions: list[str] = field(default_factory=list)  # by values of the data
    is_random: bool = False

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        entering, plain = split_tracked(args, kwargs)
        key, turn = self.names.key(func, entering)
        inputs = copy_tensors(plain)
        is_use = self.uses.get((key, turn), bool(plain))
        rule = layer_rule(func, args, kwargs, forced=is_forced(key[1], self.forced))
        out = rule.run(func, args, kwargs)[0] if is_use else func(*args, **kwargs)
        self.calls.append(Call(key, turn, is_use, inputs, copy_tensors(tensors_in(out)), rule.name))
        if not is_use:
            self.names.derive(out, key, turn, entering)
        return out


def copy_tensors(tensors: Any) -> list[Tensor]:
    return [t.detach().clone().as_subclass(Tensor) for t in tensors]


# --- passes -----------------------------------------------------------------------------------------


def trial_pass(model: nn.Module, run: Run, take: Take, uses: Any, forced: Any) -> TrialPass:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = TrialPass(call_names(named), uses, forced)
    hooks = [module.register_forward_hook(_module_hook(found, name), with_kwargs=True)
             for name, module in model.named_modules() if not isinstance(module, torch.jit.ScriptModule)]  # fmt: skip
    try:
        with same_random_state(model):
            before = torch.get_rng_state()
            with (
                torch.enable_grad(),
                track_parameters(list(named.values()), found),
                _Decisions(found.decisions) as seen,
            ):
                found.outputs = copy_tensors(tensors_in(run(model, seen.mark_as_data(take))))
            found.is_random = not torch.equal(before, torch.get_rng_state())
            found.buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
            found.extra = {
                name: _extra_state(module) for name, module in model.named_modules()
                if type(module).get_extra_state is not nn.Module.get_extra_state
            }  # fmt: skip
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _extra_state(module: nn.Module) -> Any:
    """A copy that can be compared: the tensors, or the words for what has none."""
    state = module.get_extra_state()
    return [t.tolist() for t in copy_tensors(tensors_in([state]))] or repr(state)


def losses_with_graph(model: nn.Module, run: Run, take: Take) -> Tensor:
    """The losses of one pass, with the graph that their gradients need."""
    with same_random_state(model), torch.enable_grad():
        found: Tensor = run(model, take)
        return found


def detached_losses(model: nn.Module, run: Run, take: Take, *, seed: int = 0) -> Tensor:
    with same_random_state(model, seed), torch.enable_grad():
        return copy_tensors(tensors_in(run(model, take)))[0]


def _module_hook(found: TrialPass, name: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        found.modules.append((name, copy_tensors(tensors_in((args, kwargs))), copy_tensors(tensors_in(out))))

    return hook


_aten = torch.ops.aten
_DECISIVE = {  # the argument that decides what comes next: which number Python gets, or how many rows there are
    _aten._local_scalar_dense.default: 0, _aten.equal.default: 0, _aten.nonzero.default: 0,
    _aten.masked_select.default: 1, _aten._unique2.default: 0, _aten.unique_dim.default: 0,
    _aten.unique_consecutive.default: 0, _aten.repeat_interleave.Tensor: 0,
}  # fmt: skip
_NAMES = {"_local_scalar_dense": "a number taken out of a tensor (if, int, item)", "_unique2": "unique"}


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it torch would import its compiler, which takes a second


class _Decisions(Mode):
    """Follows the data through a pass, to see where its values, not its shapes, decide what is done next."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found
        self.is_listening = True

    def mark_as_data(self, take: Take) -> Take:
        """The same, known to be data; how it is taken is not the model's doing."""

        def mark(t: Tensor) -> Tensor:
            self.is_listening = False
            found = take(t)
            self.is_listening = True
            found.privet_data = True  # type: ignore[attr-defined]
            return found

        return mark

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.is_listening and any(map(_is_data, tensors_in([args, kwargs or {}]))):
            for t in tensors_in([out]):
                t.privet_data = True  # type: ignore[attr-defined]
            indices = args[1] if func is _aten.index.Tensor else ()
            masks = [t for t in indices if t is not None and t.dtype in (torch.bool, torch.uint8)]
            if any(map(_is_data, masks)) or (func in _DECISIVE and _is_data(args[_DECISIVE[func]])):
                name = function_name(func).partition(".")[0]
                self.found.append(_NAMES.get(name, name))
        return out


def _is_data(t: Tensor) -> bool:
    return hasattr(t, "privet_data")


# --- before and after -------------------------------------------------------------------------------


def own_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Each once, but for those that FSDP gathers and drops again around a pass: they are other objects after it."""
    sharded: tuple[str, ...] = ()
    seen: set[int] = set()
    for start, module in model.named_modules():
        start = f"{start}." if start else ""
        sharded += (start,) if _is_sharded(type(module)) else ()
        if not start.startswith(sharded):
            for name, p in module._parameters.items():
                if p is not None and id(p) not in seen:
                    seen.add(id(p))
                    yield f"{start}{name}", p


_sharded: dict[type, bool] = {}


def _is_sharded(kind: type) -> bool:
    if kind not in _sharded:
        _sharded[kind] = any(one.__name__ == "FSDPModule" for one in kind.__mro__)
    return _sharded[kind]


@contextmanager
def preserving_state(model: nn.Module) -> Iterator[None]:
    """Parameters moved a little, then put back, unseen by autograd: its graphs of earlier passes stay good."""
    kept = [(p, p.detach().clone()) for _, p in own_parameters(model)]
    with torch.random.fork_rng(devices=cuda_devices(p for p, _ in kept)):
        torch.manual_seed(1)
        try:
            for p, _ in kept:
                if p.requires_grad and p.numel():
                    p.data.add_(torch.randn_like(p.data) * (0.1 * p.data.float().abs().mean() + 0.01).to(p.dtype))
            yield
        finally:
            for p, value in kept:
                p.data.copy_(value)


@contextmanager
def same_random_state(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """The same random numbers each time: those of Python, NumPy and torch are put back, and so are the buffers."""
    kept = [(module, name, b, b.detach().clone()) for module in model.modules()
            for name, b in module._buffers.items() if b is not None]  # fmt: skip
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=cuda_devices(model.parameters())):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            for module, name, buffer, before in kept:
                module._buffers[name] = buffer  # a pass may have put another in its place
                if not torch.equal(buffer, before):
                    buffer.data.copy_(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; each of its layers is in its own mode again after it."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def cuda_devices(tensors: Any) -> list[int]:
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})


# --- which examples ---------------------------------------------------------------------------------


def first_examples(count: int) -> Take:
    """The first examples, again from the start if there are too few; tame ones, so that something can be seen."""

    def take(t: Tensor) -> Tensor:
        found = t[torch.arange(count, device=t.device) % t.shape[0]]
        return found.nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST) if t.is_floating_point() else found

    return take


def second_and_third(t: Tensor) -> Tensor:
    return first_examples(MANY)(t)[1:]


def change_example(which: int, factor: float = 1.25) -> Take:

    def take(t: Tensor) -> Tensor:
        found = first_examples(MANY)(t).clone()
        row = found[which]
        if t.is_floating_point() or t.is_complex():
            moved = torch.randn(row.shape, generator=torch.Generator().manual_seed(which + 1)).to(row)
            found[which] = factor * row + moved * (row.abs().mean() + 0.1)
        elif t.dtype == torch.bool:
            found[which] = ~row
        else:
            found[which] = _other_integers(t, row)
        return found

    return take


def _other_integers(t: Tensor, row: Tensor) -> Tensor:
    """Whole numbers from the same column range of the batch, so that they stay valid: each differs where it can."""
    low, high = t.min(), t.max()
    return torch.where(row + 1 > high, low, row + 1) if bool(high > low) else row


def swap_example(which: int) -> Take:
    """The first examples, one of them replaced by another of the batch: for models that take no other values."""

    def take(t: Tensor) -> Tensor:
        found = first_examples(MANY)(t).clone()
        rows = [(which + k) % len(t) for k in range(MANY, MANY + len(t))]
        found[which] = t[next((r for r in rows if not torch.equal(t[r], t[which % len(t)])), which % len(t))]
        return found

    return take


def with_changed_example(run: Callable[[Take], T], which: int, factor: float = 1.25) -> T:
    """What `run` gives with one example changed; swapped for another, if only values of the data are taken."""
    try:
        return run(change_example(which, factor))
    except PrivetError:
        raise
    except Exception:  # models and losses say in many ways that they take no other values
        return run(swap_example(which))


def exchange_rows(rows: Tensor) -> Take:
    """The whole batch, some rows each replaced by another's."""

    def take(t: Tensor) -> Tensor:
        chosen = rows.to(t.device)
        return torch.where(chosen.view(-1, *[1] * (t.dim() - 1)), t.roll(max(1, len(t) // 2), 0), t)

    return take
