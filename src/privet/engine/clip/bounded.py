"""Every rule held to its bound: what it says of one example is measured, and cut back where it says too much.

Two things make a clipping rule private, and neither is left to the rule. An example's factors may not depend on the
others: a rule from outside is mapped over the examples by `torch.vmap`, so that it sees one. And no example may add
more than `norm_bound`: what its factors leave of it is measured, and shrunk to the bound if it is more. Nothing is
raised for what a rule says of a record, since an error that depends on a record would be a release of its own.

The package's own rules keep their vectorised code, and stay so far below the bound that they are left as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from privet import _check
from privet._registry import one_line
from privet.engine.clip.base import Adaptive, Rule, is_adaptive, is_published
from privet.engine.share import Dense, Share
from privet.errors import InvalidValue
from privet.planning.rules import registry

ROUNDED = 8  # roundings of the norm allowed for, so that a clipped example stays within the bound
NEAR = 4  # roundings below the bound from where an example is cut back: the package's own rules stay below that
LEAST_NORM = 1e-14  # a smaller norm is taken for this one: entries whose squares vanish in float32 are not in it
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
_SAFETY = {dtype: 1 - ROUNDED * eps for dtype, eps in _EPS.items()}


def bounded_factors(rule: Rule, norms: Tensor, clip: float, *, bound: float, dtype: torch.dtype) -> Tensor:
    """What each group of each example is multiplied by, (B, G): no example adds more than `norm_bound`.

        f_i <- f_i min(1, bound / |(f_i1 n_i1, ..., f_iG n_iG)|),   f = 0 where the rule's is not finite

    A published rule without a guarantee is the one that is not held: its bound is not what its noise is made from.

    Args:
        norms: of the groups of each example, (B, G), finite and never too small, in float32 or float64.
        bound: the rule's, by `bound_of`.
        dtype: the precision of the gradients, for the roundings that are allowed for.

    >>> from privet.engine.clip import rule_for
    >>> norms = torch.tensor([[0.5], [4.0]])
    >>> bounded_factors(rule_for("flat"), norms, 1.0, bound=1.0, dtype=norms.dtype).round(decimals=4)
    tensor([[1.0000],
            [0.2500]])
    """
    factors = factors_of(rule, norms, clip * _SAFETY[dtype])
    if is_published(rule) or not len(norms):
        return factors.to(norms.dtype)
    most = bound * (1 - NEAR * _EPS[dtype])
    if most >= LEAST_NORM and registry.is_ours(rule):  # of ours, no factor is below zero, or so large that it matters
        reach = factors * norms
        if float((reach if reach.shape[1] == 1 else _norm(reach)).max()) <= most:  # not so if one is not a number
            return factors
    factors = torch.where(factors.isfinite(), factors.double(), 0.0)
    reach = _norm(factors * norms.clamp(min=LEAST_NORM))
    cut = torch.where(reach <= most, 1.0, bound * _SAFETY[dtype] / reach)
    factors = torch.where(cut.isfinite(), cut, 0.0)[:, None] * factors
    largest = torch.finfo(norms.dtype).max
    return factors.clamp(-largest, largest).to(norms.dtype)


def _norm(rows: Tensor) -> Tensor:
    """The norm of each row, (B,), in float64: `sum` adds in pairs, so that many groups lose no digit."""
    return rows.double().square().sum(1).sqrt()


def factors_of(rule: Rule, norms: Tensor, clip: float) -> Tensor:
    """What a rule says, (B, G), not yet held to its bound."""
    if registry.is_ours(rule):
        return rule.factors(norms, clip)
    rows = norms if len(norms) else norms.new_ones(1, norms.shape[1])  # a rule that fails does so in any batch
    found = _mapped(rule, "factors", rows, clip)[: len(norms)]
    _check_shape(rule, "factors", found, norms.shape[1:])
    return found.double()


def bound_of(rule: Rule, clip: float, groups: int) -> float:
    """The most that one example can add: a number from public numbers, and the one that the noise is made from."""
    bound = rule.norm_bound(clip, groups)
    if not is_published(rule):
        _check.positive(norm_bound=bound)
    return bound


def groups_of(rule: Rule, names: Sequence[str]) -> list[list[str]]:
    """Which parameters are clipped together, each in one group."""
    groups = rule.groups(list(names))
    if not registry.is_ours(rule) and sorted(name for group in groups for name in group) != sorted(names):
        raise InvalidValue(
            f"rule={_name(rule)} must put each of the {len(names)} parameters into one group. Else a group's norm is "
            "not that of what is added. Let groups(names) return every name once."
        )
    return groups


def clip_in_force(rule: Rule, clip: float) -> float:
    """The clip now, when the plan says `clip`: that of a rule with a memory, which knows noisy releases only."""
    if not is_adaptive(rule):
        return clip
    found = rule.threshold(clip)
    _check.positive(threshold=found)
    return found


def summed_bits(rule: Rule, norms: Tensor, clip: float) -> Tensor | None:
    """What an adaptive rule releases beside the gradient, (k,): no example's row has a norm above `bit_bound`."""
    if not is_adaptive(rule):
        return None
    if registry.is_ours(rule):
        return rule.bits(norms, clip).sum(0)
    bits = _mapped(rule, "bits", norms if len(norms) else norms.new_zeros(1), clip)
    if bits.dim() != 2:
        _check_shape(rule, "bits", bits, torch.Size((bits[0].numel(),)))
    bits = torch.where(bits.isfinite(), bits.double(), 0.0)[: len(norms)]
    reach = torch.linalg.vector_norm(bits, dim=1)
    cut = torch.where(reach <= rule.bit_bound, 1.0, rule.bit_bound * _SAFETY[torch.float64] / reach)
    return (bits * cut[:, None]).sum(0)


def transformed(rule: Rule, shares: Mapping[str, Share], named: Mapping[str, Tensor]) -> Mapping[str, Share]:
    """The gradients as they are to be clipped.

    A rule from outside is given the gradient of one example, and its answers are kept whole: what is measured is then
    what is added, whatever the rule would say when asked again.
    """
    if not is_adaptive(rule):
        return shares
    if registry.is_ours(rule):
        return {name: rule.transformed(name, share) for name, share in shares.items()}
    return {name: _transformed(rule, name, share, named[name].shape) for name, share in shares.items()}


def _transformed(rule: Adaptive, name: str, share: Share, shape: torch.Size) -> Share:
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
