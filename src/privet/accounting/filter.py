"""A privacy filter: one epsilon for several runs, also where what earlier ones released decides how later are planned.

Composition by `pld` is proven for plans that are fixed beforehand. It fails where a plan follows earlier outputs: of
two that both keep the total, the one that is worse for what was seen could be taken. Rényi divergence at one order that
is fixed beforehand adds up, whatever decides (docs/math.md, A filter for several runs).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privet import _check
from privet.accounting.accountant import overflow_probability, refuse_unsupported, registry, spent, to_poisson
from privet.accounting.guarantee import Adjacency
from privet.accounting.ledger import Ledger
from privet.accounting.rdp import MOST_WORK, ORDERS, Divergence, epsilon_from_rdp
from privet.errors import PrivetError, Unsupported

CUT = 1e-3  # share of delta that is kept for batches which a cap may cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A total epsilon at delta for runs that are admitted one by one, each with its whole plan.

    Runs may begin while `cost` of them all stays within `epsilon`. Two things are fixed before the first run releases
    anything: the order, and the plan of that run. Alone, that run needs no filter, and is charged by `pld`.

    >>> from privet.accounting import Step
    >>> run = Ledger()
    >>> run.add(Step(noise_multiplier=1.0, sample_rate=0.01), count=500)
    >>> total = Filter.for_first_run(run, epsilon=2.7, delta=1e-5)
    >>> [total.cost([run] * runs) <= total.epsilon for runs in (1, 2, 3, 4)]
    [True, True, True, False]
    """

    epsilon: float
    delta: float
    order: float

    def __post_init__(self) -> None:
        _check.positive(total_epsilon=self.epsilon)
        _check.between(0, 1, delta=self.delta)
        if not (math.isfinite(self.order) and self.order > 1):
            raise Unsupported(f"order={self.order!r} must be a finite number above 1. Set the total again.")

    @classmethod
    def for_first_run(
        cls, first: Ledger, *, epsilon: float, delta: float, adjacency: Adjacency = "zero-out"
    ) -> "Filter":
        """The filter whose order lets most runs like the first begin.

        Raises:
            Unsupported: the Rényi accountant has no theorem for the first run's steps.
        """
        _check.positive(total_epsilon=epsilon)
        _check.between(0, 1, delta=delta)
        divergence = _divergence(first, adjacency)
        found: dict[float, float] = {}
        for order in _feasible_orders(divergence):
            found[order] = _allowed_divergence(order, epsilon, delta) / max(divergence(order), 1e-300)
        best = max(found, key=lambda order: found[order])
        for order in np.geomspace(best - 1, (best - 1) * 1.28, 6)[1:-1]:  # between this order and the next
            allowed = _allowed_divergence(1 + order, epsilon, delta)
            found[1 + float(order)] = allowed / max(divergence(1 + order), 1e-300)
        return cls(epsilon=epsilon, delta=delta, order=max(found, key=lambda order: found[order]))

    def cost(self, ledgers: Sequence[Ledger], *, adjacency: Adjacency = "zero-out") -> float:
        """The epsilon at `delta` that these whole plans come to; rounding goes outward.

        Raises:
            Unsupported: no theorem covers a step.
        """
        if not ledgers:
            return 0.0
        if len(ledgers) == 1:
            return certified_epsilon(ledgers[0], self.delta, adjacency)
        if sum(map(overflow_probability, ledgers)) * (1 + math.exp(min(self.epsilon, 700.0))) > CUT * self.delta:
            raise Unsupported(
                f"cap: batches of these runs are cut more often than {CUT:g} of delta={self.delta!r} can absorb. Use a "
                "larger cap."
            )
        divergence = sum(_divergence(ledger, adjacency)(self.order) for ledger in ledgers) * (1 + 1e-12)
        return epsilon_from_rdp(order=self.order, rdp=divergence, delta=(1 - CUT) * self.delta)


def certified_epsilon(ledger: Ledger, delta: float, adjacency: Adjacency) -> float:
    """A certified epsilon of one ledger: by pld, or by rdp where pld has no theorem."""
    try:
        return spent(ledger, delta, adjacency=adjacency).epsilon
    except PrivetError:
        return spent(ledger, delta, adjacency=adjacency, accountant="rdp").epsilon


def _divergence(ledger: Ledger, adjacency: Adjacency) -> Divergence:
    refuse_unsupported(registry.make("rdp"), ledger, adjacency=adjacency, accountant="rdp")
    return Divergence(to_poisson(ledger))


def _feasible_orders(divergence: Divergence) -> list[float]:
    """The orders at which the divergence is a number that can be had in bearable time."""
    work = 0.0
    found: list[float] = []
    for order in ORDERS:
        work += divergence.work(order)
        if found and (work > MOST_WORK or not math.isfinite(divergence(order))):
            break
        found.append(order)
    return found


def _allowed_divergence(order: float, epsilon: float, delta: float) -> float:
    """The divergence at this order which epsilon at delta allows; below 0 if none is allowed."""
    return epsilon - (math.log1p(-1 / order) - math.log((1 - CUT) * delta * order) / (order - 1))
