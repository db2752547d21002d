"""What a model holds while a loop is followed: its own calls alone move it, also where all is put back afterwards.

A buffer that holds a mean of the batch during the call, and what it held before after it, couples all examples; what
the model gives for other records is asked of it with the buffers that it has, so that nothing else would tell.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from privet.engine.mirrors import checksum, storage_of


class OwnMemory:
    """The memory of a model's weights and buffers, and the sums of its bits when they were looked at last."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._sums: dict[str, int] = {}
        self.keep()
        self._places = {storage.data_ptr() for _, storage in self._find()}

    def __contains__(self, storage: Any) -> bool:
        return storage.data_ptr() in self._places

    def keep(self) -> None:
        """What the model holds now is right."""
        self._sums = {name: checksum(storage) for name, storage in self._find()}

    def moved(self) -> str:
        """The name of something that holds other bits by now; empty if there is none."""
        now = {name: checksum(storage) for name, storage in self._find()}
        return next((name for name in now | self._sums if now.get(name) != self._sums.get(name)), "")

    def _find(self) -> list[tuple[str, Any]]:
        if self._model is None:
            return []
        named = itertools.chain(self._model.named_parameters(), self._model.named_buffers())
        return [(name, storage) for name, t in named if (storage := storage_of(t)) is not None]


def nodes_below(starts: Iterable[Node | None], ends: "set[Node] | frozenset[Node]" = frozenset()) -> Iterator[Any]:
    """Autograd's nodes from some down to `ends`, with both, each once."""
    left: list[Any] = [*starts]
    seen = set[Node]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node not in ends:
            left += [below for below, _ in node.next_functions]


def has_hooks(node: Any) -> bool:
    """Whether somebody else has hooks on a node of autograd's graph: ours would not be alone there."""
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *_: None)
        hooks = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            return True
    return False
