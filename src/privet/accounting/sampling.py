"""How the records of a step are chosen. The sampling decides which theorem applies, so it is part of a step.

One spelling everywhere: `poisson`, `truncated-poisson:cap=400,size=60000`, `fixed-size`, `shuffled`.
"""

from dataclasses import dataclass, fields

from privet import _check
from privet._registry import Registry
from privet.errors import InvalidValue


class Sampling:
    """A way to choose the records of a step; equal parameters compare equal."""

    __slots__ = ()
    name = ""

    def __str__(self) -> str:
        options = ",".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))  # type: ignore[arg-type]
        return f"{self.name}:{options}" if options else self.name


registry: Registry[Sampling] = Registry("sampling", own=False)  # no accountant has a theorem for another
register = registry.register


@register("poisson")
@dataclass(frozen=True, slots=True)
class Poisson(Sampling):
    """Each record takes part on its own with chance `rate`."""

    name = "poisson"


@register("truncated-poisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Sampling):
    """Poisson, but a batch larger than `cap` is cut to `cap`. `size` is the larger neighbour's number of records."""

    name = "truncated-poisson"
    cap: int
    size: int

    def __post_init__(self) -> None:
        _check.whole(cap=self.cap, size=self.size)


@register("fixed-size")
@dataclass(frozen=True, slots=True)
class FixedSize(Sampling):
    """Exactly rate * size records, uniformly without replacement, anew at each step."""

    name = "fixed-size"


@register("shuffled")
@dataclass(frozen=True, slots=True)
class Shuffled(Sampling):
    """Epochs of ceil(1 / rate) consecutive steps of one run; each record takes part in one step of each epoch."""

    name = "shuffled"


registry.seal()  # what is registered later is somebody else's: only their own accountant may have a theorem for it
POISSON = Poisson()


def sampling(given: "str | Sampling") -> Sampling:
    """The sampling a user wrote, as a value.

    >>> sampling("truncated-poisson:cap=400,size=60000")
    TruncatedPoisson(cap=400, size=60000)
    """
    if isinstance(given, Sampling):
        return given
    if not isinstance(given, str):
        raise InvalidValue(f"sampling={given!r} must be a name such as 'poisson'.")
    name, text = registry.split(given)
    return registry.make(name, **registry.options(name, text))
