"""Work for one request: in a process of its own, remembered, ended when nobody waits or it takes too long.

A process can be ended in the midst of any sum; a thread cannot. It is a copy of one that has read the library already,
so that a question waits some hundredths of a second for it.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from multiprocessing.connection import Connection
from typing import Any

from privet.errors import PrivetError

Alive = Callable[[], None]  # raises once nobody waits for the answer any more
IsGone = Callable[[], Awaitable[bool]]

PROCESSES = 4  # at once
MOST_WAITING = 12  # requests, those being answered included
REMEMBERED = 256  # answers
LONGEST_WORK = 30.0  # seconds for one question, from when it is begun
POLITE = 2.0  # seconds after which a question lets others go first
LOOK_AT_CLIENT = 0.1  # seconds between two looks whether the client is still there, or less

_HOW = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_MADE: Any = multiprocessing.get_context(_HOW)
_MADE.set_forkserver_preload(["privet.cli", "privet.web.work", "privet.web.app"])


class Busy(Exception):
    """Too much is asked at once."""


class Gone(Exception):
    """The client has left; nobody needs the answer."""


class Late(Exception):
    """The question takes longer than one may here."""


class Broken(Exception):
    """A mistake of ours in the work, by its kind."""


class Desk:
    """Answers questions, a few at once. Each answer is kept under its key, so that asking again costs nothing."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._line: list[object] = []  # who waits, in order; the first few are being answered

    async def answer(self, key: Hashable, work: Callable[[], Any], is_gone: IsGone) -> Any:
        """What `work` gives, or gave before. It is sent to another process: a function of a module and its arguments.

        Raises:
            Busy: as many requests as allowed are waiting already.
            Gone: `is_gone` said so before there was an answer. The work is ended.
            Late: it took longer than LONGEST. The work is ended.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if len(self._line) >= MOST_WAITING:
            raise Busy
        place = object()
        self._line.append(place)
        try:
            while self._line.index(place) >= PROCESSES:
                await _check_there(is_gone)
                await asyncio.sleep(LOOK_AT_CLIENT)
            found = await _run_in_process(work, is_gone)
        finally:
            self._line.remove(place)
        self._kept[key] = found
        while len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)
        return found


async def run_in_thread(work: Callable[[Alive], Any], is_gone: IsGone) -> Any:
    """What `work` gives, which calls `alive` often; for work that this process remembers.

    Raises:
        Gone: `is_gone` said so before there was an answer; the work ends at its next call of `alive`.
    """
    left = threading.Event()

    def alive() -> None:
        if left.is_set():
            raise Gone

    task = asyncio.create_task(asyncio.to_thread(work, alive))
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_AT_CLIENT))[0]:
            await _check_there(is_gone)
        return task.result()
    finally:
        left.set()
        if not task.done():
            task.cancel()


async def _check_there(is_gone: IsGone) -> None:
    if await is_gone():
        raise Gone


async def _run_in_process(work: Callable[[], Any], is_gone: IsGone) -> Any:
    receiver, sender = _MADE.Pipe(duplex=False)
    process = _MADE.Process(target=_run_and_send, args=(sender, work, LONGEST_WORK), daemon=True)
    try:
        await asyncio.to_thread(process.start)
        sender.close()  # of this process: the other end alone keeps it open
        await _wait(receiver, process.pid, is_gone)
        try:
            answered, found = await asyncio.to_thread(receiver.recv)
        except EOFError:
            raise Broken("the process ended, perhaps because memory ran out") from None
    finally:
        if process.pid is not None:
            process.kill()
            await asyncio.to_thread(process.join)
        receiver.close()
    if answered:
        return found
    raise found if isinstance(found, PrivetError) else Broken(found)


async def _wait(receiver: Connection, pid: int | None, is_gone: IsGone) -> None:
    """Return once there is an answer, or the process has ended."""
    loop, is_polite = asyncio.get_running_loop(), False
    begun = loop.time()
    while not receiver.poll():
        await _check_there(is_gone)
        seconds = loop.time() - begun
        if seconds > LONGEST_WORK:
            raise Late
        if seconds > POLITE and not is_polite and pid is not None:
            is_polite = True
            if hasattr(os, "setpriority"):
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, pid, 10)
        await asyncio.sleep(min(LOOK_AT_CLIENT, max(0.005, seconds / 10)))


def _run_and_send(sender: Connection, work: Callable[[], Any], longest: float) -> None:
    """In the other process: send (True, what `work` gives), or (False, the user's mistake or the kind of ours)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "alarm"):
        signal.alarm(round(longest) + 10)  # should the server be killed, this ends too
    said: tuple[bool, Any]
    try:
        said = True, work()
    except PrivetError as error:
        said = False, error
    except Exception as error:
        traceback.print_exc()
        said = False, type(error).__name__
    sender.send(said)
