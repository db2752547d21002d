"""A charge: without one no noise is drawn for a step, and only an account that has charged the step gives one."""

from typing import NoReturn

from privet.accounting import Step
from privet.accounting.mechanisms import MechanismSpec
from privet.errors import InvalidValue

_KEY = object()


class Charge:
    """Step `number` is charged: its noise may be drawn, once.

    >>> charge = uncharged(Step(noise=2.0, clip=0.5))
    >>> kind = charge.step.mechanism
    >>> charge.spend(kind)
    >>> charge.spend(kind)
    Traceback (most recent call last):
        ...
    privet.errors.InvalidValue: step=0 has had its noise. A second release would cost as much as the first, and is not
    charged. Release each step once.
    """

    __slots__ = ("_is_spent", "clip", "number", "step")

    def __init__(self, key: object, number: int, step: Step, clip: float) -> None:
        if key is not _KEY:
            raise InvalidValue("a Charge is not made by hand. Charge the step: account.charge(number) gives one.")
        self.number, self.step = number, step
        self.clip = clip  # in force: where it follows earlier releases, it is not the step's
        self._is_spent = False

    def spend(self, mechanism: MechanismSpec) -> None:
        """Raise if this is not the kind of noise that was charged, or if it was drawn before."""
        if mechanism != self.step.mechanism:
            raise InvalidValue(
                f"mechanism={mechanism!r} is not that of step={self.number}, {self.step.mechanism!r}. It would cost "
                "what was not charged. Draw the planned noise."
            )
        if self._is_spent:
            raise InvalidValue(
                f"step={self.number} has had its noise. A second release would cost as much as the first, and is not "
                "charged. Release each step once."
            )
        self._is_spent = True

    def __reduce__(self) -> NoReturn:
        raise InvalidValue("a Charge has no copies: its step is released once. Charge another step.")


def issue(number: int, step: Step, clip: float) -> Charge:
    """The charge of a step that is in a ledger now. For accounts alone."""
    return Charge(_KEY, number, step, clip)


def uncharged(step: Step, clip: float | None = None) -> Charge:
    """A charge that is in no ledger: for `release` by hand, whose caller charges, and where nothing is given away."""
    return Charge(_KEY, 0, step, step.clip if clip is None else clip)
