"""Linear maps: F.linear with any leading dimensions, products with a matrix or vector, and addmm."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privet.per_example.forms import WIDE, Dense, OuterProduct, PerExampleGradient, compact_outer_product, widen
from privet.per_example.interception import is_tracked
from privet.per_example.layers.base import ParameterUse, PlainRun, Shares, bind_arguments, register

_LINEAR = ("input", "weight", "bias")


def flatten_positions(value: Tensor) -> Tensor:
    return widen(value).flatten(1, -2)


@register(F.linear)
class Linear(PlainRun):
    """y = x W^T + b: example b has weight gradient sum_t g_bt a_bt^T and bias gradient sum_t g_bt."""

    name = "linear"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        x, weight, _ = bind_arguments(_LINEAR, args, kwargs)
        return not is_tracked(x) and weight.dim() == 2

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        found: list[tuple[Tensor, PerExampleGradient]] = []
        x, weight, bias = use.args if len(use.args) == 3 else bind_arguments(_LINEAR, use.args, use.kwargs)
        if grads[0].dim() == 2 and use.is_plain:  # one row for each example
            x, g = x.detach(), grads[0]
            bias_share = Dense(g if g.dtype in WIDE else g.float())
            if id(weight) in use.ids:
                found.append((weight, OuterProduct(x if x.dtype in WIDE else x.float(), bias_share)))
        else:
            rows = flatten_positions(use.output(grads[0]))
            bias_share = Dense(rows.sum(1))
            if id(weight) in use.ids:
                found.append((weight, compact_outer_product(flatten_positions(use.input(x)), rows)))
        if id(bias) in use.ids:
            found.append((bias, bias_share))
        return found


@register(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
class Product(PlainRun):
    """y = x W with a matrix or vector on the right: the transpose of `Linear`."""

    name = "product"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return not kwargs and not is_tracked(args[0]) and args[1].dim() <= 2 and args[0].dim() >= 2

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, weight = use.args
        a, g = flatten_positions(use.input(x)), use.output(grads[0])
        if weight.dim() == 1:
            yield weight, Dense(torch.einsum("bti,bt->bi", a, widen(g).flatten(1)))
        else:
            yield weight, compact_outer_product(flatten_positions(g), a)


@register(torch.addmm, Tensor.addmm)
class AddProduct(PlainRun):
    """y = b + x W with a matrix on the right."""

    name = "product"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        return not kwargs and not is_tracked(args[1]) and args[2].dim() == 2 and args[0].dim() == 1

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        bias, x, weight = use.args
        g = flatten_positions(use.output(grads[0]))
        if use.is_tracked(weight):
            yield weight, compact_outer_product(g, flatten_positions(use.input(x)))
        if use.is_tracked(bias):
            yield bias, Dense(g.sum(1))
