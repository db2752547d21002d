"""Samplers: the records of each step, as one tensor of indices. A plan's sampler is the one its accountant covers.

A sampler reads the rate and the sampling of step t from the very steps that were priced, so the two cannot disagree.
An empty batch is a step: it is given as an empty tensor, and noise is added and charged as for any other.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet.accounting.sampling import FixedSize, Poisson, Sampling, Shuffled, TruncatedPoisson
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.planning.planned_steps import PlannedSteps

Indices: TypeAlias = NDArray[np.int64]
Rates: TypeAlias = Iterable[float]
RARE = 1e-12  # a batch whose size is less likely than this was not drawn by the sampling that is paid for


class Drawing(Protocol):
    """How the batches of a sampling are drawn.

    The accountant takes them for what the sampling says, so each is checked. That asks coins and public numbers alone,
    so that refusing a batch gives nothing away.
    """

    def batches(self, sampling: Any, size: int, rates: Rates, randomness: Randomness) -> Iterator[Indices]:
        """The records of each step, below `size`: increasing, none twice."""

    def is_likely(self, sampling: Any, size: int, rate: float, count: int) -> bool:
        """Whether a batch of `count` records may be drawn, with a chance above `RARE`."""


_drawings: dict[type[Sampling], Drawing] = {}
D = TypeVar("D", bound=Drawing)


def register(kind: type[Sampling]) -> Callable[[type[D]], type[D]]:
    """Class decorator: how batches of this sampling are drawn."""

    def keep(drawing: type[D]) -> type[D]:
        if kind in _drawings:
            raise InvalidValue(
                f"sampling={kind.name!r} is drawn already. What is certified rests on it. Give yours a "
                "Sampling of its own."
            )
        _drawings[kind] = drawing()
        return drawing

    return keep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampler:
    """One tensor of indices (int64, increasing) for each step from `start` on, out of `dataset_size` records.

    >>> some = Sampler(dataset_size=1000, steps=PlannedSteps(length=3, sample_rate=0.01), randomness=Randomness(0))
    >>> [len(batch) for batch in some], some.sampling
    ([12, 10, 9], Poisson())
    """

    dataset_size: int
    steps: PlannedSteps
    start: int = 0
    randomness: Randomness = field(default_factory=Randomness)

    def __post_init__(self) -> None:
        _check.whole(least=0, dataset_size=self.dataset_size, start=self.start)
        if self.start > len(self.steps):
            raise InvalidValue(f"start={self.start} must be at most steps={len(self.steps)}. Nothing is left to do.")
        if type(self.sampling) not in _drawings:
            raise Unsupported(f"sampling={str(self.sampling)!r} cannot be drawn. Use 'poisson'.")
        _check_size(self.sampling, self.dataset_size, self.steps)
        if isinstance(self.sampling, Shuffled):
            _check_epochs(self.steps, self.start)

    @property
    def sampling(self) -> Sampling:
        """What an accountant takes the batches for."""
        return self.steps.sampling

    @property
    def noise_is_secret(self) -> bool:
        return self.randomness.noise_is_secret

    def __len__(self) -> int:
        return len(self.steps) - self.start

    def __iter__(self) -> Iterator[Tensor]:
        drawing, rates = _drawings[type(self.sampling)], self.steps.sample_rates
        coming = (float(rate) for rate in rates[self.start :])
        drawn = drawing.batches(self.sampling, self.dataset_size, coming, self.randomness)
        for number, found in enumerate(drawn, self.start):
            self._check_batch(drawing, found, float(rates[number]))
            yield torch.from_numpy(found)

    def _check_batch(self, drawing: Drawing, found: Indices, rate: float) -> None:
        is_batch = found.dtype == np.int64 and found.ndim == 1
        if is_batch and len(found):
            is_batch = bool(found[0] >= 0 and found[-1] < self.dataset_size and (found[1:] > found[:-1]).all())
        if not is_batch or not drawing.is_likely(self.sampling, self.dataset_size, rate, len(found)):
            raise InvalidValue(
                f"sampling={str(self.sampling)!r} drew what it cannot draw at sample_rate={rate:g}: records that do "
                "not exist, or one twice, or too many or too few. The guarantee would not hold. Correct the sampler."
            )

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        """The batch in pieces of at most `most` records; an empty batch is one empty piece."""
        return tuple(torch.split(indices, most))

    def check(self, plan: Plan) -> None:
        """Raise unless these are the batches that `plan` was priced for."""
        if self.steps != plan.steps:
            raise InvalidValue(
                f"sampler={self.sampling} over {len(self.steps)} steps from rate {self.steps.sample_rate:g} is not the "
                f"plan's, {plan.steps.sampling} over {len(plan.steps)} from {plan.steps.sample_rate:g}. The guarantee "
                "would not hold. Make it with sampler(plan, ...)."
            )
        adjacency, who = plan.recipe.budget.adjacency, plan.recipe.budget.unit + "s"
        if adjacency != "add-remove" and self.dataset_size != plan.recipe.dataset_size:
            raise InvalidValue(
                f"{who}={self.dataset_size} must be the plan's dataset_size={plan.recipe.dataset_size}. Under "
                f"adjacency={adjacency!r} the "
                f"number of {who} is public. Plan with this size, or for adjacency='add-remove'."
            )


def sampler(plan: Plan, *, records: int, start: int = 0, randomness: Randomness | None = None) -> Sampler:
    """The sampler of a plan over a dataset of `records`, from step `start`; fresh coins unless a seed is given.

    Under `zero-out` and `replace` the number of records is public and must be the plan's. Under `add-remove` it is
    private: it says how many coins are tossed, and nothing else.

    >>> from privet.planning import plan
    >>> p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=256, steps=100)
    >>> len(sampler(p, records=60000)), sampler(p, records=60000).noise_is_secret
    (100, True)
    """
    if plan.recipe.budget.unit == "user":
        raise InvalidValue(
            "unit='user' protects users, and here records would be sampled. Use user_sampler(plan, users=...)."
        )
    made = Sampler(dataset_size=records, steps=plan.steps, start=start, randomness=randomness or Randomness())
    made.check(plan)
    return made


# --- the four ways ----------------------------------------------------------------------------------


def poisson_indices(size: int, rate: float, numbers: np.random.Generator) -> Indices:
    """Indices below `size`, each there on its own with chance `rate`, found by the gaps between them.

        P[gap >= k] = (1 - rate)^k,   gap = floor(log(1 - V) / log(1 - rate)),   V uniform in [0, 1)

    V has 106 random bits, so that it is fine near 0 where a tiny rate is decided; a chance then has a relative error
    below size * 2^-51, from rounding the quotient. The work is that of the batch, not of the dataset.
    """
    if rate >= 1:
        return np.arange(size, dtype=np.int64)
    expected = size * rate
    block = int(expected + 6 * math.sqrt(expected)) + 16  # too short once in a billion times: then one more block
    found, last = [], -1
    while last < size:
        v = np.minimum(numbers.random(block) + numbers.random(block) * 2.0**-53, 1 - 2.0**-53)
        with np.errstate(over="ignore"):
            gaps = np.minimum(np.log1p(-v) / math.log1p(-rate), size)  # a gap of `size` ends it all
        found.append(last + np.cumsum(gaps.astype(np.int64) + 1))
        last = int(found[-1][-1])
    places = found[0] if len(found) == 1 else np.concatenate(found)
    return places[: np.searchsorted(places, size)]


@register(Poisson)
class _Poisson:
    def batches(self, sampling: Poisson, size: int, rates: Rates, randomness: Randomness) -> Iterator[Indices]:
        for rate in rates:
            yield poisson_indices(size, rate, randomness.numpy_generator())

    def is_likely(self, sampling: Poisson, size: int, rate: float, count: int) -> bool:
        return _is_likely_count(size, rate, count)


@register(TruncatedPoisson)
class _Truncated:
    """Poisson; of a batch above the cap, a uniform choice of `cap` records is kept."""

    def batches(self, sampling: TruncatedPoisson, size: int, rates: Rates, randomness: Randomness) -> Iterator[Indices]:
        for rate in rates:
            numbers = randomness.numpy_generator()
            found = poisson_indices(size, rate, numbers)
            if len(found) > sampling.cap:
                found = np.sort(numbers.choice(found, sampling.cap, replace=False, shuffle=False))
            yield found

    def is_likely(self, sampling: TruncatedPoisson, size: int, rate: float, count: int) -> bool:
        is_cut = count == sampling.cap <= size * rate  # most batches are
        return count <= sampling.cap and (is_cut or _is_likely_count(size, rate, count))


@register(FixedSize)
class _Fixed:
    def batches(self, sampling: FixedSize, size: int, rates: Rates, randomness: Randomness) -> Iterator[Indices]:
        for rate in rates:
            numbers, count = randomness.numpy_generator(), _fixed_batch_size(size, rate)
            yield np.sort(numbers.choice(size, count, replace=False, shuffle=False))

    def is_likely(self, sampling: FixedSize, size: int, rate: float, count: int) -> bool:
        return count == _fixed_batch_size(size, rate)


@register(Shuffled)
class _Shuffled:
    """Each epoch a new permutation, cut into ceil(1 / rate) batches whose sizes differ by at most one."""

    def batches(self, sampling: Shuffled, size: int, rates: Rates, randomness: Randomness) -> Iterator[Indices]:
        coming = iter(rates)
        for rate in coming:
            length = _epoch_length(rate)
            order = randomness.numpy_generator().permutation(size)
            for j in range(length):
                if j and next(coming, None) is None:
                    return
                yield np.sort(order[size * j // length : size * (j + 1) // length])

    def is_likely(self, sampling: Shuffled, size: int, rate: float, count: int) -> bool:
        return count - size // _epoch_length(rate) in (0, 1)


def _is_likely_count(size: int, rate: float, count: int) -> bool:
    """Whether `count` of `size` independent coins of this rate may come up, by Chernoff's bound on each tail.

    P[K >= k] or P[K <= k] <= exp(-n KL(k / n, q)),   KL(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))
    """
    rest = size - count
    if rate >= 1 or not size:
        return not rest
    found = 0.0 if not count else count * math.log(count / (size * rate))
    found += 0.0 if not rest else rest * (math.log(rest / size) - math.log1p(-rate))
    return found <= -math.log(RARE)


def _fixed_batch_size(size: int, rate: float) -> int:
    """rate * size rounded down, less a few roundings: 256 of 60000 are 256."""
    return min(size, int(rate * size * (1 + 2.0**-49)))


def _epoch_length(rate: float) -> int:
    return math.ceil(1 / rate - 1e-9)


def _check_size(kind: Sampling, size: int, steps: PlannedSteps) -> None:
    if isinstance(kind, TruncatedPoisson) and size > kind.size:
        raise InvalidValue(
            f"records={size} must be at most {kind.size}, the size in sampling={str(kind)!r}. More records overflow "
            "the cap more often than was priced. Plan with the larger size."
        )
    if not isinstance(kind, FixedSize):
        return
    least = float(steps.sample_rates[0] if steps.is_constant else steps.sample_rates.min())
    if _fixed_batch_size(size, least) < 1:
        raise InvalidValue(
            f"sample_rate={least!r} of {size} records is less than one. Fixed-size batches would be empty. Use a "
            "larger batch."
        )


def _check_epochs(steps: PlannedSteps, start: int) -> None:
    """A record takes part once in an epoch: the rates are equal within one, and a run is taken up between two."""
    rates, at = steps.sample_rates, 0
    if steps.is_constant:  # straight to the epoch of `start`: there may be a trillion steps
        at = start - start % _epoch_length(float(rates[0]))
    while at < len(steps):
        end = at + _epoch_length(float(rates[at]))
        if at < start < min(end, len(steps)):
            raise InvalidValue(
                f"start={start} lies inside a shuffled epoch, steps {at} to {end - 1}. A record could take part twice "
                f"in it. Charge the rest of the epoch and start at {end}."
            )
        if steps.is_constant:
            return
        if (rates[at:end] != rates[at]).any():
            raise InvalidValue(f"rate changes within a shuffled epoch, after step {at}. Change it between epochs only.")
        at = end
