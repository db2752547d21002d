"""How many steps a ledger has charged, in a small file beside it: so that lines cut off at its end are noticed.

It is written after each line and not synced: it may be behind the ledger, never ahead. A ledger that charges fewer
steps than it says has lost lines. If it is missing or damaged it says nothing, and the ledger stands for itself.
"""

import contextlib
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from privet._files import read_start
from privet.training.append_file import Descriptor

NAME = "ledger.count"
_MOST_BYTES = 200


class Count(NamedTuple):
    """So many steps of this run were charged once."""

    run: str
    charged: int


class CountFile:
    """The count beside a ledger, open for writing. That it cannot be written is no reason to stop.

    Raises:
        InvalidValue: it is a link, or no plain file: something else would be overwritten.
    """

    def __init__(self, folder: Path) -> None:
        self._held: Descriptor | None = None
        with contextlib.suppress(OSError):
            self._held = Descriptor(folder / NAME, os.O_WRONLY | os.O_CREAT)

    def write(self, count: Count) -> None:
        if self._held is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._held.number, _line(count), 0)  # in place: it needs no room on the disk

    def close(self) -> None:
        if self._held is not None:
            self._held.close()


def forget(folder: Path) -> None:
    """Remove the count of a run whose ledger is gone, before another is begun in its folder."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink()


def counted(folder: Path) -> Count | None:
    """What the count in a folder says; None if there is none, or it is damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CountFile(Path(folder)).write(Count("a1", 7))
    ...     counted(Path(folder))
    Count(run='a1', charged=7)
    """
    try:
        text = read_start(folder / NAME, _MOST_BYTES)
        line = text[: text.find(b"\n") + 1]
        found = Count(**{key: value for key, value in json.loads(line).items() if key != "digest"})
        return found if _line(found) == line else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _line(count: Count) -> bytes:
    body = f'{{"run":"{count.run}","charged":{count.charged}'
    return f'{body},"digest":"{sha256(body.encode()).hexdigest()}"}}\n'.encode()
