"""Free parameters that are added to, multiplied with or spread over the data: biases, scales, class tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from privet.per_example.forms import Dense, widen
from privet.per_example.interception import is_tracked
from privet.per_example.layers.base import ParameterUse, PlainRun, Shares, register


def sum_to_shape(use: ParameterUse, value: Tensor, shape: Sequence[int]) -> Tensor:
    """(B, *shape) from a tensor of the output's shape: summed over what `shape` was broadcast along."""
    where = use.fact.outputs[0]
    assert where is not None
    padded = [1] * (value.dim() - len(shape)) + list(shape)
    del padded[where.dim]
    found = widen(use.output(value)).sum(1)  # (B, the other dimensions)
    over = [i + 1 for i, size in enumerate(padded) if size == 1 and found.shape[i + 1] != 1]
    if over:
        found = found.sum(over, keepdim=True)
    return found.reshape(use.batch, *shape)


@register(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__,
          torch.sub, Tensor.sub, Tensor.__sub__)  # fmt: skip
class Sum(PlainRun):
    """y = x + w or x - w."""

    name = "sum"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return not kwargs and len(args) == 2

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        minus = use.func in (torch.sub, Tensor.sub, Tensor.__sub__)
        for place, value in enumerate(use.args):
            if use.is_tracked(value):
                found = sum_to_shape(use, grads[0], value.shape)
                yield value, Dense(-found if minus and place == 1 else found)


@register(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
class Scale(PlainRun):
    """y = x w: example b has gradient sum g x over what w was broadcast along."""

    name = "scale"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return not kwargs and len(args) == 2 and sum(map(is_tracked, args)) == 1

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, w = use.args if use.is_tracked(use.args[1]) else use.args[::-1]
        yield w, Dense(sum_to_shape(use, widen(grads[0]) * x, w.shape))


@register(Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.repeat)
class Spread(PlainRun):
    """A parameter spread over the examples, such as a class token: each gets its own copy."""

    name = "spread"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return is_tracked(args[0]) and not kwargs

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        value = use.args[0]
        summed = _sum_repeats if use.func is Tensor.repeat else sum_to_shape
        yield value, Dense(summed(use, grads[0], value.shape))


def _sum_repeats(use: ParameterUse, grad: Tensor, shape: Sequence[int]) -> Tensor:
    """`repeat` tiles: a dimension of size n repeated r times is (r, n), and r is summed over."""
    where = use.fact.outputs[0]
    assert where is not None
    padded = [1] * (grad.dim() - len(shape)) + list(shape)
    found = widen(use.output(grad))  # (B, tiles of an example, the other dimensions)
    del padded[where.dim]
    found = found.sum(1)
    for i, size in enumerate(padded):
        found = torch.unflatten(found, i + 1, (-1, size)).sum(i + 1)
    return found.reshape(use.batch, *shape)
