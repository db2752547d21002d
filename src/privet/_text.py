"""Small words of output: one line of an error, shortened text."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def shorten(text: str, length: int = 100) -> str:
    """At most `length` characters, for an error message."""
    return text if len(text) <= length else text[: length - 3] + "..."


def one_line(error: BaseException) -> str:
    """The error's message, or its type's name if it has none, on one line and without a full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
