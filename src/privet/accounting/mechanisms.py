"""Which noise a step adds, as a value: what an accountant has a theorem for. What draws it is in `noise`."""

from dataclasses import dataclass


class MechanismSpec:
    """A kind of noise; equal parameters compare equal."""

    __slots__ = ()
    name = ""


@dataclass(frozen=True, slots=True)
class Gaussian(MechanismSpec):
    """Independent Gaussian noise in every step. The default: plans and ledgers do not write it."""

    name = "gaussian"


GAUSSIAN = Gaussian()
