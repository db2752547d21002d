"""Counterfactual batches: what a batch could have been, to see whether a loop treats each example by itself.

- *exchanged*: half of the records are other records of the batch.
- *extreme*, twice: the same half holds values far below the real ones, and far above them, so that a maximum or a count
  moves, and a sign whatever it is in the real batch.
- *order*, twice: the records in another order, with random numbers that go with their record, and without.
"""

import ctypes
import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privet.errors import Unsupported

EXCHANGED, BELOW, ABOVE, ORDER, ORDER_OF_PLACES = range(5)
VARIANTS = (EXCHANGED, BELOW, ABOVE, ORDER, ORDER_OF_PLACES)
EXTREMES = (BELOW, ABOVE)
ORDERS = (ORDER, ORDER_OF_PLACES)
FAR = {BELOW: -50.0, ABOVE: 50.0}  # what records of the extreme batches are multiplied by


class Counterfactuals:
    """Which rows are exchanged, and in which order all of them are; the rows of one example stay together."""

    def __init__(self, *, rows: int, augmentations: int, generator: torch.Generator) -> None:
        self.rows = rows
        records = rows // augmentations
        shuffled = torch.randperm(records, generator=generator)
        self._exchanged = (shuffled % 2 == 0).repeat_interleave(augmentations)
        order = torch.randperm(records, generator=generator)
        self._order = (order[:, None] * augmentations + torch.arange(augmentations)).flatten()
        self._roll = max(1, records // 2) * augmentations
        self.has_power = records > 1  # one record has no other

    def most_changed(self, variant: int) -> int:
        """How many rows may hold no real record."""
        return 0 if variant in ORDERS else int(self._exchanged.sum())

    def source_places(self, variant: int) -> Tensor:
        """Where each row would come from if nothing were exchanged."""
        return self._order if variant in ORDERS else torch.arange(self.rows)

    def real_rows(self, variant: int) -> Tensor:
        """The real row of each row, or -1 for one that was exchanged."""
        return self._order if variant in ORDERS else torch.where(self._exchanged, -1, torch.arange(self.rows))

    def exchange_batch(self, t: Tensor, variant: int) -> Tensor:
        t = t.detach()
        if variant in ORDERS:
            return t[self._order.to(t.device)]
        return torch.where(_shape_along(self._exchanged, t, 0), self._replacement_rows(t, variant), t)

    def exchange_draw(self, t: Tensor, variant: int) -> Tensor:
        """Random numbers, one for each row along some dimension: each goes with its record."""
        dim = t.shape.index(self.rows)
        if variant in ORDERS:
            return t.index_select(dim, self._order.to(t.device))
        return torch.where(_shape_along(self._exchanged, t, dim), t.roll(self._roll, dim), t)

    def exchange_output(self, t: Tensor, rows: Tensor, variant: int) -> Tensor:
        """What a model gave for the real row of each row; something else where there is none."""
        if not t.dim():
            return t.detach()
        found = t.detach()[rows.clamp(min=0).to(t.device)]
        lost = rows < 0
        if not bool(lost.any()):
            return found
        return torch.where(_shape_along(lost, t, 0), self._replacement_rows(t.detach(), variant), found)

    def _replacement_rows(self, t: Tensor, variant: int) -> Tensor:
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


def _shape_along(rows: Tensor, t: Tensor, dim: int) -> Tensor:
    shape = [1] * t.dim()
    shape[dim] = len(rows)
    return rows.to(t.device).view(shape)


SMALL = 1 << 16  # bytes
_numbers = itertools.count()
_ODD = object()  # in place of a mirror: another shape, kept with the tensor itself


@dataclass(slots=True, eq=False)
class Known:
    """What is known of a piece of memory."""

    checksum: int | None = None  # None: of the model itself, which its own guards watch
    mirrors: list[Any] = field(default_factory=lambda: [None] * len(VARIANTS))  # a storage; None: as in the real batch
    is_data: bool = False  # made from the batch
    is_given: bool = False  # came from outside of torch or of this round
    reason: str = ""  # why it is not followed
    call: int | None = None  # of the model, inside of which it was made
    numbers: frozenset[int] = frozenset()  # that entered arithmetic on its way, by their places in what was seen


class Mirrors:
    """Knowledge of memory, for one round of a loop; it ends with the memory, or by `close`."""

    def __init__(self) -> None:
        self._slot = f"privet_known_{next(_numbers)}"  # two trainings may follow one loop
        self._storages: list[weakref.ref[Any]] = []

    def lookup(self, storage: Any) -> Known | None:
        found: Known | None = getattr(storage, self._slot, None)
        return found

    def learn(self, storage: Any, known: Known) -> Known:
        setattr(storage, self._slot, known)
        self._storages.append(weakref.ref(storage))
        return known

    def close(self) -> None:
        for reference in self._storages:
            if (storage := reference()) is not None and hasattr(storage, self._slot):
                delattr(storage, self._slot)

    def count(self) -> int:
        return len({id(storage) for reference in self._storages if (storage := reference()) is not None})

    def read(self, known: Known, t: Tensor, variant: int) -> Tensor:
        """What a tensor holds in a counterfactual batch: in memory of its own, or itself."""
        mirror = known.mirrors[variant]
        if mirror is None:
            return t.detach()
        if mirror is _ODD:
            found: Tensor | None = (getattr(t, self._slot, None) or {}).get(variant)
            if found is None:
                raise Unsupported("a view of a tensor that has another shape for other records")
            return found
        return view_in_storage(t, mirror)

    def write(self, known: Known, t: Tensor, variant: int, other: Tensor) -> None:
        """Keep what a tensor holds in a counterfactual batch, in memory laid out as its own; others may share it."""
        if known.mirrors[variant] is None or known.mirrors[variant] is _ODD:
            self.copy(known, t, variant)
        view_in_storage(t, known.mirrors[variant]).copy_(other.detach())

    def copy(self, known: Known, t: Tensor, variant: int) -> None:
        """Keep that it holds the same, in memory of its own: something is about to be written there."""
        known.mirrors[variant] = t.untyped_storage().clone()  # type: ignore[no-untyped-call]

    def write_odd(self, known: Known, t: Tensor, variant: int, other: Tensor, *, is_new: bool) -> bool:
        """Keep what has another shape there, with the tensor; not if its memory has a mirror already."""
        if is_new:
            known.mirrors[variant] = _ODD
        if known.mirrors[variant] is not _ODD:
            return False
        setattr(t, self._slot, (getattr(t, self._slot, None) or {}) | {variant: other})
        return True

    @staticmethod
    def is_odd(known: Known, variant: int) -> bool:
        """Whether a tensor has another shape there."""
        return known.mirrors[variant] is _ODD


def storage_of(t: Tensor) -> Any:
    """The memory of a tensor; None if it has none of its own that holds its numbers as they are."""
    try:
        if t.layout != torch.strided or t.is_conj() or t.is_neg():
            return None
        storage = t.untyped_storage()
        storage.data_ptr()  # a sharded tensor has none
        return storage
    except (RuntimeError, NotImplementedError):
        return None


def view_in_storage(t: Tensor, storage: Any) -> Tensor:
    """A tensor like `t` in other memory."""
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(storage, t.storage_offset(), t.shape, t.stride())


def checksum(storage: Any) -> int:
    """One number for the bits of a piece of memory; of a small one for their order too, in which alone ranks differ."""
    size = storage.nbytes()
    if size <= SMALL and storage.device.type == "cpu":
        return hash(ctypes.string_at(storage.data_ptr(), size)) if size else 0
    words = torch.empty(0, dtype=torch.int64, device=storage.device).set_(storage, 0, (size // 8,), (1,))
    rest = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, size // 8 * 8, (size % 8,), (1,))
    return int(words.sum()) + 31 * int(rest.sum())


def fills_memory(t: Tensor) -> bool:
    """Whether a tensor is all that lies in its memory."""
    storage = storage_of(t)
    return storage is not None and t.numel() * t.element_size() == storage.nbytes() and t.is_contiguous()
