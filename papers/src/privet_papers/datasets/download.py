"""Public files over the network, by pooch: whole, proven by their SHA-256 and of their size, or not there at all.

It is asked by `privet.data.files.read`, for a file that is in none of the folders; the product itself has no network.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import responses
from pathlib import Path
from typing import Any

from privet._text import one_line, shorten
from privet.data.files import File
from privet.errors import InvalidValue

ATTEMPTS = 4
PAUSE = 1.0  # seconds before the second attempt; twice as many before each further one
TIMEOUT = 30.0  # seconds without a byte
_PIECE = 2**16
_LATER = (408, 416, 429)  # of the 4xx answers, those that another attempt may change

Advance = Callable[[int], None]


class _Interrupted(Exception):
    """The transfer broke off, or was refused for now."""


class _Useless(Exception):
    """No other attempt would give the file."""


def fetch(file: File, folder: Path) -> Path:
    """Fetch a public file to `<folder>/<dataset>/<name>`, and show its progress on standard error.

    Nothing but the whole file, proven by its SHA-256, ever has its name.

    Raises:
        InvalidValue: it cannot be fetched, is not what it should be, or cannot be written.
    """
    import pooch  # not before a file is fetched: it takes a while

    pooch.get_logger().setLevel("WARNING")
    there, reason = folder / file.dataset / file.name, ""
    with _progress(file) as advance:
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                pooch.retrieve(
                    file.url, f"sha256:{file.sha256}", fname=file.name, path=there.parent,
                    downloader=partial(_download, file=file, advance=advance, is_first=not attempt),
                )  # fmt: skip
            except _Interrupted as error:
                reason = str(error)
            except _Useless as error:
                raise _download_error(file, there, str(error)) from None
            except ValueError:
                raise _download_error(
                    file, there, "gave another file (its SHA-256 differs), which was removed"
                ) from None
            except OSError as error:
                raise InvalidValue(
                    f"{there}: cannot be written: {error.strerror or one_line(error)}. Choose another --data-dir."
                ) from None
            else:
                return there
    raise _download_error(file, there, f"{reason}, after {ATTEMPTS} attempts")


def _download(url: str, part: str, _: Any, *, file: File, advance: Advance, is_first: bool) -> None:
    """The bytes that the server has under the address, as they are; at most one more than there should be."""
    import requests
    from urllib3.exceptions import HTTPError

    headers, have = {"User-Agent": "privet", "Accept-Encoding": "identity"}, 0
    try:
        with (
            requests.get(url, stream=True, timeout=TIMEOUT, headers=headers) as answer,
            open(part, "wb") as stream,
        ):
            _check_status(answer)
            for piece in answer.raw.stream(_PIECE, decode_content=False):
                have += len(piece)
                if have > file.size:
                    raise _Useless("gave another file (its SHA-256 differs), which was removed")
                stream.write(piece)
                advance(have)
    except requests.ConnectionError as error:
        said = f"cannot be reached: {shorten(one_line(error), 200)}"
        raise (_Useless if is_first else _Interrupted)(said) from None  # no network: waiting would not help
    except (requests.RequestException, HTTPError) as error:
        raise _Interrupted(f"broke off: {shorten(one_line(error), 200)}") from None
    if have < file.size:
        raise _Interrupted(f"broke off: it ended after {have:,} of {file.size:,} bytes")


def _check_status(answer: Any) -> None:
    """Raise unless the server gives the file."""
    status = answer.status_code
    if status != 200:
        final = 400 <= status < 500 and status not in _LATER
        raise (_Useless if final else _Interrupted)(f"answered {status} {responses.get(status, '')}".rstrip())


def _download_error(file: File, there: Path, reason: str) -> InvalidValue:
    reason = "".join(c if c.isprintable() else "?" for c in reason)  # an address is the server's
    return InvalidValue(
        f"task={file.dataset!r} needs {file.name}, but {file.url} {reason}. "
        f"Put the file in {there.parent} yourself, or name the folder that has it by --data-dir or PRIVET_DATA."
    )


@contextlib.contextmanager
def _progress(file: File) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        bar = shown.add_task(f"fetching {file}", total=file.size)
        yield lambda have: shown.update(bar, completed=have)
