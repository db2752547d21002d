"""Packed files, read in memory and never written: no member can leave its folder, none can fill the memory."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privet._registry import one_line, shortened
from privet.errors import InvalidValue

LONGEST = 2**16  # bytes of a header that names a member; such are read whole
_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
MOST_NOTES = 100  # in the headers of an archive: each member has a copy of them


def gunzip(content: bytes, *, limit: int, name: str) -> bytes:
    """What one gzip stream of at most `limit` bytes holds; exactly one, whole, with nothing after it.

    >>> gunzip(gzip.compress(b"digits"), limit=6, name="a.gz")
    b'digits'
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(content, limit + 1)
    except zlib.error as error:
        raise InvalidValue(f"{name}: is not a whole gzip file: {one_line(error)}. Fetch it again.") from None
    if len(unpacked) > limit:
        raise InvalidValue(f"{name}: unpacks to more than {limit:,} bytes. It is not the file it is named after.")
    if not unpacker.eof:
        raise InvalidValue(f"{name}: ends in the middle of its gzip stream. Fetch it again.")
    if unpacker.unused_data:
        raise InvalidValue(f"{name}: has bytes after its gzip stream. Fetch it again.")
    return unpacked


def untar(content: bytes, *, limit: int, name: str) -> Iterator[tuple[str, bytes]]:
    """The regular files of a tar.gz as (path, content); `limit` holds for all of it, unpacked.

    Raises:
        InvalidValue: it is damaged, too large, or has a member that no dataset has: a link, a device, a file with
            holes, an absolute path, or one with `..`.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
        stream = _Limited(unpacked, limit=limit, name=name)
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
                for member in archive:
                    _check_member(member, limit=limit, name=name)
                    if member.isfile():
                        held = archive.extractfile(member)
                        yield member.name, held.read() if held else b""
                while stream.read(2**20):  # to the end: the checksum of the gzip stream stands there
                    pass
        except InvalidValue:
            raise
        except Exception as error:  # a damaged file may fail in any way, by numbers that are none or too deep a chain
            raise damaged(error, "tar.gz file", name) from None


def unzip_arrays(content: bytes, *, limit: int, name: str) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file of at most `limit` bytes, unpacked. Objects, which would be unpickled, are refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            unpacked = sum(entry.file_size for entry in packed.infolist())
        if unpacked <= limit:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                held = {key: arrays[key] for key in arrays.files}
            return {key: array for key, array in held.items() if isinstance(array, np.ndarray)}  # else it is bytes
    except Exception as error:  # a damaged file may fail in any way, MemoryError included; its text may show content
        what = "it has objects, which are not unpickled" if "allow_pickle" in str(error) else type(error).__name__
        raise damaged(InvalidValue(what), "NPZ file of plain arrays", name) from None
    raise InvalidValue(f"{name}: unpacks to {unpacked:,} bytes, more than {limit:,}. Do not use it.")


def damaged(error: Exception, kind: str, name: str) -> InvalidValue:
    """What to say of a file that cannot be unpacked."""
    return InvalidValue(f"{name}: is not a whole {kind}: {shortened(one_line(error), 200)}. Fetch or make it again.")


def _check_member(member: tarfile.TarInfo, *, limit: int, name: str) -> None:
    shown = repr(shortened(member.name))
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        raise InvalidValue(f"{name}: has {shown}, which would lie outside its folder. Do not use it.")
    if not (member.isfile() or member.isdir()) or member.issparse() or len(member.pax_headers) > MOST_NOTES:
        raise InvalidValue(f"{name}: has {shown}, which is no plain file. No dataset has such. Do not use it.")
    if not 0 <= member.size <= limit:
        raise InvalidValue(f"{name}: unpacks to more than {limit:,} bytes. Do not use it.")


class _Member(tarfile.TarInfo):
    """A member of an archive, refused where its header alone would take much memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("it has a file with holes")
        if found.type in _HEADERS and found.size > LONGEST:
            raise tarfile.ReadError(f"it has a header of {found.size:,} bytes")
        return found

    def _proc_gnusparse_10(self, *found: object) -> None:
        """In the place of what reads the list of holes, as long as the archive says, from the content of a file."""
        raise tarfile.ReadError("it has a file with holes")


class _Limited(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes."""

    def __init__(self, inner: gzip.GzipFile, *, limit: int, name: str) -> None:
        self.inner, self.left, self.limit, self.name = inner, limit, limit, name

    def read(self, size: int = -1) -> bytes:
        piece = self.inner.read(size if size >= 0 else self.left + 1)
        self.left -= len(piece)
        if self.left < 0:
            raise InvalidValue(f"{self.name}: unpacks to more than {self.limit:,} bytes. Do not use it.")
        return piece
