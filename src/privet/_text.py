"""Small words of output: numbers on the safe side, counts, lists, versions, one line of an error, shortened text."""

import platform
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def shorten(text: str, length: int = 100) -> str:
    """At most `length` characters, for an error message."""
    return text if len(text) <= length else text[: length - 3] + "..."


def one_line(error: BaseException) -> str:
    """The error's message, or its type's name if it has none, on one line and without a full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def format_count(number: int, noun: str, *, commas: bool = False) -> str:
    """
    >>> format_count(1, "step"), format_count(2000, "step"), format_count(2000, "record", commas=True)
    ('1 step', '2000 steps', '2,000 records')
    """
    return f"{number:{',' if commas else ''}} {noun}{'' if number == 1 else 's'}"


def join_names(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are.

    >>> join_names(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_of(texts: Sequence[str], most: int) -> tuple[str, ...]:
    """Each once, in order; of more than `most` the first ones, and how many more there are.

    >>> first_of(["a", "b", "a", "c"], 2)
    ('a', 'b', 'and 1 more')
    """
    found = tuple(dict.fromkeys(texts))
    return found if len(found) <= most else (*found[:most], f"and {len(found) - most} more")


@cache
def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of these packages. Take a copy before changing it: it is made once."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def format_outward(value: float, *, up: bool, digits: int = 6) -> str:
    """`value` in `digits` significant digits, rounded outward: a printed bound is still one.

    >>> format_outward(2.3816897, up=True), format_outward(2.3816897, up=False)
    ('2.38169', '2.38168')
    """
    if not value:
        return "0"
    context = Context(prec=digits, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    kept = context.create_decimal(Decimal(value)).normalize()
    return f"{kept:{'f' if 1e-4 <= abs(value) < 1e9 else 'e'}}"


def format_bound(value: float, *, up: bool, digits: int = 6) -> str:
    """A number that somebody chose, as `g` has it: exact if so few digits say it, else rounded outward.

    >>> format_bound(1e-5, up=True), format_bound(1.2345641e-5, up=True), format_bound(1.2345671e-5, up=False)
    ('1e-05', '1.23457e-05', '1.23456e-05')
    """
    nearest = f"{value:.{digits}g}"
    return nearest if float(nearest) == value else f"{float(format_outward(value, up=up, digits=digits)):.{digits}g}"
