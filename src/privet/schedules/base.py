"""What a schedule is, and how a user's text, number, list or mapping becomes one."""

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from privet import _check
from privet._registry import Registry, parse_number, parse_value, split_top_level
from privet._text import shorten
from privet.errors import InvalidValue, PrivetError

Values: TypeAlias = NDArray[np.float64]

NUDGE = 2.0**-50  # more than the four roundings in i / (1 / (batch / size)), each at most 2^-53 of the value


class Schedule(Protocol):
    def values(self, steps: int) -> Values:
        """The value at each step: shape (steps,), finite, > 0."""


registry: Registry[Schedule] = Registry("schedule", needs=("values",))
register = registry.register


def schedule(spec: Any) -> Schedule:
    """The schedule a user wrote: text, a number, a list, a mapping, or a schedule.

    >>> schedule("exponential:end=0.5,grid=after").values(2).round(4).tolist()
    [0.7071, 0.5]
    >>> schedule({"kind": "linear", "end": "1/4"}).values(2).tolist()
    [1.0, 0.25]
    """
    if isinstance(spec, str):
        return _from_text(spec)
    if is_number(spec):
        return registry.make("constant", value=float(spec))
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if callable(getattr(spec, "values", None)) and not isinstance(spec, type):
        return cast(Schedule, spec)
    if isinstance(spec, (Sequence, np.ndarray)) and len(spec) > 0:
        if all(map(is_number, spec)):
            return registry.make("table", rows=tuple(spec))
        return registry.make("product", parts=tuple(spec)) if len(spec) > 1 else schedule(spec[0])
    raise InvalidValue(f"schedule={spec!r} must be a shape. Write for example 'exponential:end=0.3', 2.0 or a list.")


def to_spec(spec: Any) -> str:
    """The text that `schedule` turns into an equal schedule; independent of files, so a plan can keep it.

    >>> to_spec({"kind": "exponential", "end": 0.3, "grid": "after"})
    'exponential:end=0.3,grid=after'
    """
    given = schedule(spec)
    own = getattr(given, "_spelling", None)
    return str(own()) if own is not None else registry.to_spec(given)


def schedule_values(spec: Any, steps: int) -> Values:
    """The checked values of a schedule at steps 0 .. steps - 1: a new array of shape (steps,), finite, > 0.

    Raises:
        InvalidValue: names the first step whose value is not finite and > 0.
    """
    _check.whole(steps=steps)
    given = schedule(spec)
    with np.errstate(all="ignore"):  # what overflows here is named below
        raw = np.array(given.values(steps))
    if raw.shape != (steps,) or raw.dtype.kind not in "fiu":
        raise InvalidValue(
            f"schedule={_describe_schedule(given)!r} gave {raw.dtype} of shape {raw.shape} for steps={steps}. There must be one "
            f"number for each step. Let values(steps) return a float array of shape ({steps},)."
        )
    values = raw.astype(np.float64, copy=False)
    good = np.isfinite(values) & (values > 0)
    if not good.all():
        bad = int(np.argmin(good))
        raise InvalidValue(
            f"schedule={_describe_schedule(given)!r} is {values[bad]:.6g} at step {bad} (of 0 to {steps - 1}); values must be "
            "finite and > 0. Neither noise nor clip can be that. Use a slower decay, an end > 0, or fewer steps."
        )
    return values


def is_number(given: Any) -> bool:
    return isinstance(given, (Real, np.number)) and not isinstance(given, (bool, np.complexfloating))


def _describe_schedule(given: Schedule) -> str:
    try:
        return shorten(to_spec(given))
    except PrivetError:
        return type(given).__qualname__


def _from_text(text: str) -> Schedule:
    pieces = split_top_level(text, r"\s+then\s+", "schedule")
    if len(pieces) == 1:
        return _from_product(pieces[0])
    found = [re.fullmatch(r"(.*\S)\s+until\s+(\S+)", piece, re.DOTALL) for piece in pieces[:-1]]
    try:
        heads = [(match[1], parse_number(match[2])) for match in found if match]
    except ValueError:
        heads = []
    if len(heads) != len(found):
        raise InvalidValue(
            f"schedule={shorten(text)!r} must say where a part ends. Write constant until 0.25 then linear:end=0.1."
        )
    parts = [_from_product(part) for part, _ in heads]
    return registry.make("join", parts=(*parts, _from_product(pieces[-1])), at=tuple(share for _, share in heads))


def _from_product(text: str) -> Schedule:
    pieces = split_top_level(text, r"\*", "schedule")
    if "" in pieces:
        raise InvalidValue(f"schedule={shorten(text)!r} has an empty part. Write a shape, such as cosine:end=0.5.")
    return registry.make("product", parts=tuple(map(_from_atom, pieces))) if len(pieces) > 1 else _from_atom(pieces[0])


def _from_atom(text: str) -> Schedule:
    if text.startswith("(") and text.endswith(")"):
        return _from_text(text[1:-1])
    if isinstance(plain := parse_value(text), (int, float)) and not isinstance(plain, bool):
        return registry.make("constant", value=plain)
    name, rest = registry.split(text)
    reader: Callable[[str], Schedule] | None = getattr(registry.maker(name), "_from_text", None)
    return registry.make(name, **registry.options(name, rest)) if reader is None else reader(rest)


def _from_mapping(table: Mapping[str, Any]) -> Schedule:
    """A TOML table; a number may be written as text there, for the sake of fractions."""
    words = ("kind", "file", "column")
    ours = table.get("kind") in registry.names()  # a user's own class gets its words as they are
    return registry.from_mapping(
        {key: parse_value(v) if ours and isinstance(v, str) and key not in words else v for key, v in table.items()}
    )
