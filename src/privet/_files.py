"""Files by name: plain ones alone are read or written, and those of a run's folder through no link.

A device or a pipe has no end, and opening one may wait for ever. A link in a run's folder may lead to a file that is
none of the run's: what is written there, or cut off, would be lost.
"""

import errno
import os
import stat
from pathlib import Path

from privet.errors import InvalidValue

MIB = 2**20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # else a pipe without a writer is waited for; plain files do not heed it
_BINARY = getattr(os, "O_BINARY", 0)
_ODD = "is no plain file: a link to nowhere, a folder, a device or a pipe may have no end. Give a plain file."


def read_file(path: Path, *, most: int, advice: str = "Give another file.") -> bytes:
    """All bytes of a plain file that a user named, itself or by a link, if they are at most `most`.

    Raises:
        InvalidValue: it is no plain file, or longer; says so without its name, which the caller puts in front.
        OSError: it cannot be opened or read.
    """
    number = _open_plain(path)
    with os.fdopen(number, "rb") as stream:
        size = os.fstat(number).st_size
        pieces = [b"" if size > most else stream.read(size)]
        while size <= most and (piece := stream.read(MIB)):  # it grows, or is of a kind that tells no size
            pieces.append(piece)
            size += len(piece)
        if size > most:
            raise InvalidValue(f"is more than {most / MIB:.4g} MiB. {advice}")
        return b"".join(pieces)


def read_start(path: Path, size: int) -> bytes:
    """The first `size` bytes of a plain file; none if it is no plain file, or cannot be read."""
    try:
        with os.fdopen(_open_plain(path), "rb") as stream:
            return stream.read(size)
    except (OSError, ValueError):  # a null byte in the name, or no plain file
        return b""


def write_file(path: Path, content: bytes) -> None:
    """Write to a place that a user named: a file, a device, or a pipe that someone reads, who is not waited for.

    Raises:
        OSError: it cannot be written, or nobody reads the pipe.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_WAIT | _BINARY, 0o666)
    with os.fdopen(number, "wb") as stream:
        if _NO_WAIT:
            os.set_blocking(number, True)
        stream.write(content)


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a file in a run's folder: a plain file with this one name, or a new one; never through a link.

    With O_TRUNC it is emptied once that is known, not before.

    Raises:
        InvalidValue: it is a link, has a second name (a hard link), or is no plain file. Nothing was changed.
        OSError: it cannot be opened.
    """
    try:
        number = os.open(path, flags & ~os.O_TRUNC | _NO_LINK | _NO_WAIT | _BINARY, 0o644)
    except OSError as error:
        if path.is_symlink() or error.errno == errno.ELOOP:
            raise not_own(path) from None
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise not_own(path)
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number


def check_own(path: Path) -> None:
    """Raise unless a place in a run's folder is free, or holds a plain file with this one name."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise not_own(path)


def not_own(path: Path) -> InvalidValue:
    """What to say of a file in a run's folder that is no file of the run's own."""
    what = "is no plain file"
    if path.is_symlink():
        what = "is a symbolic link"
    elif path.is_file():
        what = "has a second name (a hard link)"
    return InvalidValue(
        f"{path}: {what}. What Privet writes or cuts off there would change a file outside of the run. "
        "Put a copy of the file itself in its place, or remove it."
    )


def _open_plain(path: Path) -> int:
    number = os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise InvalidValue(_ODD)
    return number
