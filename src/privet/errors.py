"""The errors Privet raises on purpose.

    PrivetError
    ├── InvalidValue     (also a ValueError)   a number or word that cannot be right
    ├── Unsupported                            no theorem covers what was asked
    ├── NoSolution                             nothing meets the request; says what would
    ├── BudgetExceeded                         a step that would spend more than planned
    └── MissingExtra     (also an ImportError) an optional dependency is not installed

Every message reads `<name>=<value> <rule>. <why>. <what to do>.` on one line. The command line prints
it without a traceback and exits with 2.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PrivetError(Exception):
    """Anything a user can correct."""


class InvalidValue(PrivetError, ValueError):
    """A value that cannot be right, whatever the rest says."""


class Unsupported(PrivetError):
    """A combination for which no theorem is known, so no number is given."""


class NoSolution(PrivetError):
    """Nothing satisfies the request; the message names the nearest that does."""


class BudgetExceeded(PrivetError):
    """The step would spend more than the plan allows."""


class MissingExtra(PrivetError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""


@contextmanager
def name_errors(what: object, *, kind: type[PrivetError] | None = None, advice: str = "") -> Iterator[None]:
    """An error raised inside says first what it is about, a file say; `kind` is its class, if it gets another."""
    try:
        yield
    except PrivetError as error:
        raise (kind or type(error))(f"{what}: {error}{advice}") from None
