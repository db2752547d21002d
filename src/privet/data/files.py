"""Where files of a dataset are found: the folder asked for, PRIVET_DATA, the user's cache. Packed ones, in memory.

Nothing is downloaded here: what brings public datasets sets `download`, and is asked for a file that is nowhere.
"""

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet._files import read_file
from privet._text import one_line, shorten
from privet.errors import InvalidValue, PrivetError

LARGEST = 2**34  # bytes of a file with records, packed or not


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolders:
    """Where to look: `folder` (`--data-dir`), then PRIVET_DATA, then the cache; whether to fetch what is missing."""

    folder: Path | None = None
    download: bool = True

    def folders(self) -> list[Path]:
        """The folders in the order they are looked at."""
        given = [self.folder, os.environ.get("PRIVET_DATA"), self.cache_folder()]
        return [expand_user(folder) for folder in given if folder]

    def download_folder(self) -> Path:
        """Where fetched files are kept: `folder`, or the cache. PRIVET_DATA may be shared, and is only read."""
        return expand_user(self.folder or self.cache_folder())

    @staticmethod
    def cache_folder() -> Path:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "privet"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One public file: the dataset it belongs to, its name, its SHA-256 and size, and where it can be fetched."""

    dataset: str
    name: str
    sha256: str
    size: int  # bytes; a server that sends more is not listened to
    url: str = ""

    def __str__(self) -> str:
        return f"{self.dataset}/{self.name}"


download: Callable[[File, Path], Path] | None = None  # brings a public file into a folder; the product has none


def expand_user(path: str | Path) -> Path:
    """The path with `~` as the user's folder, as it is where there is no such user."""
    return Path(os.path.expanduser(path))


def candidate_paths(where: DataFolders, dataset: str, name: str) -> Iterator[Path]:
    """Where `name` may be: `<folder>/<dataset>/<name>`, then `<folder>/<name>`; a `-` in a dataset may be a `_`."""
    for folder in where.folders():
        for spelling in dict.fromkeys((dataset, dataset.replace("-", "_"))):
            yield folder / spelling / name
        yield folder / name


def find(where: DataFolders, dataset: str, *names: str, beside: bool = True) -> Path | None:
    """The first file or folder of these names that is there, looked for by name first; or None.

    `beside=False` leaves out what lies beside the folders of the datasets, where a name may be another dataset's.
    """
    passed = [] if beside else where.folders()
    there = (path for name in names for path in candidate_paths(where, dataset, name) if path.parent not in passed)
    return next((path for path in there if os.path.exists(path)), None)


def read(where: DataFolders, file: File) -> bytes:
    """The content of a public file, found or fetched, and proven by its SHA-256.

    A file with another content is refused, unless it lies beside the folders of the datasets, where another dataset's
    file may have the same name: it is then passed over.
    """
    other = ""
    for path in candidate_paths(where, file.dataset, file.name):
        if not os.path.isfile(path):
            continue
        content = read_content(path)
        if sha256(content).hexdigest() == file.sha256:
            return content
        other = _hash_mismatch_message(path, content, file)
        if path.parent not in where.folders():
            raise InvalidValue(other)
    if where.download and file.url and download is not None:
        return read_content(download(file, where.download_folder()))
    raise InvalidValue(other or missing_file_message(where, file.dataset, file.name, source=file.url))


def read_content(path: Path, *, most: int = LARGEST, advice: str = "Use a smaller file.") -> bytes:
    """All bytes of a file that is there; of a plain one, for a device has no end."""
    try:
        return read_file(path, most=most, advice=advice)
    except MemoryError:
        raise InvalidValue(f"{path}: is larger than this machine's memory. {advice}") from None
    except PrivetError as error:
        raise InvalidValue(f"{path}: {error}") from None
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be read: {error.strerror}. Check its name and permissions.") from None


def missing_file_message(where: DataFolders, dataset: str, name: str, *, source: str) -> str:
    looked = ", ".join(str(folder) for folder in where.folders())
    return (
        f"task={dataset!r} needs {name}, which is in none of: {looked}. "
        f"Put it in {where.download_folder() / dataset}{f' (public source: {source})' if source else ''}, "
        "or name the folder that has it by --data-dir or PRIVET_DATA."
    )


def _hash_mismatch_message(path: Path, content: bytes, file: File) -> str:
    found = sha256(content).hexdigest()
    size = f", {len(content):,} bytes of {file.size:,}" if len(content) != file.size else ""
    return (
        f"{path}: is not the public file {file}: its SHA-256 is {found[:12]}..., not {file.sha256[:12]}...{size}. "
        "It is damaged or another version. Remove it and fetch it again."
    )


# --- packed -----------------------------------------------------------------------------------------


def gunzip(content: bytes, *, limit: int, name: str) -> bytes:
    """What one gzip stream of at most `limit` bytes holds; exactly one, whole, with nothing after it."""
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
        raise damage_error(InvalidValue(what), "NPZ file of plain arrays", name) from None
    raise InvalidValue(f"{name}: unpacks to {unpacked:,} bytes, more than {limit:,}. Do not use it.")


def damage_error(error: Exception, kind: str, name: str) -> InvalidValue:
    return InvalidValue(f"{name}: is not a whole {kind}: {shorten(one_line(error), 200)}. Fetch or make it again.")
