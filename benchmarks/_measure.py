"""One measurement: a function in a process of its own, on one core, within limits of time and memory.

What is measured is given as a *maker*: a function without arguments that imports what it needs and returns the
function to be timed. The clock starts when the maker has returned, so imports are not counted, and neither are they
charged to the time limit. The first call is a warm-up if it was short, and the result itself if it was long.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LONG = 1.0  # seconds; a first call longer than this is not repeated
MOST_RUNS = 15
IMPORTING = 120.0  # seconds that imports may take

Result = dict[str, Any]
Function = Callable[..., Result]
Times = tuple[float, float]  # by the clock, and of the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came out: the median `seconds` of `runs` calls and the last `result`, or why there is none.

    `cpu` is the processor's time, user and system. On an idle core it equals `seconds`; on a busy one, where a
    process waits for its turn, it is the better measure of the work.
    """

    result: Result = field(default_factory=dict)
    seconds: float | None = None
    cpu: float | None = None
    runs: int = 0
    peak: float = 0.0  # MB of memory, at most, imports included
    rise: float = 0.0  # MB of that since the imports
    failure: str | None = None


def one_core(cpu: int | None = None) -> int:
    """Keep this process on one core, and those it starts from now on also to one thread; gives the core."""
    for name in THREADS:
        os.environ[name] = "1"
    if not hasattr(os, "sched_setaffinity"):  # macOS and Windows have none: one thread, then, on any core
        return -1
    chosen = max(os.sched_getaffinity(0)) if cpu is None else cpu
    os.sched_setaffinity(0, {chosen})
    return chosen


def measured(
    maker: Callable[[], Function], inputs: Result, *, limit: float, memory: float, enough: float = 1.5
) -> Measured:
    """Time `maker()(**inputs)` in a new process, given `limit` seconds and `memory` GB. Whatever happens, an answer.

    A short call is repeated until `enough` seconds have been spent.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, maker, inputs, memory, enough), daemon=True)
    process.start()
    theirs.close()
    found = None
    try:
        ready = _next(ours, IMPORTING)
        if ready is not None and ready.failure:
            return ready
        if ready is None:
            return Measured(failure=f"failed: imports took more than {IMPORTING:g} s")
        found = _next(ours, limit)
        if found is None:
            return Measured(failure=f"> {limit:g} s")
        better = None if found.failure else _next(ours, limit)
        return better if better is not None and not better.failure else found
    except EOFError:
        process.join(10)
        return found or Measured(failure=f"failed: {_ending(process.exitcode)}")
    finally:
        ours.close()
        process.kill()
        process.join()


def _next(connection: Connection, seconds: float) -> Measured | None:
    found: Measured | None = connection.recv() if connection.poll(seconds) else None
    return found


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"


def _child(connection: Connection, maker: Callable[[], Function], inputs: Result, memory: float, enough: float) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has given up
        try:
            _silence()
            if sys.platform == "linux":
                resource.setrlimit(resource.RLIMIT_DATA, (int(memory * 1e9), int(memory * 1e9)))
            function = maker()
            before = _peak()
            connection.send(Measured())
            _run(connection, function, inputs, before, enough)
        except BaseException as error:  # whatever a peer does, it is a row of the table
            text = " ".join(str(error).split())
            connection.send(Measured(failure=f"failed: {type(error).__name__} {text}".strip()[:100]))


def _run(connection: Connection, function: Function, inputs: Result, before: float, enough: float) -> None:
    """The first call is reported at once, so that a slow second one costs nothing."""
    first, result = _timed(function, inputs)
    connection.send(_report(result, [first], before))
    if first[1] > LONG:
        return
    times: list[Times] = []
    while len(times) < 3 or (sum(cpu for _, cpu in times) < enough and len(times) < MOST_RUNS):
        taken, result = _timed(function, inputs)
        times.append(taken)
    connection.send(_report(result, times, before))


def _report(result: Result, times: list[Times], before: float) -> Measured:
    peak = _peak()
    seconds, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    return Measured(result=result, seconds=seconds, cpu=cpu, runs=len(times), peak=peak, rise=peak - before)


def _timed(function: Function, inputs: Result) -> tuple[Times, Result]:
    start, work = time.perf_counter(), time.process_time()
    result = function(**inputs)
    return (time.perf_counter() - start, time.process_time() - work), result


def _peak() -> float:
    """MB; the system counts in KB on Linux and in bytes on macOS."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _silence() -> None:
    """Warnings and progress bars of the peers go nowhere; their errors come back as results."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
