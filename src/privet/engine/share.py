"""Shares: the gradients of one tensor, one per example, in whatever form is cheapest.

A share answers three questions: the squared norm of each example's gradient, a weighted sum of them, and, only where
somebody must have them, the gradients themselves. Everything is in float32 or better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

GRAM_FLOAT32 = 16  # positions up to which a Gram norm in float32 keeps six digits; above, it is taken in float64
MOST_HELD = 1 << 26  # numbers of per-example gradients held at once: a quarter of a gigabyte in float32
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
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return norms.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        shape = self.grads.shape
        return (weights @ self.grads.reshape(shape[0], -1)).view(shape[1:])

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

    def sq_norms(self) -> Tensor:
        (_, t, i), o = self.a.shape, self.g.shape[2]
        if t == 1:
            return _sq(self.a[:, 0]) * _sq(self.g[:, 0])
        if t * (i + o) * (1 if t <= GRAM_FLOAT32 else 2) <= i * o or self.a.shape[0] * i * o > MOST_HELD:
            return gram(self.a, self.g)
        self._held = self.dense()
        return Dense(self._held).sq_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._held is not None:
            return Dense(self._held).weighted_sum(weights)
        g = self.g * weights[:, None, None]
        return g.flatten(0, 1).T @ self.a.flatten(0, 1)

    def dense(self) -> Tensor:
        return self._held if self._held is not None else self.g.mT @ self.a

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Outer":
        return Outer(self.a[rows].to(dtype), self.g[rows].to(dtype))


def gram(a: Tensor, g: Tensor) -> Tensor:
    """|sum_t g_t a_t^T|^2 = sum_ts <a_t, a_s> <g_t, g_s>: T x T numbers in place of O x I.

    Positions that cancel cost digits, about (sum_t |g_t| |a_t| / norm)^2 roundings: hence float64 for many positions.
    """
    if a.shape[1] > GRAM_FLOAT32:
        a, g = a.double(), g.double()
    found: Tensor = torch.linalg.vecdot((a @ a.mT).flatten(1), (g @ g.mT).flatten(1))
    return found.clamp_(min=0)  # rounding may leave a cancelled sum just below zero


@dataclass(slots=True)
class Rows:
    """Gradient of example b: rows of a table; row index_bt gets g_bt. What `padding` names gets nothing."""

    index: Tensor  # (B, T), whole numbers
    g: Tensor  # (B, T, D)
    shape: tuple[int, ...]  # of the table: (V, ...), D numbers in each of V rows
    padding: int | None = None

    def __post_init__(self) -> None:
        if self.padding is not None:
            self.g = self.g.masked_fill((self.index == self.padding)[..., None], 0)

    def sq_norms(self) -> Tensor:
        if self.index.shape[1] == 1:
            return _sq(self.g[:, 0])
        if self.index.shape[1] <= SHORT:
            same = self.index[:, :, None] == self.index[:, None, :]
            g = self.g.double() if self.g.shape[1] > GRAM_FLOAT32 else self.g
            return ((g @ g.mT) * same).sum((1, 2)).clamp_(min=0)
        if _constant_over_positions(self.g):
            return _sq(self.g[:, 0]) * _pairs(self.index).to(self.g.dtype)
        return self._by_sorting()

    def _by_sorting(self) -> Tensor:
        b, t = self.index.shape
        keys = self.index + torch.arange(b, device=self.index.device)[:, None] * self.shape[0]
        found, where = torch.unique(keys.flatten(), return_inverse=True)
        sums = self.g.new_zeros(len(found), self.g.shape[2]).index_add_(0, where, self.g.reshape(b * t, -1))
        return self.g.new_zeros(b).index_add_(0, found // self.shape[0], _sq(sums))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        table = self.g.new_zeros(self.shape[0], self.g.shape[2])
        table.index_add_(0, self.index.flatten(), (self.g * weights[:, None, None]).flatten(0, 1))
        return table.view(self.shape)

    def dense(self) -> Tensor:
        (b, _), d = self.index.shape, self.g.shape[2]
        table = self.g.new_zeros(b, self.shape[0], d)
        return table.scatter_add_(1, self.index[..., None].expand(-1, -1, d), self.g).view(b, *self.shape)

    def part(self, rows: Tensor, dtype: torch.dtype) -> "Rows":
        return Rows(self.index[rows], self.g[rows].to(dtype), self.shape, self.padding)


def _sq(t: Tensor) -> Tensor:
    """The squared norm of each row, (B, D) -> (B,)."""
    found: Tensor = torch.linalg.vecdot(t, t)
    return found


def _constant_over_positions(g: Tensor) -> bool:
    """Whether all positions of an example have one gradient, as after mean or sum pooling."""
    return bool((g[:1] == g[:1, :1]).all()) and bool((g == g[:, :1]).all())


def _pairs(index: Tensor) -> Tensor:
    """sum_v count_v^2 of each row: how many pairs of positions hold the same value."""
    ordered = index.sort(dim=1).values
    b, t = index.shape
    starts = torch.ones(b, t + 1, dtype=torch.bool, device=index.device)
    torch.ne(ordered[:, 1:], ordered[:, :-1], out=starts[:, 1:-1])
    rows, places = starts.nonzero(as_tuple=True)
    lengths = places[1:] - places[:-1]
    lengths = lengths.clamp_(min=0)  # from the end of a row to the start of the next
    return torch.zeros(b, dtype=torch.int64, device=index.device).index_add_(0, rows[:-1], lengths.square())


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


def chunked_norms(share: Share, batch: int, numel: int) -> Tensor:
    """Norms from the gradients themselves, some examples at a time so that memory stays bounded."""
    at_once = max(1, MOST_HELD // max(numel, 1))
    if batch <= at_once:
        return Dense(share.dense()).sq_norms()
    rows = torch.arange(batch)
    return torch.cat([Dense(share.part(r, torch.float32).dense()).sq_norms() for r in torch.split(rows, at_once)])
