"""Shares: the gradients of one tensor, one per example, in whatever form is cheapest.

A share answers three questions: the squared norm of each example's gradient, a weighted sum of them, and, only where
somebody must have them, the gradients themselves. Everything is in float32 or better.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

ALLOWED, FELT = 1, 150  # roundings: allowed for in a Gram norm, and how many of the result are then too many
MOST_HELD = 1 << 26  # numbers of per-example gradients held at once: a quarter of a gigabyte in float32
BLOCK = 1024  # numbers whose norm is taken at once: torch adds one by one, and loses a digit for each ten times more
LONG, STRIP = 64, 32  # positions from which a Gram matrix is made in strips, without most of its lower half
WIDE = {torch.float32, torch.float64}  # what sums and products are taken in
_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}
_ONE = torch.ones((), dtype=torch.float32, device="cpu")  # t + x * 1 is quicker than t + x: x is not made a tensor


@runtime_checkable
class PerExampleGradient(Protocol):
    """One gradient per example of one tensor."""

    def squared_norms(self) -> Tensor:
        """The squared norm of each example's gradient, (B,)."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """sum_b weights_b gradient_b, in the shape of the tensor."""

    def materialize(self) -> Tensor:
        """The gradients, (B, *shape)."""

    def select(self, rows: Tensor, dtype: torch.dtype) -> "PerExampleGradient":
        """The share of some examples, in `dtype`."""


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Sums and products keep the precision of what enters them, whatever the user's loop is set to."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def widen(t: Tensor) -> Tensor:
    """The tensor in float32 or better."""
    return t if t.dtype in WIDE else t.float()


@dataclass(slots=True)
class Dense:
    """The gradients themselves, (B, *shape)."""

    grads: Tensor
    _sq: Tensor | None = field(default=None, repr=False)  # asked for twice where a weight shares it with its bias

    def squared_norms(self) -> Tensor:
        if self._sq is None:
            self._sq = squared_row_norms(self.grads if self.grads.dim() == 2 else self._flat())
        return self._sq

    def weighted_sum(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        if self.grads.dim() == 2:
            return torch.mv(self.grads.t(), weights, out=out if out is None or out.dim() == 1 else out.view(-1))
        found = torch.mv(self._flat().t(), weights, out=out if out is None or out.dim() == 1 else out.view(-1))
        return found.view(self.grads.shape[1:])

    def _flat(self) -> Tensor:
        return self.grads.reshape(self.grads.shape[0], self.grads.shape[1:].numel())

    def materialize(self) -> Tensor:
        return self.grads

    def select(self, rows: Tensor, dtype: torch.dtype) -> "Dense":
        return Dense(self.grads[rows].to(dtype))


@dataclass(slots=True)
class OuterProduct:
    """Gradient of example b: g_b a_b^T, (O, I), from inputs a and output gradients g. A bias shares the norms of g."""

    a: Tensor  # (B, I)
    g: Dense  # (B, O)

    def squared_norms(self) -> Tensor:
        a, g = squared_row_norms(self.a), self.g.squared_norms()
        tiny = _TINY[self.a.dtype], _TINY[self.g.grads.dtype]  # as in `vanished`
        least = self.a.shape[1] * tiny[0], self.g.grads.shape[1] * tiny[1]
        return torch.add(a, _ONE, alpha=least[0]) * torch.add(g, _ONE, alpha=least[1])

    def weighted_sum(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.mm((self.g.grads * weights.unsqueeze(1)).t(), self.a, out=out)

    def materialize(self) -> Tensor:
        return self.g.grads[:, :, None] * self.a[:, None]

    def select(self, rows: Tensor, dtype: torch.dtype) -> "OuterProduct":
        return OuterProduct(self.a[rows].to(dtype), self.g.select(rows, dtype))


@dataclass(slots=True)
class OuterProductSum:
    """Gradient of example b: sum_t g_bt a_bt^T, (O, I), from inputs a and output gradients g at T positions."""

    a: Tensor  # (B, T, I)
    g: Tensor  # (B, T, O)
    _held: Dense | None = field(default=None, repr=False)
    _felt: Tensor | None = field(default=None, repr=False)  # examples whose positions cancel: summed in float64

    def squared_norms(self) -> Tensor:
        if self._held is not None:
            return self._held.squared_norms()
        (b, t, i), o = self.a.shape, self.g.shape[2]
        if prefers_gram(t, i, o):
            return gram_squared_norms(self)
        if b * i * o > MOST_HELD:
            return norms_in_chunks(self, b, i * o, self.a.dtype)
        self._held = Dense(self.g.mT @ self.a)
        self.a = self.g = self.a.new_empty(0)  # no longer needed
        return self._held.squared_norms()

    def weighted_sum(self, weights: Tensor, out: Tensor | None = None) -> Tensor:
        if self._held is not None:
            return self._held.weighted_sum(weights, out)
        if self._felt is not None:
            found = sum_in_float64(self, self._felt, weights)
            return found if out is None else out.copy_(found)
        is_wide = self.a.shape[2] < self.g.shape[2]
        small, large = (self.a, self.g) if is_wide else (self.g, self.a)
        if large.transpose(0, 1).is_contiguous():  # the order of the rows does not matter, a copy of the larger does
            small, large, weights = small.transpose(0, 1), large.transpose(0, 1), weights[None]
        else:
            weights = weights[:, None]
        weighted = torch.mul(small, weights[..., None], out=small.new_empty(small.shape))
        left, right = weighted.flatten(0, 1).T, large.flatten(0, 1)
        if not is_wide:
            return torch.mm(left, right, out=out)
        return torch.mm(left, right, out=None if out is None else out.T).T

    def materialize(self) -> Tensor:
        return self.g.mT @ self.a if self._held is None else self._held.grads

    def select(self, rows: Tensor, dtype: torch.dtype) -> "OuterProductSum | Dense":
        if self._held is not None:
            return self._held.select(rows, dtype)
        return OuterProductSum(self.a[rows].to(dtype), self.g[rows].to(dtype))


def compact_outer_product(a: Tensor, g: Tensor) -> "OuterProduct | OuterProductSum | Dense":
    """The share with inputs a (B, T, I) and output gradients g (B, T, O); of what is smaller in memory."""
    (b, t, i), o = a.shape, g.shape[2]
    if t == 1:
        return OuterProduct(a[:, 0], Dense(g[:, 0]))
    return Dense(g.mT @ a) if i * o < t * (i + o) and b * i * o <= MOST_HELD else OuterProductSum(a, g)


def prefers_gram(t: int, i: int, o: int) -> bool:
    """Whether Gram matrices of T positions are better than gradients of O x I numbers.

    At equal counts the gradients are quicker, for their sum is soon made; and they may take a quarter more memory.
    """
    return 4 * i * o > 5 * t * (i + o)


def gram_squared_norms(share: OuterProductSum, gg: Tensor | None = None) -> Tensor:
    """|sum_t g_t a_t^T|^2 = sum_ts <a_t, a_s> <g_t, g_s>: T x T numbers in place of O x I.

    Where positions cancel, rounding is large beside the sum: about roundings of (sum_t |g_t| |a_t|)^2. That much is
    added, so that the norm is never too small; where it would be felt, the norm is taken from the gradient itself.
    """
    least = underflow_bound(share.a), underflow_bound(share.g)
    found, sizes = (
        _sum_over_pairs(share.a, share.g, least) if gg is None else _sum_of_grams(share.a @ share.a.mT, gg, least)
    )
    size, most = sizes
    allowed = ALLOWED * torch.finfo(size.dtype).eps * size.square()
    found = found.clamp_(min=0).add_(allowed).add_((most - size).mul_(most + size))
    felt = allowed > FELT * torch.finfo(size.dtype).eps * found
    if bool(felt.any()):
        share._felt = rows = felt.nonzero()[:, 0]
        part, numel = share.select(rows, torch.float64), share.a.shape[2] * share.g.shape[2]
        found[rows] = norms_in_chunks(part, len(rows), numel).to(found.dtype)
    return found


def _sum_over_pairs(a: Tensor, g: Tensor, least: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """sum_ts <a_t, a_s> <g_t, g_s> and sum_t |a_t| |g_t|. In long sequences, early and late positions meet once."""
    positions = a.shape[1]
    if positions < LONG:
        return _sum_of_grams(a @ a.mT, g @ g.mT, least)  # (B, T, T)
    parts = []
    for t in range(0, positions, STRIP):  # these positions with themselves and all later ones
        some = slice(t, t + STRIP)
        parts.append(_sum_of_grams(a[:, some] @ a[:, t:].mT, g[:, some] @ g[:, t:].mT, least))  # (B, STRIP, T - t)
    return torch.stack([found for found, _ in parts]).sum(0), torch.stack([sizes for _, sizes in parts]).sum(0)


def _sum_of_grams(aa: Tensor, gg: Tensor, least: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The sum over pairs; and (2, B): the sum of sizes as computed, and as they may be before underflow.

    Columns beyond the square are positions whose rows are not there: those pairs count twice.
    """
    a, g = aa.diagonal(dim1=1, dim2=2), gg.diagonal(dim1=1, dim2=2)
    sizes = torch.stack([a * g, (a + least[0]) * (g + least[1])]).sqrt_().sum(2)
    found, rows = aa.mul_(gg).sum((1, 2)), aa.shape[1]
    return found if rows == aa.shape[2] else found.add_(aa[:, :, rows:].sum((1, 2))), sizes


def sum_in_float64(share: PerExampleGradient, felt: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum with some examples in float64: rounding of what cancels would be large beside what is left."""
    careful = share.select(felt, torch.float64).weighted_sum(weights[felt].double())
    rest = torch.ones_like(weights, dtype=torch.bool).index_fill_(0, felt, False).nonzero()[:, 0]
    return share.select(rest, weights.dtype).weighted_sum(weights[rest]) + careful.to(weights.dtype)


@dataclass(slots=True)
class Rearranged:
    """The same share for a tensor of another shape, or order in memory, with as many elements."""

    inner: PerExampleGradient
    of_sum: Callable[[Tensor], Tensor]
    of_each: Callable[[Tensor], Tensor]

    def squared_norms(self) -> Tensor:
        return self.inner.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.of_sum(self.inner.weighted_sum(weights))

    def materialize(self) -> Tensor:
        return self.of_each(self.inner.materialize())

    def select(self, rows: Tensor, dtype: torch.dtype) -> "Rearranged":
        return Rearranged(self.inner.select(rows, dtype), self.of_sum, self.of_each)


def squared_row_norms(t: Tensor) -> Tensor:
    found: Tensor
    if t.shape[1] <= BLOCK:
        found = torch.linalg.vecdot(t, t)
        return found
    whole = t.shape[1] // BLOCK * BLOCK
    norms: Tensor = torch.linalg.vector_norm(t[:, whole:], dim=1)
    blocks: Tensor = torch.linalg.vector_norm(t[:, :whole].reshape(len(t), -1, BLOCK), dim=2)
    return norms.square() + blocks.square().sum(1)


def underflow_bound(t: Tensor) -> float:
    """The most that underflow takes from the squared norm of a row: a huge factor beside it would make that felt."""
    return t.shape[-1] * _TINY[t.dtype]


def sum_into(out: Tensor, share: PerExampleGradient, weights: Tensor) -> None:
    """Write sum_b weights_b gradient_b there, without a copy where the share can."""
    if isinstance(share, (Dense, OuterProduct, OuterProductSum)):
        share.weighted_sum(weights, out)
    else:
        out.copy_(share.weighted_sum(weights).view(out.shape))


def norms_in_chunks(share: PerExampleGradient, batch: int, numel: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Norms from the gradients themselves, some examples at a time so that memory stays bounded."""
    at_once = max(1, MOST_HELD // max(numel, 1))
    if batch <= at_once:
        return Dense(share.materialize()).squared_norms()
    rows = torch.arange(batch)
    return torch.cat([Dense(share.select(r, dtype).materialize()).squared_norms() for r in torch.split(rows, at_once)])
