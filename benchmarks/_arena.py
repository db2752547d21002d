"""Contenders on one workload: each is checked, weighed and warmed up, then all are timed in turns.

This runs in a process of its own, which `_measure.measured` starts; `bench` is the maker it is given.
"""

import contextlib
import copy
import gc
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from _contenders import CONTENDERS, Contender, Terms, as_held, error_of, one_at_a_time
from _measure import Function, Result
from _models import GROWTH, SIZE, WORKLOADS, Workload

AGREES = 1e-4  # relative error of a clipped sum
BLOCK = 0.05  # seconds of steps that are timed together, so that the clock's own cost does not matter


def bench() -> Function:
    """A function that checks, weighs and times contenders on one workload, in turns."""

    def run(*, key: str, names: Sequence[str], rounds: int, threads: int, limit: float, **options: Any) -> Result:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        arena = Arena(WORKLOADS[key] if key in WORKLOADS else GROWTH[key], threads, limit)
        return {"found": arena.run(names, rounds=rounds, **options)}

    return run


class Arena:
    """One workload: its data, a model to copy, and what was found for each contender so far."""

    def __init__(self, workload: Workload, threads: int, limit: float) -> None:
        self.batch, self.limit = workload.batch, limit
        self.x, self.y = workload.data()
        self.model = workload.model()
        self.clock = time.process_time if threads == 1 else time.perf_counter
        self.found: dict[str, dict[str, Any]] = {}
        self.sample = self.gather()  # that sums are checked on
        self.sums: dict[tuple[type, ...], torch.Tensor] = {}  # one example at a time, for each make of layers

    def run(self, names: Sequence[str], *, rounds: int, check: bool, skip: float | None) -> Result:
        clip = one_at_a_time(self.model, *self.sample)[1] if check else 1.0
        terms = Terms(batch=self.batch, clip=clip)
        ready = {}
        for name in names:
            contender = self.prepare(name, terms, check)
            if contender is not None:
                ready[name] = contender
            elif name == "plain":  # nothing to compare with
                return self.found
        if skip is not None:
            ready = {name: one for name, one in ready.items() if name == "privet" or not self.slow(name, skip)}
        self.rounds(ready, rounds)
        return self.found

    def rough(self, name: str) -> float:
        return float(self.found[name]["rough"])

    def slow(self, name: str, skip: float) -> bool:
        return self.rough(name) > max(4 * BLOCK, skip * self.rough("plain"))

    def gather(self) -> Any:
        """A batch, drawn anew: the step begins with it."""
        picked = torch.randint(SIZE, (self.batch,))
        return self.x.index_select(0, picked), self.y.index_select(0, picked)

    def prepare(self, name: str, terms: Terms, check: bool) -> Contender | None:
        """Check, weigh and warm up: a contender ready to be timed, or None and the reason among what was found."""
        found = self.found[name] = {"seconds": []}
        make = CONTENDERS[name]
        try:
            wanted = self.wanted(name, terms) if check and name != "plain" else None
            with _within(self.limit):
                if wanted is not None:
                    found["error"] = self.error(name, wanted, terms)
                    if not found["error"] <= AGREES:
                        raise ArithmeticError(f"wrong sum, off by {found['error']:.1e}")
                found["bytes"] = self.peak(lambda: make(copy.deepcopy(self.model), terms))
                contender = make(copy.deepcopy(self.model), terms)
                self.seconds(contender, 1)
                found["rough"] = statistics.median(self.seconds(contender, 1) for _ in range(3))
                return contender
        except TimeoutError:
            found["failure"] = f"none in {self.limit:g} s"
        except Exception as error:  # whatever a peer does, it is a cell of the table
            text = " ".join(str(error).split())
            found["failure"] = f"{type(error).__name__}: {text}"[:200]
        return None

    def wanted(self, name: str, terms: Terms) -> torch.Tensor:
        model = as_held(name, copy.deepcopy(self.model))
        layers = tuple(type(layer) for layer in model.modules())
        if layers not in self.sums:
            self.sums[layers] = one_at_a_time(model, *self.sample, terms.clip)[0]
        return self.sums[layers]

    def error(self, name: str, wanted: torch.Tensor, terms: Terms) -> float:
        still = Terms(batch=terms.batch, clip=terms.clip, noise=0.0, rate=0.0)
        return error_of(CONTENDERS[name](copy.deepcopy(self.model), still), wanted, still, *self.sample)

    def peak(self, make: Callable[[], Contender]) -> int:
        """Bytes that torch holds at the peak of the second step, the dataset not counted, the model counted.

        The sum of the allocator's own records since before the model was made: exact, whatever ran before in this
        process. What oneDNN and MKL allocate for themselves is not in it.
        """
        from torch.autograd.profiler import record_function

        gc.collect()  # a contender in a circle of references, freed while its successor is weighed, would be taken off
        with _memory_records() as events:
            contender = make()
            contender.step(*self.gather())
            with record_function("second step"):
                contender.step(*self.gather())
        begin = next(start for name, start, _ in events if name == "second step")
        held, most = 0, 0
        for name, start, size in events:
            held += size if name == "[memory]" else 0
            if start >= begin:
                most = max(most, held)
        return most

    def rounds(self, ready: dict[str, Contender], rounds: int) -> None:
        """Each contender once a round, in an order that changes, until it has had its time."""
        steps = {name: max(1, min(50, round(BLOCK / self.rough(name)))) for name in ready}
        spent = dict.fromkeys(ready, 0.0)
        order, shuffled = list(ready), random.Random(0)
        for _ in range(rounds):
            shuffled.shuffle(order)  # nobody always follows the one who left the caches cold
            for name in order:
                took = self.seconds(ready[name], steps[name]) if spent[name] <= self.limit else None
                spent[name] += (took or 0.0) * steps[name]
                self.found[name]["seconds"].append(took)

    def seconds(self, contender: Contender, steps: int) -> float:
        """Of one step, among so many in a row; short ones are preceded by one that is not counted."""
        if steps > 1:
            contender.step(*self.gather())
        start = self.clock()
        for _ in range(steps):
            contender.step(*self.gather())
        return (self.clock() - start) / steps


@contextlib.contextmanager
def _memory_records() -> Iterator[list[tuple[str, int, int]]]:
    """What torch's profiler records of memory and named ranges, (name, start, bytes) by start, once the block is left.

    The profiler itself would also record every operation, of which a peer may make a million in a step.
    """
    from torch._C._profiler import RecordScope
    from torch.autograd import ProfilerActivity, _disable_profiler, _enable_profiler, _prepare_profiler
    from torch.autograd.profiler import profile

    config = profile(profile_memory=True).config()
    _prepare_profiler(config, {ProfilerActivity.CPU})
    _enable_profiler(config, {ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})
    events: list[tuple[str, int, int]] = []
    try:
        yield events
    finally:
        records = _disable_profiler().events()
    events += sorted(((e.name(), e.start_ns(), e.nbytes()) for e in records), key=lambda event: event[1])


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when the time is over (at the end of the operation that is under way)."""

    def over(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
