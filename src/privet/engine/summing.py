"""From shares to the clipped sum: norms, factors, weighted sums; what is huge or not finite is taken with care."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privet.engine.clip import Rule
from privet.engine.clip.bounded import bound_of, bounded_factors, clip_in_force, groups_of, summed_bits, transformed
from privet.engine.share import Share, sum_into, without_autocast
from privet.errors import InvalidValue

HUGE = 1e30  # a squared norm above this is taken again in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """The clipped sum of per-example gradients. All but `norm_bound` is computed from data without noise."""

    grads: Mapping[str, Tensor]
    norm_bound: float  # the most one example can move the sum
    raw_norms: Tensor  # (B,), of whole gradients, before clipping
    raw_batch: int
    raw_bits: Tensor | None = None  # summed over the batch: what an adaptive rule releases beside the gradient
    _lost: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # what rounding took when pieces were added

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """The sum over both batches: pieces of one logical batch, clipped by one rule."""
        if self.norm_bound != other.norm_bound or self.grads.keys() != other.grads.keys():
            raise InvalidValue(
                f"norm_bound={other.norm_bound!r} must be {self.norm_bound!r}. Pieces of a batch share one clip. "
                "Clip them alike."
            )
        grads, lost = {}, {}
        for name, grad in self.grads.items():
            left = [piece._lost[name] for piece in (self, other) if name in piece._lost]
            grads[name], lost[name] = _added(grad, other.grads[name], left)
        return ClippedSum(
            grads=grads, norm_bound=self.norm_bound,
            raw_norms=torch.cat([self.raw_norms, other.raw_norms]), raw_batch=self.raw_batch + other.raw_batch,
            raw_bits=None if self.raw_bits is None or other.raw_bits is None else self.raw_bits + other.raw_bits,
            _lost=lost,
        )  # fmt: skip


def _added(a: Tensor, b: Tensor, left: list[Tensor]) -> tuple[Tensor, Tensor]:
    """a + b + what is left of earlier roundings, and what is lost in it (Knuth's two-sum).

    Plainly added, many small pieces would lose more than the allowance of secure noise: one example more moves all
    later ones into other pieces, and every rounding comes out otherwise.
    """
    total = a + b
    second = total - a
    lost = (a - (total - second)).add_(b - second)
    for more in left:
        lost = lost + more
    found = total + lost
    return found, lost.sub_(found - total)


Named = Mapping[str, nn.Parameter]


def clipped(shares: Mapping[str, Share], named: Named, size: int, rule: Rule, clip: float) -> ClippedSum:
    """The sum over examples of what `rule` leaves of each one's gradient, in float32 or better also under autocast."""
    with torch.no_grad(), without_autocast(next(iter(named.values())).device.type):
        return _clipped(shares, named, size, rule, clip)


def _clipped(shares: Mapping[str, Share], named: Named, size: int, rule: Rule, clip: float) -> ClippedSum:
    clip = clip_in_force(rule, clip)
    shares = transformed(rule, shares, named)
    groups = [[n for n in group if n in shares] for group in groups_of(rule, list(named))]
    bound = bound_of(rule, clip, len(groups))
    columns = [_sq_norms(shares, group, size, named) for group in groups]
    sq, whole = (columns[0][:, None], columns[0]) if len(groups) == 1 else _together(columns)
    if float(whole.max()) <= HUGE:  # none is near overflow, or NaN
        grads = _summed(shares, groups, bounded_factors(rule, sq.sqrt(), clip, bound=bound, dtype=sq.dtype), named)
    else:
        grads, whole = _summed_with_care(shares, groups, sq, whole, rule, clip, bound, named)
    norms = whole.sqrt()
    return ClippedSum(
        grads=grads, norm_bound=bound, raw_norms=norms, raw_batch=size,
        raw_bits=summed_bits(rule, norms, clip),
    )  # fmt: skip


def _together(columns: list[Tensor]) -> tuple[Tensor, Tensor]:
    sq = torch.stack(columns, 1)  # (B, G)
    return sq, sq.sum(1)


def nothing(named: Named, rule: Rule, clip: float) -> ClippedSum:
    """No example: nothing is computed, the sum is zero."""
    some = next(iter(named.values()))
    clip = clip_in_force(rule, clip)
    norms, groups = torch.zeros(0, device=some.device, dtype=_wide(some)), len(groups_of(rule, list(named)))
    bound = bound_of(rule, clip, groups)
    bounded_factors(rule, norms.new_zeros(0, groups), clip, bound=bound, dtype=norms.dtype)  # a rule that fails
    return ClippedSum(
        grads={name: torch.zeros_like(p, dtype=_wide(p), requires_grad=False) for name, p in named.items()},
        norm_bound=bound, raw_norms=norms, raw_batch=0,
        raw_bits=summed_bits(rule, norms, clip),
    )  # fmt: skip


def _sq_norms(shares: Mapping[str, Share], group: list[str], size: int, named: Named) -> Tensor:
    found = [shares[name].sq_norms() for name in group]
    if not found:
        some = next(iter(named.values()))
        return torch.zeros(size, device=some.device, dtype=_wide(some))
    total = found[0]
    for more in found[1:]:
        total = total + more
    return total


def _summed(shares: Mapping[str, Share], groups: list[list[str]], weights: Tensor, named: Named) -> dict[str, Tensor]:
    """{name: sum_b weight_b gradient_b}; zero for what no example touched."""
    each = weights.unbind(1) if len(groups) > 1 else [weights[:, 0]]
    columns = {name: column for group, column in zip(groups, each, strict=True) for name in group}
    found = _places(named)
    for name, place in found.items():
        if name in columns:
            sum_into(place, shares[name], _as(columns[name], place.dtype))
        else:
            place.zero_()
    return found


def _places(named: Named) -> dict[str, Tensor]:
    """Where the sums are written: for each device and precision one buffer, so that noise goes on all of it at once."""
    kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, p in named.items():
        kinds.setdefault((p.device, _wide(p)), []).append(name)
    found: dict[str, Tensor] = {}
    for (device, dtype), names in kinds.items():
        sizes = [named[name].numel() for name in names]
        pieces = torch.split_with_sizes(torch.empty(sum(sizes), device=device, dtype=dtype), sizes)
        for name, piece in zip(names, pieces, strict=True):
            p = named[name]
            found[name] = piece if p.dim() == 1 else piece.view(p.shape)
    return found if len(kinds) == 1 else {name: found[name] for name in named}


def _as(weights: Tensor, dtype: torch.dtype) -> Tensor:
    return weights if weights.dtype is dtype else weights.to(dtype)


def _summed_with_care(
    shares: Mapping[str, Share], groups: list[list[str]], sq: Tensor, whole: Tensor, rule: Rule, clip: float,
    bound: float, named: Named,
) -> tuple[dict[str, Tensor], Tensor]:  # fmt: skip
    """Some examples are huge or not finite: those again in float64; what is still not finite counts as zero."""
    fine = whole <= HUGE
    good, rest = fine.nonzero()[:, 0], (~fine).nonzero()[:, 0]
    usual = {name: share.part(good, sq.dtype) for name, share in shares.items()}
    grads = _summed(usual, groups, bounded_factors(rule, sq[good].sqrt(), clip, bound=bound, dtype=sq.dtype), named)
    careful = {name: share.part(rest, torch.float64) for name, share in shares.items()}
    sq_rest = torch.stack([_sq_norms(careful, group, len(rest), named).double() for group in groups], 1)
    whole = whole.index_copy(0, rest, sq_rest.sum(1).to(whole.dtype))
    finite = sq_rest.sum(1).isfinite().nonzero()[:, 0]
    if len(finite):
        kept = {name: share.part(finite, torch.float64) for name, share in careful.items()}
        weights = bounded_factors(rule, sq_rest[finite].sqrt(), clip, bound=bound, dtype=sq.dtype)
        columns = {name: k for k, group in enumerate(groups) for name in group}
        for name, share in kept.items():
            more = share.weighted_sum(weights[:, columns[name]])
            grads[name] = grads[name] + more.to(grads[name].dtype).view_as(grads[name])
    return grads, whole


def _wide(p: Tensor) -> torch.dtype:
    return p.dtype if p.dtype in (torch.float32, torch.float64) else torch.float32
