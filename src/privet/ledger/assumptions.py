"""What is known of the loop that made a run: what was checked of it, and what its guarantee has to assume."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from privet import _check
from privet._text import format_count, shorten
from privet.accounting import Guarantee
from privet.errors import InvalidValue

NONE = "none (the loop is Privet's own)"
NOT_RECORDED = "not recorded: what was checked of the loop that made this run is not known"
MOST_ENTRIES, MOST_CHARACTERS = 50, 300
_KEPT = (
    "what the loop keeps between steps was not looked at: a queue of features, a Python attribute, a learning rate set "
    "from raw losses, a number taken out by .item(); nor what follows the number of rows otherwise than by a power or "
    "parity, nor buffers that every pass of the model moves"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFacts:
    """What is known of the loop of a run. The defaults are those of a loop of the user's own that made no step yet.

    >>> LoopFacts(steps=100, checked=12, lost=1).assumptions()[0]
    'independence of examples was checked in 12 of 100 steps, and holds in the others'
    >>> LoopFacts(own_loop=False, steps=100).assumptions()
    ()
    """

    void_from: int | None = None  # from this step on there is no guarantee: first, as a torn line must say it
    void_reason: str = ""
    own_loop: bool = True  # False for `train`: the loop is Privet's, and there is nothing to assume
    steps: int = 0  # made, that is, released
    checked: int = 0  # of them, those in which independence of examples was checked
    lost: int = 0  # batches that were handed out, charged, and never released
    taken_out: int = 0  # checked steps in which numbers were taken out of the batch: item, tolist, numpy
    not_followed: tuple[str, ...] = ()  # what the check could not follow, and accepted
    outside: tuple[str, ...] = ()  # tensors from outside the round that the model was given, the same in each step
    post_processing: tuple[str, ...] = ()  # the user's reasons

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in _COUNTS}
        _check.whole(least=0, **counts)
        if type(self.own_loop) is not bool:
            raise InvalidValue(f"own_loop={self.own_loop!r} must be true or false.")
        if self.void_from is not None:
            _check.whole(least=0, void_from=self.void_from)
        if (self.void_from is None) != (self.void_reason == ""):
            raise InvalidValue(
                f"void_reason={shorten(repr(self.void_reason))} must be given with void_from, and only then."
            )
        _check_text("void_reason", self.void_reason)
        for name in _LISTS:
            entries = getattr(self, name)
            if type(entries) is not tuple or len(entries) > MOST_ENTRIES:
                raise InvalidValue(f"{name} must be a tuple of at most {MOST_ENTRIES} texts.")
            for entry in entries:
                _check_text(name, entry)

    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee of this run assumes, one sentence each; nothing if the loop is Privet's own."""
        if not self.own_loop:
            return ()
        rest = " and holds in the others" if self.checked < self.steps else ""
        steps = format_count(self.steps, "step")
        said = [f"independence of examples was checked in {self.checked} of {steps}{rest and ',' + rest}"]
        if self.not_followed:
            said.append(f"not followed by the check, and taken as independent: {'; '.join(self.not_followed)}")
        if self.outside:
            said.append(f"tensors from outside of the loop hold nothing of the records: {'; '.join(self.outside)}")
        if self.taken_out:
            steps = format_count(self.taken_out, "step")
            said.append(f"numbers taken out of the batch in {steps} reach no other example's loss")
        if self.lost:
            batches = "1 batch was" if self.lost == 1 else f"{self.lost} batches were"
            said.append(
                f"{batches} handed out, charged and never released; whether to go on was not decided by looking at "
                "them, since such a choice is bounded by no clip"
            )
        if self.post_processing:
            said.append(f"weights were changed by post-processing without records: {'; '.join(self.post_processing)}")
        return (*said, _KEPT)

    @property
    def void_text(self) -> str:
        """Why the loop has no guarantee, and from which step on; empty if it has one."""
        return "" if self.void_from is None else f"{self.void_reason} (from step {self.void_from} on)"

    def void(self, step: int, why: str) -> "LoopFacts":
        """The same from which a guarantee does not follow: from `step` on, or from an earlier one that is known."""
        if self.void_from is not None and self.void_from <= step:
            return self
        return replace(self, void_from=step, void_reason=why[:MOST_CHARACTERS])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: every key, in one order."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, found: Any) -> "LoopFacts":
        """The facts in the plain values of `as_dict`.

        Raises:
            InvalidValue: a key is missing or not known, or a value is not what stands there.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(found, Mapping) or set(found) != set(names):
            raise InvalidValue(f"loop={shorten(repr(found))} must have the keys {', '.join(names)}, and no other.")
        for name in _LISTS:
            if type(found[name]) is not list:
                raise InvalidValue(f"{name}={shorten(repr(found[name]))} must be a list of texts.")
        return cls(**dict(found) | {name: tuple(found[name]) for name in _LISTS})


_COUNTS = ("steps", "checked", "lost", "taken_out")
_LISTS = ("not_followed", "outside", "post_processing")


def list_assumptions(guarantee: Guarantee) -> tuple[str, ...]:
    """The assumptions of a guarantee for people: where there is none, that and why is said."""
    return guarantee.assumptions or (NONE,)


def _check_text(name: str, text: Any) -> None:
    if type(text) is not str or len(text) > MOST_CHARACTERS:
        raise InvalidValue(f"{name}={shorten(repr(text))} must be text of at most {MOST_CHARACTERS} characters.")
