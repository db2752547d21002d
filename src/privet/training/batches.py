"""The physical batches of a run: one sample for all ranks, by the plan's own sampler, and this rank's part of it."""

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privet import _check
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.sampling.loading import BatchSampler, PhysicalBatch, physical_batches
from privet.sampling.samplers import sampler
from privet.sampling.users import UserIds, user_sampler
from privet.training.checks import check_unit, count_records, physical_batch_rows
from privet.training.processes import Group, checksum


class Batches:
    """The records of each step, loaded, in physical batches of at most `most` rows.

    Args:
        users: the owner of each record, for a plan with unit="user".
        views: rows of each record, lying together.
    """

    def __init__(
        self, dataset: Any, plan: Plan, group: Group, *, users: UserIds | None, most: int | None, workers: int,
        views: int,
    ) -> None:  # fmt: skip
        self._dataset, self._plan, self._group = dataset, plan, group
        self._users, self._workers, self._views = users, workers, views
        self.rows = physical_batch_rows(most, views)
        _check.whole(least=0, workers=workers)
        records = None if self.rows is None else self.rows // views  # of a piece
        self._part = Part(group, records) if group.size > 1 else Whole()
        self.next_turn = self._part.next_turn  # what goes with the next physical batch: asked once for each, in order

    def make_sampler(self, generator: Randomness, *, start: int) -> BatchSampler:
        """The plan's own sampler from a step on, of this rank's part: raises if dataset and plan do not fit."""
        plan, records = self._plan, count_records(self._dataset)
        check_unit(plan, records, self._users)
        users = self._users
        make = partial(sampler, records=records) if users is None else partial(user_sampler, users=users)
        chosen: BatchSampler = self._part.rebind(make(plan, start=start, generator=generator))
        return chosen if self._views == 1 else Repeated(chosen, self._views)

    def load(self, generator: Randomness, *, start: int) -> Iterator[PhysicalBatch[Any]]:
        chosen = self.make_sampler(coins(generator, self._group, start), start=start)
        return physical_batches(self._dataset, chosen, workers=self._workers, physical=self.rows)


class Repeated:
    """The batches of a sampler with each record `views` times in a row; read as often, so augmented each time anew."""

    def __init__(self, over: BatchSampler, views: int) -> None:
        self._over, self._views = over, views

    def __iter__(self) -> Iterator[Tensor]:
        for indices in self._over:
            yield indices.repeat_interleave(self._views)

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        return self._over.split(indices, most)


def coins(generator: Randomness, group: Group, number: int) -> Randomness:
    """Where the coins of all ranks come from, from step `number` on: a key of 384 bits that rank 0 draws afresh.

    So all ranks know the whole sample, whatever the sampling, and need not speak of it. A seeded run takes its seed.
    """
    if group.size == 1:
        return generator
    if generator.noise_is_secret:
        return Randomness(int.from_bytes(group.broadcast_bytes(os.urandom(48))))
    return Randomness(generator.seed, *generator.path[:-1], group.size, number)


class Turn(NamedTuple):
    """What goes with the records of a step on one rank."""

    sample: int = 0  # checksum of the indices of all ranks
    is_lent: bool = False


_OWN = Turn()


class Whole:
    """All records of each batch: those of a process that is alone."""

    def rebind(self, over: BatchSampler) -> BatchSampler:
        return over

    def next_turn(self, is_last: bool) -> Turn:
        return _OWN


class Part:
    """This rank's records of each batch, every `size`-th, in pieces of at most `most`: as many pieces on all ranks.

    Rank 0 has as many records as any, and another rank one less at most. Where that would be a piece less, a record is
    lent, alone in a last piece: so loops go round as often on all ranks, and schedulers and sharded layers keep in
    step. What is lent must not count; `turn` says so.
    """

    def __init__(self, group: Group, most: int | None) -> None:
        self._group, self._most, self._turns = group, most, deque[Turn]()
        self._over: BatchSampler | None = None

    def rebind(self, over: BatchSampler) -> "Part":
        """The same rank's part of another sampler's batches; what was drawn ahead is forgotten."""
        self._over = over
        self._turns.clear()
        return self

    def next_turn(self, is_last: bool) -> Turn:
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
