"""What an extension point promises: its checks; and those of schedules and accountants, which need no torch.

A check is given the thing, or its spelling where the library makes it, and answers "" if the promise holds, else what
does not hold.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from privet import schedules
from privet._text import one_line, shorten
from privet.accounting import Ledger, Step, registry as accountants, spent
from privet.accounting.guarantee import LABELS, Adjacency
from privet.accounting.sampling import FixedSize, Poisson, Shuffled
from privet.errors import PrivetError, Unsupported

Check = Callable[[Any], str]
LENGTHS = (1, 2, 3, 10, 1000)
RATES = (0.01, 1.0)
DELTA = 1e-5
ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a kind of plug-in promises. `needs` are the methods by which it is recognised; without any, a function."""

    kind: str
    needs: tuple[str, ...]
    checks: Mapping[str, Check]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One promise, and why it does not hold, if it does not."""

    check: str
    why: str = ""

    @property
    def passes(self) -> bool:
        return not self.why


def outcome_of(name: str, check: Check, thing: Any) -> Outcome:
    try:
        return Outcome(check=name, why=check(thing))
    except PrivetError as error:
        return Outcome(check=name, why=str(error))
    except Exception as error:
        return Outcome(check=name, why=f"it fails with a {type(error).__name__}: {shorten(one_line(error), 200)}")


def _accountant(spelling: str) -> Any:
    name, options = accountants.split(spelling)
    return accountants.make(name, **accountants.options(name, options))


# --- schedules: any form that `schedule` reads ------------------------------------------------------


def _values_are_positive(spec: Any) -> str:
    for steps in LENGTHS:
        values = schedules.schedule(spec).values(steps)
        if not isinstance(values, np.ndarray) or values.shape != (steps,) or values.dtype != np.float64:
            return f"values({steps}) must be a float64 array of shape ({steps},)"
        if not (np.isfinite(values).all() and (values > 0).all()):
            return f"values({steps}) must be finite and > 0 at every step"
    return ""


def _values_are_repeated(spec: Any) -> str:
    made = schedules.schedule(spec)
    for steps in LENGTHS:
        first = made.values(steps)
        kept = first.copy()
        first[:] = -1  # what a caller does to its array must not reach the schedule
        if not np.array_equal(made.values(steps), kept):
            return f"values({steps}) differ when they are asked for again, or share memory with an earlier answer"
        if not np.array_equal(schedules.schedule(spec).values(steps), kept):
            return f"values({steps}) of an equal schedule differ: they must be a function of the number of steps alone"
    return ""


def _spelling_is_read_back(spec: Any) -> str:
    made = schedules.schedule(spec)
    text = schedules.to_spec(made)
    again = schedules.schedule(text)
    if schedules.to_spec(again) != text or not np.array_equal(again.values(10), made.values(10)):
        return f"the text {text!r}, which a plan keeps, makes another schedule"
    return ""


SCHEDULE = Contract(kind="schedule", needs=("values",), checks={
    "one finite positive number for each step": _values_are_positive,
    "the same values every time": _values_are_repeated,
    "its text makes an equal schedule": _spelling_is_read_back,
})  # fmt: skip


# --- accountants: by spelling -----------------------------------------------------------------------


def ledger_of(noise: float = 3.0, rate: float = 0.01, count: int = 10) -> Ledger:
    ledger = Ledger()
    ledger.add(Step(noise_multiplier=noise, sample_rate=rate), count)
    return ledger


def epsilon_of(ledger: Ledger, name: str, delta: float = DELTA) -> float:
    return spent(ledger, delta, accountant=name).epsilon


def not_more(left: float, right: float) -> bool:
    """left <= right up to rounding: 1e-6 relative is far below what any accountant promises."""
    return left <= right * (1 + 1e-6) + 1e-9


def _equal(left: float, right: float) -> bool:
    return not_more(left, right) and not_more(right, left)


def _rates(name: str) -> list[float]:
    """The sample rates that it covers, of those tried."""
    made = _accountant(name)
    return [
        rate
        for rate in RATES
        if made.unsupported_reason(Step(noise_multiplier=3.0, sample_rate=rate), "zero-out") is None
    ]


def _covers_something(name: str) -> str:
    return "" if _rates(name) else f"it refuses Gaussian steps of rates {RATES}: there is nothing to check"


def _empty_costs_nothing(name: str) -> str:
    guarantee = spent(Ledger(), DELTA, accountant=name)
    return "" if guarantee.epsilon == 0 else f"epsilon of an empty ledger is {guarantee.epsilon:g}, not 0"


def _count_is_repetition(name: str) -> str:
    for rate in _rates(name):
        one_by_one = Ledger()
        for k in range(10):
            one_by_one.add(
                Step(noise_multiplier=3.0, sample_rate=rate, clipping_norm=1.0 + k)
            )  # the clipping norm must not change the cost
        if not _equal(epsilon_of(ledger_of(rate=rate), name), epsilon_of(one_by_one, name)):
            return f"at rate {rate:g}, ten steps at once cost another epsilon than ten times one, or it depends on clip"
    return ""


def _order_does_not_matter(name: str) -> str:
    rates = np.array([0.01, 0.02, 1.0, 0.05, 0.01]) if len(_rates(name)) == 2 else np.full(5, [*_rates(name), 1.0][0])
    noise = np.array([3.0, 5.0, 4.0, 3.0, 8.0])
    there, back = Ledger(), Ledger()
    there.extend(noise_multiplier=noise, sample_rate=rates)
    back.extend(noise_multiplier=noise[::-1], sample_rate=rates[::-1])
    return "" if _equal(epsilon_of(there, name), epsilon_of(back, name)) else "the order of steps changes epsilon"


def _falls(what: str, values: tuple[float, ...], cost: Callable[[str, float, Any], float]) -> Check:
    """A check that the cost (of an accountant, at a rate) never rises from one of the values to the next."""

    def check(name: str) -> str:
        for rate in _rates(name):
            costs = [cost(name, rate, value) for value in values]
            if not all(not_more(after, before) for before, after in itertools.pairwise(costs)):
                return f"at rate {rate:g}, {what}"
        return ""

    return check


_more_noise_costs_less = _falls(
    "more noise gives a larger epsilon", (2.0, 2.1, 3.0, 6.0, 20.0),
    lambda name, rate, noise: epsilon_of(ledger_of(noise, rate), name),
)  # fmt: skip
_fewer_steps_cost_less = _falls(
    "more steps give a smaller epsilon", (3000, 100, 10, 2, 1),
    lambda name, rate, count: epsilon_of(ledger_of(3.0, rate, count), name),
)  # fmt: skip
_larger_delta_costs_less = _falls(
    "a smaller delta gives a smaller epsilon", (1e-12, 1e-8, 1e-5, 1e-2),
    lambda name, rate, delta: epsilon_of(ledger_of(rate=rate), name, delta),
)  # fmt: skip


def _more_steps_cost_more(name: str) -> str:
    found = _fewer_steps_cost_less(name)
    for rate in _rates(name):
        longer = ledger_of(rate=rate)
        longer.add(Step(noise_multiplier=7.0, sample_rate=rate))
        if not not_more(epsilon_of(ledger_of(rate=rate), name), epsilon_of(longer, name)):
            found = found or f"at rate {rate:g}, a further step of another noise gives a smaller epsilon"
    return found


def _interval_and_label(name: str) -> str:
    made = _accountant(name)
    for rate in _rates(name):
        lower, upper = made.bounds(ledger_of(rate=rate), DELTA)
        if not (upper >= 0 and (lower is None or 0 <= lower <= upper)):
            return f"bounds() gave ({lower}, {upper}); it must be (lower or None, upper), 0 <= lower <= upper"
        if (label := made.label(ledger_of(rate=rate), DELTA)) not in LABELS:
            return f"label() gave {label!r}, which is not one of {', '.join(LABELS)}"
    return ""


def _not_below_what_is_proven(name: str) -> str:
    """The tight accountant's lower bound is below the truth: nothing certified may be below it."""
    for noise, rate, count in ((3.0, 0.01, 1000), (3.0, 1.0, 10), (1.5, 0.1, 50), (9.0, 1.0, 1)):
        if (rate if rate == 1.0 else 0.01) not in _rates(name):
            continue
        ledger = ledger_of(noise, rate, count)
        guarantee, tight = spent(ledger, DELTA, accountant=name), spent(ledger, DELTA)
        if guarantee.label == "certified" or not accountants.is_ours(_accountant(name)):
            assert tight.epsilon_lower is not None
            if guarantee.epsilon < tight.epsilon_lower:
                return f"epsilon {guarantee.epsilon:g} is below the proven lower bound {tight.epsilon_lower:g}"
            if guarantee.epsilon_lower is not None and guarantee.epsilon_lower > tight.epsilon:
                return f"its lower bound {guarantee.epsilon_lower:g} is above the proven epsilon {tight.epsilon:g}"
    return ""


def _refusals_have_a_reason(name: str) -> str:
    made = _accountant(name)
    for sampling, adjacency, rate in itertools.product((Poisson(), FixedSize(), Shuffled()), ADJACENCIES, RATES):
        ledger, step = Ledger(), Step(noise_multiplier=3.0, sample_rate=rate, sampling=sampling)
        ledger.add(step, 100)
        reason, case = (
            made.unsupported_reason(step, adjacency),
            f"{sampling} sampling at rate {rate:g} under {adjacency}",
        )
        if reason is None:
            if not spent(ledger, DELTA, accountant=name, adjacency=adjacency).epsilon > 0:
                return f"{case} is covered, and costs nothing"
            continue
        if not isinstance(reason, str) or "Use" not in reason:
            return f"{case} is refused without a reason that says what to use instead (`Use ...`)"
        try:
            spent(ledger, DELTA, accountant=name, adjacency=adjacency)
        except Unsupported as error:
            if reason in str(error):
                continue
        return f"{case} is refused by unsupported_reason() and not by spent()"
    return ""


ACCOUNTANT = Contract(kind="accountant", needs=("unsupported_reason", "bounds", "label"), checks={
    "it covers Gaussian steps": _covers_something, "an empty ledger costs nothing": _empty_costs_nothing,
    "ten steps at once cost as much as ten times one": _count_is_repetition,
    "the order of steps does not matter": _order_does_not_matter, "more noise never costs more": _more_noise_costs_less,
    "more steps never cost less": _more_steps_cost_more, "a smaller delta never costs less": _larger_delta_costs_less,
    "the interval and the label are valid": _interval_and_label,
    "epsilon is not below what is proven to be spent": _not_below_what_is_proven,
    "what it has no theorem for is refused with a reason": _refusals_have_a_reason,
})  # fmt: skip
