"""Public files over the network: into a part file that is taken up again, renamed only when its SHA-256 fits."""

import contextlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO

from privet._registry import one_line, shortened
from privet.data.files import File
from privet.errors import InvalidValue

ATTEMPTS = 4
PAUSE = 1.0  # seconds before the second attempt; twice as many before each further one
TIMEOUT = 30.0  # seconds without a byte
_PIECE = 2**16
_LATER = (408, 416, 429)  # of the 4xx answers, those that another attempt may change

Advance = Callable[[int], None]


class _Interrupted(Exception):
    """The transfer broke off; what came so far is kept."""


class _Useless(Exception):
    """What came is not the file."""


def fetch(file: File, folder: Path) -> Path:
    """Fetch a public file to `<folder>/<dataset>/<name>`, and show its progress on standard error.

    After an interruption, of this call or of an earlier one, only what is missing is asked for. Nothing but the whole
    file, proven by its SHA-256, ever has its name.

    Raises:
        InvalidValue: it cannot be fetched, is not what it should be, or cannot be written.
    """
    there = folder / file.dataset / file.name
    part = there.with_name(f".{file.name}.part")
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "a+b") as stream:
            _lock(stream, part)
            try:
                _fill(file, stream, there)
                part.replace(there)
            except _Useless as error:
                part.unlink()
                raise _refused(file, there, str(error)) from None
            finally:
                if not stream.seek(0, os.SEEK_END):  # nothing came: nothing is left
                    part.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidValue(f"{there}: cannot be written: {error.strerror}. Choose another --data-dir.") from None
    return there


def _fill(file: File, stream: BinaryIO, there: Path) -> None:
    """Bring the part to the whole file, on the disk and proven."""
    resumed = stream.seek(0, os.SEEK_END) > 0
    with _progress(file) as advance:
        _complete(file, stream, advance, there)
        if resumed and not _fits(file, stream):  # the older part was of something else: once more, from nothing
            _restart(stream)
            _complete(file, stream, advance, there)
    if not _fits(file, stream):
        raise _Useless("gave another file (its SHA-256 differs), which was removed")
    os.fsync(stream.fileno())


def _complete(file: File, stream: BinaryIO, advance: Advance, there: Path) -> None:
    """Make attempts until the stream has all bytes."""
    for attempt in range(ATTEMPTS):
        have = stream.seek(0, os.SEEK_END)
        advance(have)
        if have >= file.size:
            return
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            _more(file, stream, have, advance)
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"answered {error.code} {http.client.responses.get(error.code, '')}".rstrip()
            if error.code == 416:
                _restart(stream)
            elif 400 <= error.code < 500 and error.code not in _LATER:
                raise _refused(file, there, reason) from None
        except urllib.error.URLError as error:
            reason = f"cannot be reached: {str(error.reason).rstrip('.')}"
            if not attempt:  # no network: waiting would not help
                raise _refused(file, there, reason) from None
        except _Interrupted as error:
            reason = f"broke off: {error}"
    if stream.seek(0, os.SEEK_END) < file.size:
        kept = "; what came is kept and taken up next time" if stream.tell() else ""
        raise _refused(file, there, f"{reason}, after {ATTEMPTS} attempts{kept}")


def _more(file: File, stream: BinaryIO, have: int, advance: Advance) -> None:
    """Append what is missing, at most one byte more than there should be."""
    request = urllib.request.Request(file.url, headers={"User-Agent": "privet"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except (http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:  # or a wrong redirection
        raise _Interrupted(shortened(one_line(error), 200)) from None
    with answer:
        if have and not (answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")):
            _restart(stream)  # a server that cannot resume sends the whole file
            have = 0
        while have <= file.size and (piece := _piece(answer, file.size + 1 - have)):
            stream.write(piece)
            have += len(piece)
            advance(have)
    if have < file.size:
        raise _Interrupted(f"it ended after {have:,} of {file.size:,} bytes")


def _piece(answer: http.client.HTTPResponse, most: int) -> bytes:
    try:
        return answer.read(min(_PIECE, most))
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(shortened(one_line(error), 200)) from None


def _restart(stream: BinaryIO) -> None:
    stream.seek(0)
    stream.truncate()


def _fits(file: File, stream: BinaryIO) -> bool:
    stream.flush()
    stream.seek(0)
    return file_digest(stream, "sha256").hexdigest() == file.sha256  # type: ignore[arg-type]  # it has readinto


def _refused(file: File, there: Path, reason: str) -> InvalidValue:
    return InvalidValue(
        f"task={file.dataset!r} needs {file.name}, but {file.url} {reason}. "
        f"Put the file in {there.parent} yourself, or name the folder that has it by --data-dir or PRIVET_DATA."
    )


def _lock(stream: BinaryIO, part: Path) -> None:
    """Two processes must not write to one part; where the system has no locks, the SHA-256 alone finds out."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidValue(
            f"{part}: is being fetched by another process. Wait until it ends, then try again."
        ) from None
    except OSError:
        return  # a file system without locks


@contextlib.contextmanager
def _progress(file: File) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as shown:
        bar = shown.add_task(f"fetching {file}", total=file.size)
        yield lambda have: shown.update(bar, completed=have)
