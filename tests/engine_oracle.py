"""The slow, obvious way: one example at a time through autograd, clipped one by one, summed in float64."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from privet.clipping.rule import clipping_rule

CrossEntropy = nn.CrossEntropyLoss(reduction="none")


class Fn(nn.Module):
    """A model from a function of itself and its inputs; other arguments become its modules and parameters."""

    def __init__(self, forward: Callable, **parts) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *inputs):
        return self._forward(self, *inputs)


def rows_of(value, rows: slice):
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, dict):
        return {key: rows_of(item, rows) for key, item in value.items()}
    return tuple(rows_of(item, rows) for item in value)


def outputs_of(model: nn.Module, inputs):
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def gradients(model: nn.Module, loss_fn: Callable, batch, *, views: int = 1) -> list[dict[str, Tensor]]:
    """The gradient of each example, in float64, from a run of the model on that example alone."""
    inputs, targets = batch
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for b in range(len(targets) // views):
        rows = slice(b * views, (b + 1) * views)
        loss = loss_fn(outputs_of(model, rows_of(inputs, rows)), rows_of(targets, rows)).mean()
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
        found.append({
            name: torch.zeros_like(p, dtype=torch.float64) if grad is None else grad.double()
            for (name, p), grad in zip(named.items(), grads, strict=True)
        })  # fmt: skip
    return found


def summed(model: nn.Module, each: list[dict[str, Tensor]], rule: str, clip: float) -> dict[str, Tensor]:
    """The sum of clipped gradients; an example that is not finite counts as zero."""
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters() if p.requires_grad}
    groups = clipping_rule(rule).groups(list(total))
    share = clip / math.sqrt(len(groups))
    for grads in each:
        if not all(bool(grad.isfinite().all()) for grad in grads.values()):
            continue
        for group in groups:
            norm = size({name: grads[name] for name in group})
            for name in group:
                total[name] += grads[name] * min(1.0, share / norm if norm else 1.0)
    return total


def slow_sum(
    model: nn.Module, loss_fn: Callable, batch, rule: str, clip: float, *, views: int = 1
) -> dict[str, Tensor]:
    return summed(model, gradients(model, loss_fn, batch, views=views), rule, clip)


def size(grads) -> float:
    """The norm of all tensors together."""
    return math.sqrt(sum(float(grad.double().square().sum()) for grad in grads.values()))


def apart(one, other) -> float:
    """The norm of the difference."""
    assert one.keys() == other.keys()
    return size({name: grad.double() - other[name].double() for name, grad in one.items()})
