"""What a layer rule is, and the call it is asked about: how one torch function's parameters get their gradients."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from privet.errors import PrivetError, Unsupported
from privet.per_example.forms import Dense, PerExampleGradient, widen


class NoLayerRule(PrivetError):
    """The rules do not cover this model: it must be run example by example."""


Function = Callable[..., Any]
Ran = tuple[Any, list[Tensor], Any]  # the output, the tensors whose gradients are wanted, what to remember
Shares = Iterable[tuple[Tensor, PerExampleGradient]]  # of each tracked tensor
Key = tuple[Callable[..., Any], tuple[str, ...]]
Found = dict[int, list[tuple[Tensor, PerExampleGradient]]]  # by the parameter's identity


class UnseenCall(PrivetError):
    """A call that analysis has not seen: the model took another way with this batch."""


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


@dataclass(slots=True, eq=False)
class ParameterUse:
    """One meeting of parameters and data, kept until the gradients of its outputs are known."""

    name: Key
    rule: "LayerRule"
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


def function_name(func: Callable[..., Any]) -> str:
    """A function's name for people; a property's getter is called by the property."""
    name = getattr(func, "__name__", "function")
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name == "__get__" else name


class LayerRule(Protocol):
    """One way to get the per-example gradients of the parameters that enter a torch function."""

    name: str

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the rule is right for this call; if not, the next more general one takes it."""

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        """Call the function, and say which tensors' gradients are wanted."""

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        """(tracked tensor, share) for each tracked argument, given the gradients of the tensors that were wanted."""


_rules: dict[Function, LayerRule] = {}


def register(*functions: Function) -> Callable[[type[LayerRule]], type[LayerRule]]:
    """Class decorator: this rule answers for these torch functions."""

    def add(kind: type[LayerRule]) -> type[LayerRule]:
        rule = kind()
        _rules.update(dict.fromkeys(functions, rule))
        return kind

    return add


def functions_of(kind: type) -> list[Function]:
    return [func for func, rule in _rules.items() if type(rule) is kind]


def layer_rule(func: Function, args: Sequence[Any], kwargs: dict[str, Any], *, forced: bool = False) -> LayerRule:
    """The rule for a function; the general one, if there is none or it is forced, is a vmap of the function's vjp."""
    rule = None if forced else _rules.get(func)
    return rule if rule is not None and rule.accepts(args, kwargs) else _rules[layer_rule]


def bind_arguments(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of `names`, wherever they were given; None for what was not."""
    if not kwargs:
        return [*args[: len(names)], *[None] * (len(names) - len(args))]
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]


class PlainRun:
    """For all calls of a function, which runs as it is and has one output, unless a rule says otherwise."""

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return True

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        out = func(*args, **kwargs)
        return out, [out], None


@register(layer_rule)  # where no other rule answers
class PerFunction:
    """The function is called again for each example alone, all at once by vmap, and differentiated."""

    name = "vmap of this function"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return True

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        name = func.__name__
        if name.endswith("_") and not name.endswith("__"):
            raise NoLayerRule(f"{name} changes a tensor in place with a parameter")
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor):
            raise NoLayerRule(f"{name} of parameters and data gives {type(out).__name__}, not one tensor")
        return out, [out], None

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        data = [use.put_examples_first(t, w) if w else t for t, w in zip(use.plain, use.fact.inputs, strict=True)]
        axes = tuple(0 if w else None for w in use.fact.inputs)
        parameters = [t.detach() for t in use.tracked]

        def of_one(g: Tensor, *pieces: Tensor) -> tuple[Tensor, ...]:
            def again(*values: Tensor) -> Tensor:
                placed = [_move_examples_back(t, w) for t, w in zip(pieces, use.fact.inputs, strict=True)]
                made: Tensor = _call_with(use, placed, list(values))
                return made

            pull: Any = torch.func.vjp(again, *parameters)[1]
            found: tuple[Tensor, ...] = pull(_move_examples_back(g, use.fact.outputs[0]))
            return found

        vmapped: Callable[..., tuple[Tensor, ...]] = torch.func.vmap(of_one, in_dims=(0, *axes))
        for value, found in zip(use.tracked, vmapped(use.output(grads[0]), *data), strict=True):
            yield value, Dense(widen(found))


def _move_examples_back(piece: Tensor, where: Any) -> Tensor:
    """One example's rows, (rows, ...), where the function expects its examples."""
    return piece if where is None else piece.movedim(0, where.dim)


def _call_with(use: ParameterUse, data: list[Tensor], values: list[Tensor]) -> Any:
    """The function called with other tensors in the places of its plain and tracked ones."""
    swap = {id(t): new for t, new in zip([*use.plain, *use.tracked], [*data, *values], strict=True)}

    def put(value: Any) -> Any:
        if isinstance(value, Tensor):
            return swap.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return type(value)(put(item) for item in value)
        return value

    return use.func(*put(list(use.args)), **{key: put(value) for key, value in use.kwargs.items()})
