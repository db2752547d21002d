"""Normalisations that stay within an example: group, layer, RMS and instance norm."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from privet.errors import Unsupported
from privet.per_example.forms import Dense, widen
from privet.per_example.layers.base import Function, ParameterUse, PlainRun, Ran, Shares, bind_arguments, register

_LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
_GROUP = ("input", "num_groups", "weight", "bias", "eps")
_INSTANCE = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
_BATCH = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _affine_gradients(use: ParameterUse, g: Tensor, scaled: Tensor, weight: Any, bias: Any) -> Shares:
    """Shares from g and g xhat, (B, *shape of the parameters)."""
    if use.is_tracked(weight):
        yield weight, Dense(scaled.reshape(use.batch, *weight.shape))
    if use.is_tracked(bias):
        yield bias, Dense(g.reshape(use.batch, *bias.shape))


@register(F.layer_norm)
class LayerNorm(PlainRun):
    """weight: sum over positions of g xhat; bias: sum of g."""

    name = "layer norm"

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        x, shape, weight, bias, eps = bind_arguments(_LAYER, args, kwargs)
        out, mean, scale = torch.native_layer_norm(x, shape, weight, bias, 1e-5 if eps is None else eps)
        return out, [out], (mean, scale)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, shape, weight, bias, _ = bind_arguments(_LAYER, use.args, use.kwargs)
        mean, scale = use.kept
        g = widen(use.output(grads[0])).flatten(1, -len(shape) - 1)
        xhat = use.put_examples_first((widen(x.detach()) - mean).mul_(scale), use.fact.inputs[0]).flatten(
            1, -len(shape) - 1
        )
        yield from _affine_gradients(use, g.sum(1), xhat.mul_(g).sum(1), weight, bias)


@register(*([F.rms_norm] if hasattr(F, "rms_norm") else []))
class RmsNorm(PlainRun):
    """weight: sum over positions of g x / rms(x)."""

    name = "rms norm"

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, shape, weight, eps = bind_arguments(("input", "normalized_shape", "weight", "eps"), use.args, use.kwargs)
        xhat = use.put_examples_first(F.rms_norm(widen(x).detach(), shape, eps=eps), use.fact.inputs[0])
        g = widen(use.output(grads[0])).flatten(1, -len(shape) - 1)
        yield from _affine_gradients(use, g, (g * xhat.flatten(1, -len(shape) - 1)).sum(1), weight, None)


@register(F.group_norm)
class GroupNorm(PlainRun):
    """weight: (sum g x - mean sum g) scale for each channel, from two reductions; bias: sum g."""

    name = "group norm"

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        x, groups, weight, bias, eps = bind_arguments(_GROUP, args, kwargs)
        n, c, inside = x.shape[0], x.shape[1], x[0, 0].numel()
        out, mean, scale = torch.native_group_norm(
            x.contiguous(), weight, bias, n, c, inside, groups, 1e-5 if eps is None else eps
        )
        return out, [out], (mean, scale)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        x, groups, weight, bias, _ = bind_arguments(_GROUP, use.args, use.kwargs)
        mean, scale = (widen(t) for t in use.kept)  # (N, G)
        n, c = x.shape[:2]
        gx, g = _moments(widen(grads[0]).reshape(n, c, -1), widen(x).reshape(n, c, -1))
        by_group = g.view(n, groups, -1)
        scaled = (gx.view(n, groups, -1) - by_group * mean[..., None]) * scale[..., None]
        where = use.fact.outputs[0]
        yield from _affine_gradients(
            use, use.put_examples_first(g, where).sum(1), use.put_examples_first(scaled.reshape(n, c), where).sum(1),
            weight, bias,
        )  # fmt: skip


def _channel_gradients(use: ParameterUse, grad: Tensor, xhat: Tensor, weight: Any, bias: Any) -> Shares:
    n, c = xhat.shape[:2]
    scaled, g = _moments(widen(grad).reshape(n, c, -1), xhat.reshape(n, c, -1))
    where = use.fact.outputs[0]
    shares = use.put_examples_first(g, where).sum(1), use.put_examples_first(scaled, where).sum(1)
    return _affine_gradients(use, *shares, weight, bias)


def _moments(g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """sum g x and sum g over the last dimension."""
    return torch.linalg.vecdot(g, x), g.sum(-1)


@register(F.instance_norm)
class InstanceNorm(PlainRun):
    """As a group norm with one channel per group."""

    name = "instance norm"

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        given = dict(zip(_INSTANCE, bind_arguments(_INSTANCE, args, kwargs), strict=True))
        return given["use_input_stats"] is not False

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        if bind_arguments(_INSTANCE, args, kwargs)[1] is not None:
            raise Unsupported(
                "track_running_stats=True: the instance norm writes averages of the batch into the model, without "
                "noise. Use track_running_stats=False."
            )
        return super().run(func, args, kwargs)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        given = dict(zip(_INSTANCE, bind_arguments(_INSTANCE, use.args, use.kwargs), strict=True))
        eps = given["eps"]
        xhat = F.instance_norm(widen(given["input"]).detach(), eps=1e-5 if eps is None else eps)
        return _channel_gradients(use, grads[0], xhat, given["weight"], given["bias"])


@register(F.batch_norm)
class BatchNorm(PlainRun):
    """Refused in training: it mixes the examples. In evaluation it is a fixed scale and shift for each channel."""

    name = "batch norm"

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        if bind_arguments(_BATCH, args, kwargs)[5]:
            raise Unsupported(
                "batch_norm mixes the examples of a batch, so no clip bounds what one of them does. "
                "Use nn.GroupNorm(min(32, channels), channels) in its place."
            )
        return super().run(func, args, kwargs)

    def gradients(self, use: ParameterUse, grads: list[Tensor]) -> Shares:
        given = dict(zip(_BATCH, bind_arguments(_BATCH, use.args, use.kwargs), strict=True))
        x, mean, var, eps = given["input"], given["running_mean"], given["running_var"], given["eps"]
        xhat = F.batch_norm(widen(x).detach(), mean, var, eps=1e-5 if eps is None else eps)
        return _channel_gradients(use, grads[0], xhat, given["weight"], given["bias"])
