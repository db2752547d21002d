"""A run that many ranks make as one: the same start, one sample of which each has its part, one charge for a step."""

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet import _check
from privet.accounting import Ledger
from privet.errors import InvalidValue
from privet.ledger.account import Account, Charge, InForce, issue, steps_to_charge
from privet.ledger.assumptions import LoopFacts
from privet.ledger.format import LedgerPosition
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.sampling.loading import BatchSampler, PhysicalBatch, physical_batches
from privet.sampling.samplers import sampler
from privet.sampling.users import UserIds, user_sampler
from privet.training.checks import check_unit, count_records, physical_batch_rows
from privet.training.processes import Group, checksum, is_sharded

EVERY = 50  # steps from one comparison of the ranks' weights to the next


# --- the start --------------------------------------------------------------------------------------


def join_run(
    group: Group, model: nn.Module, optimizer: Optimizer, plan: Plan, dataset: Any, randomness: Randomness,
    users: UserIds | None, settings: Any,
) -> Randomness:  # fmt: skip
    """Raise, on every rank, unless all begin the same run; then rank 0's weights and buffers are everyone's.

    Gives the source of this rank's noise: no two ranks may draw the same.
    """
    if group.size == 1:
        return randomness
    facts = {
        "plan": plan.hash, "dataset": (count_records(dataset), _row_checksums(dataset)),
        "model": [(name, p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()],
        "optimizer": (type(optimizer).__name__, [sorted(_plain_settings(g).items()) for g in optimizer.param_groups]),
        "randomness": str(randomness), "settings": (None if users is None else [str(user) for user in users], settings),
    }  # fmt: skip
    told = group.all_gather([zlib.crc32(repr(value).encode()) for value in facts.values()])
    for name, found in zip(facts, told.T, strict=True):
        if (found != found[0]).any():
            raise InvalidValue(
                f"{name} is not the same on all {group.size} ranks. They make one step together, so it would be "
                "neither the plan's nor one model's. Make it on each rank from the same things, in the same order."
            )
    broadcast_weights(group, model)
    return randomness if randomness.noise_is_secret else Randomness(randomness.seed, *randomness.path, group.rank)


def _plain_settings(of: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values among an optimizer's settings; how others are written may differ from process to process."""
    return {name: value for name, value in of.items() if isinstance(value, (int, float, str, tuple, type(None)))}


def _row_checksums(dataset: Any, most: int = 256) -> list[int]:
    """Checksums of some rows of a dataset held as tensors, to tell another one, or another order, from this."""
    parts = dataset if isinstance(dataset, tuple) else getattr(dataset, "tensors", (dataset,))
    held = [part for part in parts if isinstance(part, Tensor) and len(part)]
    return [checksum([part[:: -(-len(part) // most)]]) for part in held]


@torch.no_grad()
def broadcast_weights(group: Group, model: nn.Module) -> None:
    everything = dict(model.named_parameters()) | dict(model.named_buffers())
    held = {name: value for name, value in everything.items() if not is_sharded(value)}
    for name, value in group.broadcast(held).items():
        held[name].copy_(value)


# --- one sample -------------------------------------------------------------------------------------


class Batches:
    """The records of each step, loaded, in physical batches of at most `most` rows.

    Args:
        users: the owner of each record, for a plan with unit="user".
        augmentations: rows of each record, lying together.
    """

    def __init__(
        self, dataset: Any, plan: Plan, group: Group, *, users: UserIds | None, most: int | None, workers: int,
        augmentations: int,
    ) -> None:  # fmt: skip
        self._dataset, self._plan, self._group = dataset, plan, group
        self._users, self._workers, self._views = users, workers, augmentations
        self.rows = physical_batch_rows(most, augmentations)
        _check.whole(least=0, workers=workers)
        records = None if self.rows is None else self.rows // augmentations  # of a piece
        self._part = RankShard(group, records) if group.size > 1 else Whole()
        self.next_turn = self._part.next_turn  # what goes with the next physical batch: asked once for each, in order

    def make_sampler(self, randomness: Randomness, *, start: int) -> BatchSampler:
        """The plan's own sampler from a step on, of this rank's part: raises if dataset and plan do not fit."""
        plan, records = self._plan, count_records(self._dataset)
        check_unit(plan, records, self._users)
        users = self._users
        make = partial(sampler, records=records) if users is None else partial(user_sampler, users=users)
        chosen: BatchSampler = self._part.rebind(make(plan, start=start, randomness=randomness))
        return chosen if self._views == 1 else Repeated(chosen, self._views)

    def load(self, randomness: Randomness, *, start: int) -> Iterator[PhysicalBatch[Any]]:
        chosen = self.make_sampler(sampling_randomness(randomness, self._group, start), start=start)
        return physical_batches(self._dataset, chosen, workers=self._workers, physical=self.rows)


class Repeated:
    """The batches of a sampler with each example `augmentations` times in a row, to be augmented each time anew."""

    def __init__(self, over: BatchSampler, augmentations: int) -> None:
        self._over, self._views = over, augmentations

    def __iter__(self) -> Iterator[Tensor]:
        for indices in self._over:
            yield indices.repeat_interleave(self._views)

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        return self._over.split(indices, most)


def sampling_randomness(randomness: Randomness, group: Group, number: int) -> Randomness:
    """Where the coins of all ranks come from, from step `number` on: a key of 384 bits that rank 0 draws afresh.

    So all ranks know the whole sample, whatever the sampling, and need not speak of it. A seeded run takes its seed.
    """
    if group.size == 1:
        return randomness
    if randomness.noise_is_secret:
        return Randomness(int.from_bytes(group.broadcast_bytes(os.urandom(48))))
    return Randomness(randomness.seed, *randomness.path[:-1], group.size, number)


class RankTurn(NamedTuple):
    """What goes with the records of a step on one rank."""

    sample: int = 0  # checksum of the indices of all ranks
    is_padding: bool = False


_OWN = RankTurn()


class Whole:
    """All records of each batch: those of a process that is alone."""

    def rebind(self, over: BatchSampler) -> BatchSampler:
        return over

    def next_turn(self, is_last: bool) -> RankTurn:
        return _OWN


class RankShard:
    """This rank's records of each batch, every `size`-th, in pieces of at most `most`: as many pieces on all ranks.

    Rank 0 has as many records as any, and another rank one less at most. Where that would be a piece less, a record is
    lent, alone in a last piece: so loops go round as often on all ranks, and schedulers and sharded layers keep in
    step. What is lent must not count; `turn` says so.
    """

    def __init__(self, group: Group, most: int | None) -> None:
        self._group, self._most, self._turns = group, most, deque[RankTurn]()
        self._over: BatchSampler | None = None

    def rebind(self, over: BatchSampler) -> "RankShard":
        """The same rank's part of another sampler's batches; what was drawn ahead is forgotten."""
        self._over = over
        self._turns.clear()
        return self

    def next_turn(self, is_last: bool) -> RankTurn:
        """What goes with a piece: asked once for each, in their order. Only the last one may be lent."""
        return self._turns.popleft() if is_last else RankTurn(self._turns[0].sample)

    def __iter__(self) -> Iterator[Tensor]:
        assert self._over is not None
        for indices in self._over:
            mine = indices[self._group.rank :: self._group.size]
            is_short = len(mine) < -(-len(indices) // self._group.size)
            is_padding = is_short and len(mine) % (self._most or len(indices)) == 0
            self._turns.append(RankTurn(checksum([indices]), is_padding))
            yield torch.cat([mine, indices[:1]]) if is_padding else mine

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        assert self._over is not None
        return self._over.split(indices, most)


# --- one charge -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class Standing:
    """Where a rank stands when a step is charged: what must be the same on all, and what rank 0 decides for all."""

    weights: Sequence[Tensor]
    sample: int = 0  # checksum of the sample at hand
    is_checked: bool = False  # whether the loop is checked in this step: what this rank wants, then what rank 0 wants


def make_account(group: Group, plan: Plan, make: Callable[[], Account], standing: Standing) -> Account:
    return make() if group.size == 1 else DistributedAccount(group, plan, make, standing)


class DistributedAccount:
    """The account of a group: rank 0 keeps it, and no rank draws noise for a step before that is charged there.

    Ranks meet here in each step, so they compare where they stand: the step, its sample, and now and then the weights.
    """

    def __init__(self, group: Group, plan: Plan, make: Callable[[], Account], standing: Standing) -> None:
        self._group, self._plan, self._standing = group, plan, standing
        self._own: Account | None = None
        self._facts: LoopFacts | None = None

        def begin() -> Sequence[int]:
            self._own = make() if group.is_first else None
            return self._position()

        self._next, self._charged = map(int, group.run_on_first(begin, 2)[0])

    @property
    def next_step(self) -> int:
        return self._next

    @property
    def charged(self) -> int:
        return self._charged

    @property
    def position(self) -> LedgerPosition | None:
        return None if self._own is None else self._own.position

    def charge(self, number: int, in_force: InForce = float) -> Charge:
        mine: Charge | None = None

        def do() -> Sequence[int]:
            nonlocal mine
            if self._own is not None:
                mine = self._own.charge(number, in_force)
            is_due = number % EVERY == 0 or number == len(self._plan.steps) - 1
            here = self._standing
            bits = checksum(here.weights) if is_due else 0
            return [*self._position(), number, here.sample, bits, int(here.is_checked)]

        told = self._group.run_on_first(do, 6)
        for name, found in zip(("step", "sample", "model"), told.T[2:5], strict=True):
            if (found != found[0]).any():
                raise InvalidValue(
                    f"{name} is not the same on all ranks at step {number}: their loops have come apart. The sum over "
                    "the ranks would not be one step of the plan. Do the same on every rank: the same schedulers, and "
                    "no rank leaves the loop alone. Then resume."
                )
        self._next, self._charged = map(int, told[0, :2])
        self._standing.is_checked = bool(told[0, 5])
        step, charged = steps_to_charge(self._plan, number, in_force)
        return issue(number, step, charged.clipping_norm) if mine is None else mine

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

    def _position(self) -> Sequence[int]:
        return (0, 0) if self._own is None else (self._own.next_step, self._own.charged)
