"""The tape: what a model did with its parameters in one forward pass, and where the examples lie in each tensor."""

import copy
from collections import UserList
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from privet.errors import InvalidValue, PrivetError, Unsupported
from privet.per_example.forms import PerExampleGradient
from privet.per_example.interception import is_tracked, track
from privet.per_example.layers.base import LayerRule, layer_rule


@dataclass(frozen=True, slots=True)
class BatchDim:
    """Where the examples lie in a tensor: along `dim`, an example's rows together (`major`) or strided."""

    dim: int
    major: bool = True


@dataclass(frozen=True, slots=True)
class CallLayout:
    """What analysis found out of one call: where the examples lie in its plain arguments and in its outputs."""

    inputs: tuple[BatchDim | None, ...]
    outputs: tuple[BatchDim | None, ...]
    calls: int = 0  # how many uses of this kind there must be; 0 if all of them are alike, so that it does not matter
    is_use: bool = field(init=False)  # parameters meet data; otherwise the outputs are functions of parameters alone
    in_front: bool = field(init=False)  # the examples lie along dimension 0 everywhere, one after the other

    def __post_init__(self) -> None:  # asked for in every step
        object.__setattr__(self, "is_use", any(where is not None for where in self.outputs))
        object.__setattr__(self, "in_front", all(where == BatchDim(0) for where in (*self.inputs, *self.outputs)))


_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)  # on what autograd saves; older: unknown
SMALL = 1 << 14  # numbers: a gradient that may be kept to the end of the backward pass
Key = tuple[Callable[..., Any], tuple[str, ...]]
Found = dict[int, list[tuple[Tensor, PerExampleGradient]]]  # by the parameter's identity
Facts = Mapping[Key, Sequence[CallLayout]]


class UnseenCall(PrivetError):
    """A call that analysis has not seen: the model took another way with this batch."""


@dataclass(slots=True, eq=False)
class ParameterUse:
    """One meeting of parameters and data, kept until the gradients of its outputs are known."""

    name: Key
    rule: LayerRule
    func: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    fact: CallLayout
    batch: int
    rows: int  # of the batch: more than one for each example if it has several views
    edges: list[GradientEdge]
    plain: list[Tensor]
    tracked: list[Tensor]
    is_plain: bool = False  # the data and the outputs have one row for each example, in front
    is_asked: bool = True  # whether autograd is asked for the gradients; else they are caught on their way
    kept: Any = None  # what the rule wants to remember
    versions: list[int] = field(default_factory=list)
    ids: frozenset[int] = field(init=False)  # of the tracked tensors

    def __post_init__(self) -> None:  # asked for in every step
        self.ids = frozenset(map(id, self.tracked))

    def group_rows(self, augmentations: int) -> None:
        """So many rows, lying together, are one example's."""
        self.batch //= augmentations
        self.is_plain = self.is_plain and augmentations == 1

    def release_tensors(self) -> None:
        """Forget the tensors: their shares are made. Nor may a use hold the graph, whose nodes hold the use."""
        self.args, self.kwargs, self.plain, self.kept, self.versions, self.edges = (), {}, [], None, [], []

    def is_tracked(self, value: Any) -> bool:
        return id(value) in self.ids

    def put_examples_first(self, value: Tensor, where: BatchDim | None) -> Tensor:
        assert where is not None
        if where.dim == 0 and value.shape[0] == self.batch:
            return value.unsqueeze(1)
        found = move_examples_first(value, where, self.rows)
        return found if self.rows == self.batch else found.reshape(self.batch, -1, *found.shape[2:])

    def input(self, value: Tensor) -> Tensor:
        at = next(i for i, t in enumerate(self.plain) if t is value)
        return self.put_examples_first(value.detach(), self.fact.inputs[at])  # a share must not keep autograd's graph

    def output(self, value: Tensor, at: int = 0) -> Tensor:
        """A tensor of the shape of output `at`, its gradient say, with its examples in front."""
        return self.put_examples_first(value, self.fact.outputs[at])

    def add_shares(self, grads: Sequence[Tensor | None], found: Found) -> None:
        """Put what each parameter gets by this use to the rest, from the gradients of the tensors that were wanted."""
        for g in grads:
            if g is not None:
                break
        else:
            return
        self.check_unchanged()
        for tensor, share in self.rule.gradients(self, list(grads)):  # type: ignore[arg-type]
            for root in tensor.__dict__.get("privet_roots") or (id(tensor),):  # the parameters it is a function of
                found.setdefault(root, []).append((tensor, share))
        self.release_tensors()

    def check_unchanged(self) -> None:
        for value, version in zip(self.plain, self.versions, strict=True):
            if value._version != version:
                raise Unsupported(
                    f"{function_name(self.name[0])} of {self.name[1][0]}: its input was changed in place after use, "
                    "so its gradient cannot be had; PyTorch refuses this too. Leave out inplace=True there."
                )


def move_examples_first(value: Tensor, where: BatchDim, batch: int) -> Tensor:
    """(B, rows of an example, ...) from a tensor whose examples lie at `where`."""
    value = value if where.dim == 0 else value.movedim(where.dim, 0)
    rows, rest = divmod(value.shape[0], batch)
    if rest:
        raise UnseenCall(f"{value.shape[0]} rows cannot belong to {batch} examples")
    if where.major:
        return value.reshape(batch, rows, *value.shape[1:])
    return value.reshape(rows, batch, *value.shape[1:]).movedim(1, 0)


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


def function_name(func: Callable[..., Any]) -> str:
    """A function's name for people; a property's getter is called by the property."""
    name = getattr(func, "__name__", "function")
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name == "__get__" else name


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
        """Track what is a function of parameters alone, and remember of which."""
        sources: frozenset[int] = frozenset().union(*(root_parameters(t) for t in entering))
        for i, out in enumerate(tensors_in(outputs)):
            if out.is_floating_point() and out.requires_grad and not is_tracked(out):
                track(out).__dict__.update(
                    privet_name=f"{function_name(key[0])}({','.join(key[1])})[{turn}.{i}]", privet_roots=sources
                )


def root_parameters(value: Tensor) -> frozenset[int]:
    """The identities of the parameters that a tracked tensor is a function of."""
    return value.__dict__.get("privet_roots") or frozenset((id(value),))


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
