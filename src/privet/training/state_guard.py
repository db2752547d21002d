"""While a training is open its model is moved by private steps alone: weights, frozen ones too, and buffers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privet.engine.knowledge import buffers_that_passes_move
from privet.engine.state import version_of
from privet.engine.survey import own_parameters
from privet.errors import InvalidValue


class StateGuard:
    """Checksums of all that a model holds; `check` raises if something else than a private step has changed them.

    Trained weights are compared in each step, by their bits, so that writes by `.data` or NumPy are found. What is
    frozen is compared by version in each step and by its bits in a `deep` check: in checked steps, when a checkpoint is
    saved and at the end.
    """

    def __init__(self, model: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._model, self._trained = model, trained
        self._words: dict[str, tuple[int, int, Any]] = {}  # place, length and bits of a tensor in memory
        self._sums: dict[str, int] = {}
        self._others: dict[str, tuple[Tensor, int, int, int]] = {}  # tensor, its place, version, checksum
        self._held: list[tuple[str, Mapping[str, Any], str]] = []  # where the model holds what is frozen
        self.accept(deep=True)

    def accept(self, *, deep: bool = False) -> None:
        """What the model holds now is right."""
        self._sums = {name: self._checksum(name, p) for name, p in self._trained.items()}
        if deep:
            self._others = {
                name: (t, t.data_ptr(), version_of(t), self._checksum(name, t)) for name, t in self._find_frozen()
            }

    def moved(self, *, deep: bool = False) -> str:
        """The name of something that was changed; empty if there is none."""
        with torch._C.DisableTorchFunctionSubclass():
            for name, p in self._trained.items():
                if self._checksum(name, p) != self._sums[name]:
                    return name
            free: frozenset[str] | None = None
            for name, t in self._find_frozen() if deep else self._frozen():
                known = self._others.get(name)
                if known is not None and not deep and known[0] is t and known[1:3] == (t.data_ptr(), version_of(t)):
                    continue
                if known is not None and known[3] == self._checksum(name, t):
                    self._others[name] = t, t.data_ptr(), version_of(t), known[3]
                    continue
                free = buffers_that_passes_move(self._model) if free is None else free
                if name not in free:
                    return name
        return ""

    def check(self, *, deep: bool = False) -> None:
        """Raise if something was changed."""
        name = self.moved(deep=deep)
        if name:
            raise InvalidValue(
                f"{name}: was changed by something else than a private step. Nothing bounds what records do there. Let "
                "training.step alone move the model; what uses released weights and no records (a projection, an "
                'average, lookahead) goes into `with training.post_processing("why"):`.'
            )

    def _find_frozen(self) -> Iterator[tuple[str, Tensor]]:
        """What the model holds beside its trained weights: looked for again, as modules may have come or gone."""
        trained = {id(p) for p in self._trained.values()}
        whole = {id(p) for _, p in own_parameters(self._model)}  # not those that FSDP gathers and drops again
        self._held = [
            (f"{prefix}.{name}" if prefix else name, kept, name)
            for prefix, module in self._model.named_modules()
            for kept in (module._parameters, module._buffers)
            for name, t in kept.items()
            if t is not None and id(t) not in trained and (kept is module._buffers or id(t) in whole)
        ]
        return self._frozen()

    def _frozen(self) -> Iterator[tuple[str, Tensor]]:
        for name, kept, key in self._held:
            t = kept.get(key)
            if t is not None:
                yield name, t

    def _checksum(self, name: str, t: Tensor) -> int:
        """The sum of the bits, read as whole numbers; 0 for what has no memory here."""
        kept = self._words.get(name)  # it keeps that memory alive: nothing else can lie at its place
        if kept is None or kept[0] != t.data_ptr() or kept[1] != t.numel():
            kept = t.data_ptr(), t.numel(), _words(t)
            if _is_dense(t):  # else it is a copy, to be made again
                self._words[name] = kept
        words = kept[2]
        return int(words.sum()) if isinstance(words, Tensor) else int(np.add.reduce(words, axis=None))


def _words(t: Tensor) -> Any:
    """The bits of a tensor as whole numbers, in its own memory: NumPy's for a CPU, where a sum costs a microsecond."""
    t = t.detach()
    if t.layout != torch.strided or t.is_meta or type(t).__name__ == "DTensor":
        return np.zeros(0, dtype=np.int64)
    dense = t if _is_dense(t) else t.contiguous()
    flat = dense.as_strided((t.numel(),), (1,)).view(torch.uint8)
    if len(flat) % 8 == 0 and flat.data_ptr() % 8 == 0 and flat.storage_offset() % 8 == 0:
        flat = flat.view(torch.int64)
    return flat.numpy() if flat.device.type == "cpu" else flat


def _is_dense(t: Tensor) -> bool:
    """Whether its numbers fill a stretch of memory, in some order."""
    left = 1
    for stride, length in sorted(zip(t.stride(), t.shape, strict=True)):
        if length > 1:
            if stride != left:
                return False
            left *= length
    return True
