"""One writer for a folder: a lock that is gone when its process is, however it ended."""

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

from privet.errors import InvalidValue, PrivetError, Unsupported
from privet.training.append_file import Descriptor, unwritable

NAME = "ledger.lock"
AGAIN = 0.02  # seconds between two looks at a lock that is waited for


def locked(folder: Path, *, name: str = NAME, patience: float = 0.0) -> Descriptor:
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
            raise unwritable(path, error) from None
        _take(held, path, until)
        if _is_still(held.number, path):
            break
        held.close()  # it was removed between opening and locking: another process may hold the new one
    with contextlib.suppress(OSError):  # a full disk: the lock holds, only its note of who holds it is missing
        os.ftruncate(held.number, 0)
        os.pwrite(held.number, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    return held


def _take(held: Descriptor, path: Path, until: float) -> None:
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
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False
