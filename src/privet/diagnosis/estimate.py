"""What a private step takes, measured on a few steps of made-up rows: its time beside a plain one, and its memory."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privet.accounting import Step
from privet.clipping.clipped_sum import ClippedSum, clipped_sum
from privet.clipping.rule import clipping_rule
from privet.errors import InvalidValue
from privet.noise.randomness import Randomness
from privet.noise.release import Release, release
from privet.per_example.forward_record import batch_size_of, map_tensors, tensors_in
from privet.per_example.gradients import prepare_work
from privet.planning import Plan
from privet.sampling.loading import gather

Rows = Callable[[int], Any]  # a number of rows -> (inputs, targets)

FIRST = 16  # rows of the first trial
LONGEST = 0.4  # seconds of one trial: a longer step is measured on fewer rows
SAFE = 0.8  # of the memory: torch's libraries and Python take theirs
SPREAD = 6.0  # standard deviations: a Poisson batch is larger once in a billion steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Time and memory of one step of `batch_size` records, from trials of up to `rows`.

    Memory is what torch holds at the peak of a private step, model included; what the optimizer keeps (Adam: twice the
    parameters) and the dataset are not in it. None where it was not measured.
    """

    batch_size: int
    rows: int
    private_ms: float
    plain_ms: float
    peak_bytes: int | None
    bytes_each: int | None  # for one more record at once
    physical: int | None  # rows at once that keep within the limit; None if a whole batch does
    fits: bool = True  # False if one record alone is above the limit


def estimate(
    model: nn.Module, loss_fn: Callable[..., Tensor], rows_of: Rows, *, plan: Plan | None = None,
    batch_size: int = 64, rounds: int = 5, limit: int | None = None,
) -> Estimate:  # fmt: skip
    """Time and memory of a private step at the plan's largest batch (or `batch_size`), within `limit` bytes of memory.

    >>> model, loss_fn = nn.Linear(20, 3), nn.CrossEntropyLoss(reduction="none")
    >>> rows_of = repeat_rows((torch.randn(4, 20), torch.tensor([0, 1, 2, 0])))
    >>> found = estimate(model, loss_fn, rows_of, batch_size=32, rounds=1)
    >>> found.batch_size, found.private_ms > 0, found.physical
    (32, True, None)
    """
    if plan is not None:
        batch_size = max(1, round(mean_and_largest_rate(plan)[1] * plan.recipe.dataset_size))
    trial = _Trial(model, loss_fn, rows_of, plan, batch_size)
    few = min(batch_size, FIRST)
    half = max(1, few // 2)
    low, high = trial.measure_peak(half), trial.measure_peak(few)  # the engine gets to know the model, too
    most = _most_rows(limit, _memory_line(half, low, few, high))
    rows = trial.grow_rows(min(few, most), min(batch_size, most))
    many, peak = (few, high) if rows <= few else (rows, trial.measure_peak(rows))
    line = _memory_line(half, low, many, peak)
    most = _most_rows(limit, line)
    times = [trial.measure_seconds(rows) for _ in range(rounds + 1)]  # the first one warms up, and is rarely the least
    at_once = min(most, batch_size)
    clip, noise, plain = (min(column) for column in zip(*times, strict=True))
    return Estimate(
        batch_size=batch_size, rows=rows, private_ms=1e3 * (clip * batch_size / rows + noise),
        plain_ms=1e3 * plain * batch_size / rows,
        peak_bytes=None if line is None else round(line[0] + line[1] * at_once),
        bytes_each=None if line is None else round(line[1]),
        physical=None
        if most >= batch_size + SPREAD * math.sqrt(batch_size)
        else at_once if at_once < 16 else at_once // 8 * 8,
        fits=line is None or limit is None or line[0] + line[1] <= SAFE * limit,
    )  # fmt: skip


def mean_and_largest_rate(plan: Plan) -> tuple[float, float]:
    """The mean and the largest rate of a plan; a constant one is not walked through, it may have a trillion steps."""
    rates = plan.steps.sample_rates[:1] if plan.steps.is_constant else plan.steps.sample_rates
    return float(rates.mean()), float(rates.max())


def _memory_line(low_rows: int, low: int | None, high_rows: int, high: int | None) -> tuple[float, float] | None:
    """Bytes without rows, and bytes for each: the line through two trials."""
    if low is None or high is None:
        return None
    each = max(0.0, (high - low) / (high_rows - low_rows)) if high_rows > low_rows else 0.0
    return high - each * high_rows, each


def _most_rows(limit: int | None, line: tuple[float, float] | None) -> int:
    """Rows at once within the limit: at least one."""
    if limit is None or line is None or line[1] <= 0:
        return 2**31
    return max(1, math.floor((SAFE * limit - line[0]) / line[1]))


class _Trial:
    """One model's steps on made-up rows, private and plain."""

    def __init__(self, model: nn.Module, loss_fn: Any, rows_of: Rows, plan: Plan | None, batch: int) -> None:
        self.model, self.loss_fn, self.rows_of, self.batch = model, loss_fn, rows_of, batch
        self.step = Step(noise_multiplier=1.0, sample_rate=0.01) if plan is None else plan.steps[0]
        self.uncertified = plan is not None and plan.is_unsound
        self.rule = clipping_rule("flat" if plan is None else plan.rule, uncertified=self.uncertified)
        self._held: dict[int, Any] = {}

    def rows(self, count: int) -> Any:
        if count not in self._held:
            self._held = {count: self.rows_of(count)}
        return self._held[count]

    def clip_and_sum(self, count: int) -> ClippedSum:
        return clipped_sum(self.model, self.loss_fn, self.rows(count), rule=self.rule,
                           clipping_norm=self.step.clipping_norm,
                           uncertified=self.uncertified)  # fmt: skip

    def add_noise(self, found: ClippedSum) -> Release:
        return release(found, self.rule, step=self.step, batch_size=self.batch, randomness=Randomness(),
                       uncertified=self.uncertified)  # fmt: skip

    def run_plain(self, count: int) -> Any:
        work = prepare_work(self.model, self.loss_fn, self.rows(count))
        return torch.autograd.grad(work.losses().mean(), list(work.named.values()), allow_unused=True)

    def measure_seconds(self, count: int) -> tuple[float, float, float]:
        """Of the clipped sum, of its noise, and of a plain forward and backward."""
        self.rows(count)
        start = time.perf_counter()
        found = self.clip_and_sum(count)
        middle = time.perf_counter()
        self.add_noise(found)
        end = time.perf_counter()
        self.run_plain(count)
        return middle - start, end - middle, time.perf_counter() - end

    def grow_rows(self, count: int, most: int) -> int:
        """From a few rows on, as many as are done in time: what a step takes whatever its rows must not be scaled."""
        for _ in range(3):
            took = min(sum(self.measure_seconds(count)) for _ in range(2))
            more = min(most, int(count * LONGEST / took))
            if more <= count:
                break
            count = more
        return count

    def measure_peak(self, count: int) -> int | None:
        """Bytes at the peak of a private step, with the model, its gradients and the rows; None if not measured."""
        held = [*self.model.parameters(), *self.model.buffers()]
        if any(t.device.type != "cpu" for t in held):
            return None
        standing = sum(t.numel() * t.element_size() for t in [*held, *tensors_in(self.rows(count))])
        self.add_noise(self.clip_and_sum(count))  # what is kept from the first step on is not counted as this one's
        with _record_allocations() as sizes:
            self.add_noise(self.clip_and_sum(count))
        now = most = 0
        for size in sizes:
            now += size
            most = max(most, now)
        return standing + most if sizes else None


@contextmanager
def _record_allocations() -> Iterator[list[int]]:
    """Bytes that torch took (positive) and gave back (negative) inside the block, in order; empty if not to be had.

    From the records of torch's profiler, memory alone: all operations would be too many where examples are run one by
    one. What oneDNN and MKL allocate for themselves is not in it.
    """
    sizes: list[int] = []
    autograd: Any = torch.autograd
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes on standard error that it starts
    try:
        from torch._C._profiler import RecordScope

        config = autograd.profiler.profile(profile_memory=True).config()
        autograd._prepare_profiler(config, {autograd.ProfilerActivity.CPU})
        autograd._enable_profiler(config, {autograd.ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})
    except (ImportError, AttributeError, TypeError):  # not public: another torch may have it otherwise
        yield sizes
        return
    try:
        yield sizes
    finally:
        events = [event for event in autograd._disable_profiler().events() if event.name() == "[memory]"]
        sizes += [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


# --- made-up rows -----------------------------------------------------------------------------------


def random_rows(dataset: Any, facts: Mapping[str, Any], model: nn.Module) -> Rows:
    """Random rows of the shapes and types of a dataset's records; of the records themselves nothing is used.

    Whole numbers lie below what the facts say (`words` of inputs, `classes` of targets) and what the model's
    embeddings have.

    >>> rows_of = random_rows((torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)), {"classes": 4}, nn.Linear(3, 4))
    >>> x, y = rows_of(2)
    >>> x.shape, y.shape, bool((y < 4).all())
    (torch.Size([2, 3]), torch.Size([2]), True)
    """
    shaped = gather(dataset, torch.empty(0, dtype=torch.int64))
    if not isinstance(shaped, (tuple, list)) or len(shaped) != 2:
        raise InvalidValue(
            f"dataset={type(dataset).__name__} must have examples that are pairs (inputs, targets). The loss takes "
            "both. Give such pairs."
        )
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    words = min([*tables, *([int(facts["words"])] if "words" in facts else [])], default=None)
    classes = int(facts.get("classes", 2))
    source = torch.Generator().manual_seed(0)

    def rows_of(count: int) -> tuple[Any, Any]:
        inputs = map_tensors(
            shaped[0], lambda t: _random_tensor(t, count, words or (256 if t.dtype == torch.uint8 else 2), source)
        )
        targets = map_tensors(shaped[1], lambda t: _random_tensor(t, count, classes, source, whole=True))
        return inputs, targets

    return rows_of


def _random_tensor(like: Tensor, count: int, below: int, source: torch.Generator, *, whole: bool = False) -> Tensor:
    """Normal numbers for floats, or 0 and 1 where `whole` (targets, which may be probabilities); else whole numbers."""
    shape = (count, *like.shape[1:])
    if like.is_floating_point() and not whole:
        return torch.randn(shape, generator=source).to(like.dtype)
    below = 2 if like.is_floating_point() or like.dtype == torch.bool else below
    return torch.randint(below, shape, generator=source).to(like.dtype)


def repeat_rows(batch: Any) -> Rows:
    """The rows of a batch, again from the start as often as it takes."""
    size = batch_size_of(batch)

    def rows_of(count: int) -> Any:
        return map_tensors(batch, lambda t: t[torch.arange(count, device=t.device) % size])

    return rows_of


# --- the machine ------------------------------------------------------------------------------------


def free_memory() -> int | None:
    found = [_system_memory(), _container_memory()]
    known = [size for size in found if size is not None]
    return min(known) if known else None


def _system_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _container_memory(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        return max(0, int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return None
