"""A run that many ranks make as one: the same start, one sample and one charge for each step."""

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.accounting import Ledger, Step
from privet.engine.loading import Chooser
from privet.engine.randomness import Randomness
from privet.errors import InvalidValue, Unsupported
from privet.planning import Plan
from privet.training.account import Account
from privet.training.assumptions import LoopFacts
from privet.training.distributed import Group
from privet.training.gate import records_of
from privet.training.ledger_lines import Mark

EVERY = 50  # steps from one comparison of the ranks' weights to the next


# --- the start --------------------------------------------------------------------------------------


def check_group(model: nn.Module, plan: Plan, group: Group | None) -> None:
    """Raise if a wrapper would move raw gradients between ranks, or what is asked for cannot be done in a group."""
    kinds = {type(module).__name__ for module in model.modules()}
    if "DistributedDataParallel" in kinds:
        raise Unsupported(
            "model=DistributedDataParallel averages gradients between ranks as they are, before clipping and noise. "
            "Nothing of that is private. Give the model itself, and group=distributed.group()."
        )
    sharded = [name for name, p in model.named_parameters() if p.requires_grad and is_sharded(p)]
    if sharded or "FullyShardedDataParallel" in kinds:
        raise Unsupported(
            f"model: {', '.join(sharded[:3]) or 'all of it'} is trained and sharded by FSDP. Clipping watches each use "
            "of a trained parameter, and what FSDP puts in its place while the layer runs is not it. Shard frozen "
            "layers only, by fully_shard(layer), and keep what is trained whole; see docs/howto-distributed.md."
        )
    if group is None and _is_one_of_many():
        raise InvalidValue(
            "group=None in one of several processes: each would train a model of its own on the same records, and the "
            "budget would be spent once for each. Give group=distributed.group()."
        )
    if group is not None and plan.is_unsound:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee, and its noise is read off the whole batch, which no rank has. "
            "Train it in one process."
        )


def is_sharded(p: Tensor) -> bool:
    """Whether only a slice of it is on this rank."""
    return any(kind.__name__ == "DTensor" for kind in type(p).__mro__)


def _is_one_of_many() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"  # started by torchrun


def join(
    group: Group, model: nn.Module, optimizer: Optimizer, plan: Plan, dataset: Any, generator: Randomness, settings: Any
) -> Randomness:
    """Raise, on every rank, unless all begin the same run; then rank 0's weights and buffers are everyone's.

    Gives the source of this rank's noise: no two ranks may draw the same.
    """
    facts = {
        "plan": plan.hash,
        "dataset": (records_of(dataset), _rows(dataset)),
        "model": [(name, p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()],
        "optimizer": (type(optimizer).__name__, [sorted(_settings(g).items()) for g in optimizer.param_groups]),
        "generator": str(generator),
        "settings": settings,
    }
    told = group.gathered([zlib.crc32(repr(value).encode()) for value in facts.values()])
    for name, found in zip(facts, told.T, strict=True):
        if (found != found[0]).any():
            raise InvalidValue(
                f"{name} is not the same on all {group.size} ranks. They make one step together, so it would be "
                "neither the plan's nor one model's. Make it on each rank from the same things, in the same order."
            )
    spread(group, model)
    return generator if generator.private else Randomness(generator.seed, *generator.path, group.rank)


def _settings(of: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values among an optimizer's settings; how others are written may differ from process to process."""
    return {name: value for name, value in of.items() if isinstance(value, (int, float, str, tuple, type(None)))}


def _rows(dataset: Any, most: int = 256) -> list[int]:
    """Checksums of some rows of a dataset held as tensors, to tell another one, or another order, from this."""
    parts = dataset if isinstance(dataset, tuple) else getattr(dataset, "tensors", (dataset,))
    held = [part for part in parts if isinstance(part, Tensor) and len(part)]
    return [checksum([part[:: -(-len(part) // most)]]) for part in held]


def checksum(tensors: Sequence[Tensor]) -> int:
    """One number for the bits of all tensors."""
    found = 0
    for t in tensors:
        found = zlib.crc32(t.detach().flatten().contiguous().view(torch.uint8).cpu().numpy().tobytes(), found)
    return found


@torch.no_grad()
def spread(group: Group, model: nn.Module) -> None:
    """Give every rank the weights and buffers of rank 0; a sharded weight is one already."""
    everything = dict(model.named_parameters()) | dict(model.named_buffers())
    held = {name: value for name, value in everything.items() if not is_sharded(value)}
    for name, value in group.from_first(held).items():
        held[name].copy_(value)


# --- one sample -------------------------------------------------------------------------------------


def coins(generator: Randomness, group: Group, number: int) -> Randomness:
    """Where the coins of all ranks come from, from step `number` on: a key of 384 bits that rank 0 draws afresh.

    So all ranks know the whole sample, whatever the sampling, and need not speak of it. A seeded run takes its seed.
    """
    if generator.private:
        return Randomness(int.from_bytes(group.bytes_from_first(os.urandom(48))))
    return Randomness(generator.seed, *generator.path[:-1], group.size, number)


class Turn(NamedTuple):
    """What goes with the records of a step on one rank."""

    sample: int = 0  # checksum of the indices of all ranks
    is_lent: bool = False


class Part:
    """This rank's records of each batch, every `size`-th, in pieces of at most `most`: as many pieces on all ranks.

    Rank 0 has as many records as any, and another rank one less at most. Where that would be a piece less, a record is
    lent, alone in a last piece: so loops go round as often on all ranks, and schedulers and sharded layers keep in
    step. What is lent must not count; `turn` says so.
    """

    def __init__(self, group: Group, most: int | None) -> None:
        self._group, self._most, self._turns = group, most, deque[Turn]()
        self._over: Chooser | None = None

    def of(self, over: Chooser) -> "Part":
        """The same rank's part of another sampler's batches; what was drawn ahead is forgotten."""
        self._over = over
        self._turns.clear()
        return self

    def turn(self, is_last: bool) -> Turn:
        """What goes with a piece: asked once for each, in their order. Only the last one may be lent."""
        return self._turns.popleft() if is_last else Turn(self._turns[0].sample)

    def __iter__(self) -> Iterator[Tensor]:
        assert self._over is not None
        for indices in self._over:
            mine = indices[self._group.rank :: self._group.size]
            is_short = len(mine) < -(-len(indices) // self._group.size)
            is_lent = is_short and len(mine) % (self._most or len(indices)) == 0
            self._turns.append(Turn(checksum([indices]), is_lent))
            yield torch.cat([mine, indices[:1]]) if is_lent else mine

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        assert self._over is not None
        return self._over.split(indices, most)


# --- one charge -------------------------------------------------------------------------------------


Standing = Callable[[bool], tuple[int, int, int]]  # checksums of the sample at hand and, if it is due, of the weights;
# and whether this rank wants the loop checked in this step


class JointAccount:
    """The account of a group: rank 0 keeps it, and no rank draws noise for a step before that is charged there.

    Ranks meet here in each step, so they compare where they stand: the step, its sample, and now and then the weights.
    """

    def __init__(self, group: Group, plan: Plan, make: Callable[[], Account], standing: Standing) -> None:
        self._group, self._plan, self._standing = group, plan, standing
        self._own: Account | None = None
        self.is_checked = False  # whether rank 0 wanted the loop checked in the step that was charged last
        self._facts: LoopFacts | None = None

        def begin() -> Sequence[int]:
            self._own = make() if group.is_first else None
            return self._place()

        self._next, self._charged = map(int, group.together(begin, 2)[0])

    @property
    def next(self) -> int:
        return self._next

    @property
    def charged(self) -> int:
        return self._charged

    @property
    def mark(self) -> Mark | None:
        return None if self._own is None else self._own.mark

    def charge(self, number: int, step: Step) -> None:
        def do() -> Sequence[int]:
            if self._own is not None:
                self._own.charge(number, step)
            is_due = number % EVERY == 0 or number == len(self._plan.steps) - 1
            return [*self._place(), number, *self._standing(is_due)]

        told = self._group.together(do, 6)
        for name, found in zip(("step", "sample", "model"), told.T[2:5], strict=True):
            if (found != found[0]).any():
                raise InvalidValue(
                    f"{name} is not the same on all ranks at step {number}: their loops have come apart. The sum over "
                    "the ranks would not be one step of the plan. Do the same on every rank: the same schedulers, and "
                    "no rank leaves the loop alone. Then resume."
                )
        self._next, self._charged = map(int, told[0, :2])
        self.is_checked = bool(told[0, 5])

    @property
    def facts(self) -> LoopFacts | None:
        return self._facts if self._own is None else self._own.facts

    def note(self, facts: LoopFacts) -> None:
        """Rank 0 alone writes; the others keep what they were given."""
        self._facts = facts
        if self._own is not None:
            self._own.note(facts)

    def ledger(self) -> Ledger:
        """All that is charged; away from rank 0, the plan's steps up to there."""
        return self._plan.ledger().first(self._charged) if self._own is None else self._own.ledger()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def _place(self) -> Sequence[int]:
        return (0, 0) if self._own is None else (self._own.next, self._own.charged)
