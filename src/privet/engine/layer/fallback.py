"""Every other torch function of parameters and data: a vmap of its vector-Jacobian product, example by example."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privet.engine.layer.base import Function, Ran, TooHard, register_last
from privet.engine.share import Dense, Share, widened

if TYPE_CHECKING:
    from privet.engine.tape import Use


@register_last
class PerFunction:
    """The function is called again for each example alone, all at once by vmap, and differentiated."""

    name = "vmap of this function"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return True

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        name = func.__name__
        if name.endswith("_") and not name.endswith("__"):
            raise TooHard(f"{name} changes a tensor in place with a parameter")
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor):
            raise TooHard(f"{name} of parameters and data gives {type(out).__name__}, not one tensor")
        return out, [out], None

    def shares(self, use: "Use", grads: list[Tensor]) -> Iterator[tuple[Tensor, Share]]:
        data = [use.first(t, w) if w else t for t, w in zip(use.plain, use.fact.inputs, strict=True)]
        axes = tuple(0 if w else None for w in use.fact.inputs)
        parameters = [t.detach() for t in use.tracked]

        def of_one(g: Tensor, *pieces: Tensor) -> tuple[Tensor, ...]:
            def again(*values: Tensor) -> Tensor:
                placed = [_back(t, w) for t, w in zip(pieces, use.fact.inputs, strict=True)]
                made: Tensor = _with(use, placed, list(values))
                return made

            pull: Any = torch.func.vjp(again, *parameters)[1]
            found: tuple[Tensor, ...] = pull(_back(g, use.fact.outputs[0]))
            return found

        vmapped: Callable[..., tuple[Tensor, ...]] = torch.func.vmap(of_one, in_dims=(0, *axes))
        for value, found in zip(use.tracked, vmapped(use.output(grads[0]), *data), strict=True):
            yield value, Dense(widened(found))


def _back(piece: Tensor, where: Any) -> Tensor:
    """One example's rows, (rows, ...), where the function expects its examples."""
    return piece if where is None else piece.movedim(0, where.dim)


def _with(use: "Use", data: list[Tensor], values: list[Tensor]) -> Any:
    """The function called with other tensors in the places of its plain and tracked ones."""
    swap = {id(t): new for t, new in zip([*use.plain, *use.tracked], [*data, *values], strict=True)}

    def put(value: Any) -> Any:
        if isinstance(value, Tensor):
            return swap.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return type(value)(put(item) for item in value)
        return value

    return use.func(*put(list(use.args)), **{key: put(value) for key, value in use.kwargs.items()})
