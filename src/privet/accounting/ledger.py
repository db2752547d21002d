"""Steps and ledgers: what was released, and nothing else. A ledger is all an accountant sees."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privet import _check
from privet.accounting.sampling import POISSON, Sampling, sampling
from privet.errors import InvalidValue, Unsupported, name_errors

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class MechanismSpec:
    """Which noise a step adds, as a value: what an accountant has a theorem for. Equal parameters compare equal."""

    __slots__ = ()
    name = ""


@dataclass(frozen=True, slots=True)
class Gaussian(MechanismSpec):
    """Independent Gaussian noise in every step. The default: plans and ledgers do not write it."""

    name = "gaussian"


GAUSSIAN = Gaussian()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One release: a sum of clipped gradients plus Gaussian noise.

    `noise_multiplier` is sigma: standard deviation over sensitivity. `sample_rate` is the chance q that an example
    takes part. `clipping_norm` is the bound C on one example's share; it does not change the cost. `mechanism` says
    which noise it is.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    clipping_norm: float = 1.0
    sampling: Sampling = POISSON
    mechanism: MechanismSpec = field(default=GAUSSIAN, repr=False)

    def __post_init__(self) -> None:
        _check.positive(noise_multiplier=self.noise_multiplier, clipping_norm=self.clipping_norm)
        _check.rate(sample_rate=self.sample_rate)
        object.__setattr__(self, "sampling", sampling(self.sampling))


@dataclass(frozen=True, slots=True)
class LedgerArrays:
    """A ledger as arrays, one entry per run of equal steps. `kind` numbers the distinct samplings."""

    noise_multiplier: Floats
    sample_rate: Floats
    count: Ints
    sampling_index: Ints
    samplings: tuple[Sampling, ...]

    def uses(self, name: str) -> Bools:
        """Which runs of the ledger use the sampling called `name`."""
        return np.isin(self.sampling_index, [k for k, kind in enumerate(self.samplings) if kind.name == name])


@dataclass(slots=True, eq=False)
class Ledger:
    """Releases in order. Equal neighbours are stored once with a count.

    >>> ledger = Ledger()
    >>> ledger.add(Step(noise_multiplier=1.1, sample_rate=256 / 60000), count=14063)
    >>> ledger.steps
    14063
    """

    _noise: list[float] = field(default_factory=list)
    _rate: list[float] = field(default_factory=list)
    _clip: list[float] = field(default_factory=list)
    _kind: list[int] = field(default_factory=list)
    _count: list[int] = field(default_factory=list)
    _samplings: list[Sampling] = field(default_factory=list)

    def add(self, step: Step, count: int = 1) -> None:
        """Charge `count` releases like `step`, of the same run; `accounting.compose_ledgers` puts runs together."""
        _check.whole(count=count)
        if step.mechanism != GAUSSIAN:
            raise Unsupported(
                f"mechanism={step.mechanism!r} has no theorem: no accountant could say what it costs. Use Gaussian()."
            )
        kind = self._find_sampling(step.sampling)
        if self._noise and (step.noise_multiplier, step.sample_rate, step.clipping_norm, kind) == (
            self._noise[-1], self._rate[-1], self._clip[-1], self._kind[-1],
        ):  # fmt: skip
            self._count[-1] += count
            return
        self._noise.append(float(step.noise_multiplier))
        self._rate.append(float(step.sample_rate))
        self._clip.append(float(step.clipping_norm))
        self._kind.append(kind)
        self._count.append(int(count))

    def extend(
        self, *, noise_multiplier: ArrayLike, sample_rate: ArrayLike = 1.0, clipping_norm: ArrayLike = 1.0,
        sampling: "str | Sampling" = POISSON,
    ) -> None:  # fmt: skip
        """Charge one release per entry of `noise_multiplier`; the other two are one value or one per step."""
        noises, rates, clips = np.broadcast_arrays(
            *(np.asarray(v, dtype=np.float64) for v in (noise_multiplier, sample_rate, clipping_norm))
        )
        noises, rates, clips = (np.atleast_1d(v).ravel() for v in (noises, rates, clips))
        _refuse_bad("noise_multiplier", noises, (noises > 0) & np.isfinite(noises), "must be finite and > 0")
        _refuse_bad("sample_rate", rates, (rates > 0) & (rates <= 1), "must be > 0 and <= 1")
        _refuse_bad("clipping_norm", clips, (clips > 0) & np.isfinite(clips), "must be finite and > 0")
        if not len(noises):
            return
        changed = (np.diff(noises) != 0) | (np.diff(rates) != 0) | (np.diff(clips) != 0)
        starts = np.flatnonzero(np.concatenate(([True], changed)))
        counts = np.diff(np.concatenate((starts, [len(noises)])))
        numbers = {
            "noise_multiplier": float(noises[0]), "sample_rate": float(rates[0]), "clipping_norm": float(clips[0]),
        }  # fmt: skip
        first = Step(sampling=sampling, **numbers)  # type: ignore[arg-type]  # Step turns a name into a Sampling
        self.add(first, int(counts[0]))
        rest = starts[1:]
        self._noise += noises[rest].tolist()
        self._rate += rates[rest].tolist()
        self._clip += clips[rest].tolist()
        self._kind += [self._find_sampling(first.sampling)] * len(rest)
        self._count += counts[1:].tolist()

    @property
    def steps(self) -> int:
        return sum(self._count)

    def __len__(self) -> int:
        return self.steps

    def __bool__(self) -> bool:
        return bool(self._count)

    def __iter__(self) -> Iterator[tuple[Step, int]]:
        for noise, rate, clip, kind, count in zip(
            self._noise, self._rate, self._clip, self._kind, self._count, strict=True
        ):
            yield (
                Step(noise_multiplier=noise, sample_rate=rate, clipping_norm=clip, sampling=self._samplings[kind]),
                count,
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._rows() == other._rows()

    def columns(self) -> LedgerArrays:
        """The ledger as arrays, for accountants."""
        return LedgerArrays(
            noise_multiplier=np.array(self._noise, dtype=np.float64),
            sample_rate=np.array(self._rate, dtype=np.float64),
            count=np.array(self._count, dtype=np.int64), sampling_index=np.array(self._kind, dtype=np.int64),
            samplings=tuple(self._samplings),
        )  # fmt: skip

    def first(self, steps: int) -> "Ledger":
        """The ledger of the first `steps` releases."""
        _check.whole(least=0, steps=steps)
        if steps > self.steps:
            raise InvalidValue(f"steps={steps!r} is more than the {self.steps} in the ledger.")
        total = np.cumsum(self._count) if self._count else np.zeros(0, dtype=np.int64)
        runs = int(np.searchsorted(total, steps))  # whole runs before the cut
        taken = Ledger(
            self._noise[: runs + 1], self._rate[: runs + 1], self._clip[: runs + 1], self._kind[: runs + 1],
            self._count[: runs + 1], list(self._samplings),
        )  # fmt: skip
        if taken._count:
            taken._count[-1] = steps - (int(total[runs - 1]) if runs else 0)
            if not taken._count[-1]:
                for column in (taken._noise, taken._rate, taken._clip, taken._kind, taken._count):
                    column.pop()
        return taken

    def _find_sampling(self, chosen: Sampling) -> int:
        if chosen not in self._samplings:
            self._samplings.append(chosen)
        return self._samplings.index(chosen)

    def _rows(self) -> list[tuple[float, float, float, Sampling, int]]:
        kinds: Sequence[Sampling] = [self._samplings[k] for k in self._kind]
        return list(zip(self._noise, self._rate, self._clip, kinds, self._count, strict=True))


def _refuse_bad(name: str, values: Floats, good: Bools, rule: str) -> None:
    if not good.all():
        step = int(np.argmin(good))
        raise InvalidValue(f"{name}={float(values[step])!r} at step {step} {rule}.")


# --- rows: every complaint names their place --------------------------------------------------------
MOST_STEPS = 10**12
KEYS = ("noise_multiplier", "sample_rate", "clipping_norm", "sampling", "count")
SHORT = {"noise": "noise_multiplier", "rate": "sample_rate", "clip": "clipping_norm"}  # also the names of format 1


class LedgerBuilder:
    """Adds rows to its ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._steps = 0

    def add_row(self, row: Any, place: str) -> None:
        if not isinstance(row, Mapping):
            raise InvalidValue(f"{place}: must be an object with noise_multiplier and sample_rate.")
        row = {SHORT.get(key, key): value for key, value in row.items()}
        for key in row:
            if key not in KEYS:
                raise InvalidValue(f"{place}: {key!r} is not known.{_check.suggestion(key, (*KEYS, *SHORT))}")
        for key in ("noise_multiplier", "sample_rate"):
            if key not in row:
                raise InvalidValue(f"{place}: {key} is missing.")
        self.add(place, **row)

    def add(
        self, place: str, *, noise_multiplier: Any, sample_rate: Any = 1.0, clipping_norm: Any = 1.0,
        sampling: Any = POISSON, count: Any = 1,
    ) -> None:  # fmt: skip
        with name_errors(place):
            numbers = {
                k: require_number(k, v)
                for k, v in zip(KEYS, (noise_multiplier, sample_rate, clipping_norm), strict=False)
            }
            step = Step(sampling=sampling, **numbers)  # type: ignore[arg-type]
            self.ledger.add(step, require_integer("count", count))
        self._steps += int(count)
        if self._steps > MOST_STEPS:
            raise InvalidValue(f"{place}: more than {MOST_STEPS:.0e} steps in all.")


def require_number(name: str, value: Any) -> float:
    """`value` as a float, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidValue(f"{name}={reprlib.repr(value)} must be a number.")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue(f"{name} has too many digits for a number.") from None


def require_integer(name: str, value: Any, *, least: int = 1) -> int:
    """`value` as an int between `least` and MOST_STEPS, or an error that names it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= MOST_STEPS:
        raise InvalidValue(f"{name}={reprlib.repr(value)} must be a whole number from {least} to {MOST_STEPS:.0e}.")
    return int(value)


def require_list(value: Any, place: str) -> Sequence[Any]:
    """`value` if it is a list, or an error that names its place."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidValue(f"{place} must be a list.")
    return value
