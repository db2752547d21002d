"""What a clipping rule is: fixed (Rule), with a memory of earlier releases (Adaptive), or unsound (Published).

A rule sees the norms of one example and gives its scales. It answers for one number: `l2_bound`, the most that one
example can move the sum. Everything the noise is made from is that number, and `bounded.py` holds the rule to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeGuard, cast

import torch
from torch import Tensor

from privet import _check
from privet._text import one_line
from privet.errors import InvalidValue, Unsupported
from privet.per_example.forms import Dense, PerExampleGradient
from privet.planning.clipping_rules import SOUND_RULES, check_protocol, registry

Grads = Mapping[str, Tensor]  # by the names of the parameters
Shares = Mapping[str, PerExampleGradient]


class ClippingRule(Protocol):
    """One example's scaled groups together have norm at most `l2_bound`; what is above is cut back to it.

    A rule from outside is mapped over the examples, so it sees one: `B` below is then left out of every shape. The
    package's own are called once for all of them.
    """

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Which parameters are clipped together; each name once."""

    def scales(self, norms: Tensor, clip: float) -> Tensor:
        """What each group of each example is multiplied by, (B, G), from norms (B, G), each row on its own."""

    def l2_bound(self, clip: float, groups: int) -> float:
        """The most one example can move the sum."""


class AdaptiveClippingRule(ClippingRule, Protocol):
    """A rule that remembers, from noisy releases only. Its memory changes in `learn` and nowhere else.

    So all physical batches of a step are clipped alike, and one logical step makes one change.
    """

    adaptive: bool  # True
    statistics_bound: float  # the norm of one example's row of statistics is at most this

    def current_clip(self, clip: float) -> float:
        """The clip in force now, when the plan says `clip`."""

    def transform(self, name: str, share: PerExampleGradient) -> PerExampleGradient:
        """The gradients of one parameter as they are to be clipped; outside the package, the gradient of one example.

        Return what was given, the same object, to leave them as they are.
        """

    def statistics(self, norms: Tensor, clip: float) -> Tensor:
        """Extra values of each example, (B, k), summed and released with the gradient; k may be 0."""

    def statistics_noise(self, noise: float, batch: float) -> float:
        """The noise multiplier of the statistics, in a step charged at `noise`; not asked where k is 0."""

    def learn(
        self, grads: Grads, statistics: Tensor, *, clip: float, std: float, batch_size: float
    ) -> dict[str, Tensor]:
        """What the optimizer gets, from the noisy sums over `batch_size`; remembers what it wants of them.

        `std` is that of the noise on each entry of the gradients' sum, before it was divided.
        """

    def state_dict(self) -> dict[str, Any]:
        """The memory, for a checkpoint: numbers and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a memory that `state` gave."""


class UncertifiedRule(ClippingRule, Protocol):
    """As a paper prints it, though its proof does not cover it: `l2_bound` is true, `claimed_sensitivity` its claim."""

    caveat: str  # why there is no guarantee

    def claimed_sensitivity(self, norms: Tensor, clip: float) -> float:
        """What the paper takes for the sensitivity, from the norms (B,) of the batch: may be private data."""


class AnyRule(AdaptiveClippingRule, UncertifiedRule, Protocol):
    """A rule of any kind."""


register = registry.register


def is_adaptive(rule: ClippingRule) -> TypeGuard[AdaptiveClippingRule]:
    return bool(getattr(rule, "adaptive", False))


def is_published(rule: ClippingRule) -> TypeGuard[UncertifiedRule]:
    """Whether this is one of the papers' rules that are not held to their bound: no rule from outside is."""
    return registry.is_ours(rule) and bool(getattr(rule, "caveat", ""))


def clipping_rule(rule: Any, *, uncertified: bool = False) -> ClippingRule:
    """The rule that a user wrote: a name with options, an address, a mapping, or the rule itself.

    Keep what you get: an adaptive rule made anew has forgotten everything.

    >>> clipping_rule("quantile:target=0.7").target
    0.7
    >>> clipping_rule("own_norm")
    Traceback (most recent call last):
        ...
    privet.errors.Unsupported: rule='own_norm' has no guarantee: each example is scaled by its own norm, so one example
    can move the sum by any amount. Use one of flat, per_layer, normalised, quantile, adaclip, or uncertified=True.
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
    if is_published(made) and not uncertified:
        raise Unsupported(
            f"rule={registry.to_spec(made)!r} has no guarantee: {made.caveat}. Use one of {', '.join(SOUND_RULES)}, "
            "or uncertified=True."
        )
    found: ClippingRule = made
    return found


ROUNDED = 8  # roundings of the norm allowed for, so that a clipped example stays within the bound
NEAR = 4  # roundings below the bound from where an example is cut back: the package's own rules stay below that
LEAST_NORM = 1e-14  # a smaller norm is taken for this one: entries whose squares vanish in float32 are not in it
OfOne = Callable[[Tensor], Tensor]  # a function of one example
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
_SAFETY = {dtype: 1 - ROUNDED * eps for dtype, eps in _EPS.items()}


class BoundedRule:
    """A rule in the hands of the engine, resolved once: one of the package's, without a memory.

    What it asks of a rule with a memory has answers here for one without, so that nobody asks which kind it has.
    """

    remembers = False  # whether it learns from releases
    is_uncertified = False  # whether it is not held to its bound, so that nothing is proven of it
    statistics_bound = 0.0  # the norm of one example's row of statistics is at most this

    def __init__(self, rule: ClippingRule) -> None:
        self.rule = cast(AnyRule, rule)  # only what its kind has is asked of it

    # --- what is public ---

    def clip_in_force(self, clip: float) -> float:
        """The clip now, when the plan says `clip`: that of a rule with a memory, which knows noisy releases only."""
        return clip

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return self.rule.groups(list(names))

    def bound(self, clip: float, groups: int) -> float:
        """The most that one example can add: a number from public numbers, and the one that the noise is made from."""
        found = self.rule.l2_bound(clip, groups)
        if type(found) is not float or not 0 < found < math.inf:
            _check.positive(l2_bound=found)
        return found

    def statistics_noise(self, noise: float, batch: float) -> float:
        return math.inf  # there are none

    # --- of each example ---

    def transform(self, shares: Shares, named: Grads) -> Shares:
        return shares

    def unbounded_scales(self, norms: Tensor, clip: float) -> Tensor:
        """What the rule says, (B, G), not yet held to its bound."""
        return self.rule.scales(norms, clip)

    def scales(self, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
        """What each group of each example is multiplied by, (B, G): no example adds more than `bound`.

            f_i <- f_i min(1, bound / |(f_i1 n_i1, ..., f_iG n_iG)|),   f = 0 where the rule's is not finite

        Of the package's own, no factor is below zero, or so large that it matters.

        Args:
            norms: of the groups of each example, (B, G), finite and never too small, in float32 or float64.
            bound: the rule's, by `bound`.
            dtype: the precision of the gradients, for the roundings that are allowed for.
        """
        scales = self.unbounded_scales(norms, clip * _SAFETY[dtype])
        if not len(norms):
            return scales.to(norms.dtype)
        most = bound * (1 - NEAR * _EPS[dtype])
        if most >= LEAST_NORM:
            reach = scales * norms  # if one is not a number, the largest is not within
            if float((reach if reach.shape[1] == 1 else _row_norms(reach)).max()) <= most:
                return scales
        return _cut_back(scales, norms, bound, dtype)

    def claimed_sensitivity(self, norms: Tensor, clip: float) -> float:
        """What a rule without a guarantee takes for the sensitivity: private data. No other is asked."""
        return float(self.rule.claimed_sensitivity(norms, clip))

    def statistics(self, norms: Tensor, clip: float) -> Tensor | None:
        """What is released beside the gradient, summed over the batch, (k,); None where there is nothing."""
        return None

    # --- of what was released ---

    def learn(self, grads: Grads, statistics: Tensor | None, *, clip: float, std: float, batch_size: float) -> Grads:
        """What the optimizer gets, from the noisy sums over `batch_size`."""
        return grads

    def state_dict(self) -> dict[str, Any] | None:
        """The memory, for a checkpoint; None where there is none."""
        return None

    def load_state_dict(self, state: Any) -> None:
        """Take up a memory."""


class _Remembering(BoundedRule):
    """One with a memory of earlier releases."""

    remembers = True

    def __init__(self, rule: ClippingRule) -> None:
        super().__init__(rule)
        self.statistics_bound = self.rule.statistics_bound

    def clip_in_force(self, clip: float) -> float:
        found = self.rule.current_clip(clip)
        _check.positive(current_clip=found)
        return found

    def statistics_noise(self, noise: float, batch: float) -> float:
        return self.rule.statistics_noise(noise, batch)

    def transform(self, shares: Shares, named: Grads) -> Shares:
        return {name: self.rule.transform(name, share) for name, share in shares.items()}

    def statistics(self, norms: Tensor, clip: float) -> Tensor | None:
        return self.rule.statistics(norms, clip).sum(0)

    def learn(self, grads: Grads, statistics: Tensor | None, *, clip: float, std: float, batch_size: float) -> Grads:
        if statistics is None:
            raise InvalidValue(
                "raw_statistics=None must hold what the rule releases beside the gradient. Use clipped_sum."
            )
        return self.rule.learn(grads, statistics, clip=clip, std=std, batch_size=batch_size)

    def state_dict(self) -> dict[str, Any] | None:
        return self.rule.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.rule.load_state_dict(state)


class _Outside(BoundedRule):
    """One from outside: mapped over the examples, so that it sees one, and measured whatever it says."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        groups = super().groups(names)
        if sorted(name for group in groups for name in group) != sorted(names):
            raise InvalidValue(
                f"rule={_rule_name(self.rule)} must put each of the {len(names)} parameters into one group. Else a "
                "group's norm is not that of what is added. Let groups(names) return every name once."
            )
        return groups

    def bound(self, clip: float, groups: int) -> float:
        found = self.rule.l2_bound(clip, groups)
        _check.positive(l2_bound=found)
        return found

    def unbounded_scales(self, norms: Tensor, clip: float) -> Tensor:
        rows = norms if len(norms) else norms.new_ones(1, norms.shape[1])  # a rule that fails does so in any batch
        found = _map_rule(self.rule, "scales", rows, clip)[: len(norms)]
        _check_shape(self.rule, "scales", found, norms.shape[1:])
        return found.double()

    def scales(self, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
        scales = self.unbounded_scales(norms, clip * _SAFETY[dtype])
        return _cut_back(scales, norms, bound, dtype) if len(norms) else scales.to(norms.dtype)


class _OutsideRemembering(_Outside, _Remembering):
    """One from outside, with a memory: its statistics and the gradients that it changes are of one example, too."""

    def transform(self, shares: Shares, named: Grads) -> Shares:
        """Its answers are kept whole: what is measured is then what is added, whatever it would say if asked again."""
        return {name: _transform_gradient(self.rule, name, share, named[name].shape) for name, share in shares.items()}

    def statistics(self, norms: Tensor, clip: float) -> Tensor | None:
        """No example's row has a norm above `statistics_bound`."""
        statistics = _map_rule(self.rule, "statistics", norms if len(norms) else norms.new_zeros(1), clip)
        if statistics.dim() != 2:
            _check_shape(self.rule, "statistics", statistics, torch.Size((statistics[0].numel(),)))
        statistics = torch.where(statistics.isfinite(), statistics.double(), 0.0)[: len(norms)]
        reach = torch.linalg.vector_norm(statistics, dim=1)
        cut = torch.where(reach <= self.statistics_bound, 1.0, self.statistics_bound * _SAFETY[torch.float64] / reach)
        return (statistics * cut[:, None]).sum(0)


class Uncertified(BoundedRule):
    """A paper's rule whose proof does not cover it: not held, as its bound is not what its noise is made from."""

    is_uncertified = True

    def bound(self, clip: float, groups: int) -> float:
        return self.rule.l2_bound(clip, groups)

    def scales(self, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
        return self.unbounded_scales(norms, clip * _SAFETY[dtype]).to(norms.dtype)


def bounded(rule: "ClippingRule | BoundedRule") -> BoundedRule:
    """The rule, as the engine asks it."""
    if isinstance(rule, BoundedRule):
        return rule
    if is_published(rule):
        return Uncertified(rule)
    if registry.is_ours(rule):
        return _Remembering(rule) if is_adaptive(rule) else BoundedRule(rule)
    return _OutsideRemembering(rule) if is_adaptive(rule) else _Outside(rule)


def _cut_back(scales: Tensor, norms: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    scales = torch.where(scales.isfinite(), scales.double(), 0.0)
    reach = _row_norms(scales * norms.clamp(min=LEAST_NORM))
    cut = torch.where(reach <= bound * (1 - NEAR * _EPS[dtype]), 1.0, bound * _SAFETY[dtype] / reach)
    scales = torch.where(cut.isfinite(), cut, 0.0)[:, None] * scales
    largest = torch.finfo(norms.dtype).max
    return scales.clamp(-largest, largest).to(norms.dtype)


def _row_norms(rows: Tensor) -> Tensor:
    """The norm of each row, (B,), in float64: `sum` adds in pairs, so that many groups lose no digit."""
    return rows.double().square().sum(1).sqrt()


def _transform_gradient(rule: Any, name: str, share: PerExampleGradient, shape: torch.Size) -> PerExampleGradient:
    word = f"transform[{name!r}]"
    sample, one = torch.ones(shape), cast(Callable[[str, Tensor], Tensor], rule.transform)
    if one(name, sample) is sample:
        return share
    grads = share.materialize().reshape(-1, *shape)
    found = _map_rows(rule, word, partial(one, name), grads)
    _check_shape(rule, word, found, shape)
    return Dense(found.to(grads.dtype))


def _map_rule(rule: ClippingRule, word: str, rows: Tensor, clip: float) -> Tensor:
    method = getattr(rule, word)
    return _map_rows(rule, word, lambda row: method(row, clip), rows)


def _map_rows(rule: ClippingRule, word: str, one: OfOne, rows: Tensor) -> Tensor:
    """A function of one example over all of them; it may draw no random numbers, and branch on no value.

    Where it fails, it is tried on a made-up example. If that fails too, the error is public. If not, the error comes
    from a record: the examples are then taken alone, and those that fail count as zero.
    """
    try:
        return _vmap(rule, word, one, rows)
    except InvalidValue:
        raise
    except Exception:
        made_up = torch.ones_like(rows[:1])
    try:
        zero = torch.zeros_like(_vmap(rule, word, one, made_up))
    except InvalidValue:
        raise
    except Exception as error:
        raise InvalidValue(
            f"rule={_rule_name(rule)} fails in {word} on one example, with a {type(error).__name__}: "
            f"{one_line(error)}. It is mapped over the examples: no random numbers, no `if` and no number taken out "
            "of a tensor. Use torch.where."
        ) from None
    return torch.cat([_map_single_row(rule, word, one, row, zero) for row in torch.split(rows, 1)])


def _map_single_row(rule: ClippingRule, word: str, one: OfOne, row: Tensor, zero: Tensor) -> Tensor:
    try:
        return _vmap(rule, word, one, row)
    except Exception:
        return zero


def _vmap(rule: ClippingRule, word: str, one: OfOne, rows: Tensor) -> Tensor:
    found: Any = torch.vmap(one, randomness="error")(rows.clone())  # what it writes there is not what is measured
    if not isinstance(found, Tensor) or found.is_complex():
        kind = "complex numbers" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InvalidValue(f"rule={_rule_name(rule)} gave {kind} for {word}. Return a tensor of real numbers.")
    return found


def _check_shape(rule: ClippingRule, word: str, found: Tensor, shape: torch.Size) -> None:
    if found.shape[1:] != shape:
        raise InvalidValue(
            f"rule={_rule_name(rule)} gave {word} of shape {tuple(found.shape[1:])} for one example; it must be "
            f"{tuple(shape)}. A rule sees one example at a time. Return one number for each that it is given."
        )


def _rule_name(rule: ClippingRule) -> str:
    return repr(type(rule).__qualname__)
