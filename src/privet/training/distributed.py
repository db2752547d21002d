"""A run that many ranks make as one: the same start, and one charge for each step."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.accounting import Ledger
from privet.errors import InvalidValue
from privet.ledger.account import Account, Charge, InForce, issue, steps_to_charge
from privet.ledger.assumptions import LoopFacts
from privet.ledger.format import LedgerPosition
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.sampling.users import UserIds
from privet.training.checks import count_records
from privet.training.processes import Group, checksum, is_sharded

EVERY = 50  # steps from one comparison of the ranks' weights to the next


# --- the start --------------------------------------------------------------------------------------


def join_run(
    group: Group, model: nn.Module, optimizer: Optimizer, plan: Plan, dataset: Any, generator: Randomness,
    users: UserIds | None, settings: Any,
) -> Randomness:  # fmt: skip
    """Raise, on every rank, unless all begin the same run; then rank 0's weights and buffers are everyone's.

    Gives the source of this rank's noise: no two ranks may draw the same.
    """
    if group.size == 1:
        return generator
    facts = {
        "plan": plan.hash, "dataset": (count_records(dataset), _row_checksums(dataset)),
        "model": [(name, p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()],
        "optimizer": (type(optimizer).__name__, [sorted(_plain_settings(g).items()) for g in optimizer.param_groups]),
        "generator": str(generator), "settings": (None if users is None else [str(user) for user in users], settings),
    }  # fmt: skip
    told = group.all_gather([zlib.crc32(repr(value).encode()) for value in facts.values()])
    for name, found in zip(facts, told.T, strict=True):
        if (found != found[0]).any():
            raise InvalidValue(
                f"{name} is not the same on all {group.size} ranks. They make one step together, so it would be "
                "neither the plan's nor one model's. Make it on each rank from the same things, in the same order."
            )
    broadcast_weights(group, model)
    return generator if generator.noise_is_secret else Randomness(generator.seed, *generator.path, group.rank)


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
        return issue(number, step, charged.clip) if mine is None else mine

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
