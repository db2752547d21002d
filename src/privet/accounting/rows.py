"""Rows of a file as the steps of a ledger: every complaint names the row's place."""

import reprlib
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from privet import _check
from privet.accounting.ledger import Ledger, Step
from privet.accounting.sampling import POISSON, Sampling
from privet.errors import InvalidValue, PrivetError

MOST_STEPS = 10**12
KEYS = ("noise", "rate", "clip", "sampling", "count")


class Builder:
    """Adds rows to a ledger."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._steps = 0

    def row(self, row: Any, place: str) -> None:
        if not isinstance(row, Mapping):
            raise InvalidValue(f"{place}: must be an object with noise and rate.")
        for key in row:
            if key not in KEYS:
                raise InvalidValue(f"{place}: {key!r} is not known.{_check.suggestion(key, KEYS)}")
        for key in ("noise", "rate"):
            if key not in row:
                raise InvalidValue(f"{place}: {key} is missing.")
        self.add(place, **row)

    def add(
        self,
        place: str,
        *,
        noise: Any,
        rate: Any = 1.0,
        clip: Any = 1.0,
        sampling: "str | Sampling" = POISSON,
        count: Any = 1,
    ) -> None:
        try:
            step = Step(
                noise=number("noise", noise),
                rate=number("rate", rate),
                clip=number("clip", clip),
                sampling=sampling,  # type: ignore[arg-type]  # Step turns a name into a Sampling
            )
            self._ledger.add(step, whole("count", count))
        except PrivetError as error:
            raise type(error)(f"{place}: {error}") from None
        self._steps += int(count)
        if self._steps > MOST_STEPS:
            raise InvalidValue(f"{place}: more than {MOST_STEPS:.0e} steps in all.")

    def done(self) -> Ledger:
        return self._ledger


def number(name: str, value: Any) -> float:
    """`value` as a float, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidValue(f"{name}={reprlib.repr(value)} must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue(f"{name} has too many digits for a number.") from None


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """`value` as an int between `least` and MOST_STEPS, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= MOST_STEPS:
        raise InvalidValue(f"{name}={reprlib.repr(value)} must be a whole number from {least} to {MOST_STEPS:.0e}.")
    return int(value)


def listed(value: Any, place: str) -> Sequence[Any]:
    """`value` if it is a list, or an error that names its place."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidValue(f"{place} must be a list.")
    return value
