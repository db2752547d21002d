"""Work for one request: in a thread, remembered, given up when nobody waits, and never much of it at once."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Alive = Callable[[], None]
Work = Callable[[Alive], Any]

THREADS = 2
MOST_WAITING = 12  # requests, those being answered included
REMEMBERED = 256  # answers
LOOK = 0.1  # seconds between two looks whether the client is still there


class Busy(Exception):
    """Too much is asked at once."""


class Gone(Exception):
    """The client has left; nobody needs the answer."""


class Desk:
    """Answers questions in a few threads. Each answer is kept under its key, so that asking again costs nothing."""

    def __init__(self, threads: int = THREADS, most_waiting: int = MOST_WAITING) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="privet-plan")
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._most, self._waiting = most_waiting, 0

    async def answer(self, key: Hashable | None, work: Work, is_gone: Callable[[], Awaitable[bool]]) -> Any:
        """What `work` gives, or gave before; with None for a key it is not kept.

        Raises:
            Busy: as many requests as allowed are waiting already.
            Gone: `is_gone` said so before there was an answer; the work ends at its next call of `alive`.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if self._waiting >= self._most:
            raise Busy
        self._waiting += 1
        try:
            found = await self._worked(work, is_gone)
        finally:
            self._waiting -= 1
        if key is not None:
            self._kept[key] = found
        while len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)
        return found

    async def _worked(self, work: Work, is_gone: Callable[[], Awaitable[bool]]) -> Any:
        left = threading.Event()

        def alive() -> None:
            if left.is_set():
                raise Gone

        def begun() -> Any:
            alive()  # it may have waited long for a thread
            return work(alive)

        task = asyncio.get_running_loop().run_in_executor(self._pool, begun)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK))[0]:
                if await is_gone():
                    raise Gone
            return task.result()
        finally:
            left.set()
            if not task.done():
                task.cancel()

    def close(self) -> None:
        """Let go of the threads; work that has begun ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
