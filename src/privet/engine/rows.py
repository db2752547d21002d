"""Rows of a table: the gradient of an embedding, where an example touches few rows of many."""

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from privet.engine.share import ALLOWED, FELT, sq, with_care

MOST_ROWS = 2**31 - 1
SHORT = 64  # tokens up to which comparing each with each is quicker than sorting


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
        if self.index.shape[1] <= 1:
            return sq(self.g.flatten(1))
        self._pooled = torch.equal(self.g, self.g[:, :1].expand_as(self.g))
        if self._pooled:
            return sq(self.g[:, 0]) * _pairs(self.index).to(self.g)
        twice = self._repeating()
        if len(twice) == len(self.index):
            found, most = self._summed()
        else:
            found = sq(self.g.flatten(1))
            most = found.clone()
            if len(twice):
                found[twice], most[twice] = self.part(twice, self.g.dtype)._summed()
        felt = most > FELT / ALLOWED * found
        if self.g.dtype != torch.float64 and bool(felt.any()):
            self._felt = felt.nonzero()[:, 0]
            found[self._felt] = self.part(self._felt, torch.float64).sq_norms().to(found.dtype)
        return found

    def _repeating(self) -> Tensor:
        """The examples in which a row stands twice: all others are as long as their rows are together."""
        if self.index.device.type != "cpu":  # to ask would be to wait
            return torch.arange(len(self.index), device=self.index.device)
        ordered = _ordered(self.index)
        again = ordered[:, 1:] == ordered[:, :-1]
        if self.padding is not None:
            again &= ordered[:, 1:] != self.padding
        return again.any(1).nonzero()[:, 0]

    def _summed(self) -> tuple[Tensor, Tensor]:
        """The squared norms, and what they would be if no two positions of a row cancelled."""
        return self._by_comparing() if self.index.shape[1] <= SHORT else self._by_sorting()

    def _by_comparing(self) -> tuple[Tensor, Tensor]:
        """Each position gets the sum over all positions of its row."""
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
        most = (sq(g) * counts[where]).view(b, t).sum(1)
        return self.g.new_zeros(b).index_add_(0, found // self.shape[0], sq(sums)), most

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


def _scattered(index: Tensor, g: Tensor, shape: tuple[int, ...]) -> Tensor:
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


def _pairs(index: Tensor) -> Tensor:
    """sum_v count_v^2 of each row: how many pairs of positions hold the same value."""
    ordered = _ordered(index)
    found = torch.full((len(index),), index.shape[1], device=index.device)
    for apart in range(1, index.shape[1]):
        same = (ordered[:, apart:] == ordered[:, :-apart]).sum(1)
        if not bool(same.any()):
            break
        found += 2 * same
    return found


def _ordered(index: Tensor) -> Tensor:
    """Each row of whole numbers in order."""
    if index.device.type != "cpu":
        return index.sort(dim=1).values
    return torch.from_numpy(np.sort(index.numpy().astype(np.int32), axis=1))  # ten times as fast, for short rows
