"""Shares: the gradients of one tensor, one per example, in whatever form is cheapest.

A share answers three questions: the squared norm of each example's gradient, a weighted sum of them, and, only where
somebody must have them, the gradients themselves. Everything is in float32 or better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

ALLOWED, FELT = 1, 150  # roundings: allowed for in a Gram norm, and how many of the result are then too many
LARGE = 1 << 22  # numbers: gradients beyond this cost more to keep than a second product
MOST_HELD = 1 << 26  # numbers of per-example gradients held at once: a quarter of a gigabyte in float32
MOST_ROWS = 2**31 - 1
BLOCK = 1024  # numbers whose norm is taken at once: torch adds one by one, and loses a digit for each ten times more
SHORT = 64  # tokens up to which comparing each with each is quicker than sorting


@runtime_checkable
class Share(Protocol):
    """One gradient per example of one tensor."""

    def sq_norms(self) -> Tensor:
        """The squared norm of each example's gradient, (B,)."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """sum_b weights_b gradient_b, in the shape of the tensor."""

    def dense(self) -> Tensor:
        """The gradients, (B, *shape)."""

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Share":
        """The share of some examples, in `dtype`."""


def widened(t: Tensor) -> Tensor:
    """The tensor in float32 or better."""
    return t if t.dtype in (torch.float32, torch.float64) else t.float()


@dataclass(slots=True)
class Dense:
    """The gradients themselves, (B, *shape)."""

    grads: Tensor

    def sq_norms(self) -> Tensor:
        flat = self.grads.flatten(1) if self.grads.dim() > 1 else self.grads[:, None]
        if flat.shape[1] <= BLOCK:
            return _sq(flat)
        whole = flat.shape[1] // BLOCK * BLOCK
        norms: Tensor = torch.linalg.vector_norm(flat[:, whole:], dim=1)
        blocks: Tensor = torch.linalg.vector_norm(flat[:, :whole].view(len(flat), -1, BLOCK), dim=2)
        return norms.square() + blocks.square().sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        shape = self.grads.shape
        return (weights @ self.grads.reshape(shape[0], shape[1:].numel())).view(shape[1:])

    def dense(self) -> Tensor:
        return self.grads

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Dense":
        return Dense(self.grads[rows].to(dtype))


@dataclass(slots=True)
class Outer:
    """Gradient of example b: sum_t g_bt a_bt^T, (O, I), from inputs a and output gradients g at T positions."""

    a: Tensor  # (B, T, I)
    g: Tensor  # (B, T, O)
    _held: Tensor | None = field(default=None, repr=False)
    _felt: Tensor | None = field(default=None, repr=False)  # examples whose positions cancel: summed in float64

    def sq_norms(self) -> Tensor:
        (_, t, i), o = self.a.shape, self.g.shape[2]
        if t == 1:
            return _sq(self.a[:, 0]) * _sq(self.g[:, 0])
        if gram_pays(t, i, o):
            return gram(self)
        if self.a.shape[0] * i * o > MOST_HELD:
            return chunked_norms(self, self.a.shape[0], i * o, self.a.dtype)
        self._held = self.dense()
        return Dense(self._held).sq_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._held is not None:
            return Dense(self._held).weighted_sum(weights)
        if self._felt is not None:
            return with_care(self, self._felt, weights)
        a, g = self.a, self.g
        if a.shape[1] == 1:
            return (g[:, 0] * weights[:, None]).T @ a[:, 0]
        if a.transpose(0, 1).is_contiguous():  # positions first: the order of the rows does not matter, a copy does
            a, g, weights = a.transpose(0, 1), g.transpose(0, 1), weights[None]
        else:
            weights = weights[:, None]
        if a.shape[2] < g.shape[2]:  # the smaller of the two is weighted, and comes first in the faster product
            found: Tensor = (a * weights[..., None]).flatten(0, 1).T @ g.flatten(0, 1)
            return found.T
        return (g * weights[..., None]).flatten(0, 1).T @ a.flatten(0, 1)

    def dense(self) -> Tensor:
        return self._held if self._held is not None else self.g.mT @ self.a

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Outer":
        return Outer(self.a[rows].to(dtype), self.g[rows].to(dtype))


def outer(a: Tensor, g: Tensor) -> "Outer | Dense":
    """The share with inputs a (B, T, I) and output gradients g (B, T, O), which are let go if nothing is lost by it."""
    (b, t, i), o = a.shape, g.shape[2]
    if t == 1 or gram_pays(t, i, o) or b * i * o > MOST_HELD:
        return Outer(a, g)
    return Dense(g.mT @ a)


def gram_pays(t: int, i: int, o: int) -> bool:
    """Whether Gram matrices of T positions are quicker than gradients of O x I numbers."""
    return 5 * t * (i + o) <= 4 * i * o  # as measured: at equal counts the gradients themselves are quicker


def gram(share: Outer, gg: Tensor | None = None) -> Tensor:
    """|sum_t g_t a_t^T|^2 = sum_ts <a_t, a_s> <g_t, g_s>: T x T numbers in place of O x I.

    Where positions cancel, rounding is large beside the sum: about roundings of (sum_t |g_t| |a_t|)^2. That much is
    added, so that the norm is never too small; where it would be felt, the norm is taken from the gradient itself.
    """
    aa = share.a @ share.a.mT  # (B, T, T)
    gg = share.g @ share.g.mT if gg is None else gg
    size = (aa.diagonal(dim1=1, dim2=2) * gg.diagonal(dim1=1, dim2=2)).sqrt().sum(1).square()
    allowed = ALLOWED * torch.finfo(size.dtype).eps * size
    found = aa.mul_(gg).sum((1, 2)).clamp_(min=0).add_(allowed)
    felt = allowed > FELT * torch.finfo(size.dtype).eps * found
    if bool(felt.any()):
        share._felt = rows = felt.nonzero()[:, 0]
        part = share.part(rows, torch.float64)
        found[rows] = chunked_norms(part, len(rows), part.a.shape[2] * part.g.shape[2]).to(found.dtype)
    return found


def with_care(share: Share, felt: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum with some examples in float64: rounding of what cancels would be large beside what is left."""
    careful = share.part(felt, torch.float64).weighted_sum(weights[felt].double())
    rest = torch.ones_like(weights, dtype=torch.bool).index_fill_(0, felt, False).nonzero()[:, 0]
    return share.part(rest, weights.dtype).weighted_sum(weights[rest]) + careful.to(weights.dtype)


@dataclass(slots=True)
class Rows:
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

    def sq_norms(self) -> Tensor:
        if self.index.shape[1] == 1:
            return _sq(self.g[:, 0])
        self._pooled = torch.equal(self.g, self.g[:, :1].expand_as(self.g))
        if self._pooled:
            return _sq(self.g[:, 0]) * _pairs(self.index).to(self.g)
        found, most = self._by_comparing() if self.index.shape[1] <= SHORT else self._by_sorting()
        felt = most > FELT / ALLOWED * found
        if self.g.dtype != torch.float64 and bool(felt.any()):
            self._felt = felt.nonzero()[:, 0]
            found[self._felt] = self.part(self._felt, torch.float64).sq_norms().to(found.dtype)
        return found

    def _by_comparing(self) -> tuple[Tensor, Tensor]:
        """Each position gets the sum over all positions of its row; and what there would be if none cancelled."""
        same = (self.index[:, :, None] == self.index[:, None, :]).to(self.g.dtype)  # (B, T, T)
        counts, sizes = same.sum(2), torch.linalg.vecdot(self.g, self.g)  # (B, T)
        sums = same @ self.g
        return (torch.linalg.vecdot(sums, sums) / counts).sum(1), (sizes * counts).sum(1)

    def _by_sorting(self) -> tuple[Tensor, Tensor]:
        b, t = self.index.shape
        keys = self.index + torch.arange(b, device=self.index.device)[:, None] * self.shape[0]
        found, where, counts = torch.unique(keys.flatten(), return_inverse=True, return_counts=True)
        g = self.g.reshape(b * t, -1)
        sums = self.g.new_zeros(len(found), g.shape[1]).index_add_(0, where, g)
        most = (_sq(g) * counts[where]).view(b, t).sum(1)
        return self.g.new_zeros(b).index_add_(0, found // self.shape[0], _sq(sums)), most

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._pooled:
            return _scattered(self.index, self.g[:, 0] * weights[:, None], self.shape)
        if self._felt is not None:
            return with_care(self, self._felt, weights)
        return _scattered(self.index.flatten()[:, None], (self.g * weights[:, None, None]).flatten(0, 1), self.shape)

    def dense(self) -> Tensor:
        (b, _), d = self.index.shape, self.g.shape[2]
        table = self.g.new_zeros(b, self.shape[0], d)
        return table.scatter_add_(1, self.index[..., None].expand(-1, -1, d), self.g).view(b, *self.shape)

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Rows":
        return Rows(self.index[rows], self.g[rows].to(dtype), self.shape, self.padding)


@dataclass(slots=True)
class Viewed:
    """The same share for a tensor of another shape with as many elements."""

    inner: Share
    shape: tuple[int, ...]

    def sq_norms(self) -> Tensor:
        return self.inner.sq_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.inner.weighted_sum(weights).reshape(self.shape)

    def dense(self) -> Tensor:
        found = self.inner.dense()
        return found.reshape(len(found), *self.shape)

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Viewed":
        return Viewed(self.inner.part(rows, dtype), self.shape)


def _sq(t: Tensor) -> Tensor:
    """The squared norm of each row, (B, D) -> (B,)."""
    found: Tensor = torch.linalg.vecdot(t, t)
    return found


def _scattered(index: Tensor, g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The table whose row index_bt is the sum of g_b, (B, D), over all places where it stands."""
    size, (b, t) = shape[0], index.shape
    if g.is_cuda or size > MOST_ROWS:
        source = g[:, None].expand(b, t, -1).reshape(b * t, -1)
        return g.new_zeros(size, g.shape[1]).index_add_(0, index.flatten(), source).view(shape)
    # As a sparse product: eight times as fast as index_add_ on a processor, and g is not repeated for each position.
    ones = np.ones(b * t, dtype=g.numpy().dtype)
    starts = np.arange(0, b * t + 1, t, dtype=np.int32)
    counts = sparse.csr_matrix((ones, index.flatten().numpy().astype(np.int32), starts), shape=(b, size))
    return torch.from_numpy(counts.T @ g.numpy()).view(shape)


def _pairs(index: Tensor) -> Tensor:
    """sum_v count_v^2 of each row: how many pairs of positions hold the same value."""
    if index.is_cuda:
        ordered = index.sort(dim=1).values
    else:  # NumPy sorts short rows ten times as fast
        ordered = torch.from_numpy(np.sort(index.numpy().astype(np.int32), axis=1))
    found = torch.full((len(index),), index.shape[1], device=index.device)
    for apart in range(1, index.shape[1]):
        same = (ordered[:, apart:] == ordered[:, :-apart]).sum(1)
        if not bool(same.any()):
            break
        found += 2 * same
    return found


def total(shares: Sequence[Share], batch: int, numel: int) -> Share:
    """The share of a tensor that was used several times: gradients add before the norm is taken."""
    if len(shares) == 1:
        return shares[0]
    outer = [share for share in shares if isinstance(share, Outer)]
    if len(outer) == len(shares):
        return Outer(torch.cat([s.a for s in outer], 1), torch.cat([s.g for s in outer], 1))
    rows = [share for share in shares if isinstance(share, Rows)]
    if len(rows) == len(shares):  # padded positions are zero already
        return Rows(torch.cat([s.index for s in rows], 1), torch.cat([s.g for s in rows], 1), rows[0].shape)
    return Several(tuple(shares), batch, numel)


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


def chunked_norms(share: Share, batch: int, numel: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Norms from the gradients themselves, some examples at a time so that memory stays bounded."""
    at_once = max(1, MOST_HELD // max(numel, 1))
    if batch <= at_once:
        return Dense(share.dense()).sq_norms()
    rows = torch.arange(batch)
    return torch.cat([Dense(share.part(r, dtype).dense()).sq_norms() for r in torch.split(rows, at_once)])
