"""What torch's `state_dict` gives, as JSON beside named tensors, and back, exactly. Nothing is pickled.

None, bool, str, int, float, list      as JSON has them
a dict with plain text keys            an object
nan, inf, -inf                         {"$float": "nan"}
a tuple                                {"$tuple": [...]}
any other dict, a Counter              {"$dict": [[key, value], ...]}, {"$counter": [[key, value], ...]}
a tensor                               {"$tensor": its name}
"""

import contextlib
import json
import math
import os
import secrets
import stat
import struct
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from privet import _files
from privet._files import Descriptor, make_folder, sync, sync_folder
from privet._text import shorten
from privet.errors import InvalidValue, PrivetError, Unsupported, name_errors
from privet.ledger.reading import WEIGHTS

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.bool: "BOOL", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip
MOST_DEEP = 40  # levels, each at most three of JSON: far below what a reader of JSON can take
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
_KEYS = (type(None), bool, int, float, str)


def format_place(place: str) -> str:
    """A place for an error message: names in a file may hold anything."""
    return repr(shorten(place))[1:-1]


def memory_identity(tensor: Tensor) -> tuple[object, ...] | None:
    """The same for two tensors exactly if they are one piece of memory, seen the same way; None if there is none."""
    if not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


# --- writing ----------------------------------------------------------------------------------------


def encode_state(value: object, place: str, tensors: dict[str, Tensor] | None = None) -> Any:
    """`value` as JSON; its tensors are added to `tensors`, those that share their memory once.

    Args:
        place: what errors call it, and the first word of its tensors' names.
        tensors: None if it must have no tensors.
    """
    return _Packing(tensors).pack(value, place, 0)


class _Packing:
    def __init__(self, tensors: dict[str, Tensor] | None) -> None:
        self._tensors, self._names = tensors, dict[object, str]()

    def pack(self, value: Any, place: str, depth: int) -> Any:
        if depth > MOST_DEEP:
            raise InvalidValue(f"{place} is more than {MOST_DEEP} levels deep. Does it hold itself? Make it flat.")
        if isinstance(value, Tensor) and self._tensors is not None:
            return {"$tensor": self._name_tensor(value, place, self._tensors)}
        kind = type(value)
        if kind in (list, tuple):
            items = [self.pack(item, f"{place}.{i}", depth + 1) for i, item in enumerate(value)]
            return items if kind is list else {"$tuple": items}
        if kind in (dict, OrderedDict, Counter):
            pairs = [
                (_encode_scalar(k, f"{place}, a key"), self.pack(v, f"{place}.{k}", depth + 1))
                for k, v in value.items()
            ]
            if kind is not Counter and all(type(k) is str and not k.startswith("$") for k in value):
                return dict(pairs)
            return {"$counter" if kind is Counter else "$dict": [list(pair) for pair in pairs]}
        return _encode_scalar(value, place)

    def _name_tensor(self, tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
        known = memory_identity(tensor.detach()) if _is_plain(tensor) else _refuse_tensor(tensor, place)
        if known in self._names and known is not None:
            return self._names[known]
        name = place.encode(errors="backslashreplace").decode()
        while name in tensors:  # {"a.b": t, "a": {"b": u}}
            name += "'"
        tensors[name] = tensor.detach()
        self._names[known] = name
        return name


def _encode_scalar(value: Any, place: str) -> Any:
    if isinstance(value, float):  # also NumPy's float64, which is one
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if value is None or type(value) in (bool, str) or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    what = "a number of more than 64 bits" if type(value) is int else f"of the type {type(value).__name__}"
    raise InvalidValue(
        f"{place} is {what}, which a checkpoint cannot hold. Nothing is pickled. "
        "Keep it as numbers, text, lists, tables or (not in extra) tensors."
    )


def _is_plain(tensor: Tensor) -> bool:
    strided = type(tensor) in _TENSORS and tensor.layout == torch.strided and tensor.device.type != "meta"
    return strided and tensor.dtype in DTYPES


def _refuse_tensor(tensor: Tensor, place: str) -> NoReturn:
    what = f"{type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, on {tensor.device}"
    raise InvalidValue(
        f"{place} is a {what}, which a checkpoint cannot hold. Its file has dense tensors of real numbers, integers "
        "and booleans. Turn it into one first."
    )


# --- reading ----------------------------------------------------------------------------------------


def parse_json(text: bytes) -> Any:
    """The JSON of a checkpoint; no key twice, no word that JSON does not have, not too deep."""
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicate_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"its JSON cannot be read: {shorten(str(error))}. It was changed.") from None


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number JSON has")


def decode_state(found: Any, place: str, tensors: Mapping[str, Tensor], used: set[str], depth: int = 0) -> Any:
    """The value that `packed` gave `found` for; a tensor that stands twice is one tensor.

    Args:
        used: the names of the tensors it holds are added.
    """
    if depth > 3 * MOST_DEEP:
        raise _malformed_error(place)
    if isinstance(found, list):
        return [decode_state(item, f"{place}.{i}", tensors, used, depth + 1) for i, item in enumerate(found)]
    if not isinstance(found, dict):
        return found
    if not any(key.startswith("$") for key in found):
        return {key: decode_state(item, f"{place}.{key}", tensors, used, depth + 1) for key, item in found.items()}
    (tag, inner), *more = found.items()
    if tag == "$tensor" and not more and type(inner) is str and inner in tensors:
        used.add(inner)
        return tensors[inner]
    if tag == "$float" and not more and inner in ("nan", "inf", "-inf"):
        return float(inner)
    if tag not in ("$tuple", "$dict", "$counter") or more or not isinstance(inner, list):
        raise _malformed_error(place)
    items = decode_state(inner, place, tensors, used, depth + 1)
    return tuple(items) if tag == "$tuple" else _decode_table(items, place, Counter if tag == "$counter" else dict)


def _decode_table(pairs: list[Any], place: str, kind: type[dict[Any, Any]]) -> dict[Any, Any]:
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], _KEYS) for pair in pairs):
        raise _malformed_error(place)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _malformed_error(place)
    return kind(found)


def _malformed_error(place: str) -> InvalidValue:
    return InvalidValue(f"{format_place(place)} is not written as it must be. It was changed.")


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
    """
    if sys.byteorder != "little":
        raise Unsupported("this machine is big-endian. A checkpoint would not be read as it was written. Use another.")
    make_folder(file.parent)
    text = json.dumps({"format": FORMAT, "version": VERSION} | dict(document), separators=(",", ":"), allow_nan=False)
    whole = {**tensors, _TEXT: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
    beside = file.with_name(f"{_BESIDE}{os.getpid()}-{secrets.token_hex(8)}{_NEW}")
    try:
        _remove_leftovers(file.parent)
        digest = _write_beside(beside, _file_pieces(whole))
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


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left. One that still writes fails at its rename, and replaces nothing."""
    for left in folder.glob(f"{_BESIDE}*{_NEW}"):
        left.unlink(missing_ok=True)


def _write_beside(beside: Path, pieces: Iterable[bytes]) -> str:
    made = Descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        seen = sha256()
        for piece in pieces:
            seen.update(piece)
            _files.write_all(made.number, piece)
        _files.write_all(made.number, seen.digest())
        sync(made.number)
    finally:
        made.close()
    return seen.hexdigest()


def _file_pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """The file up to its checksum. One tensor at a time comes from its device; none is copied as a whole twice."""
    head = _header({**tensors, _DIGEST: torch.empty(_SIZE, dtype=torch.uint8)})
    yield struct.pack("<Q", len(head)) + head
    for _, tensor in _order_tensors(tensors):
        flat = tensor.resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(flat), _PIECE):
            yield flat[start : start + _PIECE].tobytes()


def _order_tensors(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Wide numbers first, so that each is aligned; the JSON and the checksum last."""
    return sorted(tensors.items(), key=lambda item: (item[0] in (_TEXT, _DIGEST), -item[1].itemsize, item[0]))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    end = 0
    for name, tensor in _order_tensors(tensors):
        start, end = end, end + tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


# --- reading ----------------------------------------------------------------------------------------


def read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """The JSON, the tensors (on the CPU) and the checksum of a file."""
    with name_errors(file, advice=f" {OTHER}"):
        return parse(read_bytes(file))


def read_bytes(file: Path) -> bytes:
    return _read(file, lambda stream: stream.read())


def check(file: Path) -> None:
    """Raise unless the checksum of a file fits; a piece of it is in memory at a time, and none is parsed."""
    with name_errors(file, advice=f" {OTHER}"):
        _read(file, _check_sum)


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
        raise InvalidValue(f"is not a safetensors file: {format_place(str(error))}.") from None
    ends = [tensors.get(name, torch.empty(0)).dtype for name in (_TEXT, _DIGEST)]
    if ends != [torch.uint8, torch.uint8] or not all(tensor.dtype in DTYPES for tensor in tensors.values()):
        raise InvalidValue("is not a checkpoint of Privet.")
    head = _header(tensors)
    if data[: 8 + len(head)] != struct.pack("<Q", len(head)) + head:
        raise InvalidValue("its header is not as Privet writes it.")
    del tensors[_DIGEST]
    document = parse_json(bytes(tensors.pop(_TEXT).numpy()))
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise InvalidValue(f"is not a checkpoint of version {VERSION}. Use the Privet that wrote it.")
    return document, tensors, digest.hexdigest()
