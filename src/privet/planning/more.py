"""What more rounds would cost: a plan goes on, and its clients ask what they will have given away by then."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from privet import _check
from privet.accounting import Guarantee, Ledger, Step, joined, spent
from privet.accounting.guarantee import rounded
from privet.errors import InvalidValue, NoSolution, PrivetError, Unsupported
from privet.planning.calibrate import calibrate
from privet.planning.plan import Plan
from privet.planning.solve import largest
from privet.planning.steps import MOST_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """The whole run with `rounds` more than planned.

    `guarantee`: the rounds more are like the plan's last one. `noise`: the least noise of those rounds that keeps the
    whole run within the larger epsilon asked for, and `within` its guarantee; or `why` there is none.
    """

    rounds: int
    guarantee: Guarantee
    noise: float | None = None
    within: Guarantee | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A plan's own guarantee, its last step, and what more rounds would cost.

    `most` is how many more rounds like the last stay within `epsilon`, if one was given.
    """

    planned: Guarantee
    last: Step
    rows: tuple[More, ...]
    epsilon: float | None = None
    most: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"last": asdict(self.last) | {"sampling": str(self.last.sampling)}}


def more(plan: Plan, rounds: Sequence[int], *, within: float | None = None) -> Outlook:
    """What `plan` costs with so many more rounds, and the noise that keeps the whole run `within` a larger epsilon.

    The number of rounds, and their noise, must not depend on what the plan's rounds have shown. Rows at the last noise
    are parts of one another, so where the results decide how many of them there are, the longest is the price.

    >>> from privet.planning import plan
    >>> p = plan(epsilon=2.0, delta=1e-5, size=60000, batch=256, steps=10000)
    >>> found = more(p, [1000], within=2.2)
    >>> round(found.rows[0].guarantee.epsilon, 2), found.rows[0].noise < p.steps[-1].noise, found.most
    (2.11, True, 1918)

    Raises:
        InvalidValue: `within` is not above what is planned.
        Unsupported: no proof covers the plan's clipping rule, or the plan charges for several runs.
    """
    if isinstance(rounds, (str, bytes)) or not isinstance(rounds, Sequence) or not rounds:
        raise InvalidValue(
            f"more={rounds!r} must be a list of at least one number of rounds. Give [500, 1000], for example."
        )
    for count in rounds:
        _check.whole(more=count)
        if count + len(plan.steps) > MOST_STEPS:
            raise InvalidValue(f"more={count!r} must keep the steps within {MOST_STEPS:.0e}. Use fewer.")
    if plan.is_unsound:
        raise Unsupported(
            f"rule={plan.rule!r} has no guarantee, so the cost of more rounds is unknown. Plan a sound rule."
        )
    if plan.recipe.tuning is not None:
        raise Unsupported("trials: the plan charges for several runs, and rounds of one are asked for. Plan one run.")
    planned = _priced(plan, 0)
    if within is not None:
        _check.positive(within=within)
        if within <= planned.epsilon:
            raise InvalidValue(
                f"within={within!r} must be above {rounded(planned.epsilon, up=True)}, which the planned rounds spend "
                "already. Give a larger epsilon."
            )
    rows = tuple(_row(plan, count, within) for count in sorted(set(rounds)))
    most = None if within is None else _most(plan, within)
    return Outlook(planned=planned, last=plan.steps[-1], rows=rows, epsilon=within, most=most)


def _priced(plan: Plan, rounds: int, noise: float | None = None) -> Guarantee:
    """The guarantee of the plan's steps and `rounds` more, like the last one but for the noise.

    The rounds more are a run of their own: where batches are shuffled they begin with a new epoch.
    """
    ledger, budget = plan.ledger(), plan.recipe.budget
    if rounds:
        last, further = plan.steps[-1], Ledger()
        further.add(last if noise is None else replace(last, noise=noise), rounds)
        ledger = joined(ledger, further)
    accountant = "pld" if plan.certified is not None else plan.guarantee.method
    return spent(ledger, budget.delta, accountant=accountant, relation=budget.relation, unit=budget.unit)


def _row(plan: Plan, rounds: int, within: float | None) -> More:
    guarantee = _priced(plan, rounds)
    if within is None:
        return More(rounds=rounds, guarantee=guarantee)
    try:
        noise = calibrate(
            lambda noise: _priced(plan, rounds, noise).epsilon, epsilon=within, start=plan.steps[-1].noise
        )
    except NoSolution as error:
        return More(rounds=rounds, guarantee=guarantee, why=f"no noise reaches it: {error}")
    return More(rounds=rounds, guarantee=guarantee, noise=noise, within=_priced(plan, rounds, noise))


def _most(plan: Plan, within: float) -> int:
    """How many more rounds like the last one stay within `within`."""

    def cost(rounds: int) -> float:
        try:
            return _priced(plan, rounds).epsilon
        except PrivetError:
            return math.inf

    planned = len(plan.steps)
    return largest(cost, epsilon=within, most=MOST_STEPS - planned, start=max(1, planned // 10))
