"""Files that only grow: what was appended is on the disk when the call returns, or the file is as it was before."""

import contextlib
import os
import sys
from pathlib import Path
from weakref import WeakSet

from privet._files import open_own
from privet.errors import InvalidValue, PrivetError


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


def _let_go() -> None:
    for descriptor in list(_OPEN):
        descriptor.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class AppendFile:
    """A file that this process appends to. It keeps no length of its own: the caller says what it knows to be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._held = Descriptor(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise unwritable(path, error) from None

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
            raise unwritable(self.path, error) from None
        try:
            sync(self._held.number)
        except OSError as error:  # it may be there or not
            raise unwritable(self.path, error) from None

    def _check_place(self, at: int) -> None:
        try:
            there, ours = os.lstat(self.path), os.fstat(self._held.number)
        except OSError as error:
            raise unwritable(self.path, error) from None
        if not os.path.samestat(there, ours) or ours.st_size != at:
            raise InvalidValue(
                f"{self.path}: is not as it was left: another process, or a write that was cut short, changed it. What "
                "is spent would be lost. Stop other processes, and open it again."
            )

    def close(self) -> None:
        self._held.close()


def unwritable(path: Path, error: OSError) -> PrivetError:
    """One line for a file that the system does not let us write."""
    return InvalidValue(
        f"{path}: cannot be written: {error.strerror or error}. Nothing is released that is not recorded first. "
        "Free some space, or use another folder."
    )


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each on the disk before anything is written into it."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in reversed(missing):
            sync_folder(place.parent)
    except OSError as error:
        raise unwritable(folder, error) from None


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
        raise unwritable(file, error) from None


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
