"""Files by name: plain ones alone are read or written, and those of a run's folder through no link.

A device or a pipe has no end, and opening one may wait for ever. A link in a run's folder may lead to a file that is
none of the run's: what is written there, or cut off, would be lost.
"""

import contextlib
import errno
import json
import os
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

from privet.errors import InvalidValue, PrivetError, Unsupported

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


def read_text(
    path: Path, *, most: int, advice: str, wanted: str, missing: str = "there is no such file.",
    encoding: str = "utf-8-sig",
) -> str:  # fmt: skip
    """The text of a file that a user named. `wanted` says what to give in place of one that cannot be read as text.

    Raises:
        InvalidValue: it is missing, no text, too long, or cannot be read; says so without its name.
    """
    try:
        return read_file(path, most=most, advice=advice).decode(encoding)
    except FileNotFoundError:
        raise InvalidValue(missing) from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"byte {error.start} is not text. {wanted}") from None
    except PrivetError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InvalidValue(f"cannot be read: {getattr(error, 'strerror', None) or error}. {wanted}") from None


def parse_json(text: str, refusal: str, *, torn: str = "", advice: str = "") -> Any:
    """The value in a JSON text, or one line with the place where it is none; `torn` and `advice` say what to do."""
    try:
        return read_json(text, refusal)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidValue(f"{place}: not JSON: {error.msg}. {torn}".rstrip()) from None
    except PrivetError:
        raise
    except ValueError as error:  # a whole number of more than 4300 digits
        why = str(error).split(";")[0]
        raise InvalidValue(f"not JSON that can be read: {why}. {advice}".rstrip()) from None


def read_json(text: str | bytes, refusal: str = "is not a number JSON has.") -> Any:
    """The value in a JSON text; `NaN` and the like, which JSON has not, are refused with these words."""

    def refuse(word: str) -> NoReturn:
        raise InvalidValue(f"{word} {refusal}")

    return json.loads(text, parse_constant=refuse)


def is_plain_file(file: Path, *, most: float = 64 * MIB) -> bool:
    """Whether it is a file of at most so many bytes, and no link, pipe or folder."""
    try:
        found = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= most


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
            raise foreign_file_error(path) from None
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise foreign_file_error(path)
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
        raise foreign_file_error(path)


def foreign_file_error(path: Path) -> InvalidValue:
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


class Descriptor:
    """A file descriptor of this process: closed with this object, and in a forked child at once.

    A child that kept it would keep the lock too, and the run could not be resumed while it lives. The file is a plain
    one with one name, or a new one: see `open_own`.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.number = -1
        self.number = open_own(path, flags)
        _OPEN.add(self)

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            with contextlib.suppress(OSError):
                os.close(number)

    def __del__(self) -> None:
        self.close()


_OPEN: "WeakSet[Descriptor]" = WeakSet()


def _close_all() -> None:
    for descriptor in list(_OPEN):
        descriptor.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


class AppendFile:
    """A file that this process appends to. It keeps no length of its own: the caller says what it knows to be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._held = Descriptor(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise unwritable_error(path, error) from None

    def size(self) -> int:
        """How long the file is."""
        return os.fstat(self._held.number).st_size

    def append(self, text: bytes, *, at: int) -> None:
        """Add `text` behind the first `at` bytes, which must be all there are, and return once it is on the disk.

        An earlier call that was interrupted, or whose text was not seen to reach the disk, has left more than that: the
        file must then be read again.

        Raises:
            InvalidValue: the disk is full, the file or its folder is gone, or someone else wrote to it.
        """
        self._check_place(at)
        try:
            write_all(self._held.number, text)
        except OSError as error:
            with contextlib.suppress(OSError):  # take it back: nobody relies on it, and the next text may fit again
                os.ftruncate(self._held.number, at)
            raise unwritable_error(self.path, error) from None
        try:
            sync(self._held.number)
        except OSError as error:  # it may be there or not
            raise unwritable_error(self.path, error) from None

    def _check_place(self, at: int) -> None:
        try:
            there, ours = os.lstat(self.path), os.fstat(self._held.number)
        except OSError as error:
            raise unwritable_error(self.path, error) from None
        if not os.path.samestat(there, ours) or ours.st_size != at:
            raise InvalidValue(
                f"{self.path}: is not as it was left: another process, or a write that was cut short, changed it. What "
                "is spent would be lost. Stop other processes, and open it again."
            )

    def close(self) -> None:
        self._held.close()


_RECORDED = "Nothing is released that is not recorded first. Free some space, or use another folder."


def unwritable_error(path: Path, error: OSError, advice: str = _RECORDED) -> InvalidValue:
    """One line for a file that the system does not let us write."""
    return InvalidValue(f"{path}: cannot be written: {error.strerror or error}. {advice}")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each on the disk before anything is written into it."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in reversed(missing):
            sync_folder(place.parent)
    except OSError as error:
        raise unwritable_error(folder, error) from None


def write_new(file: Path, text: bytes) -> None:
    """A new file that is there whole or not at all."""
    beside = file.with_name(file.name + ".new")
    try:
        made = Descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        write_all(made.number, text)
        sync(made.number)
        made.close()
        os.rename(beside, file)
        sync_folder(file.parent)
    except OSError as error:
        raise unwritable_error(file, error) from None


def write_all(number: int, text: bytes) -> None:
    """Write all of `text`; the system may take it in parts."""
    while text:
        text = text[os.write(number, text) :]


def sync(number: int) -> None:
    """Return once the content is on the disk, not only in its cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(number, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(number)


def sync_folder(folder: Path) -> None:
    """Return once the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


LOCK_NAME = "ledger.lock"
AGAIN = 0.02  # seconds between two looks at a lock that is waited for


def lock_folder(folder: Path, *, name: str = LOCK_NAME, patience: float = 0.0) -> Descriptor:
    """The lock of a folder, held until it is closed or the process ends, however it ends.

    Args:
        patience: seconds to wait for another process that holds it.

    Raises:
        InvalidValue: another process holds it (named by its number), the folder cannot be written, or there is a link
            where the lock should be.
        Unsupported: the system or its file system has no such locks.
    """
    if sys.platform == "win32":
        raise Unsupported("this system has no flock. Two runs could share one ledger. Run on Linux or macOS.")
    path, until = folder / name, time.monotonic() + patience
    while True:
        try:
            held = Descriptor(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise unwritable_error(path, error) from None
        _acquire_lock(held, path, until)
        if _is_still(held.number, path):
            break
        held.close()  # it was removed between opening and locking: another process may hold the new one
    with contextlib.suppress(OSError):  # a full disk: the lock holds, only its note of who holds it is missing
        os.ftruncate(held.number, 0)
        os.pwrite(held.number, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    return held


def _acquire_lock(held: Descriptor, path: Path, until: float) -> None:
    import fcntl

    try:
        while True:
            try:
                return fcntl.flock(held.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(AGAIN)
    except BlockingIOError:
        raise _in_use_error(held, path) from None
    except OSError as error:
        raise Unsupported(
            f"{path}: cannot be locked: {error.strerror}. Without a lock two runs could share one ledger. "
            "Use a folder on a local disk."
        ) from None


def _in_use_error(held: Descriptor, path: Path) -> PrivetError:
    words = os.pread(held.number, 300, 0).decode(errors="replace").split()
    who = f"process {words[0]}" if len(words) == 2 and words[0].isdigit() else "another process"
    there = f" on {words[1]}" if len(words) == 2 and words[1] != socket.gethostname() else ""
    return InvalidValue(
        f"{path.parent}: is in use by {who}{there}. Two processes would spend from one ledger. "
        "Wait until it ends, or choose another folder."
    )


def _is_still(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False
