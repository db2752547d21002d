"""Convolutions in one to three dimensions, ordinary and transposed, with any stride, padding, dilation and groups."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privet.per_example.forms import Dense, PerExampleGradient, Rearranged, compact_outer_product, widen
from privet.per_example.interception import is_tracked
from privet.per_example.layers.base import ParameterUse, PlainRun, Shares, bind_arguments, register

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


FEW_IN, MANY_OUT = 8, 32  # channels, up to and from which shifted copies of the images are the quicker way, as measured
COLUMNS, RESULTS = 1 << 18, 1 << 20  # numbers at once: of shifted copies, and of gradients


def _to_sizes(value: Any, dims: int, default: int) -> list[int]:
    value = default if value is None else value
    return [int(value)] * dims if isinstance(value, int) else [int(v) for v in value] * (dims // len(value))


def weight_grads(
    x: Tensor, g: Tensor, kernel: torch.Size, *, stride: list[int], padding: list[int], dilation: list[int],
    groups: int
) -> Tensor:  # fmt: skip
    """The weight gradient of each example, (N, O, C / groups, *kernel), from x (N, C, ...) and g (N, O, ...)."""
    n, c, o = x.shape[0], x.shape[1], g.shape[1]
    fits = c * kernel.numel() * g.shape[2:].numel() <= COLUMNS  # else copies leave the cache, or fill the memory
    if groups == 1 and (c <= FEW_IN or (fits and (o >= MANY_OUT or not x.is_contiguous()))):
        return _gradients_by_columns(x, g, kernel, stride=stride, padding=padding, dilation=dilation)
    at_once = max(1, RESULTS // (o * c // groups * kernel.numel()))
    pieces = [
        _gradients_by_groups(x[k : k + at_once], g[k : k + at_once], kernel, stride, padding, dilation, groups)
        for k in range(0, n, at_once)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _gradients_by_groups(
    x: Tensor, g: Tensor, kernel: torch.Size, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """One convolution whose groups are the examples: example n's channels see example n's gradients only."""
    n, c, o = x.shape[0], x.shape[1], g.shape[1]
    dummy = x.new_empty(1).expand(n * o, c // groups, *kernel)
    found: Tensor = torch.ops.aten.convolution_backward(
        g.reshape(1, n * o, *g.shape[2:]), x.reshape(1, n * c, *x.shape[2:]), dummy, None, stride, padding, dilation,
        False, [0] * len(kernel), n * groups, [False, True, False],
    )[1]  # fmt: skip
    return found.view(n, o, c // groups, *kernel)


def _gradients_by_columns(
    x: Tensor, g: Tensor, kernel: torch.Size, *, stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """Shifted images as the columns of a matrix, and one batched product with them.

    Of a place, a row of the kernel with its channels lies together if channels are last in memory; of a number of the
    kernel, a row of places does if they are not: what is longer is quicker to copy. Some examples at a time: what is
    copied stays in the cache. Images that lie right and have no padding are left as they are.
    """
    n, c, o, places = len(x), x.shape[1], g.shape[1], g.shape[2:]
    by_place = c * kernel[-1] * stride[-1] >= places[-1] or not x.is_contiguous()
    count, width = places.numel(), kernel.numel() * c
    at_once = max(1, min(n, torch.get_num_threads() * COLUMNS // (width * count)))
    images = x.movedim(1, -1) if by_place else x
    room = _padded_buffer(images, at_once, [0, *padding, 0] if by_place else [0, 0, *padding])
    example, *rest = (images if room is None else room[0]).stride()
    channel, along = (rest.pop(), rest) if by_place else (rest.pop(0), rest)
    step, spread = ([s * i for s, i in zip(by, along, strict=True)] for by in (stride, dilation))
    shape: tuple[int, ...] = (*places, *kernel, c) if by_place else (c, *kernel, *places)
    strides = (*step, *spread, channel) if by_place else (channel, *spread, *step)
    flat, found = g.flatten(2), g.new_empty(n, o, width)
    for k in range(0, n, at_once):
        piece = images[k : k + at_once]
        if room is not None:
            whole, inside = room
            inside[: len(piece)] = piece
            piece = whole[: len(piece)]
        shifted = piece.as_strided((len(piece), *shape), (example, *strides))
        columns = shifted.reshape(-1, count, width) if by_place else shifted.reshape(-1, width, count).mT
        torch.bmm(flat[k : k + at_once], columns, out=found[k : k + at_once])
    return found.view(n, o, *kernel, c).movedim(-1, 2) if by_place else found.view(n, o, c, *kernel)


def _padded_buffer(images: Tensor, count: int, border: list[int]) -> tuple[Tensor, Tensor] | None:
    """Room for some images with zeros around them, and the part inside; None if they can be read where they are."""
    if not any(border) and images.is_contiguous():
        return None
    sizes = [count, *images.shape[1:]]
    room = images.new_zeros([s + 2 * b for s, b in zip(sizes, border, strict=True)])
    return room, room[tuple(slice(b, b + s) for s, b in zip(sizes, border, strict=True))]


def _same_padding(x: Tensor, kernel: Sequence[int], dilation: list[int]) -> Tensor:
    """`padding="same"`: as much on both sides, one more at the end where the total is odd."""
    around: list[int] = []
    for k, d in zip(reversed(kernel), reversed(dilation), strict=True):
        whole = d * (k - 1)
        around += [whole // 2, whole - whole // 2]
    return F.pad(x, around)


@register(F.conv1d, F.conv2d, F.conv3d)
class Convolution(PlainRun):
    """Per-example weight gradients by a convolution grouped over the examples."""

    name = "convolution"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        x, weight, *_ = bind_arguments(_CONV, args, kwargs)  # the first names of both kinds
        return not is_tracked(x) and x.dim() == weight.dim()

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, weight, bias, stride, padding, dilation, groups = bind_arguments(_CONV, use.args, use.kwargs)
        kernel, dims = weight.shape[2:], weight.dim() - 2
        steps, spread = _to_sizes(stride, dims, 1), _to_sizes(dilation, dims, 1)
        g, a = widen(grads[0]), widen(x.detach())
        if padding == "same":
            a, padding = _same_padding(a, kernel, spread), 0
        padding = 0 if padding in ("valid", None) or not any(_to_sizes(padding, dims, 0)) else padding
        where = use.fact.outputs[0]
        if use.is_tracked(weight) and kernel.numel() == 1 and (groups or 1) == 1 and padding == 0:
            yield weight, _pointwise_gradient(use, _subsample(a, steps), g)
        elif use.is_tracked(weight):
            found = weight_grads(a, g, kernel, stride=steps, padding=_to_sizes(padding, dims, 0), dilation=spread,
                                 groups=groups or 1)  # fmt: skip
            yield weight, _wrap_gradient(_sum_images(use, found, where))
        if use.is_tracked(bias):
            yield bias, Dense(_sum_images(use, g.flatten(2).sum(2), where))


def _wrap_gradient(found: Tensor) -> PerExampleGradient:
    """Gradients (B, O, C, *kernel) as they lie in memory: with the channels before the kernel, or behind it."""
    if found.is_contiguous():
        return Dense(found)
    return Rearranged(Dense(found.movedim(2, -1)), lambda t: t.movedim(-1, 1), lambda t: t.movedim(-1, 2))


def _subsample(a: Tensor, steps: list[int]) -> Tensor:
    """The places that a kernel of one pixel reads."""
    for dim, step in enumerate(steps, start=2):
        a = a[(slice(None),) * dim + (slice(None, None, step),)]
    return a


def _pointwise_gradient(use: ParameterUse, a: Tensor, g: Tensor) -> PerExampleGradient:
    """A kernel of one pixel is a linear map at each place."""
    shape = g.shape[1], a.shape[1], *[1] * (g.dim() - 2)
    inner = [
        use.put_examples_first(t.flatten(2).mT, use.fact.outputs[0]).flatten(1, 2) for t in (a, g)
    ]  # (B, T, C), (B, T, O)
    return Rearranged(compact_outer_product(*inner), lambda t: t.reshape(shape), lambda t: t.reshape(len(t), *shape))


def _sum_images(use: ParameterUse, found: Tensor, where: Any) -> Tensor:
    """(B, ...) from one row for each image: an example may have several."""
    if found.shape[0] == use.batch:
        return found
    return use.put_examples_first(found, where).sum(1)


@register(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
class TransposedConvolution(Convolution):
    """The convolution's adjoint, so its weight gradient is that of a convolution with input and gradient swapped."""

    name = "transposed convolution"

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, weight, bias, stride, padding, _, groups, dilation = bind_arguments(_TRANSPOSED, use.args, use.kwargs)
        kernel, dims = weight.shape[2:], weight.dim() - 2
        g, a = widen(grads[0]), widen(x.detach())
        where = use.fact.outputs[0]
        if use.is_tracked(weight):
            found = weight_grads(
                g, a, kernel, stride=_to_sizes(stride, dims, 1), padding=_to_sizes(padding, dims, 0),
                dilation=_to_sizes(dilation, dims, 1), groups=groups or 1,
            )  # fmt: skip
            yield weight, _wrap_gradient(_sum_images(use, found, where))
        if use.is_tracked(bias):
            yield bias, Dense(_sum_images(use, g.flatten(2).sum(2), where))
