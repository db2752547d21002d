"""The last resort: the whole model for each example alone, all of a chunk at once by vmap, else one after the other."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privet.engine.batches import mapped
from privet.engine.share import MOST_HELD, Dense, Share, widened

if TYPE_CHECKING:
    from privet.engine.clipped import Work

WAYS = ("auto", "vmap", "loop")


def shares_in_chunks(work: "Work", *, by: str = "auto") -> Iterator[tuple[dict[str, Share], int]]:
    """(shares, number of examples) for one chunk after the other, so that memory stays bounded."""
    numel = sum(p.numel() for p in work.named.values())
    at_once = max(1, min(work.size, MOST_HELD // max(numel, 1)))
    for examples in torch.split(torch.arange(work.size), at_once):
        yield _chunk(work, examples, by), len(examples)


def _chunk(work: "Work", examples: Tensor, by: str) -> dict[str, Share]:
    if by == "loop":
        return _one_by_one(work, examples)
    try:
        return _vmapped(work, examples)
    except (RuntimeError, ValueError, NotImplementedError, TypeError, AttributeError):
        if by == "vmap":
            raise
        return _one_by_one(work, examples)  # what vmap cannot do, it says in many ways


def _vmapped(work: "Work", examples: Tensor) -> dict[str, Share]:
    values = {name: p.detach() for name, p in work.named.items()}
    rest = {name: t.detach() for name, t in [*work.model.named_buffers(), *work.model.named_parameters()]
            if name not in values}  # fmt: skip
    tensors: list[Tensor] = []

    def gather(t: Tensor) -> Tensor:
        tensors.append(torch.unflatten(t, 0, (-1, work.views))[examples.to(t.device)])
        return t

    mapped((work.inputs, work.targets), gather)

    def loss(parameters: dict[str, Tensor], *pieces: Tensor) -> Tensor:
        left = iter(pieces)

        def call(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(work.model, (parameters, rest), args, kwargs)

        return work.losses(call, lambda _: next(left)).mean()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *[0] * len(tensors)), randomness="different")(
        values, *tensors
    )
    return {name: Dense(widened(grad)) for name, grad in grads.items()}


def _rows(rows: slice, t: Tensor) -> Tensor:
    return t[rows]


def _one_by_one(work: "Work", examples: Tensor) -> dict[str, Share]:
    found: dict[str, list[Tensor]] = {name: [] for name in work.named}
    for example in examples.tolist():
        rows = slice(example * work.views, (example + 1) * work.views)
        with torch.enable_grad():
            loss = work.losses(None, partial(_rows, rows)).mean()
        grads = torch.autograd.grad(loss, list(work.named.values()), allow_unused=True)
        for (name, p), grad in zip(work.named.items(), grads, strict=True):
            found[name].append(torch.zeros_like(p) if grad is None else grad)
    return {name: Dense(widened(torch.stack(grads))) for name, grads in found.items()}
