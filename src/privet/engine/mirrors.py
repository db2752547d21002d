"""Mirrors: what the memory of a tensor holds in each counterfactual batch.

It is kept with the memory, not with the tensor, so that views, `.data` and writes in place need no care; a checksum
tells when NumPy or another thread has written there.
"""

import ctypes
import itertools
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privet.engine.counterfactuals import VARIANTS
from privet.errors import Unsupported

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

    def known(self, storage: Any) -> Known | None:
        """What is known, if anything."""
        found: Known | None = getattr(storage, self._slot, None)
        return found

    def learn(self, storage: Any, known: Known) -> Known:
        """Keep what is known, in place of what was."""
        setattr(storage, self._slot, known)
        self._storages.append(weakref.ref(storage))
        return known

    def close(self) -> None:
        """Forget everything."""
        for reference in self._storages:
            if (storage := reference()) is not None and hasattr(storage, self._slot):
                delattr(storage, self._slot)

    def count(self) -> int:
        """How many pieces of memory are known and still there."""
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
        return view(t, mirror)

    def write(self, known: Known, t: Tensor, variant: int, other: Tensor) -> None:
        """Keep what a tensor holds in a counterfactual batch, in memory laid out as its own; others may share it."""
        if known.mirrors[variant] is None or known.mirrors[variant] is _ODD:
            self.copy(known, t, variant)
        view(t, known.mirrors[variant]).copy_(other.detach())

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


def view(t: Tensor, storage: Any) -> Tensor:
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
