"""Shapes by their values: lines between points, and a table with a row for each step, also from a CSV file."""

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from privet import _check
from privet._files import MIB, read_file
from privet._registry import number, one_line, shortened, value, written
from privet.errors import InvalidValue, PrivetError
from privet.schedules.base import Values, is_number, register

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
            _check.positive(**{f"points[{written(u)}]": v})
        object.__setattr__(self, "points", points)

    def values(self, steps: int) -> Values:
        shares, heights = zip(*self.points, strict=True)
        return cast(Values, np.interp(np.linspace(0.0, 1.0, steps), shares, heights))

    @classmethod
    def _from_text(cls, text: str) -> "Piecewise":
        try:
            pairs = [part.partition("=") for part in text.split(",")]
            return cls(points=tuple((number(u), number(v)) for u, _, v in pairs))
        except ValueError as error:
            if isinstance(error, PrivetError):
                raise
            raise InvalidValue(
                f"schedule={shortened('piecewise:' + text)!r} must read share=value,share=value: {one_line(error)}. "
                "Write piecewise:0=1,0.5=0.4,1=0.2."
            ) from None

    def _spelling(self) -> str:
        return "piecewise:" + ",".join(f"{written(u)}={written(v)}" for u, v in self.points)


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
            return cls(rows=tuple(number(part) for part in text.split(",")))
        except InvalidValue:
            raise
        except ValueError:  # not numbers, so a file
            found = re.fullmatch(r'(?:file=)?"?(.*?)"?\s*(?:,\s*column="?(.*?)"?)?', text.strip(), re.DOTALL)
            assert found is not None  # every part of the pattern may be empty
            return cls(file=found[1], column=found[2])

    def _spelling(self) -> str:
        return "table:" + ",".join(map(written, self.rows))


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
    has_head = column is not None or isinstance(value(head[0]), str)
    numbers: list[float] = []
    for k, row in enumerate(lines[1:] if has_head else lines):
        try:
            numbers.append(number(row[place]))
        except (IndexError, ValueError):
            raise InvalidValue(f"rows[{k}] in {str(file)!r} is not a number. Rows count from 0. Correct it.") from None
    if not numbers:
        raise InvalidValue(f"file={str(file)!r} has no rows. Each step needs one. Write one number on each line.")
    return numbers
