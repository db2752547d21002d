"""Many processes that train one model: who they are, and the few words they exchange. Nothing is pickled.

    group = processes.group()     # under torchrun; a process that is alone has a group of one
    training = Training(model, optimizer, dataset, plan, out="runs/a", group=group)

Ranks trust each other: each holds the records, and what goes between them is neither private nor encrypted.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from privet import _check, errors
from privet._text import one_line, shorten
from privet.errors import InvalidValue, PrivetError
from privet.noise.gaussian import std_per_rank
from privet.noise.release import Ranks

_LONGEST = 2000  # bytes of an error's message that the other ranks are told
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets them


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Ranks):
    """The processes of one training run, of which rank 0 keeps ledger and checkpoint; here one that is alone.

    It has nobody to speak with, and nothing is copied or waited for.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # of this rank: its GPU where there is one for each

    def any(self, flag: bool) -> bool:
        """Whether it is so on some rank, on every rank the same answer: to stop together, say."""
        return flag

    def all_gather(self, numbers: Sequence[int]) -> Tensor:
        """The whole numbers of all ranks, a row for each, on every rank."""
        return torch.tensor([list(numbers)], dtype=torch.int64)

    def run_on_first(self, do: Callable[[], Sequence[int] | None], count: int = 0) -> Tensor:
        """The `count` whole numbers that `do` gives on each rank, a row for each, once every rank has done it.

        If it fails anywhere it fails everywhere: with its own error there, and with that error's words elsewhere.
        """
        return self.all_gather(do() or ())

    def broadcast_bytes(self, content: bytes) -> bytes:
        """What rank 0 gives, on every rank."""
        return content

    def broadcast_value(self, value: Any) -> Any:
        """The plain value that rank 0 gives, on every rank."""
        return json.loads(self.broadcast_bytes(json.dumps(value).encode()))


class ManyProcesses(Group):
    """Those that torch.distributed has joined."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def noise_per_rank(self, noise: float) -> float:
        return std_per_rank(noise, self.size)

    def noise_of_all(self, std: float) -> float:
        return std * math.sqrt(self.size)

    def any(self, flag: bool) -> bool:
        return bool(self.all_gather([int(flag)]).any())

    def all_gather(self, numbers: Sequence[int]) -> Tensor:
        mine = torch.tensor(list(numbers), dtype=torch.int64, device=self.device)
        return torch.stack(self._all_gather(mine)).cpu()

    def run_on_first(self, do: Callable[[], Sequence[int] | None], count: int = 0) -> Tensor:
        raised: BaseException | None = None
        numbers: Sequence[int] = [0] * count
        try:
            numbers = do() or ()
        except BaseException as error:
            raised = error
        told = self.all_gather([int(raised is not None), *numbers])
        if told[:, 0].any():
            words = self._all_gather(_encode_error(raised).to(self.device))
            if raised is not None:
                raise raised
            raise _decode_error(int(told[:, 0].argmax()), words)
        return told[:, 1:]

    def sum_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Added up on rank 0, which sends the sum out."""
        return self._apply_flat(tensors, self._reduce_to_first, self._broadcast_flat)

    def sum_on_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._apply_flat(tensors, self._reduce_to_first)

    def broadcast(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self._apply_flat(tensors, self._broadcast_flat)

    def broadcast_bytes(self, content: bytes) -> bytes:
        length = int(self.all_gather([len(content)])[0, 0])
        held = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.is_first and length else None
        sent = (torch.empty(length, dtype=torch.uint8) if held is None else held).to(self.device)
        self._broadcast_flat(sent)
        return sent.cpu().numpy().tobytes()

    # --- the three ways to speak ---

    def _all_gather(self, mine: Tensor) -> list[Tensor]:
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _translate_errors():
            dist.all_gather(found, mine)
        return found

    def _reduce_to_first(self, flat: Tensor) -> None:
        with _translate_errors():
            dist.reduce(flat, dst=0)

    def _broadcast_flat(self, flat: Tensor) -> None:
        with _translate_errors():
            dist.broadcast(flat, src=0)

    def _apply_flat(self, tensors: Mapping[str, Tensor], *words: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """One buffer for all tensors of a precision: a few large messages cost less than many small ones."""
        found: dict[str, Tensor] = {}
        ordered = sorted(tensors.items())  # the same on every rank
        for dtype in dict.fromkeys(t.dtype for _, t in ordered):
            some = {name: t.detach() for name, t in ordered if t.dtype == dtype}
            flat = torch.cat([t.reshape(-1) for t in some.values()]).to(self.device)
            for speak in words:
                speak(flat)
            parts = torch.split(flat, [t.numel() for t in some.values()])
            found |= {name: p.view(t.shape).to(t.device) for (name, t), p in zip(some.items(), parts, strict=True)}
        return {name: found[name] for name in tensors}


def group(*, timeout: float = 600.0) -> Group:
    """The group that this process was started in by torchrun, joined; a group of one if the process is alone.

    A group that was joined before by `torch.distributed.init_process_group` is taken as it is. Otherwise gloo is used
    on CPUs, and NCCL where there is a GPU for each process. A rank that is silent for `timeout` seconds counts as gone.

    >>> group().size
    1

    Raises:
        InvalidValue: the others cannot be reached, or the environment is only half there.
    """
    _check.positive(timeout=timeout)
    if not dist.is_available():
        return Group()
    if not dist.is_initialized():
        if _read_count("WORLD_SIZE") < 2:
            return Group()
        _join_group(timeout)
    if dist.get_world_size() < 2:
        return Group()
    device = torch.device("cpu")
    if dist.get_backend() == "nccl":
        device = torch.device("cuda", torch.cuda.current_device())
    return ManyProcesses(rank=dist.get_rank(), size=dist.get_world_size(), device=device)


def _join_group(timeout: float) -> None:
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise InvalidValue(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} says that there are other processes, and {', '.join(missing)} is "
            "not set. They could not be found. Start with torchrun, or unset WORLD_SIZE."
        )
    local, here = _read_count("LOCAL_RANK", 0), _read_count("LOCAL_WORLD_SIZE")
    has_gpus = torch.cuda.is_available() and dist.is_nccl_available() and here <= torch.cuda.device_count()
    if has_gpus:
        torch.cuda.set_device(local)
    with _translate_errors():
        dist.init_process_group("nccl" if has_gpus else "gloo", timeout=timedelta(seconds=timeout))


def _read_count(name: str, default: int = 1) -> int:
    word = os.environ.get(name, str(default))
    if not word.isdecimal():
        raise InvalidValue(f"{name}={word!r} must be a whole number. torchrun sets it. Unset it, or use torchrun.")
    return int(word)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """A rank that is gone or silent makes torch fail in its own words."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        why = shorten(re.sub(r"^\[.*?\] *", "", one_line(error)))  # gloo begins with a line of its source
        raise InvalidValue(
            f"group: another rank is gone, or silent for too long ({why}). What is charged "
            "stays charged, and nothing of this step was kept. Stop all ranks, then start them again and resume."
        ) from error


def _encode_error(error: BaseException | None) -> Tensor:
    """An error's class and message in a row of fixed length."""
    text = "" if error is None else f"{type(error).__name__}\n{one_line(error)}"
    raw = text.encode()[:_LONGEST]
    return torch.frombuffer(bytearray(raw.ljust(_LONGEST, b"\0")), dtype=torch.uint8)


def _decode_error(rank: int, words: Sequence[Tensor]) -> PrivetError:
    text = words[rank].cpu().numpy().tobytes().rstrip(b"\0").decode(errors="replace")
    name, _, message = text.partition("\n")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PrivetError):
        return kind(f"rank {rank}: {message}")
    return InvalidValue(f"rank {rank} failed: {name}: {message}. Its step cannot be made. Correct it, and resume.")


def checksum(tensors: Sequence[Tensor]) -> int:
    found = 0
    for t in tensors:
        found = zlib.crc32(t.detach().flatten().contiguous().view(torch.uint8).cpu().numpy().tobytes(), found)
    return found


def is_sharded(p: Tensor) -> bool:
    return any(kind.__name__ == "DTensor" for kind in type(p).__mro__)
