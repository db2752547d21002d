"""Checks on values: no two range errors in the library are worded differently."""

import difflib
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from privet.errors import InvalidValue

LEAST_DELTA = 1e-300


def finite(**values: float) -> None:
    """Raise unless each named value is a finite number."""
    for name, value in values.items():
        if not _is_finite(value):
            raise InvalidValue(f"{name}={value!r} must be a finite number.")


def positive(**values: float) -> None:
    """Raise unless each named value is finite and > 0."""
    for name, value in values.items():
        if not (_is_finite(value) and value > 0):
            raise InvalidValue(f"{name}={value!r} must be finite and > 0.")


def non_negative(**values: float) -> None:
    """Raise unless each named value is finite and >= 0."""
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise InvalidValue(f"{name}={value!r} must be finite and >= 0.")


def between(low: float, high: float, **values: float) -> None:
    """Raise unless each named value lies strictly between `low` and `high`."""
    for name, value in values.items():
        if not _is_number(value) or not low < value < high:
            raise InvalidValue(f"{name}={value!r} must lie strictly between {low:g} and {high:g}.")


def delta(value: float) -> None:
    """Raise unless the delta is >= LEAST_DELTA and < 1."""
    between(0, 1, delta=value)
    if value < LEAST_DELTA:
        raise InvalidValue(
            f"delta={value!r} must be at least {LEAST_DELTA:g}. Doubles lose their digits below, and no bound would be "
            "proven. Use a larger one; 1e-12 is less than any event that matters."
        )


def fraction(**values: float) -> None:
    """Raise unless each named value is >= 0 and < 1."""
    for name, value in values.items():
        if not _is_number(value) or not 0 <= value < 1:
            raise InvalidValue(f"{name}={value!r} must be >= 0 and < 1. From 1 on its sum has no end. Give 0.9, say.")


def rate(**values: float) -> None:
    """Raise unless each named value is a sampling rate: 0 < q <= 1."""
    for name, value in values.items():
        if not _is_number(value) or not 0 < value <= 1:
            raise InvalidValue(
                f"{name}={value!r} must be > 0 and <= 1. It is the chance that a record takes part in a step. "
                "Give batch / size, for example 256/60000."
            )


def whole(*, least: int = 1, **values: int) -> None:
    """Raise unless each named value is an integer of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidValue(f"{name}={value!r} must be a whole number >= {least}.")


def writable(path: Path, *, name: str) -> None:
    """Raise unless a file can be written at `path`: asked before long work, by trying. Nothing is left there."""
    try:
        if path.is_dir() or not path.parent.is_dir():
            what = "is a directory" if path.is_dir() else "lies in a directory that does not exist"
            raise InvalidValue(f"{name}={str(path)!r} {what}. Give a file in a directory that exists.")
        if path.exists():  # not opened: it may be a pipe
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif not path.is_symlink():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            path.unlink()
    except OSError as error:
        raise InvalidValue(f"{name}={str(path)!r} cannot be written: {error.strerror}. Choose another place.") from None


def one_of(allowed: Iterable[str], **values: str) -> None:
    """Raise unless each named value is one of `allowed`; suggests the nearest."""
    options = sorted(allowed)
    for name, value in values.items():
        if value not in options:
            raise InvalidValue(f"{name}={value!r} must be one of {', '.join(options)}.{suggestion(value, options)}")


def suggestion(word: object, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(str(word), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _is_finite(value: float) -> bool:
    """A number that a double can hold: not NaN, and no whole number beyond."""
    return _is_number(value) and abs(value) <= sys.float_info.max


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
