"""Tables of rows looked up by the data: embedding, embedding bag, and plain indexing."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privet.errors import Unsupported
from privet.per_example.derived_forms import EmbeddingRows
from privet.per_example.forms import widen
from privet.per_example.interception import is_tracked
from privet.per_example.layers.base import Function, ParameterUse, PlainRun, Ran, Shares, bind_arguments, register

_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_BAG = ("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
        "per_sample_weights", "include_last_offset", "padding_idx")  # fmt: skip


def _check(max_norm: Any, by_frequency: Any) -> None:
    if max_norm is not None:
        raise Unsupported(
            f"max_norm={max_norm!r}: the embedding rewrites its rows from the batch, before any noise. "
            "Leave out max_norm."
        )
    if by_frequency:
        raise Unsupported(
            "scale_grad_by_freq=True: an example's gradient depends on the words of the others. Leave it out."
        )


@register(F.embedding)
class Embedding(PlainRun):
    """Row index_bt gets g_bt; the row of padding_idx gets nothing."""

    name = "embedding"

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        _, _, _, max_norm, _, by_frequency, _ = bind_arguments(_EMBEDDING, args, kwargs)
        _check(max_norm, by_frequency)
        return super().run(func, args, kwargs)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        index, weight, padding, *_ = bind_arguments(_EMBEDDING, use.args, use.kwargs)
        g = widen(use.output(grads[0])).flatten(1, -2)
        if padding is not None and padding < 0:
            padding += weight.shape[0]
        yield weight, EmbeddingRows(use.input(index).flatten(1), g, tuple(weight.shape), padding)


@register(Tensor.__getitem__, torch.index_select, Tensor.index_select)
class Indexed(PlainRun):
    """table[index], or table.index_select(0, index), with one tensor of whole numbers."""

    name = "indexing"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if kwargs or not is_tracked(args[0]) or (len(args) == 3 and args[1] != 0):
            return False
        return isinstance(args[-1], Tensor) and args[-1].dtype in (torch.int64, torch.int32)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        table, *_, index = use.args
        rows = use.input(index).flatten(1)
        g = widen(use.output(grads[0])).reshape(use.batch, rows.shape[1], -1)
        yield table, EmbeddingRows(rows % table.shape[0], g, tuple(table.shape))


@register(F.embedding_bag)
class EmbeddingBag(PlainRun):
    """A bag of rows per example, (B, T) indices: summed, averaged or the largest of each coordinate."""

    name = "embedding bag"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        index, *_ = bind_arguments(_BAG, args, kwargs)
        return bool(index.dim() == 2)

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        given = dict(zip(_BAG, bind_arguments(_BAG, args, kwargs), strict=True))
        _check(given["max_norm"], given["scale_grad_by_freq"])
        return super().run(func, args, kwargs)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        given = dict(zip(_BAG, bind_arguments(_BAG, use.args, use.kwargs), strict=True))
        weight, mode = given["weight"], given["mode"] or "mean"
        index = given["input"]  # (B rows, T): one bag each
        g = widen(use.put_examples_first(grads[0], use.fact.outputs[0])).flatten(0, 1)[:, None, :]  # (rows, 1, D)
        rows = use.input(index).flatten(0, 1)
        padding = given["padding_idx"]
        padding = padding + weight.shape[0] if padding is not None and padding < 0 else padding
        real = torch.ones_like(rows, dtype=torch.bool) if padding is None else rows != padding
        if mode == "max":
            spread = _route_to_largest(weight, rows, real, g)
        else:
            share = given["per_sample_weights"]
            scale = real.to(g.dtype) if share is None else real * widen(share)
            if mode == "mean":
                scale = scale / real.sum(1, keepdim=True).clamp(min=1)
            spread = scale[..., None] * g
        yield (
            weight,
            EmbeddingRows(rows.reshape(use.batch, -1), spread.reshape(use.batch, -1, g.shape[2]), tuple(weight.shape)),
        )


def _route_to_largest(weight: Tensor, rows: Tensor, real: Tensor, g: Tensor) -> Tensor:
    """(rows, T, D): each coordinate's gradient goes to the row that held the largest value."""
    values = weight.detach()[rows].masked_fill(~real[..., None], float("-inf"))
    at = values.argmax(1, keepdim=True)  # the first of equals, as PyTorch does
    found = torch.zeros_like(values, dtype=g.dtype).scatter_(1, at, g)
    return found.masked_fill(~real[..., None], 0)
