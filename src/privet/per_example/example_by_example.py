"""The last resort: the whole model for each example alone, all of a chunk at once by vmap, else one after the other."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privet.per_example.forms import MOST_HELD, Dense, PerExampleGradient, widen
from privet.per_example.forward_record import map_tensors

if TYPE_CHECKING:
    from privet.per_example.gradients import Work


WAYS = ("auto", "vmap", "loop")


def gradients_in_chunks(work: "Work", *, by: str = "auto") -> Iterator[tuple[dict[str, PerExampleGradient], int]]:
    """(shares, number of examples) for one chunk after the other, so that memory stays bounded."""
    numel = sum(p.numel() for p in work.named.values())
    at_once = max(1, min(work.size, MOST_HELD // max(numel, 1)))
    for examples in torch.split(torch.arange(work.size), at_once):
        yield _chunk_gradients(work, examples, by), len(examples)


def _chunk_gradients(work: "Work", examples: Tensor, by: str) -> dict[str, PerExampleGradient]:
    if by == "loop":
        return _gradients_by_loop(work, examples)
    try:
        return _gradients_by_vmap(work, examples)
    except (RuntimeError, ValueError, NotImplementedError, TypeError, AttributeError):
        if by == "vmap":
            raise
        return _gradients_by_loop(work, examples)  # what vmap cannot do, it says in many ways


def _gradients_by_vmap(work: "Work", examples: Tensor) -> dict[str, PerExampleGradient]:
    values = {name: p.detach() for name, p in work.named.items()}
    rest = {name: t.detach() for name, t in [*work.model.named_buffers(), *work.model.named_parameters()]
            if name not in values}  # fmt: skip
    tensors: list[Tensor] = []

    def gather(t: Tensor) -> Tensor:
        tensors.append(torch.unflatten(t, 0, (-1, work.views))[examples.to(t.device)])
        return t

    map_tensors((work.inputs, work.targets), gather)

    def loss(parameters: dict[str, Tensor], *pieces: Tensor) -> Tensor:
        left = iter(pieces)

        def call(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(work.model, (parameters, rest), args, kwargs)

        return work.losses(call, lambda _: next(left)).mean()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *[0] * len(tensors)), randomness="different")(
        values, *tensors
    )
    return {name: Dense(widen(grad)) for name, grad in grads.items()}


def _select_rows(rows: slice, t: Tensor) -> Tensor:
    return t[rows]


def _gradients_by_loop(work: "Work", examples: Tensor) -> dict[str, PerExampleGradient]:
    found: dict[str, list[Tensor]] = {name: [] for name in work.named}
    for example in examples.tolist():
        rows = slice(example * work.views, (example + 1) * work.views)
        with torch.enable_grad():
            loss = work.losses(None, partial(_select_rows, rows)).mean()
        grads = torch.autograd.grad(loss, list(work.named.values()), allow_unused=True)
        for (name, p), grad in zip(work.named.items(), grads, strict=True):
            found[name].append(torch.zeros_like(p) if grad is None else grad)
    return {name: Dense(widen(torch.stack(grads))) for name, grads in found.items()}
