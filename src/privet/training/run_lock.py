"""One writer for a run folder: a lock that dies with its process, and descriptors that a forked child lets go of."""

import contextlib
import os
import socket
import sys
from pathlib import Path
from weakref import WeakSet

from privet.errors import InvalidValue, PrivetError, Unsupported

NAME = "ledger.lock"


class Descriptor:
    """A file descriptor of this process: closed with this object, and in a forked child at once.

    A child that kept it would keep the lock too, and the run could not be resumed while it lives.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.number = -1
        self.number = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o644)
        _OPEN.add(self)

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            with contextlib.suppress(OSError):
                os.close(number)

    def __del__(self) -> None:
        self.close()


_OPEN: "WeakSet[Descriptor]" = WeakSet()


def _let_go() -> None:
    for descriptor in list(_OPEN):
        descriptor.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def locked(folder: Path) -> Descriptor:
    """The lock of a run folder, held until it is closed or the process ends, however it ends.

    Raises:
        InvalidValue: another process holds it (named by its number), or the folder cannot be written.
        Unsupported: the system or its file system has no such locks.
    """
    if sys.platform == "win32":
        raise Unsupported("this system has no flock. Two runs could share one ledger. Run on Linux or macOS.")
    path = folder / NAME
    while True:
        try:
            held = Descriptor(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise unwritable(path, error) from None
        _take(held, path)
        if _is_still(held.number, path):
            break
        held.close()  # it was removed between opening and locking: another process may hold the new one
    with contextlib.suppress(OSError):  # a full disk: the lock holds, only its note of who holds it is missing
        os.ftruncate(held.number, 0)
        os.pwrite(held.number, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    return held


def _take(held: Descriptor, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(held.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(held, path) from None
    except OSError as error:
        raise Unsupported(
            f"{path}: cannot be locked: {error.strerror}. Without a lock two runs could share one ledger. "
            "Use a folder on a local disk."
        ) from None


def _in_use(held: Descriptor, path: Path) -> PrivetError:
    words = os.pread(held.number, 300, 0).decode(errors="replace").split()
    who = f"process {words[0]}" if len(words) == 2 and words[0].isdigit() else "another process"
    there = f" on {words[1]}" if len(words) == 2 and words[1] != socket.gethostname() else ""
    return InvalidValue(
        f"{path.parent}: is in use by {who}{there}. Two processes would spend from one ledger. "
        "Wait until it ends, or choose another folder."
    )


def _is_still(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(path))
    except OSError:
        return False


def unwritable(path: Path, error: OSError) -> PrivetError:
    """One line for a file that the system does not let us write."""
    return InvalidValue(
        f"{path}: cannot be written: {error.strerror or error}. Nothing is released that is not recorded first. "
        "Free or choose another place."
    )


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
