"""What torch's `state_dict` gives, as JSON beside named tensors, and back, exactly. Nothing is pickled.

None, bool, str, int, float, list      as JSON has them
a dict with plain text keys            an object
nan, inf, -inf                         {"$float": "nan"}
a tuple                                {"$tuple": [...]}
any other dict, a Counter              {"$dict": [[key, value], ...]}, {"$counter": [[key, value], ...]}
a tensor                               {"$tensor": its name}
"""

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from privet._registry import shortened
from privet.errors import InvalidValue

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.bool: "BOOL", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip
MOST_DEEP = 40  # levels, each at most three of JSON: far below what a reader of JSON can take
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
_KEYS = (type(None), bool, int, float, str)


def shown(place: str) -> str:
    """A place for an error message: names in a file may hold anything."""
    return repr(shortened(place))[1:-1]


def alias(tensor: Tensor) -> tuple[object, ...] | None:
    """The same for two tensors exactly if they are one piece of memory, seen the same way; None if there is none."""
    if not tensor.numel():
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


# --- writing ----------------------------------------------------------------------------------------


def packed(value: object, place: str, tensors: dict[str, Tensor] | None = None) -> Any:
    """`value` as JSON; its tensors are added to `tensors`, those that share their memory once.

    >>> packed({"lr": 0.1, "betas": (0.9, 0.999)}, "optimizer")
    {'lr': 0.1, 'betas': {'$tuple': [0.9, 0.999]}}

    Args:
        place: what errors call it, and the first word of its tensors' names.
        tensors: None if it must have no tensors.

    Raises:
        InvalidValue: it holds something else; names the place.
    """
    return _Packing(tensors).pack(value, place, 0)


class _Packing:
    def __init__(self, tensors: dict[str, Tensor] | None) -> None:
        self._tensors, self._names = tensors, dict[object, str]()

    def pack(self, value: Any, place: str, depth: int) -> Any:
        if depth > MOST_DEEP:
            raise InvalidValue(f"{place} is more than {MOST_DEEP} levels deep. Does it hold itself? Make it flat.")
        if isinstance(value, Tensor) and self._tensors is not None:
            return {"$tensor": self._named(value, place, self._tensors)}
        kind = type(value)
        if kind in (list, tuple):
            items = [self.pack(item, f"{place}.{i}", depth + 1) for i, item in enumerate(value)]
            return items if kind is list else {"$tuple": items}
        if kind in (dict, OrderedDict, Counter):
            pairs = [(_scalar(k, f"{place}, a key"), self.pack(v, f"{place}.{k}", depth + 1)) for k, v in value.items()]
            if kind is not Counter and all(type(k) is str and not k.startswith("$") for k in value):
                return dict(pairs)
            return {"$counter" if kind is Counter else "$dict": [list(pair) for pair in pairs]}
        return _scalar(value, place)

    def _named(self, tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
        known = alias(tensor.detach()) if _is_plain(tensor) else _refuse_tensor(tensor, place)
        if known in self._names and known is not None:
            return self._names[known]
        name = place.encode(errors="backslashreplace").decode()
        while name in tensors:  # {"a.b": t, "a": {"b": u}}
            name += "'"
        tensors[name] = tensor.detach()
        self._names[known] = name
        return name


def _scalar(value: Any, place: str) -> Any:
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


def parsed(text: bytes) -> Any:
    """The JSON of a checkpoint; no key twice, no word that JSON does not have, not too deep."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_word)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"its JSON cannot be read: {shortened(str(error))}. It was changed.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_word(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number JSON has")


def unpacked(found: Any, place: str, tensors: Mapping[str, Tensor], used: set[str], depth: int = 0) -> Any:
    """The value that `packed` gave `found` for; a tensor that stands twice is one tensor.

    >>> unpacked({"betas": {"$tuple": [0.9, 0.999]}}, "optimizer", {}, set())
    {'betas': (0.9, 0.999)}

    Args:
        used: the names of the tensors it holds are added.
    """
    if depth > 3 * MOST_DEEP:
        raise _wrong(place)
    if isinstance(found, list):
        return [unpacked(item, f"{place}.{i}", tensors, used, depth + 1) for i, item in enumerate(found)]
    if not isinstance(found, dict):
        return found
    if not any(key.startswith("$") for key in found):
        return {key: unpacked(item, f"{place}.{key}", tensors, used, depth + 1) for key, item in found.items()}
    (tag, inner), *more = found.items()
    if tag == "$tensor" and not more and type(inner) is str and inner in tensors:
        used.add(inner)
        return tensors[inner]
    if tag == "$float" and not more and inner in ("nan", "inf", "-inf"):
        return float(inner)
    if tag not in ("$tuple", "$dict", "$counter") or more or not isinstance(inner, list):
        raise _wrong(place)
    items = unpacked(inner, place, tensors, used, depth + 1)
    return tuple(items) if tag == "$tuple" else _table(items, place, Counter if tag == "$counter" else dict)


def _table(pairs: list[Any], place: str, kind: type[dict[Any, Any]]) -> dict[Any, Any]:
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], _KEYS) for pair in pairs):
        raise _wrong(place)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _wrong(place)
    return kind(found)


def _wrong(place: str) -> InvalidValue:
    return InvalidValue(f"{shown(place)} is not written as it must be. It was changed.")
