"""Shapes of a schedule: how a quantity moves over the steps, given, tabulated or composed of others."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from privet import _check
from privet._files import MIB, read_file
from privet._registry import format_number, parse_number, parse_value
from privet._text import one_line, shorten
from privet.errors import InvalidValue, PrivetError
from privet.schedules.base import NUDGE, Schedule, Values, is_number, register, schedule, schedule_values, to_spec


@register("constant")
@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same at every step: v_i = value."""

    value: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(value=self.value)

    def values(self, steps: int) -> Values:
        return np.full(steps, float(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What the formulas share: v_i = start * f(e, u)^(1 / power), f at most 1 where the shape decays.

    `every`: a value is held for that many steps, e = floor(i / every); it may be a fraction, such as the 937.5
    steps of an epoch. e = floor(q i) also when every = 1 / q was rounded. E is the number of held values.
    `grid`: where f is evaluated, with i = 0 .. T - 1 (and e, E in place of i, T if values are held):

        closed   u = i / (T - 1)    the first step has `start`, the last has `end`
        before   u = i / T          Wei and Liu 2021
        after    u = (i + 1) / T    Du et al. 2021; e counts from 1 too

    `power`: f is the shape of v^power (Auto DP-SGD decays sigma^2: power=2). `start` and `end` are always values
    of v itself; `decay` and `factor` act on v^power.
    """

    start: float = 1.0
    grid: Literal["closed", "before", "after"] = "closed"
    every: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(start=self.start, every=self.every, power=self.power)
        _check.one_of(("closed", "before", "after"), grid=self.grid)
        if self.every < 1:
            raise InvalidValue(f"every={self.every!r} must be >= 1. It counts steps. For epochs give size / batch.")

    def values(self, steps: int) -> Values:
        held = np.floor(np.arange(steps) / self.every * (1 + NUDGE)).astype(np.intp)
        count = int(held[-1]) + 1
        e = np.arange(count, dtype=np.float64) + (self.grid == "after")
        f = self._shape(e, e / np.float64(max(count - 1, 1) if self.grid == "closed" else count))
        root = np.copysign(np.abs(f) ** (1 / self.power), f)  # a negative f stays visible as such
        return (self.start * root)[held]

    def _shape(self, e: Values, u: Values) -> Values:
        raise NotImplementedError

    def _ratio(self, end: float) -> np.float64:
        return np.float64(end / self.start) ** self.power


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndOrDecay(Curve):
    end: float | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        if (self.end is None) == (self.decay is None):
            raise InvalidValue(
                f"end={self.end!r}, decay={self.decay!r}: give exactly one. `end` is the value that is reached, "
                "`decay` the loss at each step. For example end=0.3 or decay=1e-4."
            )
        if self.end is not None:
            _check.positive(end=self.end)
        if self.decay is not None:
            _check.non_negative(decay=self.decay)


@register("linear")
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_EndOrDecay):
    """A straight line: f = 1 + (r - 1) u with r = (end / start)^power, or f = 1 - decay * e."""

    def _shape(self, e: Values, u: Values) -> Values:
        if self.end is not None:
            return (1 - u) + self._ratio(self.end) * u
        return _one_minus((self.decay or 0.0) * e)


@register("exponential")
@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_EndOrDecay):
    """Geometric: f = r^u with r = (end / start)^power, or f = exp(-decay * e)."""

    def _shape(self, e: Values, u: Values) -> Values:
        if self.end is not None:
            return np.power(self._ratio(self.end), u)
        return np.exp(-(self.decay or 0.0) * e)


@register("time")
@dataclass(frozen=True, slots=True, kw_only=True)
class InverseTime(Curve):
    """Hyperbolic: f = 1 / (1 + decay * e)."""

    decay: float

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.non_negative(decay=self.decay)

    def _shape(self, e: Values, u: Values) -> Values:
        return 1 / (1 + self.decay * e)


@register("step")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay(Curve):
    """Multiplied by `factor` after each `every` steps: f = factor^e."""

    factor: float
    every: float

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.positive(factor=self.factor)

    def _shape(self, e: Values, u: Values) -> Values:
        return np.power(np.float64(self.factor), e)


@register("cosine")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(Curve):
    """Half a cosine: f = w + (1 - w) r with w = (1 + cos(pi u)) / 2 and r = (end / start)^power."""

    end: float = 0.5

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.positive(end=self.end)

    def _shape(self, e: Values, u: Values) -> Values:
        w = (1 + np.cos(np.pi * u)) / 2  # from 1 to 0; a sum of positive terms does not cancel, however large r is
        return w + (1 - w) * self._ratio(self.end)


@register("cyclic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic(Curve):
    """Triangles: down for `half` steps, up again for `half`, each beginning lower than the one before.

        f = (1 - 2 * fade * half * k) (1 - decay * min(r, 2 half - r)),   k = floor(e / (2 half)), r = e - 2 half k

    Source: Wei and Liu 2021, section IV-A, cyclic decay with step size V = half, gamma_3 = decay, gamma_4 = fade:
    C_0* (1 - gamma_3 t) for odd and C_0* (1 + gamma_3 t) for even halves, C_0* = C_0 (1 - 2 gamma_4 V) from one
    triangle to the next. The paper leaves open where t begins. Read here: t is counted within a triangle, so that
    the curve has no jump inside one, and C_0* falls by 2 gamma_4 V C_0 with every triangle (2 V steps).
    """

    half: int
    decay: float
    fade: float = 0.0

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.whole(half=self.half)
        _check.non_negative(decay=self.decay, fade=self.fade)

    def _shape(self, e: Values, u: Values) -> Values:
        k, r = np.divmod(e, 2 * self.half)
        top = _one_minus(2 * self.fade * self.half * k)
        # The smaller factor alone when both are below zero: their product would look fine.
        side = _one_minus(self.decay * np.minimum(r, 2 * self.half - r))
        return np.where((top < 0) & (side < 0), side, top * side)


def _one_minus(x: Values) -> Values:
    """1 - x, where a difference within rounding of zero is zero: 1 - (1/49) 49 is 1e-16 in floating point."""
    y = 1 - x
    return np.where(np.abs(y) < NUDGE, 0.0, y)


MOST_BYTES = 256 * MIB  # of a file: ten million rows, the most of a schedule, take less


@register("piecewise")
@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise:
    """Straight lines between points (u, v), u = i / (T - 1) in [0, 1]; level before the first and after the last."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        given: Any = self.points.items() if isinstance(self.points, Mapping) else self.points
        try:
            points = tuple((float(u), float(v)) for u, v in given)
        except (TypeError, ValueError):
            raise InvalidValue(
                f"points={self.points!r} must be (share, value) pairs. Write [[0, 1], [1, 0.2]]."
            ) from None
        shares = [u for u, _ in points]
        if not shares or not all(a < b for a, b in pairwise(shares)) or not (shares[0] >= 0 and shares[-1] <= 1):
            raise InvalidValue(f"points={self.points!r} must have rising shares from 0 to 1. Write 0=1,0.5=0.4,1=0.2.")
        for u, v in points:
            _check.positive(**{f"points[{format_number(u)}]": v})
        object.__setattr__(self, "points", points)

    def values(self, steps: int) -> Values:
        shares, heights = zip(*self.points, strict=True)
        return cast(Values, np.interp(np.linspace(0.0, 1.0, steps), shares, heights))

    @classmethod
    def _from_text(cls, text: str) -> "Piecewise":
        try:
            pairs = [part.partition("=") for part in text.split(",")]
            return cls(points=tuple((parse_number(u), parse_number(v)) for u, _, v in pairs))
        except ValueError as error:
            if isinstance(error, PrivetError):
                raise
            raise InvalidValue(
                f"schedule={shorten('piecewise:' + text)!r} must read share=value,share=value: {one_line(error)}. "
                "Write piecewise:0=1,0.5=0.4,1=0.2."
            ) from None

    def _spelling(self) -> str:
        return "piecewise:" + ",".join(f"{format_number(u)}={format_number(v)}" for u, v in self.points)


@register("table")
@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One given value for each step: v_i = rows[i], from a list or, at once, from a CSV file.

    The file is read when the table is made; later changes to it do not matter. It has one column, with or
    without a heading, or a heading for each column and `column` says which.
    """

    rows: tuple[float, ...] = ()
    file: InitVar[str | Path | None] = None
    column: InitVar[str | None] = None

    def __post_init__(self, file: str | Path | None, column: str | None) -> None:
        if (file is None) == (len(self.rows) == 0) or (file is None and column is not None):
            raise InvalidValue(
                f"file={file!r}, {len(self.rows)} rows: give one of them. Write table:noise.csv or a list."
            )
        rows = self.rows if file is None else _read_csv(Path(file), column)
        for k, row in enumerate(rows):
            if not is_number(row) or not (math.isfinite(row) and row > 0):
                # The file may be another than was meant, of records: nothing of it is shown.
                shown = f"rows[{k}]={row!r}" if file is None else f"rows[{k}] in {str(file)!r}"
                raise InvalidValue(f"{shown} must be finite and > 0. Rows count from 0. Correct it.")
        object.__setattr__(self, "rows", tuple(map(float, rows)))

    def values(self, steps: int) -> Values:
        if len(self.rows) != steps:
            raise InvalidValue(
                f"schedule='table' has {len(self.rows)} rows, but there are {steps} steps. Each step needs a row. "
                f"Give {steps} rows, or use piecewise, which fits any number of steps."
            )
        return np.array(self.rows)

    @classmethod
    def _from_text(cls, text: str) -> "Table":
        try:
            return cls(rows=tuple(parse_number(part) for part in text.split(",")))
        except InvalidValue:
            raise
        except ValueError:  # not numbers, so a file
            found = re.fullmatch(r'(?:file=)?"?(.*?)"?\s*(?:,\s*column="?(.*?)"?)?', text.strip(), re.DOTALL)
            assert found is not None  # every part of the pattern may be empty
            return cls(file=found[1], column=found[2])

    def _spelling(self) -> str:
        return "table:" + ",".join(map(format_number, self.rows))


def _read_csv(file: Path, column: str | None) -> list[float]:
    """The numbers of one column, or one line that says what is wrong with the file."""
    try:
        text = read_file(file, most=MOST_BYTES, advice="A schedule has a number for each step.").decode("utf-8-sig")
        if "\0" in text:
            raise InvalidValue(f"byte {text.index(chr(0))} is not text.")
        lines = [row for row in csv.reader(io.StringIO(text, newline="")) if any(cell.strip() for cell in row)]
    except UnicodeDecodeError as error:
        raise InvalidValue(f"file={str(file)!r} cannot be read as UTF-8 CSV: byte {error.start} is not text.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidValue(f"file={str(file)!r} cannot be read as UTF-8 CSV: {one_line(error)}. Check it.") from None
    head = [" ".join(cell.split()) for cell in lines[0]] if lines else [""]
    if column is None and len(head) > 1:
        raise InvalidValue(f"file={str(file)!r} has {len(head)} columns. Name one of them: column=noise.")
    if column is not None and column not in head:
        raise InvalidValue(
            f"column={column!r} is not one of the {len(head)} columns that the first line of {str(file)!r} names."
            f"{_check.suggestion(column, head)} Check it."
        )
    place = 0 if column is None else head.index(column)
    has_head = column is not None or isinstance(parse_value(head[0]), str)
    numbers: list[float] = []
    for k, row in enumerate(lines[1:] if has_head else lines):
        try:
            numbers.append(parse_number(row[place]))
        except (IndexError, ValueError):
            raise InvalidValue(f"rows[{k}] in {str(file)!r} is not a number. Rows count from 0. Correct it.") from None
    if not numbers:
        raise InvalidValue(f"file={str(file)!r} has no rows. Each step needs one. Write one number on each line.")
    return numbers


@register("product")
@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Shapes multiplied step by step: v_i = a_i * b_i * ..."""

    parts: tuple[Schedule, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parse_parts(self.parts))

    def values(self, steps: int) -> Values:
        return cast(Values, np.prod([schedule_values(part, steps) for part in self.parts], axis=0))

    def _spelling(self) -> str:
        return " * ".join(map(_parenthesize, self.parts))


@register("join")
@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Shapes one after the other: step i belongs to part j if at[j-1] <= i / T < at[j].

    Each part counts its own steps from 0, as if it were alone; a part whose share holds no step is left out.
    """

    parts: tuple[Schedule, ...]
    at: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parse_parts(self.parts))
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
        return np.concatenate([schedule_values(part, n) for part, n in zip(self.parts, counts, strict=True) if n])

    def _spelling(self) -> str:
        head = "".join(
            f"{_parenthesize(part)} until {format_number(share)} then "
            for part, share in zip(self.parts, self.at, strict=False)
        )
        return head + _parenthesize(self.parts[-1])


def _parse_parts(given: Sequence[Any]) -> tuple[Schedule, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < 2:
        raise InvalidValue(f"parts={given!r} must be a list of two or more shapes. Write ['cosine', 'time:decay=0.1'].")
    return tuple(schedule(part) for part in given)


def _parenthesize(part: Schedule) -> str:
    text = to_spec(part)
    return f"({text})" if isinstance(part, (Product, Join)) else text
