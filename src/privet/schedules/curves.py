"""Shapes by a formula: constant, linear, exponential, time, step, cosine, cyclic."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privet import _check
from privet.errors import InvalidValue
from privet.schedules.base import NUDGE, Values, register


@register("constant")
@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same at every step: v_i = value."""

    value: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(value=self.value)

    def values(self, steps: int) -> Values:
        return np.full(steps, float(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What the formulas share: v_i = start * f(e, u)^(1 / power), f at most 1 where the shape decays.

    `every`: a value is held for that many steps, e = floor(i / every); it may be a fraction, such as the 937.5
    steps of an epoch. e = floor(q i) also when every = 1 / q was rounded. E is the number of held values.
    `grid`: where f is evaluated, with i = 0 .. T - 1 (and e, E in place of i, T if values are held):

        closed   u = i / (T - 1)    the first step has `start`, the last has `end`
        before   u = i / T          Wei and Liu 2021
        after    u = (i + 1) / T    Du et al. 2021; e counts from 1 too

    `power`: f is the shape of v^power (Auto DP-SGD decays sigma^2: power=2). `start` and `end` are always values
    of v itself; `decay` and `factor` act on v^power.
    """

    start: float = 1.0
    grid: Literal["closed", "before", "after"] = "closed"
    every: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        _check.positive(start=self.start, every=self.every, power=self.power)
        _check.one_of(("closed", "before", "after"), grid=self.grid)
        if self.every < 1:
            raise InvalidValue(f"every={self.every!r} must be >= 1. It counts steps. For epochs give size / batch.")

    def values(self, steps: int) -> Values:
        held = np.floor(np.arange(steps) / self.every * (1 + NUDGE)).astype(np.intp)
        count = int(held[-1]) + 1
        e = np.arange(count, dtype=np.float64) + (self.grid == "after")
        f = self._shape(e, e / np.float64(max(count - 1, 1) if self.grid == "closed" else count))
        root = np.copysign(np.abs(f) ** (1 / self.power), f)  # a negative f stays visible as such
        return (self.start * root)[held]

    def _shape(self, e: Values, u: Values) -> Values:
        raise NotImplementedError

    def _ratio(self, end: float) -> np.float64:
        return np.float64(end / self.start) ** self.power


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndOrDecay(Curve):
    end: float | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        if (self.end is None) == (self.decay is None):
            raise InvalidValue(
                f"end={self.end!r}, decay={self.decay!r}: give exactly one. `end` is the value that is reached, "
                "`decay` the loss at each step. For example end=0.3 or decay=1e-4."
            )
        if self.end is not None:
            _check.positive(end=self.end)
        if self.decay is not None:
            _check.non_negative(decay=self.decay)


@register("linear")
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_EndOrDecay):
    """A straight line: f = 1 + (r - 1) u with r = (end / start)^power, or f = 1 - decay * e."""

    def _shape(self, e: Values, u: Values) -> Values:
        if self.end is not None:
            return (1 - u) + self._ratio(self.end) * u
        return _falling((self.decay or 0.0) * e)


@register("exponential")
@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_EndOrDecay):
    """Geometric: f = r^u with r = (end / start)^power, or f = exp(-decay * e)."""

    def _shape(self, e: Values, u: Values) -> Values:
        if self.end is not None:
            return np.power(self._ratio(self.end), u)
        return np.exp(-(self.decay or 0.0) * e)


@register("time")
@dataclass(frozen=True, slots=True, kw_only=True)
class Time(Curve):
    """Hyperbolic: f = 1 / (1 + decay * e)."""

    decay: float

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.non_negative(decay=self.decay)

    def _shape(self, e: Values, u: Values) -> Values:
        return 1 / (1 + self.decay * e)


@register("step")
@dataclass(frozen=True, slots=True, kw_only=True)
class Stairs(Curve):
    """Multiplied by `factor` after each `every` steps: f = factor^e."""

    factor: float
    every: float

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.positive(factor=self.factor)

    def _shape(self, e: Values, u: Values) -> Values:
        return np.power(np.float64(self.factor), e)


@register("cosine")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(Curve):
    """Half a cosine: f = w + (1 - w) r with w = (1 + cos(pi u)) / 2 and r = (end / start)^power."""

    end: float = 0.5

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.positive(end=self.end)

    def _shape(self, e: Values, u: Values) -> Values:
        w = (1 + np.cos(np.pi * u)) / 2  # from 1 to 0; a sum of positive terms does not cancel, however large r is
        return w + (1 - w) * self._ratio(self.end)


@register("cyclic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic(Curve):
    """Triangles: down for `half` steps, up again for `half`, each beginning lower than the one before.

        f = (1 - 2 * fade * half * k) (1 - decay * min(r, 2 half - r)),   k = floor(e / (2 half)), r = e - 2 half k

    Source: Wei and Liu 2021, section IV-A, cyclic decay with step size V = half, gamma_3 = decay, gamma_4 = fade:
    C_0* (1 - gamma_3 t) for odd and C_0* (1 + gamma_3 t) for even halves, C_0* = C_0 (1 - 2 gamma_4 V) from one
    triangle to the next. The paper leaves open where t begins. Read here: t is counted within a triangle, so that
    the curve has no jump inside one, and C_0* falls by 2 gamma_4 V C_0 with every triangle (2 V steps).
    """

    half: int
    decay: float
    fade: float = 0.0

    def __post_init__(self) -> None:
        Curve.__post_init__(self)
        _check.whole(half=self.half)
        _check.non_negative(decay=self.decay, fade=self.fade)

    def _shape(self, e: Values, u: Values) -> Values:
        k, r = np.divmod(e, 2 * self.half)
        top = _falling(2 * self.fade * self.half * k)
        # The smaller factor alone when both are below zero: their product would look fine.
        side = _falling(self.decay * np.minimum(r, 2 * self.half - r))
        return np.where((top < 0) & (side < 0), side, top * side)


def _falling(x: Values) -> Values:
    """1 - x, where a difference within rounding of zero is zero: 1 - (1/49) 49 is 1e-16 in floating point."""
    y = 1 - x
    return np.where(np.abs(y) < NUDGE, 0.0, y)
