"""Shares of a parameter that was used several times, or through a function of it: a slice, a low-rank update.

Let D = f(p). Example b's gradient of p is the pull-back of its gradient of D. The pull-back is linear, so a weighted
sum is pulled back once, after the sum; only norms need it for each example, and a view keeps the norm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from privet.engine.rows import Rows
from privet.engine.share import Dense, Outer, Share, Single, chunked_norms


def share_of(parameter: Tensor, pairs: Sequence[tuple[Tensor, Share]], batch: int) -> Share:
    """The share of a parameter from those of the tensors it was used through."""
    if len(pairs) == 1 and pairs[0][0] is parameter:
        return pairs[0][1]
    direct = [share for tensor, share in pairs if tensor is parameter]
    if len(direct) == len(pairs):
        return total(direct, batch, parameter.numel())
    views = [(tensor, share) for tensor, share in pairs if _is_view(tensor, parameter)]
    if len(views) == len(pairs) and parameter.is_contiguous() and _are_apart([tensor for tensor, _ in views]):
        return Blocks(parameter, tuple(views), batch)
    shares = [s if t is parameter else PulledBack(parameter, t, s, batch) for t, s in pairs]
    return total(shares, batch, parameter.numel())


def _is_view(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether each element of the tensor is one of the parameter's own, each at most once."""
    if tensor is parameter:
        return True
    own = tensor._is_view() and tensor._base is parameter and tensor.dtype == parameter.dtype
    return own and parameter.is_contiguous() and not _overlaps(tensor)


def _overlaps(tensor: Tensor) -> bool:
    """Whether two places of the tensor may be one in memory, as after expand or unfold."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _are_apart(tensors: Sequence[Tensor]) -> bool:
    """Whether the views share no element: the ranges of memory that they span do not meet."""
    spans = sorted((t.storage_offset(), t.storage_offset() + _length(t)) for t in tensors)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def _length(tensor: Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


@dataclass(slots=True)
class Blocks:
    """Views of one parameter that share no element, so that squared norms add."""

    parameter: Tensor
    views: tuple[tuple[Tensor, Share], ...]
    batch: int

    def sq_norms(self) -> Tensor:
        found = self.views[0][1].sq_norms()
        for _, share in self.views[1:]:
            found = found + share.sq_norms()
        return found

    def weighted_sum(self, weights: Tensor) -> Tensor:
        found = torch.zeros_like(self.parameter, dtype=weights.dtype, memory_format=torch.contiguous_format)
        for view, share in self.views:
            _place(found, self.parameter, view).add_(share.weighted_sum(weights))
        return found

    def dense(self) -> Tensor:
        grads = [share.dense() for _, share in self.views]
        found = grads[0].new_zeros(self.batch, *self.parameter.shape)
        for (view, _), grad in zip(self.views, grads, strict=True):
            for b in range(self.batch):
                _place(found[b], self.parameter, view).add_(grad[b])
        return found

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Blocks":
        return Blocks(self.parameter, tuple((view, s.part(rows, dtype)) for view, s in self.views), len(rows))


def _place(whole: Tensor, parameter: Tensor, view: Tensor) -> Tensor:
    """The part of `whole`, a contiguous tensor like the parameter, that the view is of the parameter."""
    offset = whole.storage_offset() + view.storage_offset() - parameter.storage_offset()
    return whole.as_strided(view.shape, view.stride(), offset)


@dataclass(slots=True)
class PulledBack:
    """The gradient of p from that of D = f(p), through autograd's graph of f."""

    parameter: Tensor
    derived: Tensor
    inner: Share
    batch: int

    def sq_norms(self) -> Tensor:
        return chunked_norms(self, self.batch, max(self.parameter.numel(), self.derived.numel()))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        summed = self.inner.weighted_sum(weights).to(self.derived.dtype)
        return self._pull(summed, batched=False).to(weights.dtype)

    def dense(self) -> Tensor:
        grads = self.inner.dense()
        return self._pull(grads.to(self.derived.dtype), batched=True).to(grads.dtype)

    def _pull(self, grad: Tensor, *, batched: bool) -> Tensor:
        found: Tensor = torch.autograd.grad(
            self.derived, self.parameter, grad, retain_graph=True, is_grads_batched=batched
        )[0]
        return found

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Dense | PulledBack":
        return PulledBack(self.parameter, self.derived, self.inner.part(rows, dtype), len(rows))


def total(shares: Sequence[Share], batch: int, numel: int) -> Share:
    """The share of a tensor that was used several times: gradients add before the norm is taken."""
    if len(shares) == 1:
        return shares[0]
    pairs = [_positions(share) for share in shares if isinstance(share, (Single, Outer))]
    if len(pairs) == len(shares):
        return Outer(torch.cat([a for a, _ in pairs], 1), torch.cat([g for _, g in pairs], 1))
    rows = [share for share in shares if isinstance(share, Rows)]
    if len(rows) == len(shares):  # padded positions are zero already
        return Rows(torch.cat([s.index for s in rows], 1), torch.cat([s.g for s in rows], 1), rows[0].shape)
    return Several(tuple(shares), batch, numel)


def _positions(share: "Single | Outer") -> tuple[Tensor, Tensor]:
    """Inputs and output gradients, (B, T, ...)."""
    return (share.a[:, None], share.g.grads[:, None]) if isinstance(share, Single) else (share.a, share.g)


@dataclass(slots=True)
class Several:
    """Different uses of one tensor, e.g. an embedding that is also the output layer."""

    shares: tuple[Share, ...]
    batch: int
    numel: int

    def sq_norms(self) -> Tensor:
        return chunked_norms(self, self.batch, self.numel)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        found = self.shares[0].weighted_sum(weights)
        for share in self.shares[1:]:
            found = found + share.weighted_sum(weights)
        return found

    def dense(self) -> Tensor:
        found = self.shares[0].dense()
        for share in self.shares[1:]:
            found = found + share.dense()
        return found

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Several":
        return Several(tuple(share.part(rows, dtype) for share in self.shares), len(rows), self.numel)
