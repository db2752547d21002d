"""The one file of a checkpoint: a safetensors file that is there whole or not at all, and is proven whole when read.

Its last two tensors are the JSON of everything that is no tensor, and the SHA-256 of all bytes before it: tensors and
numbers change together, and nothing is parsed that was not written so. See docs/checkpoint-format.md.
"""

import contextlib
import json
import os
import secrets
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from privet.errors import InvalidValue, PrivetError, Unsupported
from privet.training import append_file
from privet.training.append_file import Descriptor, make_folder, sync, sync_folder
from privet.training.going_on import WEIGHTS
from privet.training.nest import DTYPES, parsed, shown

T = TypeVar("T")
NAME = WEIGHTS
FORMAT, VERSION = "privet-checkpoint", 1
OTHER = "Use a copy of it, or go on without: what was spent is in the ledger, not here."
_DAMAGED = "its checksum does not fit: it is damaged, or not a checkpoint of Privet."
_TEXT, _DIGEST = "json", "sha256"
_SIZE = sha256().digest_size
_PIECE = 2**24  # bytes that are written, and checked, at a time
_BESIDE, _NEW = ".checkpoint-", ".new"  # a file that is being written, or was when its process ended


# --- writing ----------------------------------------------------------------------------------------


def write(file: Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Replace `file` by one with this content, once that is on the disk; gives its checksum.

    A crash at any moment, or an error, leaves the file that was there before, or the new one, whole.

    Raises:
        InvalidValue: it cannot be written.
    """
    if sys.byteorder != "little":
        raise Unsupported("this machine is big-endian. A checkpoint would not be read as it was written. Use another.")
    make_folder(file.parent)
    text = json.dumps({"format": FORMAT, "version": VERSION} | dict(document), separators=(",", ":"), allow_nan=False)
    whole = {**tensors, _TEXT: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
    beside = file.with_name(f"{_BESIDE}{os.getpid()}-{secrets.token_hex(8)}{_NEW}")
    try:
        _clear(file.parent)
        digest = _write_beside(beside, _pieces(whole))
        os.rename(beside, file)
        sync_folder(file.parent)  # should this fail, either of the two may be there after a power cut
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise InvalidValue(
                f"{file}: cannot be written: {error.strerror or error}. What is there is whole: the "
                "checkpoint before it, or this one. Free some space, or use another folder."
            ) from None
        raise
    return digest


def _clear(folder: Path) -> None:
    """Remove what killed processes left. One that still writes fails at its rename, and replaces nothing."""
    for left in folder.glob(f"{_BESIDE}*{_NEW}"):
        left.unlink(missing_ok=True)


def _write_beside(beside: Path, pieces: Iterable[bytes]) -> str:
    made = Descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        seen = sha256()
        for piece in pieces:
            seen.update(piece)
            append_file.write_all(made.number, piece)
        append_file.write_all(made.number, seen.digest())
        sync(made.number)
    finally:
        made.close()
    return seen.hexdigest()


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """The file up to its checksum. One tensor at a time comes from its device; none is copied as a whole twice."""
    head = _header({**tensors, _DIGEST: torch.empty(_SIZE, dtype=torch.uint8)})
    yield struct.pack("<Q", len(head)) + head
    for _, tensor in _ordered(tensors):
        flat = tensor.resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(flat), _PIECE):
            yield flat[start : start + _PIECE].tobytes()


def _ordered(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Wide numbers first, so that each is aligned; the JSON and the checksum last."""
    return sorted(tensors.items(), key=lambda item: (item[0] in (_TEXT, _DIGEST), -item[1].itemsize, item[0]))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """The header of the file that holds these tensors: there is only one."""
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    end = 0
    for name, tensor in _ordered(tensors):
        start, end = end, end + tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


# --- reading ----------------------------------------------------------------------------------------


def read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """The JSON, the tensors (on the CPU) and the checksum of a file.

    Raises:
        InvalidValue: there is none, it is a link, it is damaged, or it is another kind of file. Nothing is unpickled.
    """
    try:
        return parse(bytes_of(file))
    except PrivetError as error:
        raise type(error)(f"{file}: {error} {OTHER}") from None


def bytes_of(file: Path) -> bytes:
    """The content of a plain file, not proven to be whole."""
    return _read(file, lambda stream: stream.read())


def check(file: Path) -> None:
    """Raise unless the checksum of a file fits; a piece of it is in memory at a time, and none is parsed.

    Raises:
        InvalidValue: there is none, it is a link, it is damaged, or it is another kind of file.
    """
    try:
        _read(file, _check_sum)
    except PrivetError as error:
        raise type(error)(f"{file}: {error} {OTHER}") from None


def _check_sum(stream: BinaryIO) -> None:
    left, seen = os.fstat(stream.fileno()).st_size - _SIZE, sha256()
    while left > 0 and (piece := stream.read(min(left, _PIECE))):
        seen.update(piece)
        left -= len(piece)
    if left or stream.read() != seen.digest():
        raise InvalidValue(_DAMAGED)


def _read(file: Path, read: Callable[[BinaryIO], T]) -> T:
    try:
        number = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as stream:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise InvalidValue("is not a file.")
            return read(stream)
    except FileNotFoundError:
        raise InvalidValue("there is no such file. Give the folder of a run that has saved one.") from None
    except MemoryError:
        raise InvalidValue("is larger than this machine's memory.") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if isinstance(error, PrivetError):
            raise
        if file.is_symlink():
            raise InvalidValue("is a symbolic link, which may lead anywhere. Put the file itself there.") from None
        raise InvalidValue(f"cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def parse(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """The JSON, the tensors and the checksum in the content of a file.

    The checksum is compared first, then the safetensors library reads the tensors, then the header must be the one and
    only that Privet would write for them: no name twice, no gap, no other key.
    """
    digest = sha256(memoryview(data)[:-_SIZE])
    if len(data) <= _SIZE or digest.digest() != data[-_SIZE:]:
        pickled = data[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
        also = " It may be a pickle (torch.save), which is never read." if pickled else ""
        raise InvalidValue(_DAMAGED + also)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise InvalidValue(f"is not a safetensors file: {shown(str(error))}.") from None
    ends = [tensors.get(name, torch.empty(0)).dtype for name in (_TEXT, _DIGEST)]
    if ends != [torch.uint8, torch.uint8] or not all(tensor.dtype in DTYPES for tensor in tensors.values()):
        raise InvalidValue("is not a checkpoint of Privet.")
    head = _header(tensors)
    if data[: 8 + len(head)] != struct.pack("<Q", len(head)) + head:
        raise InvalidValue("its header is not as Privet writes it.")
    del tensors[_DIGEST]
    document = parsed(bytes(tensors.pop(_TEXT).numpy()))
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise InvalidValue(f"is not a checkpoint of version {VERSION}. Use the Privet that wrote it.")
    return document, tensors, digest.hexdigest()
