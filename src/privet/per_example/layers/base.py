"""What a layer rule is: how one torch function's parameters get their per-example gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from privet.errors import PrivetError
from privet.per_example.forms import Dense, PerExampleGradient, widen

if TYPE_CHECKING:
    from privet.per_example.forward_record import ParameterUse


class NoLayerRule(PrivetError):
    """The rules do not cover this model: it must be run example by example."""


Function = Callable[..., Any]
Ran = tuple[Any, list[Tensor], Any]  # the output, the tensors whose gradients are wanted, what to remember
Shares = Iterable[tuple[Tensor, PerExampleGradient]]  # of each tracked tensor


class LayerRule(Protocol):
    """One way to get the per-example gradients of the parameters that enter a torch function."""

    name: str

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the rule is right for this call; if not, the next more general one takes it."""

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        """Call the function, and say which tensors' gradients are wanted."""

    def gradients(self, use: "ParameterUse", grads: list[Tensor]) -> Shares:
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

    def gradients(self, use: "ParameterUse", grads: list[Tensor]) -> Shares:
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


def _call_with(use: "ParameterUse", data: list[Tensor], values: list[Tensor]) -> Any:
    """The function called with other tensors in the places of its plain and tracked ones."""
    swap = {id(t): new for t, new in zip([*use.plain, *use.tracked], [*data, *values], strict=True)}

    def put(value: Any) -> Any:
        if isinstance(value, Tensor):
            return swap.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return type(value)(put(item) for item in value)
        return value

    return use.func(*put(list(use.args)), **{key: put(value) for key, value in use.kwargs.items()})
