"""Shapes made of shapes: the product, and one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

from privet import _check
from privet._registry import written
from privet.errors import InvalidValue
from privet.schedules.base import NUDGE, Schedule, Values, is_number, register, schedule, spelling, values_of


@register("product")
@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Shapes multiplied step by step: v_i = a_i * b_i * ..."""

    parts: tuple[Schedule, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parts(self.parts))

    def values(self, steps: int) -> Values:
        return cast(Values, np.prod([values_of(part, steps) for part in self.parts], axis=0))

    def _spelling(self) -> str:
        return " * ".join(map(_grouped, self.parts))


@register("join")
@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Shapes one after the other: step i belongs to part j if at[j-1] <= i / T < at[j].

    Each part counts its own steps from 0, as if it were alone; a part whose share holds no step is left out.
    """

    parts: tuple[Schedule, ...]
    at: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parts(self.parts))
        given: Any = self.at
        at = (given,) if is_number(given) else tuple(given)
        _check.between(0, 1, **{f"at[{k}]": share for k, share in enumerate(at)})
        if len(at) != len(self.parts) - 1 or list(at) != sorted(set(at)):
            raise InvalidValue(
                f"at={list(at)!r} must be {len(self.parts) - 1} rising share(s) of the steps for {len(self.parts)} "
                "parts. Write constant until 0.25 then linear:end=0.1."
            )
        object.__setattr__(self, "at", at)

    def values(self, steps: int) -> Values:
        cuts = [0, *(int(np.ceil(share * steps * (1 - NUDGE))) for share in self.at), steps]
        counts = [end - begin for begin, end in pairwise(cuts)]
        return np.concatenate([values_of(part, n) for part, n in zip(self.parts, counts, strict=True) if n])

    def _spelling(self) -> str:
        head = "".join(
            f"{_grouped(part)} until {written(share)} then " for part, share in zip(self.parts, self.at, strict=False)
        )
        return head + _grouped(self.parts[-1])


def _parts(given: Sequence[Any]) -> tuple[Schedule, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < 2:
        raise InvalidValue(f"parts={given!r} must be a list of two or more shapes. Write ['cosine', 'time:decay=0.1'].")
    return tuple(schedule(part) for part in given)


def _grouped(part: Schedule) -> str:
    text = spelling(part)
    return f"({text})" if isinstance(part, (Product, Join)) else text
