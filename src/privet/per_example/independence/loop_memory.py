"""What checked steps have seen of a loop: constants from outside of it, and numbers that follow the rows."""

import itertools
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from privet.per_example.independence.counterfactuals import checksum, storage_of

POWERS = 1.0, -1.0, 0.5, -0.5, 2.0, -2.0  # of the number of rows
PARITIES, ENOUGH = 7, 32  # by chance a step's way goes with even and odd rows once in 64 times, where it changes at all
SIZES = 3  # batches of so many sizes show that a number follows the rows


class Unknown(str):
    """Why a tensor is not followed, and since which step nothing vouches for it."""

    since: int | None

    def __new__(cls, reason: str, since: int | None) -> "Unknown":
        found = super().__new__(cls, reason)
        found.since = since
        return found


@dataclass(slots=True, eq=False)
class Seen:
    """What one checked step has seen; kept once it has passed."""

    rows: int = 0
    taken_out: bool = False  # a number was taken out of the batch
    shapes_tell: bool = False  # and so are lengths that depend on the records: of x[x > 0], say
    numbers: list[tuple[str, float]] = field(default_factory=list)  # that entered arithmetic on the batch
    path: list[str] = field(default_factory=list)  # the operations on it
    constants: list[tuple[Any, int, str, Any]] = field(default_factory=list)  # kind, checksum, name, memory
    not_followed: list[str] = field(default_factory=list)


class LoopMemory:
    """Constants that a loop takes from outside: the same in all checked steps, or they are none.

    A tensor that was made from Python numbers or NumPy in a round may hold anything. If it is a constant, its bits are
    the same in the next checked step; if they are not, the step is refused, and those since the first sight of it have
    no guarantee.
    """

    def __init__(self, private: Any = ()) -> None:
        """`private`: the tensors that hold the records themselves."""
        self.generator = torch.Generator()
        self.generator.seed()  # of the system: which records are exchanged is nobody's to know
        self._private = {t.untyped_storage().data_ptr() for t in private}
        self._constants: dict[Any, dict[int, int]] = {}  # by kind: checksum, and the step of its first sight
        self._held: dict[int, tuple[Any, int]] = {}  # by place in memory: the memory, and its checksum
        self._numbers: list[tuple[int, list[tuple[str, float]]]] = []
        self._ways: list[tuple[int, int]] = []  # whether rows were odd, and what was done
        self.outside: dict[str, None] = {}  # names of constants, in the order of their first sight
        self.suspect_since: int | None = None  # the first sight of a constant that turned out to be none

    def inspect_tensor(self, t: Tensor, storage: Any, checksum: int, seen: Seen) -> str:
        """Why a tensor that the loop did not make from its batch cannot be followed; empty if it is a constant."""
        name = describe(t)
        if storage.data_ptr() in self._private:
            return f"records of the dataset that are not those of the batch, {name}"
        kind = t.dtype, tuple("rows" if length == seen.rows else length for length in t.shape)
        known = self._constants.get(kind, {})
        held = self._held.get(storage.data_ptr())
        is_held = held is not None and held[0]() is storage
        if known and seen.taken_out and not is_held and not storage.resizable():  # memory of NumPy, new in this round
            return f"{name} was made outside of torch after numbers of the batch had left it"
        if held is not None and is_held and held[1] != checksum:
            since = min(known.values(), default=None)
            return Unknown(f"{name} from outside of the loop was changed since it was first seen", since)
        if known and checksum not in known:
            since = min(known.values())
            return Unknown(f"{name} was made outside of torch or of this round, and holds other values", since)
        seen.constants.append((kind, checksum, name, weakref.ref(storage)))
        return ""

    def remember(self, seen: Seen, step: int) -> None:
        """Remember what a step has seen that was found in order."""
        for kind, bits, name, reference in seen.constants:
            self._constants.setdefault(kind, {}).setdefault(bits, step)
            self.outside.setdefault(name)
            if (storage := reference()) is not None:
                self._held[storage.data_ptr()] = reference, bits
        if len({rows for rows, _ in self._numbers} - {seen.rows}) < SIZES:
            self._numbers.append((seen.rows, seen.numbers))
        if len(self._ways) < ENOUGH:
            self._ways.append((seen.rows % 2, hash((tuple(seen.path), tuple(seen.numbers)))))

    def refresh(self) -> None:
        """Forget what constants held: post-processing may have changed them."""
        self._constants.clear()
        self._held.clear()

    def follows_rows(self, seen: Seen) -> bool:
        """Whether what the loop does goes with the number of rows, by a power of it or by its being even."""
        return self._is_scaled(seen) or self._is_by_parity(seen)

    def _is_by_parity(self, seen: Seen) -> bool:
        ways = [*self._ways, (seen.rows % 2, hash((tuple(seen.path), tuple(seen.numbers))))]
        even, odd = ([way for parity, way in ways if parity == which] for which in (0, 1))
        return len(ways) >= PARITIES and min(len(even), len(odd)) > 1 and len({*even}) == len({*odd}) == 1 != len(
            {*even, *odd}
        )  # fmt: skip

    def _is_scaled(self, seen: Seen) -> bool:
        """Whether a number that enters the batch's arithmetic went with a power of its rows in three sizes."""
        kinds = [name for name, _ in seen.numbers]
        like = {rows: numbers for rows, numbers in self._numbers if [name for name, _ in numbers] == kinds}
        like[seen.rows] = seen.numbers
        if len(like) < SIZES:
            return False
        for place, power in itertools.product(range(len(kinds)), POWERS):
            ratios = [numbers[place][1] / rows**power for rows, numbers in like.items()]
            if ratios[0] and all(abs(ratio / ratios[0] - 1) < 1e-6 for ratio in ratios):
                return True
        return False


def describe(t: Tensor) -> str:
    """A tensor in words that tell nothing of its values."""
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}"


class OwnMemory:
    """The memory of a model's weights and buffers, and the sums of its bits when they were looked at last."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._sums: dict[str, int] = {}
        self.accept()
        self._places = {storage.data_ptr() for _, storage in self._storages()}

    def __contains__(self, storage: Any) -> bool:
        return storage.data_ptr() in self._places

    def accept(self) -> None:
        self._sums = {name: checksum(storage) for name, storage in self._storages()}

    def find_changed(self) -> str:
        now = {name: checksum(storage) for name, storage in self._storages()}
        return next((name for name in now | self._sums if now.get(name) != self._sums.get(name)), "")

    def _storages(self) -> list[tuple[str, Any]]:
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
