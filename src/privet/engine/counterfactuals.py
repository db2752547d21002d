"""Counterfactual batches: what a batch could have been, to see whether a loop treats each example by itself.

- *exchanged*: half of the records are other records of the batch.
- *extreme*, twice: the same half holds values far below the real ones, and far above them, so that a maximum or a count
  moves, and a sign whatever it is in the real batch.
- *order*, twice: the records in another order, with random numbers that go with their record, and without.
"""

import torch
from torch import Tensor

EXCHANGED, BELOW, ABOVE, ORDER, ORDER_OF_PLACES = range(5)
VARIANTS = (EXCHANGED, BELOW, ABOVE, ORDER, ORDER_OF_PLACES)
EXTREMES = (BELOW, ABOVE)
ORDERS = (ORDER, ORDER_OF_PLACES)
FAR = {BELOW: -50.0, ABOVE: 50.0}  # what records of the extreme batches are multiplied by


class Counterfactuals:
    """Which rows are exchanged, and in which order all of them are; the rows of a record (`views`) stay together."""

    def __init__(self, *, rows: int, views: int, generator: torch.Generator) -> None:
        self.rows = rows
        records = rows // views
        shuffled = torch.randperm(records, generator=generator)
        self._exchanged = (shuffled % 2 == 0).repeat_interleave(views)
        order = torch.randperm(records, generator=generator)
        self._order = (order[:, None] * views + torch.arange(views)).flatten()
        self._roll = max(1, records // 2) * views
        self.has_power = records > 1  # one record has no other

    def most_changed(self, variant: int) -> int:
        """How many rows may hold no real record."""
        return 0 if variant in ORDERS else int(self._exchanged.sum())

    def places(self, variant: int) -> Tensor:
        """Where each row would come from if nothing were exchanged."""
        return self._order if variant in ORDERS else torch.arange(self.rows)

    def real_rows(self, variant: int) -> Tensor:
        """The real row of each row, or -1 for one that was exchanged."""
        return self._order if variant in ORDERS else torch.where(self._exchanged, -1, torch.arange(self.rows))

    def of_batch(self, t: Tensor, variant: int) -> Tensor:
        """A tensor of the batch, with its rows along dimension 0."""
        t = t.detach()
        if variant in ORDERS:
            return t[self._order.to(t.device)]
        return torch.where(_along(self._exchanged, t, 0), self._strange(t, variant), t)

    def of_draw(self, t: Tensor, variant: int) -> Tensor:
        """Random numbers, one for each row along some dimension: each goes with its record."""
        dim = t.shape.index(self.rows)
        if variant in ORDERS:
            return t.index_select(dim, self._order.to(t.device))
        return torch.where(_along(self._exchanged, t, dim), t.roll(self._roll, dim), t)

    def of_output(self, t: Tensor, rows: Tensor, variant: int) -> Tensor:
        """What a model gave for the real row of each row; something else where there is none."""
        if not t.dim():
            return t.detach()
        found = t.detach()[rows.clamp(min=0).to(t.device)]
        lost = rows < 0
        return torch.where(_along(lost, t, 0), self._strange(t.detach(), variant), found) if bool(lost.any()) else found

    def _strange(self, t: Tensor, variant: int) -> Tensor:
        """Other rows; in the extreme batches far from all of them, or of whole numbers all those of one record."""
        t = t.roll(self._roll, 0)
        if variant not in FAR or not t.numel():
            return t
        if t.is_floating_point() or t.is_complex():
            return FAR[variant] * (t + t.abs().mean().nan_to_num(0.0, 1.0))
        return (t[:1] if variant == BELOW else t[-1:]).expand_as(t)


def match_rows(real: Tensor, other: Tensor) -> Tensor:
    """For each number the place of a real one that is the same, or -1."""
    order = real.argsort()
    found = torch.searchsorted(real[order], other).clamp(max=len(real) - 1)
    rows = torch.full_like(order, -1)
    for shift in (0, -1, 1):
        at = order[(found + shift).clamp(0, len(real) - 1)]
        close = (real[at] - other).abs() <= 1e-6 * (1 + real.abs().amax())
        rows = torch.where((rows < 0) & close, at, rows)
    return rows


def row_keys(t: Tensor, place: int) -> Tensor:
    """A number for each row that tells rows apart."""
    flat = t.detach().reshape(len(t), -1).to(torch.float64).nan_to_num(0.0, 0.0, 0.0).cpu()
    angles = torch.arange(flat.shape[1], dtype=torch.float64) * 0.7548776662 + place
    return (flat * torch.cos(angles)).sum(1) + flat.abs().sum(1) * 0.137


def _along(rows: Tensor, t: Tensor, dim: int) -> Tensor:
    shape = [1] * t.dim()
    shape[dim] = len(rows)
    return rows.to(t.device).view(shape)
