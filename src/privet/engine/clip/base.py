"""What a clipping rule is: fixed (Rule), with a memory of earlier releases (Adaptive), or unsound (Published).

A rule sees the norms of one example and gives its factors. It answers for one number: `norm_bound`, the most that one
example can move the sum. Everything the noise is made from is that number, and `bounded.py` holds the rule to it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard

from torch import Tensor

from privet.engine.share import Share
from privet.errors import Unsupported
from privet.planning.rules import SOUND_RULES, check_protocol, registry


class Rule(Protocol):
    """One example's scaled groups together have norm at most `norm_bound`; what is above is cut back to it.

    A rule from outside is mapped over the examples, so it sees one: `B` below is then left out of every shape. The
    package's own are called once for all of them.
    """

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Which parameters are clipped together; each name once."""

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """What each group of each example is multiplied by, (B, G), from norms (B, G), each row on its own."""

    def norm_bound(self, clip: float, groups: int) -> float:
        """The most one example can move the sum."""


class Adaptive(Rule, Protocol):
    """A rule that remembers, from noisy releases only. Its memory changes in `released` and nowhere else.

    So all physical pieces of a batch are clipped alike, and one logical step makes one change.
    """

    adaptive: bool  # True
    bit_bound: float  # the norm of one example's row of bits is at most this

    def threshold(self, clip: float) -> float:
        """The clip in force now, when the plan says `clip`."""

    def transformed(self, name: str, share: Share) -> Share:
        """The gradients of one parameter as they are to be clipped; outside the package, the gradient of one example.

        Return what was given, the same object, to leave them as they are.
        """

    def bits(self, norms: Tensor, clip: float) -> Tensor:
        """Extra values of each example, (B, k), summed and released with the gradient; k may be 0."""

    def bit_noise(self, noise: float, batch: float) -> float:
        """The noise multiplier of the bits, in a step charged at `noise`; not asked where k is 0."""

    def released(
        self, grads: Mapping[str, Tensor], bits: Tensor, *, clip: float, std: float, batch: float
    ) -> dict[str, Tensor]:
        """What the optimizer gets, from the noisy sums over `batch`; remembers what it wants of them.

        `std` is that of the noise on each entry of the gradients' sum, before it was divided.
        """

    def state(self) -> dict[str, Any]:
        """The memory, for a checkpoint: numbers and tensors."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a memory that `state` gave."""


class Published(Rule, Protocol):
    """As a paper prints it, though its proof does not cover it. `norm_bound` tells the truth, `raw_scale` the claim."""

    unsound: str  # why there is no guarantee

    def raw_scale(self, norms: Tensor, clip: float) -> float:
        """What the paper takes for the sensitivity, from the norms (B,) of the batch: may be private data."""


register = registry.register


def is_adaptive(rule: Rule) -> TypeGuard[Adaptive]:
    return bool(getattr(rule, "adaptive", False))


def is_published(rule: Rule) -> TypeGuard[Published]:
    """Whether this is one of the papers' rules that are not held to their bound: no rule from outside is."""
    return registry.is_ours(rule) and bool(getattr(rule, "unsound", ""))


def rule_for(rule: Any, *, as_published: bool = False) -> Rule:
    """The rule that a user wrote: a name with options, an address, a mapping, or the rule itself.

    Keep what you get: an adaptive rule made anew has forgotten everything.

    >>> rule_for("quantile:target=0.7").target
    0.7
    >>> rule_for("own_norm")
    Traceback (most recent call last):
        ...
    privet.errors.Unsupported: rule='own_norm' has no guarantee: each example is scaled by its own norm, so one example
    can move the sum by any amount. Use one of flat, per_layer, normalised, quantile, adaclip, or as_published=True.
    """
    if isinstance(rule, str):
        name, options = registry.split(rule)
        made = registry.make(name, **registry.options(name, options))
    elif isinstance(rule, Mapping):
        made = registry.from_mapping(rule)
    else:
        made = rule
    if not registry.is_ours(made):
        check_protocol(made, rule)
    if is_published(made) and not as_published:
        raise Unsupported(
            f"rule={registry.spelling(made)!r} has no guarantee: {made.unsound}. Use one of {', '.join(SOUND_RULES)}, "
            "or as_published=True."
        )
    found: Rule = made
    return found
