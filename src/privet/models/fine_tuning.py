"""Fine-tuning: weights from a safetensors file, of which only chosen ones are trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from privet._files import read_file
from privet._text import join_names, one_line, shorten
from privet.errors import InvalidValue, PrivetError

MOST_BYTES = 2**36


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came from the file, what was left as made, and which parameters train."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    sha256: str

    def __str__(self) -> str:
        return (
            f"{len(self.loaded)} tensors loaded, {len(self.fresh)} fresh; {len(self.trained)} parameters train, "
            f"{len(self.frozen)} are frozen; sha256 {self.sha256[:12]}"
        )


def from_checkpoint(
    model: nn.Module, path: str | Path, *, train: Sequence[str] | None = ("*",), fresh: Sequence[str] = ()
) -> Loaded:
    """Load the weights at `path` into `model`, and freeze every parameter whose name matches no pattern of `train`.

    Names and shapes must be those of the model, each number finite. What matches `fresh` is the exception: it is left
    as it was made, also when the file has it, in whatever shape. That is how a new output layer is put on an old body.
    Patterns are as for files (`fc*`, `*.bias`). With train=None the model stays frozen where it is. Only safetensors
    files are read; nothing is unpickled. An error leaves the model as it was.

    The privacy guarantee covers the training that follows, not the file: its weights must not come from the private
    records, unless their own guarantee is added.

    >>> import tempfile
    >>> body = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     safetensors.torch.save_file(body.state_dict(), folder + "/body.safetensors")
    ...     new = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5))
    ...     from_checkpoint(new, folder + "/body.safetensors", train=["2.*"], fresh=["2.*"]).trained
    ('2.weight', '2.bias')

    Raises:
        InvalidValue: the file is missing, damaged or of another kind, does not fit, or a pattern matches nothing.
    """
    path = Path(path)
    own = model.state_dict()
    parameters = dict(model.named_parameters())
    kept = _match_patterns(fresh, list(own), option="fresh")
    if train is not None:
        _match_patterns(train, list(parameters), option="train")
    data = _read(path)
    found = _parse_tensors(path, data)
    wanted = [name for name in own if name not in kept]
    _check_names(path, wanted, [name for name in found if name not in kept])
    for name in wanted:
        _check_tensor(path, name, found[name], own[name])
    with torch.no_grad():
        for name in wanted:
            own[name].copy_(found[name])
    if train is not None:
        freeze(model, train)
    return Loaded(
        loaded=tuple(wanted), fresh=tuple(name for name in own if name in kept), sha256=sha256(data).hexdigest(),
        trained=tuple(name for name, p in parameters.items() if p.requires_grad),
        frozen=tuple(name for name, p in parameters.items() if not p.requires_grad),
    )  # fmt: skip


def freeze(model: nn.Module, train: Sequence[str]) -> None:
    """Freeze every parameter whose name matches no pattern of `train`; the others train.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> freeze(model, ["2.*"])
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['2.weight', '2.bias']

    Raises:
        InvalidValue: a pattern matches nothing.
    """
    parameters = dict(model.named_parameters())
    trained = _match_patterns(train, list(parameters), option="train")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def _match_patterns(patterns: Sequence[str], names: list[str], *, option: str) -> set[str]:
    if isinstance(patterns, str) or (option == "train" and not patterns):
        raise InvalidValue(f"{option}={patterns!r} must be a list of patterns, such as ['fc*', '*.bias'].")
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise InvalidValue(f"{option}={pattern!r} matches no name of the model. It has {join_names(names)}.")
        chosen |= matched
    return chosen


def _read(path: Path) -> bytes:
    try:
        return read_file(path, most=MOST_BYTES, advice="Give a smaller safetensors file.")
    except PrivetError as error:
        raise InvalidValue(f"{path}: {error}") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InvalidValue(f"{path}: cannot be read: {reason}. Give a safetensors file.") from None
    except MemoryError:
        raise InvalidValue(f"{path}: is larger than this machine's memory.") from None


def _parse_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    if data[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise InvalidValue(
            f"{path}: is a pickle (torch.save), which may run code when read. It is not read. Save the weights with "
            "safetensors.torch.save_file."
        )
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        reason = shorten(one_line(error))
        raise InvalidValue(f"{path}: is damaged or no safetensors file: {reason}. Use a whole copy.") from None


def _check_names(path: Path, wanted: list[str], found: list[str]) -> None:
    missing = [name for name in wanted if name not in set(found)]
    extra = [name for name in found if name not in set(wanted)]
    if missing:
        raise InvalidValue(
            f"{path}: lacks {join_names(missing)}. Every weight must come from somewhere. Name those that shall stay "
            "as they were made in fresh=[...]."
        )
    if extra:
        raise InvalidValue(
            f"{path}: has {join_names(extra)}, which the model has not. It is another network's, or under other "
            "names. Take the network it was saved from."
        )


def _check_tensor(path: Path, name: str, found: Tensor, own: Tensor) -> None:
    if found.shape != own.shape:
        raise InvalidValue(
            f"{path}: {name} has the shape {tuple(found.shape)}, the model's has {tuple(own.shape)}. Take the network "
            "it was saved from, or name it in fresh=[...]."
        )
    if found.is_floating_point() != own.is_floating_point() or found.is_complex():
        raise InvalidValue(f"{path}: {name} has numbers of the kind {found.dtype}, the model's are {own.dtype}.")
    if not bool(found.to(own.dtype).isfinite().all()):
        raise InvalidValue(f"{path}: {name} has a number that is not finite as {own.dtype}. Use a whole copy.")
