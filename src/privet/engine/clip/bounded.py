"""Every rule held to its bound: what it says of one example is measured, and cut back where it says too much.

Two things make a clipping rule private, and neither is left to the rule. An example's factors may not depend on the
others: a rule from outside is mapped over the examples by `torch.vmap`, so that it sees one. And no example may add
more than `norm_bound`: what its factors leave of it is measured, and shrunk to the bound if it is more. Nothing is
raised for what a rule says of a record, since an error that depends on a record would be a release of its own.

The package's own rules keep their vectorised code, and stay so far below the bound that they are left as they are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from privet import _check
from privet._registry import one_line
from privet.engine.clip.base import Rule, is_adaptive, is_published
from privet.engine.share import Dense, Share
from privet.errors import InvalidValue
from privet.planning.rules import registry

ROUNDED = 8  # roundings of the norm allowed for, so that a clipped example stays within the bound
NEAR = 4  # roundings below the bound from where an example is cut back: the package's own rules stay below that
LEAST_NORM = 1e-14  # a smaller norm is taken for this one: entries whose squares vanish in float32 are not in it
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
_SAFETY = {dtype: 1 - ROUNDED * eps for dtype, eps in _EPS.items()}


class BoundedRule:
    """A rule in the hands of the engine, resolved once: one of the package's, without a memory.

    What it asks of a rule with a memory has answers here for one without, so that nobody asks which kind it has.
    """

    remembers = False  # whether it learns from releases
    is_uncertified = False  # whether it is not held to its bound, so that nothing is proven of it
    bit_bound = 0.0  # the norm of one example's row of bits is at most this

    def __init__(self, rule: Rule) -> None:
        self.rule: Any = rule

    # --- what is public ---

    def clip_in_force(self, clip: float) -> float:
        """The clip now, when the plan says `clip`: that of a rule with a memory, which knows noisy releases only."""
        return clip

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """Which parameters are clipped together, each in one group."""
        found: list[list[str]] = self.rule.groups(list(names))
        return found

    def bound(self, clip: float, groups: int) -> float:
        """The most that one example can add: a number from public numbers, and the one that the noise is made from."""
        found: float = self.rule.norm_bound(clip, groups)
        if type(found) is not float or not 0 < found < math.inf:
            _check.positive(norm_bound=found)
        return found

    def bit_noise(self, noise: float, batch: float) -> float:
        """The noise multiplier of the bits, in a step charged at `noise`."""
        return math.inf  # there are none

    # --- of each example ---

    def transform(self, shares: Mapping[str, Share], named: Mapping[str, Tensor]) -> Mapping[str, Share]:
        """The gradients as they are to be clipped."""
        return shares

    def say(self, norms: Tensor, clip: float) -> Tensor:
        """What the rule says, (B, G), not yet held to its bound."""
        found: Tensor = self.rule.factors(norms, clip)
        return found

    def factors(self, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
        """What each group of each example is multiplied by, (B, G): no example adds more than `bound`.

        Of the package's own, no factor is below zero, or so large that it matters.
        """
        factors = self.say(norms, clip * _SAFETY[dtype])
        if not len(norms):
            return factors.to(norms.dtype)
        most = bound * (1 - NEAR * _EPS[dtype])
        if most >= LEAST_NORM:
            reach = factors * norms
            if float((reach if reach.shape[1] == 1 else _norm(reach)).max()) <= most:  # not so if one is not a number
                return factors
        return _cut_back(factors, norms, bound, dtype)

    def raw_scale(self, norms: Tensor, clip: float) -> float:
        """What a rule without a guarantee takes for the sensitivity: private data. No other is asked."""
        return float(self.rule.raw_scale(norms, clip))

    def bits(self, norms: Tensor, clip: float) -> Tensor | None:
        """What is released beside the gradient, summed over the batch, (k,); None where there is nothing."""
        return None

    # --- of what was released ---

    def learn(
        self, grads: Mapping[str, Tensor], bits: Tensor | None, *, clip: float, std: float, batch: float
    ) -> Mapping[str, Tensor]:
        """What the optimizer gets, from the noisy sums over `batch`."""
        return grads

    def state(self) -> dict[str, Any] | None:
        """The memory, for a checkpoint; None where there is none."""
        return None

    def restore(self, state: Any) -> None:
        """Take up a memory."""


class _Remembering(BoundedRule):
    """One with a memory of earlier releases."""

    remembers = True

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.bit_bound = self.rule.bit_bound

    def clip_in_force(self, clip: float) -> float:
        found: float = self.rule.threshold(clip)
        _check.positive(threshold=found)
        return found

    def bit_noise(self, noise: float, batch: float) -> float:
        found: float = self.rule.bit_noise(noise, batch)
        return found

    def transform(self, shares: Mapping[str, Share], named: Mapping[str, Tensor]) -> Mapping[str, Share]:
        return {name: self.rule.transformed(name, share) for name, share in shares.items()}

    def bits(self, norms: Tensor, clip: float) -> Tensor | None:
        found: Tensor = self.rule.bits(norms, clip).sum(0)
        return found

    def learn(
        self, grads: Mapping[str, Tensor], bits: Tensor | None, *, clip: float, std: float, batch: float
    ) -> Mapping[str, Tensor]:
        if bits is None:
            raise InvalidValue("raw_bits=None must hold what the rule releases beside the gradient. Use clipped_sum.")
        found: Mapping[str, Tensor] = self.rule.released(grads, bits, clip=clip, std=std, batch=batch)
        return found

    def state(self) -> dict[str, Any] | None:
        found: dict[str, Any] = self.rule.state()
        return found

    def restore(self, state: Any) -> None:
        self.rule.restore(state)


class _Outside(BoundedRule):
    """One from outside: mapped over the examples, so that it sees one, and measured whatever it says."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        groups = super().groups(names)
        if sorted(name for group in groups for name in group) != sorted(names):
            raise InvalidValue(
                f"rule={_name(self.rule)} must put each of the {len(names)} parameters into one group. Else a group's "
                "norm is not that of what is added. Let groups(names) return every name once."
            )
        return groups

    def bound(self, clip: float, groups: int) -> float:
        found: float = self.rule.norm_bound(clip, groups)
        _check.positive(norm_bound=found)
        return found

    def say(self, norms: Tensor, clip: float) -> Tensor:
        rows = norms if len(norms) else norms.new_ones(1, norms.shape[1])  # a rule that fails does so in any batch
        found = _mapped(self.rule, "factors", rows, clip)[: len(norms)]
        _check_shape(self.rule, "factors", found, norms.shape[1:])
        return found.double()

    def factors(self, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
        factors = self.say(norms, clip * _SAFETY[dtype])
        return _cut_back(factors, norms, bound, dtype) if len(norms) else factors.to(norms.dtype)


class _OutsideRemembering(_Outside, _Remembering):
    """One from outside, with a memory: also its bits and the gradients that it changes are those of one example."""

    def transform(self, shares: Mapping[str, Share], named: Mapping[str, Tensor]) -> Mapping[str, Share]:
        """Its answers are kept whole: what is measured is then what is added, whatever it would say if asked again."""
        return {name: _transformed(self.rule, name, share, named[name].shape) for name, share in shares.items()}

    def bits(self, norms: Tensor, clip: float) -> Tensor | None:
        """No example's row has a norm above `bit_bound`."""
        bits = _mapped(self.rule, "bits", norms if len(norms) else norms.new_zeros(1), clip)
        if bits.dim() != 2:
            _check_shape(self.rule, "bits", bits, torch.Size((bits[0].numel(),)))
        bits = torch.where(bits.isfinite(), bits.double(), 0.0)[: len(norms)]
        reach = torch.linalg.vector_norm(bits, dim=1)
        cut = torch.where(reach <= self.bit_bound, 1.0, self.bit_bound * _SAFETY[torch.float64] / reach)
        return (bits * cut[:, None]).sum(0)


class Uncertified(BoundedRule):
    """A paper's rule whose proof does not cover it: not held, as its bound is not what its noise is made from."""

    is_uncertified = True

    def bound(self, clip: float, groups: int) -> float:
        found: float = self.rule.norm_bound(clip, groups)
        return found

    def factors(self, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
        return self.say(norms, clip * _SAFETY[dtype]).to(norms.dtype)


def bounded(rule: "Rule | BoundedRule") -> BoundedRule:
    """The rule, as the engine asks it."""
    if isinstance(rule, BoundedRule):
        return rule
    if is_published(rule):
        return Uncertified(rule)
    if registry.is_ours(rule):
        return _Remembering(rule) if is_adaptive(rule) else BoundedRule(rule)
    return _OutsideRemembering(rule) if is_adaptive(rule) else _Outside(rule)


def bounded_factors(rule: Rule, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
    """What each group of each example is multiplied by, (B, G): no example adds more than `norm_bound`.

        f_i <- f_i min(1, bound / |(f_i1 n_i1, ..., f_iG n_iG)|),   f = 0 where the rule's is not finite

    A published rule without a guarantee is the one that is not held: its bound is not what its noise is made from.

    Args:
        norms: of the groups of each example, (B, G), finite and never too small, in float32 or float64.
        bound: the rule's, by `BoundedRule.bound`.
        dtype: the precision of the gradients, for the roundings that are allowed for.

    >>> from privet.engine.clip import rule_for
    >>> norms = torch.tensor([[0.5], [4.0]])
    >>> bounded_factors(rule_for("flat"), norms, 1.0, bound=1.0, dtype=norms.dtype).round(decimals=4)
    tensor([[1.0000],
            [0.2500]])
    """
    return bounded(rule).factors(norms, clip, bound=bound, dtype=dtype)


def _cut_back(factors: Tensor, norms: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    factors = torch.where(factors.isfinite(), factors.double(), 0.0)
    reach = _norm(factors * norms.clamp(min=LEAST_NORM))
    cut = torch.where(reach <= bound * (1 - NEAR * _EPS[dtype]), 1.0, bound * _SAFETY[dtype] / reach)
    factors = torch.where(cut.isfinite(), cut, 0.0)[:, None] * factors
    largest = torch.finfo(norms.dtype).max
    return factors.clamp(-largest, largest).to(norms.dtype)


def _norm(rows: Tensor) -> Tensor:
    """The norm of each row, (B,), in float64: `sum` adds in pairs, so that many groups lose no digit."""
    return rows.double().square().sum(1).sqrt()


def _transformed(rule: Any, name: str, share: Share, shape: torch.Size) -> Share:
    word = f"transformed[{name!r}]"
    sample, one = torch.ones(shape), cast(Callable[[str, Tensor], Tensor], rule.transformed)
    if one(name, sample) is sample:
        return share
    grads = share.dense().reshape(-1, *shape)
    found = _over_rows(rule, word, partial(one, name), grads)
    _check_shape(rule, word, found, shape)
    return Dense(found.to(grads.dtype))


def _mapped(rule: Rule, word: str, rows: Tensor, clip: float) -> Tensor:
    method = getattr(rule, word)
    return _over_rows(rule, word, lambda row: method(row, clip), rows)


def _over_rows(rule: Rule, word: str, one: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
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
            f"rule={_name(rule)} fails in {word} on one example, with a {type(error).__name__}: {one_line(error)}. It "
            "is mapped over the examples: no random numbers, no `if` and no number taken out of a tensor. Use "
            "torch.where."
        ) from None
    return torch.cat([_alone(rule, word, one, row, zero) for row in torch.split(rows, 1)])


def _alone(rule: Rule, word: str, one: Callable[[Tensor], Tensor], row: Tensor, zero: Tensor) -> Tensor:
    try:
        return _vmap(rule, word, one, row)
    except Exception:
        return zero


def _vmap(rule: Rule, word: str, one: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    found: Any = torch.vmap(one, randomness="error")(rows.clone())  # what it writes there is not what is measured
    if not isinstance(found, Tensor) or found.is_complex():
        kind = "complex numbers" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InvalidValue(f"rule={_name(rule)} gave {kind} for {word}. Return a tensor of real numbers.")
    return found


def _check_shape(rule: Rule, word: str, found: Tensor, shape: torch.Size) -> None:
    if found.shape[1:] != shape:
        raise InvalidValue(
            f"rule={_name(rule)} gave {word} of shape {tuple(found.shape[1:])} for one example; it must be "
            f"{tuple(shape)}. A rule sees one example at a time. Return one number for each that it is given."
        )


def _name(rule: Rule) -> str:
    return repr(type(rule).__qualname__)
