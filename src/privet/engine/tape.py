"""The tape: what a model did with its parameters in one forward pass, and where the examples lie in each tensor."""

from collections import UserList
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from privet.engine.intercept import is_tracked, tracked
from privet.engine.layer.base import Rule, rule_of
from privet.engine.share import Share
from privet.errors import PrivetError, Unsupported


@dataclass(frozen=True, slots=True)
class Where:
    """Where the examples lie in a tensor: along `dim`, an example's rows together (`major`) or strided."""

    dim: int
    major: bool = True


@dataclass(frozen=True, slots=True)
class Fact:
    """What analysis found out of one call: where the examples lie in its plain arguments and in its outputs."""

    inputs: tuple[Where | None, ...]
    outputs: tuple[Where | None, ...]
    calls: int = 0  # how many uses of this kind there must be; 0 if all of them are alike, so that it does not matter
    is_use: bool = field(init=False)  # parameters meet data; otherwise the outputs are functions of parameters alone
    in_front: bool = field(init=False)  # the examples lie along dimension 0 everywhere, one after the other

    def __post_init__(self) -> None:  # asked for in every step
        object.__setattr__(self, "is_use", any(where is not None for where in self.outputs))
        object.__setattr__(self, "in_front", all(where == Where(0) for where in (*self.inputs, *self.outputs)))


_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)  # on what autograd saves; older: unknown
SMALL = 1 << 14  # numbers: a gradient that may be kept to the end of the backward pass
Key = tuple[Callable[..., Any], tuple[str, ...]]
Found = dict[int, list[tuple[Tensor, Share]]]  # by the parameter's identity
Facts = Mapping[Key, Sequence[Fact]]


class Unforeseen(PrivetError):
    """A call that analysis has not seen: the model took another way with this batch."""


@dataclass(slots=True, eq=False)
class Use:
    """One meeting of parameters and data, kept until the gradients of its outputs are known."""

    name: Key
    rule: Rule
    func: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    fact: Fact
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

    def put_together(self, views: int) -> None:
        """So many rows, lying together, are one example's."""
        self.batch //= views
        self.is_plain = self.is_plain and views == 1

    def let_go(self) -> None:
        """Forget the tensors: their shares are made. Nor may a use hold the graph, whose nodes hold the use."""
        self.args, self.kwargs, self.plain, self.kept, self.versions, self.edges = (), {}, [], None, [], []

    def is_tracked(self, value: Any) -> bool:
        return id(value) in self.ids

    def first(self, value: Tensor, where: Where | None) -> Tensor:
        """The tensor with its examples in front: (B, rows of an example, ...)."""
        assert where is not None
        if where.dim == 0 and value.shape[0] == self.batch:
            return value.unsqueeze(1)
        found = examples_first(value, where, self.rows)
        return found if self.rows == self.batch else found.reshape(self.batch, -1, *found.shape[2:])

    def input(self, value: Tensor) -> Tensor:
        """A plain argument with its examples in front."""
        at = next(i for i, t in enumerate(self.plain) if t is value)
        return self.first(value.detach(), self.fact.inputs[at])  # a share must not keep autograd's graph

    def output(self, value: Tensor, at: int = 0) -> Tensor:
        """A tensor of the shape of output `at`, its gradient say, with its examples in front."""
        return self.first(value, self.fact.outputs[at])

    def add_shares(self, grads: Sequence[Tensor | None], found: Found) -> None:
        """Put what each parameter gets by this use to the rest, from the gradients of the tensors that were wanted."""
        for g in grads:
            if g is not None:
                break
        else:
            return
        self.check_unchanged()
        for tensor, share in self.rule.shares(self, list(grads)):  # type: ignore[arg-type]
            for root in tensor.__dict__.get("privet_roots") or (id(tensor),):  # the parameters it is a function of
                found.setdefault(root, []).append((tensor, share))
        self.let_go()

    def check_unchanged(self) -> None:
        for value, version in zip(self.plain, self.versions, strict=True):
            if value._version != version:
                raise Unsupported(
                    f"{name_of(self.name[0])} of {self.name[1][0]}: its input was changed in place after use, so its "
                    "gradient cannot be had; PyTorch refuses this too. Leave out inplace=True there."
                )


def examples_first(value: Tensor, where: Where, batch: int) -> Tensor:
    """(B, rows of an example, ...) from a tensor whose examples lie at `where`."""
    value = value if where.dim == 0 else value.movedim(where.dim, 0)
    rows, rest = divmod(value.shape[0], batch)
    if rest:
        raise Unforeseen(f"{value.shape[0]} rows cannot belong to {batch} examples")
    if where.major:
        return value.reshape(batch, rows, *value.shape[1:])
    return value.reshape(rows, batch, *value.shape[1:]).movedim(1, 0)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nest of lists, tuples, mappings and dataclasses, in order."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    for item in items_of(value):
        if isinstance(item, Tensor):
            found.append(item)
        elif item is not None and not isinstance(item, _PLAIN):
            found += tensors_in(item)
    return found


_PLAIN = (int, float, str, bytes, type)


def items_of(value: Any) -> Sequence[Any]:
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


def split(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The arguments that are tracked, and the plain ones that have a dimension."""
    entering: list[Tensor] = []
    plain: list[Tensor] = []
    for t in tensors_in(args if not kwargs else [args, kwargs]):
        if is_tracked(t):
            entering.append(t)
        elif t.dim():
            plain.append(t)
    return entering, plain


def name_of(func: Callable[..., Any]) -> str:
    """A function's name for people; a property's getter is called by the property."""
    name = getattr(func, "__name__", "function")
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name == "__get__" else name


@dataclass(slots=True)
class Names:
    """Names for tracked tensors, so that a call in one pass is found again in the next."""

    parameters: dict[int, str]
    seen: dict[Key, int] = field(default_factory=dict)

    def key(self, func: Callable[..., Any], entering: Sequence[Tensor]) -> tuple[Key, int]:
        """A name for this call of `func`, which tracked tensors are entering, and how often it was made before."""
        key = (func, tuple([self.of(t) for t in entering]))
        turn = self.seen.get(key, 0)
        self.seen[key] = turn + 1
        return key, turn

    def of(self, value: Tensor) -> str:
        found = self.parameters.get(id(value))
        return value.__dict__.get("privet_name", "another model's parameter") if found is None else found

    def derive(self, outputs: Any, key: Key, turn: int, entering: Sequence[Tensor]) -> None:
        """Track what is a function of parameters alone, and remember of which."""
        sources: frozenset[int] = frozenset().union(*(roots(t) for t in entering))
        for i, out in enumerate(tensors_in(outputs)):
            if out.is_floating_point() and out.requires_grad and not is_tracked(out):
                tracked(out).__dict__.update(
                    privet_name=f"{name_of(key[0])}({','.join(key[1])})[{turn}.{i}]", privet_roots=sources
                )


def roots(value: Tensor) -> frozenset[int]:
    """The identities of the parameters that a tracked tensor is a function of."""
    return value.__dict__.get("privet_roots") or frozenset((id(value),))


def names_of(named: Mapping[str, nn.Parameter]) -> Names:
    return Names({id(p): name for name, p in named.items()})


@dataclass(slots=True, eq=False)
class Tape:
    """Listens to one forward pass and keeps its uses."""

    names: Names
    facts: Facts
    batch: int
    rows: int
    forced: Mapping[str, str] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args = _as_copied(func, args)
        entering, plain = split(args, kwargs)
        key, turn = self.names.key(func, entering)
        known = self.facts.get(key)
        if known is None:
            raise Unforeseen(f"{name_of(func)} of {', '.join(key[1])} was not seen when the model was analysed")
        fact = known[min(turn, len(known) - 1)]
        if not fact.is_use:
            out = func(*args, **kwargs)
            self.names.derive(out, key, turn, entering)
            return out
        rule = rule_of(func, args, kwargs, forced=bool(self.forced) and is_forced(key[1], self.forced))
        out, watched, kept = rule.run(func, args, kwargs)
        self.uses.append(
            Use(
                name=key, rule=rule, func=func, args=args, kwargs=kwargs, fact=fact,
                batch=self.batch, rows=self.rows, edges=[get_gradient_edge(t) for t in watched], plain=plain,
                tracked=entering, is_plain=fact.in_front and self.rows == self.batch and _has_rows(plain, self.rows),
                is_asked=_is_asked(plain, watched), kept=kept, versions=[t._version for t in plain],
            )
        )  # fmt: skip
        return out


def _as_copied(func: Callable[..., Any], args: Sequence[Any]) -> Sequence[Any]:
    """Attention turns its input around, `linear` copies that, and autograd keeps the copy: so only that one is kept.

    Autograd keeps none for a weight that is not trained. Under hooks nothing is changed: a checkpoint runs the model
    again without the tape, and what is then saved must be the same.
    """
    if func is not F.linear or len(args) < 2 or is_tracked(args[0]) or not is_tracked(args[1]):
        return args
    return (args[0].contiguous(), *args[1:]) if _is_turned(args[0]) and _hooks(False) is None else args


def _is_turned(value: Tensor) -> bool:
    """Whether the rows of a tensor of three or more dimensions cannot be had as those of a matrix without a copy."""
    sizes, strides = value.shape, value.stride()
    return any(strides[i] != strides[i + 1] * sizes[i + 1] for i in range(value.dim() - 2))


def _has_rows(plain: Sequence[Tensor], rows: int) -> bool:
    return all(t.shape[0] == rows for t in plain)


def _is_asked(plain: Sequence[Tensor], watched: Sequence[Tensor]) -> bool:
    """Nothing lies below that autograd would pass through this use for; or it is small and costs nothing to keep."""
    return not any(t.requires_grad for t in plain) or len(watched) > 1 or watched[0].numel() <= SMALL


def is_forced(names: Sequence[str], forced: Mapping[str, str]) -> bool:
    """Whether the user wants the general rule for one of these parameters, named by the module they belong to."""
    return any(name == start or name.startswith(f"{start}.") for name in names for start in forced)
