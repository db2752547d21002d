"""A user's own records as a task: `csv:path=...,target=...`, `npz:path=...`, `folder:path=...`.

Nothing is computed from the records but what is said here: numbers are scaled by ranges that the user gives, never by
their own mean or spread, because those are private too. One in each five records judges (`every=5`), which one
a fixed hash of their places says, the others are trained on; nothing of the records decides it, so it can be said and
repeated. The list of classes, if not given, is read from the records and thereby taken as public; the task's `source`
says so.
"""

import csv
import io
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet._files import MIB, read_start
from privet._text import shorten
from privet.data.files import LARGEST, damage_error, expand_user, read_content, unzip_arrays
from privet.data.task import RMSE, Task, one_in, register, tensors
from privet.errors import InvalidValue

LONGEST = 2**30  # bytes of a CSV file: as text, and as lists of cells, it takes some ten times as many
DENSEST = 100  # times its own size; beyond it only up to SURELY, for a small file must not fill the memory
SURELY = 2**30
MOST_CLASSES = 2**31
READ = "the list of classes was read from the records: it is taken as public"


# --- csv --------------------------------------------------------------------------------------------


@register("csv")
def own_csv(
    *, path: str, target: str, ranges: str = "", columns: str = "", classes: str = "", measure: str = "accuracy",
    every: int = 5,
) -> Task:  # fmt: skip
    """A CSV file with a header and numbers below it; one column is the `target`.

    `ranges="age 0 100; hours 0 99"` scales columns to [0, 1] (what is outside is set to the nearest end);
    `columns="age; hours"` uses only these; `classes="no; yes"` names the classes; `measure=rmse` makes the target a
    number to be guessed.
    """
    _check.one_of(("accuracy", "rmse"), measure=measure)
    target = str(target)  # a spelling makes a number of the name "2024"
    header, rows = _read_table(path)
    for name in [target, *_split_words(columns)]:
        if name not in header:
            raise InvalidValue(
                f"{path}: has no column {name!r} in its first line, which must name the {len(header)} columns."
                f"{_check.suggestion(name, header)} Check it."
            )
    used = _split_words(columns) or [name for name in header if name != target]
    if target in used or not used or len(set(used)) < len(used):
        raise InvalidValue(f"columns={columns!r} must name columns other than the target {target!r}, each once.")
    places = {name: place for place, name in enumerate(header)}
    inputs = np.stack([_parse_numbers(path, name, [row[places[name]] for row in rows]) for name in used], axis=1)
    _scale_columns(inputs, used, ranges)
    x = torch.tensor(inputs, dtype=torch.float32)
    wanted = [row[places[target]] for row in rows]
    if measure == "rmse":
        y = torch.tensor(_parse_numbers(path, target, wanted), dtype=torch.float32)
        return make_own_task("csv", path, x, y, every=every, model="mlp", classes=1, losses=RMSE.each, measure=RMSE)
    names = _split_words(classes) or _class_names(wanted)
    y, note = _encode_labels(path, target, wanted, names), "" if classes else READ
    return make_own_task("csv", path, x, y, every=every, model="mlp", classes=len(names), note=note)


def _read_table(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        _check_text(read_start(existing_path(path), MIB), path)  # a large file, before all of it is read
        content = read_content(existing_path(path), most=LONGEST, advice="Give an NPZ file: npz:path=...")
        _check_text(content, path)
        text = content.decode("utf-8-sig")
        lines = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), strict=True) if row]
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path}: is not a CSV file in UTF-8: byte {error.start:,} is no text.") from None
    except csv.Error:
        raise InvalidValue(
            f"{path}: is not a CSV file in UTF-8: a quotation mark is not closed, or a field is too long. "
            "Correct the file."
        ) from None
    if len(lines) < 3:
        raise InvalidValue(f"{path}: has {len(lines)} lines. It needs a header and at least two records.")
    header = lines[0]
    first: dict[str, int] = {}
    for place, name in enumerate(header, 1):  # no name is shown: without a header, this is a record
        if not name or first.setdefault(name, place) != place:
            raise InvalidValue(
                f"{path}: has a first line with an empty or repeated name, in column {place}. It must name the "
                "columns, each once. Correct it."
            )
    for number, row in enumerate(lines[1:], 1):
        if len(row) != len(header):
            raise InvalidValue(
                f"{path}: record {number} has {len(row)} fields, the header has {len(header)}. Correct it."
            )
    return header, lines[1:]


def _check_text(content: bytes, path: str) -> None:
    if b"\0" in content:
        raise InvalidValue(f"{path}: is not a CSV file in UTF-8: byte {content.index(0):,} is no text.")


def _parse_numbers(path: str, name: str, cells: list[str]) -> NDArray[np.float64]:
    values = np.empty(len(cells))
    for number, cell in enumerate(cells, 1):
        try:
            values[number - 1] = float(cell)
        except ValueError:
            values[number - 1] = math.nan
        if not math.isfinite(values[number - 1]):
            raise InvalidValue(
                f"{path}: record {number}: {name!r} is missing or not numeric. Encode or impute it, or name the "
                "columns to use: columns=..."
            )
    return values


def _scale_columns(inputs: NDArray[np.float64], used: list[str], ranges: str) -> None:
    for part in _split_words(ranges):
        name, low, high = _parse_range(part)
        if name not in used:
            raise InvalidValue(
                f"ranges={ranges!r} names {name!r}, which is not one of the {len(used)} columns used."
                f"{_check.suggestion(name, used)} Check it."
            )
        column = inputs[:, used.index(name)]
        column[:] = (column.clip(low, high) - low) / (high - low)


def _parse_range(part: str) -> tuple[str, float, float]:
    words = part.rsplit(maxsplit=2)
    try:
        name, low, high = words[0], float(words[1]), float(words[2])
    except (IndexError, ValueError):
        low = high = math.nan
    if not (math.isfinite(high - low) and low < high):
        raise InvalidValue(f'ranges={part!r} must read `column low high`, such as "age 0 100; hours 0 99".')
    return name, low, high


def _class_names(wanted: list[str]) -> list[str]:
    """The classes in the records, numbers by value and words by letters."""
    names = sorted(set(wanted))
    try:
        return sorted(names, key=float)
    except ValueError:
        return names


def _encode_labels(path: str, target: str, wanted: list[str], names: list[str]) -> Tensor:
    numbers = {name: number for number, name in enumerate(names)}
    unknown = next((place for place, word in enumerate(wanted, 1) if word not in numbers), None)
    if unknown is not None or len(numbers) < max(2, len(names)):
        rule = "needs two classes, each named once"
        if unknown is not None:  # only where the user has given the names
            rule = f"record {unknown} has another class in {target!r} than {_printable_names(names)}"
        raise InvalidValue(f"{path}: {shorten(rule, 200)}. Check target= and classes=.")
    return torch.tensor([numbers[word] for word in wanted])


# --- npz --------------------------------------------------------------------------------------------


@register("npz")
def own_npz(*, path: str, classes: int | None = None, every: int = 5) -> Task:
    """An NPZ file with `x` (N, ...) and `y` (N,), whole numbers from 0; `x_test` and `y_test`, if there, judge.

    Bytes (uint8) are divided by 255; other numbers are taken as they are. Pictures are (N, colours, height, width).
    """
    start = read_start(existing_path(path), 2)
    if start and start != b"PK":  # before all of it is read
        raise damage_error(InvalidValue("it does not begin as one"), "NPZ file of plain arrays", path)
    content = read_content(existing_path(path))
    arrays = unzip_arrays(content, limit=min(LARGEST, max(SURELY, DENSEST * len(content))), name=path)
    wanted = ("x", "y", "x_test", "y_test") if {"x_test", "y_test"} & set(arrays) else ("x", "y")
    for name in wanted:
        if name not in arrays:
            raise InvalidValue(f"{path}: has no array {name!r}. It has {_printable_names(arrays) or 'none'}.")
    x, y = _to_tensor_pair(path, arrays["x"], arrays["y"])
    tested = _to_tensor_pair(path, arrays["x_test"], arrays["y_test"]) if "x_test" in wanted else None
    if tested is not None and (tested[0].shape[1:] != x.shape[1:] or arrays["x_test"].dtype != arrays["x"].dtype):
        one, other = (f"{array.dtype} {list(array.shape)}" for array in (arrays["x"], arrays["x_test"]))
        raise InvalidValue(f"{path}: x is {one}, x_test is {other}: of another shape or type. Make them alike.")
    highest = int(max(y.max(), tested[1].max() if tested else 0))
    count = highest + 1 if classes is None else classes
    _check.whole(least=2, classes=count)
    most = len(y) if classes is None else count
    for name, labels in {"y": y, "y_test": tested[1] if tested else y}.items():
        if int(labels.max()) >= most:
            raise InvalidValue(
                f"{path}: record {int((labels >= most).int().argmax()) + 1} has a class in {name} that is not below "
                f"{most}{', the number of records' if classes is None else ''}. Classes are 0, 1, ...: correct {name}, "
                "or say classes=..."
            )
    model = "cnn" if x.dim() == 4 else "mlp"
    note = READ if classes is None else ""
    return make_own_task("npz", path, x, y, every=every, model=model, classes=count, note=note, tested=tested)


def _to_tensor_pair(path: str, x: NDArray[Any], y: NDArray[Any]) -> tuple[Tensor, Tensor]:
    if x.dtype.kind not in "fiub" or y.dtype.kind not in "iu":
        types = f"x is {x.dtype.type.__name__} and y is {y.dtype.type.__name__}"
        raise InvalidValue(f"{path}: {types}. Use numbers, and whole numbers from 0 for y.")
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(y) < 2:
        raise InvalidValue(f"{path}: x is {list(x.shape)} and y is {list(y.shape)}. Give N >= 2 records and N classes.")
    if not x[0].size:
        raise InvalidValue(f"{path}: x is {list(x.shape)}: its records are empty. Give each at least one number.")
    if y.min() < 0 or y.max() >= MOST_CLASSES:
        wrong = int(((y < 0) | (y >= MOST_CLASSES)).argmax()) + 1
        raise InvalidValue(f"{path}: record {wrong} has no class in y. Use whole numbers from 0, below {MOST_CLASSES}.")
    if x.dtype == np.uint8:
        return tensors(x, y)
    with np.errstate(over="ignore"):  # what is not finite then is refused with the rest
        return torch.tensor(x.astype(np.float32)), torch.tensor(y.astype(np.int64))


# --- what all share ---------------------------------------------------------------------------------


def make_own_task(
    kind: str, path: str, x: Tensor, y: Tensor, *, every: int, model: str, classes: int, note: str = "",
    tested: tuple[Tensor, Tensor] | None = None, **more: Any,
) -> Task:  # fmt: skip
    """The task of these records, of which one in so many judges unless others do.

    Which, a hash of the places says: where classes come in turn, every fifth record would have few of them, and where
    they come one after the other, so might a shuffle. Classes are not looked at, or one record would move others.
    """
    _check.whole(least=2, every=every)
    if not all(bool(given.isfinite().all()) for given in (x, y, *(tested or ()))):
        raise InvalidValue(f"{path}: has a value that is missing or not finite in float32. Impute or clip it.")
    train, held_out, spread = (x, y), tested, "the records set apart for it"
    if held_out is None:
        if every > len(x):
            raise InvalidValue(f"every={every} leaves no record of {len(x)} to judge by. Lower it.")
        judging = torch.zeros(len(x), dtype=torch.bool)
        judging[torch.from_numpy(one_in(every, len(x)))] = True
        train, held_out = (x[~judging], y[~judging]), (x[judging], y[judging])
        spread = f"one in each {every} records, by a fixed hash of their places"
    name = existing_path(path).resolve().name
    return Task(
        name=name, train=train, held_out=held_out,
        evaluation=f"{spread}, {len(held_out[0]):,} that are never trained on; they are the user's, and may be private",
        model=model, facts={"shape": tuple(x.shape[1:]), "classes": classes},
        source="; ".join(filter(None, (f"the user's own {kind}, {name}", note))), **more,
    )  # fmt: skip


def existing_path(path: object) -> Path:
    place = expand_user(str(path))
    if not os.path.exists(place):  # unlike the path's own, never fails
        raise InvalidValue(f"path={shorten(str(path))!r} is not there. Give the file or folder that has the records.")
    return place


def _split_words(text: object) -> list[str]:
    return [word.strip() for word in str(text).split(";") if word.strip()]


def _printable_names(names: Iterable[str]) -> str:
    return shorten("".join(c if c.isprintable() else "?" for c in ", ".join(names)))
