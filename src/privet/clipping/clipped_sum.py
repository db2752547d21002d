"""The clipped sum of per-example gradients: norms, scales, weighted sums; what is huge or not finite with care."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privet import _check
from privet.clipping.rule import BoundedRule, ClippingRule, bounded, clipping_rule
from privet.errors import InvalidValue
from privet.per_example.forms import WIDE, PerExampleGradient, sum_into, without_autocast
from privet.per_example.gradients import Force, Loss, Work, prepare_work
from privet.per_example.loop_record import gradients_of_recorded_losses
from privet.per_example.model_facts import trainable_parameters

LEAST_CLIP = 1e-12  # entries whose squares vanish in float32 add less than 1e-15 to a norm, for 1e8 parameters
HUGE = 1e30  # a squared norm above this is taken again in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedSum:
    """The clipped sum of per-example gradients. All but `l2_bound` is computed from data without noise."""

    grads: Mapping[str, Tensor]
    l2_bound: float  # the most one example can move the sum
    raw_norms: Tensor  # (B,), of whole gradients, before clipping
    raw_batch_size: int
    raw_statistics: Tensor | None = None  # summed over the batch: what an adaptive rule releases beside the gradient
    _lost: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # what rounding took when pieces were added

    def __add__(self, other: "ClippedSum") -> "ClippedSum":
        """The sum over both batches: pieces of one logical batch, clipped by one rule."""
        if self.l2_bound != other.l2_bound or self.grads.keys() != other.grads.keys():
            raise InvalidValue(
                f"l2_bound={other.l2_bound!r} must be {self.l2_bound!r}. Pieces of a batch share one clip. "
                "Clip them alike."
            )
        grads, lost = {}, {}
        for name, grad in self.grads.items():
            left = [piece._lost[name] for piece in (self, other) if name in piece._lost]
            grads[name], lost[name] = _two_sum(grad, other.grads[name], left)
        mine, theirs = self.raw_statistics, other.raw_statistics
        return ClippedSum(
            grads=grads, l2_bound=self.l2_bound, raw_norms=torch.cat([self.raw_norms, other.raw_norms]),
            raw_batch_size=self.raw_batch_size + other.raw_batch_size,
            raw_statistics=None if mine is None or theirs is None else mine + theirs, _lost=lost,
        )  # fmt: skip


def _two_sum(a: Tensor, b: Tensor, left: list[Tensor]) -> tuple[Tensor, Tensor]:
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


class Clipper:
    """A rule and the parameters of a model, resolved once: from shares to the clipped sum, in every step."""

    def __init__(self, rule: "ClippingRule | BoundedRule", named: Named) -> None:
        self.rule, self.named = bounded(rule), named
        self.groups = self.rule.groups(list(named))
        self._device = next(iter(named.values())).device.type

    def sum(self, shares: Mapping[str, PerExampleGradient], size: int, clipping_norm: float) -> ClippedSum:
        """What the rule leaves of each example's gradient, added up, in float32 or better also under autocast.

        `clipping_norm` is the one in force.
        """
        with torch.no_grad(), without_autocast(self._device):
            shares, bound = self.rule.transform(shares, self.named), self.rule.bound(clipping_norm, len(self.groups))
            columns = _group_squared_norms(shares, self.groups, size, self.named)
            sq, whole = (columns[0][:, None], columns[0]) if len(columns) == 1 else _stack_groups(columns)
            if float(whole.max()) <= HUGE:  # none is near overflow, or NaN
                weights = self.rule.scales(sq.sqrt(), clipping_norm, bound=bound, dtype=sq.dtype)
                grads = _weighted_sums(shares, self.groups, weights, self.named)
            else:
                grads, whole = self._sum_huge_in_float64(shares, sq, whole, clipping_norm, bound)
            norms = whole.sqrt()
            return ClippedSum(
                grads=grads, l2_bound=bound, raw_norms=norms, raw_batch_size=size,
                raw_statistics=self.rule.statistics(norms, clipping_norm),
            )  # fmt: skip

    def zero(self, clipping_norm: float) -> ClippedSum:
        """No example: nothing is computed, the sum is zero. `clipping_norm` is the one in force."""
        some = next(iter(self.named.values()))
        norms = torch.zeros(0, device=some.device, dtype=float_dtype(some))
        bound = self.rule.bound(clipping_norm, len(self.groups))
        self.rule.scales(
            norms.new_zeros(0, len(self.groups)), clipping_norm, bound=bound, dtype=norms.dtype
        )  # it may fail
        return ClippedSum(
            grads={n: torch.zeros_like(p, dtype=float_dtype(p), requires_grad=False) for n, p in self.named.items()},
            l2_bound=bound, raw_norms=norms, raw_batch_size=0,
            raw_statistics=self.rule.statistics(norms, clipping_norm),
        )  # fmt: skip

    def _sum_huge_in_float64(
        self, shares: Mapping[str, PerExampleGradient], sq: Tensor, whole: Tensor, clip: float, bound: float
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Some examples are huge or not finite: those again in float64; what is still not finite counts as zero."""
        groups, named = self.groups, self.named
        fine = whole <= HUGE
        good, rest = fine.nonzero()[:, 0], (~fine).nonzero()[:, 0]
        usual = {name: share.select(good, sq.dtype) for name, share in shares.items()}
        weights = self.rule.scales(sq[good].sqrt(), clip, bound=bound, dtype=sq.dtype)
        grads = _weighted_sums(usual, groups, weights, named)
        careful = {name: share.select(rest, torch.float64) for name, share in shares.items()}
        sq_rest = torch.stack([found.double() for found in _group_squared_norms(careful, groups, len(rest), named)], 1)
        whole = whole.index_copy(0, rest, sq_rest.sum(1).to(whole.dtype))
        finite = sq_rest.sum(1).isfinite().nonzero()[:, 0]
        if len(finite):
            kept = {name: share.select(finite, torch.float64) for name, share in careful.items()}
            weights = self.rule.scales(sq_rest[finite].sqrt(), clip, bound=bound, dtype=sq.dtype)
            columns = {name: k for k, group in enumerate(groups) for name in group}
            for name, share in kept.items():
                more = share.weighted_sum(weights[:, columns[name]])
                grads[name] = grads[name] + more.to(grads[name].dtype).view_as(grads[name])
        return grads, whole


def clipped_sum(
    model: nn.Module, loss_fn: "Loss | Tensor", batch: Sequence[Any], rule: "str | ClippingRule" = "flat",
    clipping_norm: float = 1.0, *, augmentations: int = 1, force: Force = "auto", uncertified: bool = False,
) -> ClippedSum:  # fmt: skip
    """The sum over the batch of per-example gradients, each clipped by `rule` to `clipping_norm`.

    `batch` is (inputs, targets), every tensor with its examples along dimension 0; inputs may be a tensor, a tuple
    (positional arguments of the model) or a dict (keyword arguments). `loss_fn(model(inputs), targets)` gives one
    loss per example; losses computed inside `recording(model)` may be given in its place. An example whose gradient is
    not finite counts as zero.

    Args:
        augmentations: rows of each example, lying together; their losses are averaged before clipping, so the bound
            stays.
        force: "vmap" or "loop" runs the whole model example by example; {"fc1": "vmap"} takes the general rule there.

    >>> model = nn.Linear(3, 2)
    >>> x, y = torch.randn(5, 3), torch.randint(2, (5,))
    >>> c = clipped_sum(model, nn.CrossEntropyLoss(reduction="none"), (x, y), rule="flat", clipping_norm=1.0)
    >>> c.l2_bound, sorted(c.grads), bool(c.grads["weight"].norm() <= 5.0)
    (1.0, ['bias', 'weight'], True)

    Raises:
        Unsupported: the model couples examples, or does what no rule covers; names the module and the way out.
    """
    check_clip(clipping_norm)
    held = bounded(clipping_rule(rule, uncertified=uncertified))
    in_force = held.clip_in_force(clipping_norm)
    if isinstance(loss_fn, Tensor):
        return sum_batch(
            model, loss_fn, batch, Clipper(held, trainable_parameters(model)), in_force, augmentations=augmentations
        )
    work = prepare_work(model, loss_fn, batch, augmentations=augmentations, force=force)
    return _sum_work(work, Clipper(held, work.named), in_force)


def sum_batch(
    model: nn.Module, losses: "Loss | Tensor", batch: Sequence[Any], clipper: Clipper, clipping_norm: float, *,
    augmentations: int,
) -> ClippedSum:  # fmt: skip
    """`clipped_sum` for a rule and parameters that are known, at the clip in force."""
    if isinstance(losses, Tensor):
        shares, size = gradients_of_recorded_losses(model, losses, clipper.named, augmentations=augmentations)
        return clipper.sum(shares, size, clipping_norm)
    return _sum_work(prepare_work(model, losses, batch, augmentations=augmentations), clipper, clipping_norm)


def check_clip(clip: float) -> None:
    _check.positive(clipping_norm=clip)
    if clip < LEAST_CLIP:
        raise InvalidValue(
            f"clipping_norm={clip!r} must be at least {LEAST_CLIP:g}. The squares of such gradients vanish in float32, "
            "so norms would come out too small. Scale the loss up, and the clip with it."
        )


def _sum_work(work: Work, clipper: Clipper, clip: float) -> ClippedSum:
    if work.size == 0:
        return clipper.zero(clip)
    parts = [clipper.sum(shares, size, clip) for shares, size in work.parts()]
    return sum(parts[1:], parts[0])


def _stack_groups(columns: list[Tensor]) -> tuple[Tensor, Tensor]:
    sq = torch.stack(columns, 1)  # (B, G)
    return sq, sq.sum(1)


def _group_squared_norms(
    shares: Mapping[str, PerExampleGradient], groups: list[list[str]], size: int, named: Named
) -> list[Tensor]:
    columns: list[Tensor] = []
    for group in groups:
        total: Tensor | None = None
        for name in group:
            if name in shares:
                found = shares[name].squared_norms()
                total = found if total is None else total + found
        if total is None:
            some = next(iter(named.values()))
            total = torch.zeros(size, device=some.device, dtype=float_dtype(some))
        columns.append(total)
    return columns


def _weighted_sums(
    shares: Mapping[str, PerExampleGradient], groups: list[list[str]], weights: Tensor, named: Named
) -> dict[str, Tensor]:
    """{name: sum_b weight_b gradient_b}; zero for what no example touched."""
    each = weights.unbind(1) if len(groups) > 1 else (weights[:, 0],)
    found = _sum_buffers(named)
    for group, column in zip(groups, each, strict=True):
        for name in group:
            place = found[name]
            if name in shares:
                sum_into(place, shares[name], column if column.dtype is place.dtype else column.to(place.dtype))
            else:
                place.zero_()
    return found


def _sum_buffers(named: Named) -> dict[str, Tensor]:
    """Where the sums are written: for each device and precision one buffer, so that noise goes on all of it at once."""
    kinds: dict[tuple[torch.device, torch.dtype], dict[str, int]] = {}
    for name, p in named.items():
        kinds.setdefault((p.device, p.dtype if p.dtype in WIDE else torch.float32), {})[name] = p.numel()
    found: dict[str, Tensor] = {}
    for (device, dtype), sizes in kinds.items():
        each = list(sizes.values())
        pieces = torch.split_with_sizes(torch.empty(sum(each), device=device, dtype=dtype), each)
        for name, piece in zip(sizes, pieces, strict=True):
            p = named[name]
            found[name] = piece if p.dim() == 1 else piece.view(p.shape)
    return found if len(kinds) == 1 else {name: found[name] for name in named}


def float_dtype(p: Tensor) -> torch.dtype:
    return p.dtype if p.dtype in WIDE else torch.float32
