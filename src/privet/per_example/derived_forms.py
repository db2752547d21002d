"""Shares of a parameter that was used several times, or through a function of it: a slice, a low-rank update.

Let D = f(p). Example b's gradient of p is the pull-back of its gradient of D. The pull-back is linear, so a weighted
sum is pulled back once, after the sum; only norms need it for each example, and a view keeps the norm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from privet.per_example import forms


def gradient_of_parameter(
    parameter: Tensor, pairs: Sequence[tuple[Tensor, forms.PerExampleGradient]], batch: int
) -> forms.PerExampleGradient:
    if len(pairs) == 1 and pairs[0][0] is parameter:
        return pairs[0][1]
    direct = [share for tensor, share in pairs if tensor is parameter]
    if len(direct) == len(pairs):
        return add_uses(direct, batch, parameter.numel())
    views = [(tensor, share) for tensor, share in pairs if _is_view(tensor, parameter)]
    if len(views) == len(pairs) and parameter.is_contiguous() and _are_disjoint([tensor for tensor, _ in views]):
        return SlicedUse(parameter, tuple(views), batch)
    shares = [s if t is parameter else ThroughFunction(parameter, t, s, batch) for t, s in pairs]
    return add_uses(shares, batch, parameter.numel())


def _is_view(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether each element of the tensor is one of the parameter's own, each at most once."""
    if tensor is parameter:
        return True
    own = tensor._is_view() and tensor._base is parameter and tensor.dtype == parameter.dtype
    return own and parameter.is_contiguous() and not _may_overlap(tensor)


def _may_overlap(tensor: Tensor) -> bool:
    """Whether two places of the tensor may be one in memory, as after expand or unfold."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _are_disjoint(tensors: Sequence[Tensor]) -> bool:
    """Whether the views share no element: the ranges of memory that they span do not meet."""
    reach = (sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) for t in tensors)
    spans = sorted((t.storage_offset(), t.storage_offset() + 1 + far) for t, far in zip(tensors, reach, strict=True))
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


@dataclass(slots=True)
class SlicedUse:
    """Views of one parameter that share no element, so that squared norms add."""

    parameter: Tensor
    views: tuple[tuple[Tensor, forms.PerExampleGradient], ...]
    batch: int

    def squared_norms(self) -> Tensor:
        return reduce(torch.add, (share.squared_norms() for _, share in self.views))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        found = torch.zeros_like(self.parameter, dtype=weights.dtype, memory_format=torch.contiguous_format)
        for view, share in self.views:
            _matching_view(found, self.parameter, view).add_(share.weighted_sum(weights))
        return found

    def materialize(self) -> Tensor:
        grads = [share.materialize() for _, share in self.views]
        found = grads[0].new_zeros(self.batch, *self.parameter.shape)
        for (view, _), grad in zip(self.views, grads, strict=True):
            for b in range(self.batch):
                _matching_view(found[b], self.parameter, view).add_(grad[b])
        return found

    def select(self, rows: Tensor, dtype: torch.dtype) -> "SlicedUse":
        return SlicedUse(self.parameter, tuple((view, s.select(rows, dtype)) for view, s in self.views), len(rows))


def _matching_view(whole: Tensor, parameter: Tensor, view: Tensor) -> Tensor:
    """The part of `whole`, a contiguous tensor like the parameter, that the view is of the parameter."""
    offset = whole.storage_offset() + view.storage_offset() - parameter.storage_offset()
    return whole.as_strided(view.shape, view.stride(), offset)


@dataclass(slots=True)
class ThroughFunction:
    """The gradient of p from that of D = f(p), through autograd's graph of f."""

    parameter: Tensor
    derived: Tensor
    inner: forms.PerExampleGradient
    batch: int

    def squared_norms(self) -> Tensor:
        return forms.norms_in_chunks(self, self.batch, max(self.parameter.numel(), self.derived.numel()))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        summed = self.inner.weighted_sum(weights).to(self.derived.dtype)
        return self._pull_back(summed, batched=False).to(weights.dtype)

    def materialize(self) -> Tensor:
        grads = self.inner.materialize()
        return self._pull_back(grads.to(self.derived.dtype), batched=True).to(grads.dtype)

    def _pull_back(self, grad: Tensor, *, batched: bool) -> Tensor:
        found: Tensor = torch.autograd.grad(
            self.derived, self.parameter, grad, retain_graph=True, is_grads_batched=batched
        )[0]
        return found

    def select(self, rows: Tensor, dtype: torch.dtype) -> "forms.Dense | ThroughFunction":
        return ThroughFunction(self.parameter, self.derived, self.inner.select(rows, dtype), len(rows))


def add_uses(shares: Sequence[forms.PerExampleGradient], batch: int, numel: int) -> forms.PerExampleGradient:
    """The share of a tensor that was used several times: gradients add before the norm is taken."""
    if len(shares) == 1:
        return shares[0]
    pairs = [_positions(share) for share in shares if isinstance(share, (forms.OuterProduct, forms.OuterProductSum))]
    if len(pairs) == len(shares):
        return forms.OuterProductSum(torch.cat([a for a, _ in pairs], 1), torch.cat([g for _, g in pairs], 1))
    rows = [share for share in shares if isinstance(share, EmbeddingRows)]
    if len(rows) == len(shares):  # padded positions are zero already
        return EmbeddingRows(torch.cat([s.index for s in rows], 1), torch.cat([s.g for s in rows], 1), rows[0].shape)
    return SumOfUses(tuple(shares), batch, numel)


def _positions(share: forms.OuterProduct | forms.OuterProductSum) -> tuple[Tensor, Tensor]:
    """Inputs and output gradients, (B, T, ...)."""
    return (share.a[:, None], share.g.grads[:, None]) if isinstance(share, forms.OuterProduct) else (share.a, share.g)


@dataclass(slots=True)
class SumOfUses:
    """Different uses of one tensor, e.g. an embedding that is also the output layer."""

    shares: tuple[forms.PerExampleGradient, ...]
    batch: int
    numel: int

    def squared_norms(self) -> Tensor:
        return forms.norms_in_chunks(self, self.batch, self.numel)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return reduce(torch.add, (share.weighted_sum(weights) for share in self.shares))

    def materialize(self) -> Tensor:
        return reduce(torch.add, (share.materialize() for share in self.shares))

    def select(self, rows: Tensor, dtype: torch.dtype) -> "SumOfUses":
        return SumOfUses(tuple(share.select(rows, dtype) for share in self.shares), len(rows), self.numel)


MOST_ROWS = 2**31 - 1
SHORT = 64  # tokens up to which comparing each with each is quicker than sorting


@dataclass(slots=True)
class EmbeddingRows:
    """Gradient of example b: rows of a table; row index_bt gets g_bt. What `padding` names gets nothing."""

    index: Tensor  # (B, T), whole numbers
    g: Tensor  # (B, T, D)
    shape: tuple[int, ...]  # of the table: (V, ...), D numbers in each of V rows
    padding: int | None = None
    _pooled: bool = field(default=False, repr=False)  # whether all positions of an example have one gradient
    _felt: Tensor | None = field(default=None, repr=False)  # examples whose positions cancel: summed in float64

    def __post_init__(self) -> None:
        if self.padding is not None:
            self.g = self.g.masked_fill((self.index == self.padding)[..., None], 0)

    def squared_norms(self) -> Tensor:
        if self.index.shape[1] <= 1:
            return forms.squared_row_norms(self.g.flatten(1))
        self._pooled = torch.equal(self.g, self.g[:, :1].expand_as(self.g))
        if self._pooled:
            return forms.squared_row_norms(self.g[:, 0]) * _count_equal_pairs(self.index).to(self.g)
        twice = self._repeating_examples()
        if len(twice) == len(self.index):
            found, most = self._combine_repeats()
        else:
            found = forms.squared_row_norms(self.g.flatten(1))
            most = found.clone()
            if len(twice):
                found[twice], most[twice] = self.select(twice, self.g.dtype)._combine_repeats()
        felt = most > forms.FELT / forms.ALLOWED * found
        if self.g.dtype != torch.float64 and bool(felt.any()):
            self._felt = felt.nonzero()[:, 0]
            found[self._felt] = self.select(self._felt, torch.float64).squared_norms().to(found.dtype)
        return found

    def _repeating_examples(self) -> Tensor:
        """The examples in which a row stands twice: all others are as long as their rows are together."""
        if self.index.device.type != "cpu":  # to ask would be to wait
            return torch.arange(len(self.index), device=self.index.device)
        ordered = _sort_rows(self.index)
        again = ordered[:, 1:] == ordered[:, :-1]
        if self.padding is not None:
            again &= ordered[:, 1:] != self.padding
        return again.any(1).nonzero()[:, 0]

    def _combine_repeats(self) -> tuple[Tensor, Tensor]:
        """The squared norms, and what they would be if no two positions of a row cancelled."""
        return self._combine_by_comparing() if self.index.shape[1] <= SHORT else self._combine_by_sorting()

    def _combine_by_comparing(self) -> tuple[Tensor, Tensor]:
        """Each position gets the sum over all positions of its row."""
        same = (self.index[:, :, None] == self.index[:, None, :]).to(self.g.dtype)  # (B, T, T)
        counts, sizes = same.sum(2), torch.linalg.vecdot(self.g, self.g)  # (B, T)
        sums = same @ self.g
        return (torch.linalg.vecdot(sums, sums) / counts).sum(1), (sizes * counts).sum(1)

    def _combine_by_sorting(self) -> tuple[Tensor, Tensor]:
        b, t = self.index.shape
        keys = self.index + torch.arange(b, device=self.index.device)[:, None] * self.shape[0]
        found, where, counts = torch.unique(keys.flatten(), return_inverse=True, return_counts=True)
        g = self.g.reshape(b * t, -1)
        sums = self.g.new_zeros(len(found), g.shape[1]).index_add_(0, where, g)
        most = (forms.squared_row_norms(g) * counts[where]).view(b, t).sum(1)
        return self.g.new_zeros(b).index_add_(0, found // self.shape[0], forms.squared_row_norms(sums)), most

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._pooled:
            return _scatter_rows(self.index, self.g[:, 0] * weights[:, None], self.shape)
        if self._felt is not None:
            return forms.sum_in_float64(self, self._felt, weights)
        return _scatter_rows(self.index.flatten()[:, None], (self.g * weights[:, None, None]).flatten(0, 1), self.shape)

    def materialize(self) -> Tensor:
        (b, _), d = self.index.shape, self.g.shape[2]
        table = self.g.new_zeros(b, self.shape[0], d)
        return table.scatter_add_(1, self.index[..., None].expand(-1, -1, d), self.g).view(b, *self.shape)

    def select(self, rows: Tensor, dtype: torch.dtype) -> "EmbeddingRows":
        return EmbeddingRows(self.index[rows], self.g[rows].to(dtype), self.shape, self.padding)


def _scatter_rows(index: Tensor, g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The table whose row index_bt is the sum of g_b, (B, D), over all places where it stands."""
    size, (b, t) = shape[0], index.shape
    if g.device.type != "cpu" or size > MOST_ROWS:
        source = g[:, None].expand(b, t, -1).reshape(b * t, -1)
        return g.new_zeros(size, g.shape[1]).index_add_(0, index.flatten(), source).view(shape)
    # As a sparse product: eight times as fast as index_add_ on a processor, and g is not repeated for each position.
    ones = np.ones(b * t, dtype=g.numpy().dtype)
    starts = np.arange(0, b * t + 1, t, dtype=np.int32)
    counts = sparse.csr_matrix((ones, index.flatten().numpy().astype(np.int32), starts), shape=(b, size))
    return torch.from_numpy(counts.T @ g.numpy()).view(shape)


def _count_equal_pairs(index: Tensor) -> Tensor:
    """sum_v count_v^2 of each row: how many pairs of positions hold the same value."""
    ordered = _sort_rows(index)
    found = torch.full((len(index),), index.shape[1], device=index.device)
    for apart in range(1, index.shape[1]):
        same = (ordered[:, apart:] == ordered[:, :-apart]).sum(1)
        if not bool(same.any()):
            break
        found += 2 * same
    return found


def _sort_rows(index: Tensor) -> Tensor:
    if index.device.type != "cpu":
        return index.sort(dim=1).values
    return torch.from_numpy(np.sort(index.numpy().astype(np.int32), axis=1))  # ten times as fast, for short rows
