"""The tape: what a model did with its parameters in one forward pass, and where the examples lie in each tensor."""

import copy
from collections import UserList
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from privet.errors import InvalidValue
from privet.per_example.interception import is_tracked, track
from privet.per_example.layers.base import CallLayout, Key, ParameterUse, UnseenCall, function_name, layer_rule

_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)  # on what autograd saves; older: unknown
SMALL = 1 << 14  # numbers: a gradient that may be kept to the end of the backward pass
Facts = Mapping[Key, Sequence[CallLayout]]


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nest of lists, tuples, mappings and dataclasses, in order."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    for item in nested_items(value):
        if isinstance(item, Tensor):
            found.append(item)
        elif item is not None and not isinstance(item, _PLAIN):
            found += tensors_in(item)
    return found


_PLAIN = (int, float, str, bytes, type)


def nested_items(value: Any) -> Sequence[Any]:
    """What a list, a tuple, a mapping or a dataclass holds; nothing of any other value."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Mapping):
        return [value[key] for key in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, name.name) for name in fields(value)]
    return value.data if isinstance(value, UserList) else ()


def split_tracked(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The arguments that are tracked, and the plain ones that have a dimension."""
    entering: list[Tensor] = []
    plain: list[Tensor] = []
    for t in tensors_in(args if not kwargs else [args, kwargs]):
        if is_tracked(t):
            entering.append(t)
        elif t.dim():
            plain.append(t)
    return entering, plain


@dataclass(slots=True)
class CallNames:
    """Names for tracked tensors, so that a call in one pass is found again in the next."""

    parameters: dict[int, str]
    seen: dict[Key, int] = field(default_factory=dict)

    def key(self, func: Callable[..., Any], entering: Sequence[Tensor]) -> tuple[Key, int]:
        key = (func, tuple([self.name(t) for t in entering]))
        turn = self.seen.get(key, 0)
        self.seen[key] = turn + 1
        return key, turn

    def name(self, value: Tensor) -> str:
        found = self.parameters.get(id(value))
        return value.__dict__.get("privet_name", "another model's parameter") if found is None else found

    def derive(self, outputs: Any, key: Key, turn: int, entering: Sequence[Tensor]) -> None:
        """Track what is a function of parameters alone, and remember of which, by their identities."""
        sources: frozenset[int] = frozenset().union(*(t.__dict__.get("privet_roots") or (id(t),) for t in entering))
        for i, out in enumerate(tensors_in(outputs)):
            if out.is_floating_point() and out.requires_grad and not is_tracked(out):
                track(out).__dict__.update(
                    privet_name=f"{function_name(key[0])}({','.join(key[1])})[{turn}.{i}]", privet_roots=sources
                )


def call_names(named: Mapping[str, nn.Parameter]) -> CallNames:
    return CallNames({id(p): name for name, p in named.items()})


@dataclass(slots=True, eq=False)
class ForwardRecord:
    """Listens to one forward pass and keeps its uses."""

    names: CallNames
    facts: Facts
    batch: int
    rows: int
    forced: Mapping[str, str] = field(default_factory=dict)
    uses: list[ParameterUse] = field(default_factory=list)

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args = _copy_transposed(func, args)
        entering, plain = split_tracked(args, kwargs)
        key, turn = self.names.key(func, entering)
        known = self.facts.get(key)
        if known is None:
            raise UnseenCall(f"{function_name(func)} of {', '.join(key[1])} was not seen when the model was analysed")
        fact = known[min(turn, len(known) - 1)]
        if not fact.is_use:
            out = func(*args, **kwargs)
            self.names.derive(out, key, turn, entering)
            return out
        rule = layer_rule(func, args, kwargs, forced=bool(self.forced) and is_forced(key[1], self.forced))
        out, watched, kept = rule.run(func, args, kwargs)
        is_plain = fact.in_front and self.rows == self.batch and all(t.shape[0] == self.rows for t in plain)
        self.uses.append(
            ParameterUse(
                name=key, rule=rule, func=func, args=args, kwargs=kwargs, fact=fact,
                batch=self.batch, rows=self.rows, edges=[get_gradient_edge(t) for t in watched], plain=plain,
                tracked=entering, is_plain=is_plain,
                is_asked=_is_asked(plain, watched), kept=kept, versions=[t._version for t in plain],
            )
        )  # fmt: skip
        return out


def _copy_transposed(func: Callable[..., Any], args: Sequence[Any]) -> Sequence[Any]:
    """Attention turns its input around, `linear` copies that, and autograd keeps the copy: so only that one is kept.

    Autograd keeps none for a weight that is not trained. Under hooks nothing is changed: a checkpoint runs the model
    again without the tape, and what is then saved must be the same.
    """
    if func is not F.linear or len(args) < 2 or is_tracked(args[0]) or not is_tracked(args[1]):
        return args
    return (args[0].contiguous(), *args[1:]) if _is_transposed(args[0]) and _hooks(False) is None else args


def _is_transposed(value: Tensor) -> bool:
    """Whether the rows of a tensor of three or more dimensions cannot be had as those of a matrix without a copy."""
    sizes, strides = value.shape, value.stride()
    return any(strides[i] != strides[i + 1] * sizes[i + 1] for i in range(value.dim() - 2))


def _is_asked(plain: Sequence[Tensor], watched: Sequence[Tensor]) -> bool:
    """Nothing lies below that autograd would pass through this use for; or it is small and costs nothing to keep."""
    return not any(t.requires_grad for t in plain) or len(watched) > 1 or watched[0].numel() <= SMALL


def is_forced(names: Sequence[str], forced: Mapping[str, str]) -> bool:
    """Whether the user wants the general rule for one of these parameters, named by the module they belong to."""
    return any(name == start or name.startswith(f"{start}.") for name in names for start in forced)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, lists, mappings and dataclasses with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        parts = [map_tensors(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    if not nested_items(value):
        return value
    found: Any = copy.copy(value)  # a class of its own: its constructor is not ours to call
    if isinstance(value, UserList):
        found.data = [map_tensors(item, change) for item in value.data]
    elif isinstance(value, Mapping):
        if isinstance(kept := getattr(value, "data", None), dict):  # UserDict shares it with a shallow copy
            object.__setattr__(found, "data", dict(kept))
        for key in value:
            found[key] = map_tensors(value[key], change)
    else:
        for name in fields(value):
            object.__setattr__(found, name.name, map_tensors(getattr(value, name.name), change))
    return found


def tensor_kinds(value: Any) -> Any:
    """The nest with (dimensions, type) in the place of each tensor: what a model's way may depend on."""
    if isinstance(value, Tensor):
        return value.dim(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple([tensor_kinds(item) for item in value])
    if isinstance(value, Mapping):
        return tuple([(key, tensor_kinds(value[key])) for key in value])
    if not isinstance(value, type) and is_dataclass(value):
        return type(value), tuple([tensor_kinds(item) for item in nested_items(value)])
    return value if isinstance(value, (int, bool, str, type(None))) else type(value)


def batch_size_of(batch: Any) -> int:
    sizes = [t.shape[0] if t.dim() else None for t in tensors_in(batch)]
    if not sizes or len(set(sizes)) != 1 or sizes[0] is None:
        raise InvalidValue(
            f"batch has tensors of sizes {sizes} along dimension 0; all must be the number of examples. "
            "Keep what is not per example out of the batch."
        )
    return sizes[0]
