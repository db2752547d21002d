"""Ranks as threads of one process: `ManyProcesses` with another way to speak, for tests that need no real network."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from privet.errors import InvalidValue
from privet.training.processes import Group, ManyProcesses


class Room:
    """Where the ranks meet: everyone says something, then everyone has heard it. Who has left says no more."""

    def __init__(self, size: int) -> None:
        self._said: list[list[Any]] = [[] for _ in range(size)]
        self._left = [False] * size
        self._news = threading.Condition()

    def hear(self, rank: int, word: Any) -> list[Any]:
        with self._news:
            self._said[rank].append(word)
            self._news.notify_all()
            turn = len(self._said[rank])
            while any(len(words) < turn for words in self._said):
                if any(left and len(words) < turn for left, words in zip(self._left, self._said, strict=True)):
                    raise InvalidValue("group: another rank is gone. This is a test.")
                assert self._news.wait(240), "a rank is silent"
            return [words[turn - 1] for words in self._said]

    def leave(self, rank: int) -> None:
        with self._news:
            self._left[rank] = True
            self._news.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread(ManyProcesses):
    room: Room

    def _all_gather(self, mine: Tensor) -> list[Tensor]:
        return [word.clone() for word in self.room.hear(self.rank, mine)]

    def _reduce_to_first(self, flat: Tensor) -> None:
        words = self.room.hear(self.rank, flat.clone())
        assert len({(word.shape, word.dtype) for word in words}) == 1
        if self.is_first:
            flat.copy_(sum(words[1:], words[0]))
        else:
            flat.fill_(torch.finfo(flat.dtype).max)  # what a reduction leaves elsewhere means nothing

    def _broadcast_flat(self, flat: Tensor) -> None:
        words = self.room.hear(self.rank, flat.clone())
        assert len({(word.shape, word.dtype) for word in words}) == 1
        flat.copy_(words[0])


def on_ranks(size: int, work: Callable[[Group], Any]) -> list[Any]:
    """What `work` gives on each rank, or the error it ends with there."""
    room, found = Room(size), [None] * size
    fork, forking = os.fork, threading.Lock()

    def fork_alone() -> int:
        with forking:
            return fork()

    def one(rank: int) -> None:
        try:
            found[rank] = work(Thread(rank=rank, size=size, device=torch.device("cpu"), room=room))
        except Exception as error:
            found[rank] = error
        finally:
            room.leave(rank)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    with patch("os.fork", fork_alone):  # `filelock`, which torch imports, refuses a fork during that of another thread
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(480)
            assert not thread.is_alive(), "the ranks wait for each other"
    return found


def fine(found: list[Any]) -> list[Any]:
    """The results of all ranks; the first error, if there is one."""
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found
