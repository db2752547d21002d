"""Public files that come plain or packed, read in memory and never written, and proven by what they hold.

No member of an archive can leave its folder, none can fill the memory.
"""

import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Self

from privet._text import shorten
from privet.data.files import DataFolders, File, candidate_paths, damage_error, find, gunzip, read, read_content
from privet.errors import InvalidValue

LONGEST = 2**16  # bytes of a header that names a member; such are read whole
_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
MOST_NOTES = 100  # in the headers of an archive: each member has a copy of them


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
            raise damage_error(error, "tar.gz file", name) from None


def _check_member(member: tarfile.TarInfo, *, limit: int, name: str) -> None:
    shown = repr(shorten(member.name))
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


# --- packed -----------------------------------------------------------------------------------------


PACKED = (".gz", ".xz")


def has_plain_file(where: DataFolders, file: File) -> bool:
    """Whether the folder of the dataset has the file, plain or packed. Beside those folders, names say too little."""
    return find(where, file.dataset, *(file.name + suffix for suffix in ("", *PACKED)), beside=False) is not None


def read_plain(where: DataFolders, file: File) -> bytes:
    """What a public file holds, found as `name`, `name.gz` or `name.xz`, or fetched; `file` describes the plain one.

    Raises:
        InvalidValue: it is nowhere and cannot be fetched, is damaged, or holds something else.
    """
    for suffix in PACKED:
        for path in candidate_paths(where, file.dataset, file.name + suffix):
            if not os.path.isfile(path):
                continue
            content = unpack(read_content(path), limit=file.size, name=str(path))
            if sha256(content).hexdigest() == file.sha256:
                return content
            if path.parent not in where.folders():  # beside the datasets' folders it may be another's: passed over
                raise InvalidValue(
                    f"{path}: does not hold the public file {file} (SHA-256 {file.sha256[:12]}...). It is damaged or "
                    "another version. Remove it and fetch it again."
                )
    return read(where, file)


def unpack(content: bytes, *, limit: int, name: str) -> bytes:
    """The content of a file, unpacked if its name ends in .gz or .xz; at most `limit` bytes.

    >>> unpack(lzma.compress(b"words"), limit=5, name="a.xz")
    b'words'
    """
    if name.endswith(".gz"):
        return gunzip(content, limit=limit, name=name)
    if not name.endswith(".xz"):
        return content
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=2**28)
    try:
        unpacked = unpacker.decompress(content, limit + 1)
    except lzma.LZMAError as error:
        raise damage_error(error, "xz file", name) from None
    if len(unpacked) > limit:
        raise InvalidValue(f"{name}: unpacks to more than {limit:,} bytes. It is not the file it is named after.")
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidValue(f"{name}: does not end with its xz stream. Fetch it again.")
    return unpacked


def unzip(content: bytes, wanted: Callable[[str], bool], *, limit: int, name: str) -> dict[str, bytes]:
    """The members of a zip whose path is `wanted`, read in memory; all together at most `limit` bytes."""
    found: dict[str, bytes] = {}
    left = limit
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                if member.is_dir() or not wanted(member.filename):
                    continue
                with archive.open(member) as stream:
                    piece = stream.read(left + 1)
                left -= len(piece)
                if left < 0:
                    raise InvalidValue(f"{name}: unpacks to more than {limit:,} bytes. Do not use it.")
                if member.filename in found:
                    raise InvalidValue(f"{name}: has {shorten(member.filename)!r} twice. Fetch it again.")
                found[member.filename] = piece
    except InvalidValue:
        raise
    except Exception as error:  # a damaged file may fail in any way
        raise damage_error(error, "zip file", name) from None
    return found


def decode_text(content: bytes, name: str | Path) -> str:
    """The content as UTF-8 text."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{name}: is not UTF-8 at byte {error.start:,}. Fetch it again.") from None
