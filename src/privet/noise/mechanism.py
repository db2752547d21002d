"""What a noise mechanism is: it draws what a spec says, for steps that are charged, linearly and whatever the sums are.

A mechanism is safe because no accountant has a theorem for a spec that it does not know, because `privatize` wants a
`Charge`, and because the contract test replays it: with one randomness and two sums its outputs differ by exactly the
difference of the sums, and on zero sums the noise has the covariance over the steps that it declares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet.accounting.ledger import MechanismSpec
from privet.errors import InvalidValue, Unsupported
from privet.ledger.account import Charge

NoiseState = Any  # what a mechanism keeps from step to step: secret where noise is correlated, None where it is not


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Tensors that get noise of one size. The size is this step's: it is applied after noise is correlated."""

    values: Mapping[str, Tensor]
    std: float  # of the noise on each entry: the multiplier times the sensitivity
    noise: float  # the multiplier


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noisy:
    """The same tensors with noise, divided by the public batch."""

    values: dict[str, Tensor]
    std: float  # of the noise before it was divided


class NoiseMechanism(Protocol):
    """Draws one kind of noise."""

    @property
    def spec(self) -> MechanismSpec:
        """What an accountant is told."""

    @property
    def splits(self) -> bool:
        """Whether the noises of many ranks, a part each, add up to one; else rank 0 draws it on the whole sum."""

    def init(self, like: Mapping[str, Tensor]) -> NoiseState:
        """What it keeps before the first step of tensors like these."""

    def privatize(
        self, total: Sequence[Sums], charge: Charge, state: NoiseState, randomness: Any, *, divisor: float,
        in_place: bool = False,
    ) -> tuple[list[Noisy], NoiseState]:  # fmt: skip
        """(sum + noise) / divisor for all that one step gives away; `in_place` the sums may be gone then.

        Linear: output - sum / divisor does not depend on the sum. The charge is spent.
        """

    def covariance(self, steps: int) -> NDArray[np.float64]:
        """That of the noise over the steps, (steps, steps), where each has std 1."""

    def save_secret(self, state: NoiseState) -> Mapping[str, Tensor]:
        """The state, to be kept apart from what may be given away, and used once."""

    def load_secret(self, kept: Mapping[str, Tensor]) -> NoiseState:
        """Take up a state that `save_secret` gave."""


M = TypeVar("M", bound=NoiseMechanism)
Maker = Callable[..., NoiseMechanism]  # (spec, secure)
_makers: dict[type[MechanismSpec], Maker] = {}


def register(kind: type[MechanismSpec]) -> Callable[[type[M]], type[M]]:
    """Class decorator: what draws this kind of noise, made from (spec, whether noise is secure)."""

    def keep(make: type[M]) -> type[M]:
        if kind in _makers:
            raise InvalidValue(
                f"mechanism={kind.__name__} is drawn already. What is certified rests on it. Give "
                "yours a spec of its own."
            )
        _makers[kind] = make
        return make

    return keep


def mechanism_names() -> tuple[type[MechanismSpec], ...]:
    return tuple(_makers)


def resolve_mechanism(spec: MechanismSpec, *, secure_noise: bool = False) -> NoiseMechanism:
    if type(spec) not in _makers:
        raise Unsupported(f"mechanism={spec!r} cannot be drawn. Use Gaussian().")
    return _makers[type(spec)](spec, secure_noise)
