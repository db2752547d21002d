"""The steps of a plan: three shapes and three numbers that stand for every release, built when they are read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from privet import _check
from privet.accounting import Ledger, Step
from privet.accounting.ledger import Floats
from privet.accounting.sampling import POISSON, Sampling
from privet.errors import InvalidValue
from privet.schedules import Constant, schedule, schedule_values

MOST_STEPS = 10**12
MOST_SCHEDULED = 10**7  # one value is held for each


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSteps(Sequence[Step]):
    """Step i has noise `scale * noise_i`, rate `rate * batch_i` and clip `clip_i`; the shapes are spelled.

    >>> quarter = "exponential:end=0.25"
    >>> steps = PlannedSteps(length=3, sample_rate=0.01, peak_noise_multiplier=2.0, noise_schedule=quarter)
    >>> [step.noise_multiplier for step in steps]
    [2.0, 1.0, 0.5]
    """

    length: int
    sample_rate: float
    peak_noise_multiplier: float = 1.0
    noise_schedule: str = "constant"
    batch_schedule: str = "constant"
    clip_schedule: str = "constant"
    sampling: Sampling = POISSON
    _values: dict[str, Floats] = field(default_factory=dict, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        _check.whole(steps=self.length)
        _check.positive(peak_noise_multiplier=self.peak_noise_multiplier)
        _check.rate(sample_rate=self.sample_rate)
        most = MOST_STEPS if self.is_constant else MOST_SCHEDULED
        if self.length > most:
            raise InvalidValue(f"steps={self.length} must be at most {most:.0e}. Use fewer steps.")

    @property
    def is_constant(self) -> bool:
        """Whether all steps are alike."""
        return all(
            isinstance(schedule(shape), Constant)
            for shape in (self.noise_schedule, self.batch_schedule, self.clip_schedule)
        )

    @property
    def noise_multipliers(self) -> Floats:
        return self._shape_values("noise", self.noise_schedule, self.peak_noise_multiplier)

    @property
    def sample_rates(self) -> Floats:
        found = self._shape_values("batch", self.batch_schedule, self.sample_rate)
        some = found[:1] if found.strides == (0,) else found  # a constant, held once
        if (some > 1).any():
            worst = int(np.argmax(some > 1))
            raise InvalidValue(
                f"batch_schedule={self.batch_schedule!r} makes sample_rate={found[worst]:.6g} at step {worst}, above "
                "1. An example takes part at most once in a step. Use a smaller batch."
            )
        return found

    @property
    def clipping_norms(self) -> Floats:
        return self._shape_values("clip", self.clip_schedule, 1.0)

    def ledger(self) -> Ledger:
        """The same steps as a ledger, for any accountant."""
        ledger = Ledger()
        if self.is_constant:
            ledger.add(self[0], self.length)
        else:
            ledger.extend(
                noise_multiplier=self.noise_multipliers, sample_rate=self.sample_rates,
                clipping_norm=self.clipping_norms, sampling=self.sampling,
            )  # fmt: skip
        return ledger

    def _shape_values(self, name: str, shape: str, peak: float) -> Floats:
        """peak * shape over the steps, read-only; a constant takes no memory."""
        if name not in self._values:
            given = schedule(shape)
            if isinstance(given, Constant):
                values = np.broadcast_to(np.float64(peak * given.value), (self.length,))
            else:
                values = peak * schedule_values(given, self.length)
                values.flags.writeable = False
            self._values[name] = values
        return self._values[name]

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self.length)))
        return Step(
            noise_multiplier=float(self.noise_multipliers[index]), sample_rate=float(self.sample_rates[index]),
            clipping_norm=float(self.clipping_norms[index]),
            sampling=self.sampling,
        )  # fmt: skip
