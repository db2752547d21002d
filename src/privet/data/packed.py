"""Public files that come plain or packed, proven by what they hold; and one fixed shuffle for all splits."""

import io
import lzma
import os
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privet._registry import shortened
from privet.data.archives import damaged, gunzip
from privet.data.files import File, Where, content_of, find, places, read
from privet.errors import InvalidValue

PACKED = (".gz", ".xz")


def found_plain(where: Where, file: File) -> bool:
    """Whether the folder of the dataset has the file, plain or packed. Beside those folders, names say too little."""
    return find(where, file.dataset, *(file.name + suffix for suffix in ("", *PACKED)), beside=False) is not None


def read_plain(where: Where, file: File) -> bytes:
    """What a public file holds, found as `name`, `name.gz` or `name.xz`, or fetched; `file` describes the plain one.

    Raises:
        InvalidValue: it is nowhere and cannot be fetched, is damaged, or holds something else.
    """
    for suffix in PACKED:
        for path in places(where, file.dataset, file.name + suffix):
            if not os.path.isfile(path):
                continue
            content = unpack(content_of(path), limit=file.size, name=str(path))
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
        raise damaged(error, "xz file", name) from None
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
                    raise InvalidValue(f"{name}: has {shortened(member.filename)!r} twice. Fetch it again.")
                found[member.filename] = piece
    except InvalidValue:
        raise
    except Exception as error:  # a damaged file may fail in any way
        raise damaged(error, "zip file", name) from None
    return found


def text_of(content: bytes, name: str | Path) -> str:
    """The content as UTF-8 text."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{name}: is not UTF-8 at byte {error.start:,}. Fetch it again.") from None


# --- splits -----------------------------------------------------------------------------------------


def shuffled(size: int) -> NDArray[np.int64]:
    """0 to size - 1 in one fixed order, the same on every machine and in every version.

    Places are sorted by the splitmix64 hash of the place, so the order depends on nothing of the records: where a
    paper splits at random, this is our draw.

    >>> shuffled(8).tolist()
    [2, 4, 6, 5, 1, 7, 0, 3]
    """
    return np.argsort(_hashed(size), kind="stable").astype(np.int64)


def split(size: int, held_out: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places that are trained on and the `held_out` places that judge, by the fixed shuffle."""
    order = shuffled(size)
    return order[held_out:], order[:held_out]


def one_in(every: int, size: int) -> NDArray[np.int64]:
    """One place in each whole run of `every` places, by the same hash: spread evenly, and in step with nothing.

    >>> one_in(5, 23).tolist()
    [4, 7, 10, 19]
    """
    runs = size // every
    shares = (_hashed(runs) >> np.uint64(11)) * 2.0**-53  # from 0 to below 1, exact
    return every * np.arange(runs) + (shares * every).astype(np.int64)


def _hashed(size: int) -> NDArray[np.uint64]:
    """The splitmix64 hash of 0 to size - 1."""
    with np.errstate(over="ignore"):
        x = (np.arange(size, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
