"""The one way out: charge > noise > divide by the public batch > the rule learns. Nothing else may leave the engine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet.accounting import Step
from privet.accounting.guarantee import ADJACENCIES, Adjacency
from privet.accounting.ledger import GAUSSIAN, Gaussian
from privet.clipping.clipped_sum import ClippedSum
from privet.clipping.rule import BoundedRule, ClippingRule, bounded, clipping_rule
from privet.errors import InvalidValue, Unsupported
from privet.ledger.account import Charge, issue_uncharged
from privet.noise.discrete import add_secure_noise, choose_grid
from privet.noise.gaussian import add_noise, rescaled_noise_std, shared_buffer
from privet.noise.mechanism import NoiseMechanism, NoiseState, Noisy, Sums, register, resolve_mechanism
from privet.noise.randomness import Randomness

_BITS, _STD = ".statistics", ".std"  # beside the gradients, between ranks; no parameter can have these names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """What a step gave away: all of it is noisy, or was public before."""

    grads: Mapping[str, Tensor]  # the noisy average, one for each parameter
    clipping_norm: float  # in force in this step
    batch_size: float  # the divisor
    std: float | None  # of the noise on each entry of the sum; None where a published rule reads it off the data


class Ranks:
    """The processes that make a step together, as a release sees them; here one that is alone."""

    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one that prints, evaluates and writes files."""
        return True

    def noise_per_rank(self, noise: float) -> float:
        """What each adds so that the sum of their independent noises has this size."""
        return noise

    def noise_of_all(self, std: float) -> float:
        """The size of the sum of the ranks' noises of this size."""
        return std

    def sum_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The sum over all ranks, on every rank the same to the last bit."""
        return tensors

    def sum_on_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The sum over all ranks on rank 0; what the others are given means nothing."""
        return tensors

    def broadcast(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What rank 0 has, on every rank; the others give tensors of the same shapes."""
        return tensors


@dataclass(slots=True, kw_only=True, eq=False)
class Releaser:
    """Makes the releases of one run, by one rule and one kind of noise. What a step costs is read off its charge.

    Many ranks give every one of them the same outcome to the last bit. Each adds its part of the noise before its sum
    leaves the rank, from a source of its own: the sum of independent Gaussians is Gaussian with the sum of the
    variances. If a rank is missing there is no sum, and nothing is released. Secure noise is rounded, so sums of it are
    another law: there rank 0 adds up what is exact and makes the whole noise. A rule with a memory learns on every
    rank, the same from the same.
    """

    rule: BoundedRule
    groups: int  # of the rule
    randomness: Randomness
    adjacency: Adjacency
    mechanism: NoiseMechanism
    state: NoiseState  # the mechanism's
    ranks: Ranks
    in_place: bool  # noise may go on the sums themselves, which are gone then: saves a copy
    claimed_sensitivity: float | None = None  # of a rule without a guarantee: the sensitivity it took last; not private

    def __post_init__(self) -> None:
        _check.one_of(ADJACENCIES, adjacency=self.adjacency)

    def release(self, total: ClippedSum, charge: Charge, *, batch_size: float) -> Release:
        """What the optimizer may see of a step that is charged, also of one without records: called once for each.

        `batch_size` is the planned (expected) one, rate times dataset size: a public constant, never the realised one.
        """
        sums = self._measure(total, charge, batch_size)
        if sums is None:  # a published rule that takes its sensitivity for zero
            charge.spend(self.mechanism.spec)
            plain = {name: grad.detach() / batch_size for name, grad in total.grads.items()}
            _check_finite(plain)
            return Release(grads=plain, clipping_norm=charge.clip, batch_size=batch_size, std=None)
        grads, statistics, std = self._privatize(sums, total, charge, batch_size)
        learnt = self.rule.learn(grads, statistics, clip=charge.clip, std=std, batch_size=batch_size)
        if learnt is not grads:
            _check_finite(learnt)
        known_std = None if self.rule.is_uncertified else std
        return Release(grads=learnt, clipping_norm=charge.clip, batch_size=batch_size, std=known_std)

    def _measure(self, total: ClippedSum, charge: Charge, batch: float) -> list[Sums] | None:
        """What gets noise, and of which size: from public numbers, or by a published rule's own account of the data."""
        step, rule = charge.step, self.rule
        bound = rule.bound(charge.clip, self.groups)
        if total.l2_bound != bound:
            raise InvalidValue(
                f"l2_bound={total.l2_bound!r} of the sum must be {bound!r}, the rule's at "
                f"clipping_norm={charge.clip!r}. The noise would not be of the size charged. Clip the batch by this "
                "rule at the step's clip, and release it once."
            )
        part_of = self.ranks.noise_per_rank if self.mechanism.splits else float
        noise, found = part_of(step.noise_multiplier), list[Sums]()
        if rule.remembers and total.raw_statistics is not None and len(total.raw_statistics):
            statistics_noise = part_of(rule.statistics_noise(step.noise_multiplier, batch))
            noise = gradient_noise(noise, statistics_noise)
            std = rescaled_noise_std(statistics_noise, rule.statistics_bound, step, self.adjacency)
            found.append(Sums(values={"statistics": total.raw_statistics}, std=std, noise=statistics_noise))
        if rule.is_uncertified:
            self.claimed_sensitivity = bound = rule.claimed_sensitivity(total.raw_norms, charge.clip)
            if not bound > 0:
                return None
        found.append(Sums(values=total.grads, std=rescaled_noise_std(noise, bound, step, self.adjacency), noise=noise))
        return found

    def _privatize(
        self, sums: list[Sums], total: ClippedSum, charge: Charge, batch: float
    ) -> tuple[Mapping[str, Tensor], Tensor | None, float]:
        """Noisy averages of the gradients and of what else is released, the same on all ranks, and the noise's size."""
        if not self.mechanism.splits:
            return self._privatize_on_first(sums, total, charge, batch)
        mine, statistics, std = self._draw(sums, charge, batch)
        statistics = total.raw_statistics if statistics is None else statistics  # None, or of no length
        _check_finite(mine)
        if statistics is not None:
            _check_finite({"statistics": statistics})
        told = self.ranks.sum_tensors(mine if statistics is None else mine | {_BITS: statistics})
        if statistics is not None:
            told = dict(told)
            statistics = told.pop(_BITS)
        if self.ranks.size > 1:
            _check_sum(told)
        return told, statistics, self.ranks.noise_of_all(std)

    def _draw(self, sums: list[Sums], charge: Charge, batch: float) -> tuple[dict[str, Tensor], Tensor | None, float]:
        noisy, self.state = self.mechanism.privatize(
            sums, charge, self.state, self.randomness, divisor=batch, in_place=self.in_place
        )
        *others, grads = noisy
        return grads.values, others[0].values["statistics"] if others else None, grads.std

    def _privatize_on_first(
        self, sums: list[Sums], total: ClippedSum, charge: Charge, batch: float
    ) -> tuple[Mapping[str, Tensor], Tensor | None, float]:
        """One noise on the sum over all ranks, drawn on rank 0; the others are told the outcome."""
        raw = dict(total.grads)
        if total.raw_statistics is not None:
            raw[_BITS] = total.raw_statistics.double()
        exact = self.ranks.sum_on_first({name: value.double() for name, value in raw.items()})
        told: Mapping[str, Tensor] = raw | {_STD: torch.zeros((), dtype=torch.float64)}
        if self.ranks.is_first:
            whole = {name: value.to(raw[name].dtype) for name, value in exact.items()}
            statistics = whole.pop(_BITS, None)
            of_bits = {} if statistics is None else {"statistics": statistics}
            each = [replace(s, values=of_bits if "statistics" in s.values else whole) for s in sums]
            grads, noisy_bits, std = self._draw(each, charge, batch)
            _check_finite(grads)
            statistics = statistics if noisy_bits is None else noisy_bits
            told = (
                grads
                | ({} if statistics is None else {_BITS: statistics})
                | {_STD: torch.tensor(std, dtype=torch.float64)}
            )
        else:
            charge.spend(self.mechanism.spec)
        told = dict(self.ranks.broadcast(told))
        return told, told.pop(_BITS, None), float(told.pop(_STD))


def releaser_for(
    rule: BoundedRule, like: Mapping[str, Tensor], *, randomness: Randomness, adjacency: Adjacency,
    secure_noise: bool = False,
    ranks: Ranks | None = None, in_place: bool = True,
) -> Releaser:  # fmt: skip
    mechanism = resolve_mechanism(GAUSSIAN, secure_noise=secure_noise)
    return Releaser(
        rule=rule, groups=len(rule.groups(list(like))), randomness=randomness, adjacency=adjacency, mechanism=mechanism,
        state=mechanism.init(like), ranks=Ranks() if ranks is None else ranks, in_place=in_place,
    )  # fmt: skip


@register(Gaussian)
class IndependentGaussian:
    """Each step's noise is drawn anew: in floating point, or secure, by whole cells of a grid."""

    def __init__(self, spec: Gaussian = GAUSSIAN, secure_noise: bool = False) -> None:
        self.spec, self.secure, self.splits = spec, secure_noise, not secure_noise

    def init(self, like: Mapping[str, Tensor]) -> NoiseState:
        return None

    def privatize(
        self, total: Sequence[Sums], charge: Charge, state: NoiseState, randomness: Any, *, divisor: float,
        in_place: bool = False,
    ) -> tuple[list[Noisy], NoiseState]:  # fmt: skip
        charge.spend(self.spec)
        found: list[Noisy] = []
        for sums in total:
            if self.secure:
                grid = choose_grid(sums.values, std=sums.std, noise=sums.noise, batch=divisor)
                noisy = add_secure_noise(sums.values, grid=grid, randomness=randomness, divisor=divisor)
                found.append(Noisy(values=noisy, std=grid.std))
            else:
                noisy = add_noise(sums.values, std=sums.std, randomness=randomness, divisor=divisor, in_place=in_place)
                found.append(Noisy(values=noisy, std=sums.std))
        return found, state

    def covariance(self, steps: int) -> NDArray[np.float64]:
        return np.eye(steps)

    def save_secret(self, state: NoiseState) -> Mapping[str, Tensor]:
        return {}

    def load_secret(self, kept: Mapping[str, Tensor]) -> NoiseState:
        return None


def release(
    clipped: ClippedSum, rule: "str | ClippingRule", *, step: Step, batch_size: float, randomness: Randomness,
    adjacency: Adjacency = "zero-out", uncertified: bool = False, secure_noise: bool = False, in_place: bool = False,
) -> Release:  # fmt: skip
    """(clipped sum + N(0, std^2)) / batch, with std = step.noise * sensitivity: what the optimizer may see.

    Call it once for each step that is charged, with the sum over all pieces of its batch, also when that is empty. An
    adaptive rule is given as the object that clipped the sum; it learns from what is released. The values it adds to
    the gradient share the step's noise, so that the whole costs what `step` is charged.

    Args:
        step: the planned step; the sum was clipped at `step.clipping_norm`.
        batch_size: the planned (expected) batch, rate times dataset size: a public constant, never the realised one.
        uncertified: let an unsound rule have the noise its paper gives it. Then there is no guarantee.
        secure_noise: release whole cells of a grid, with noise from a cryptographic generator; then `std` is a little
            larger.
        in_place: noise may go on the sums themselves, which are gone then: saves a copy, where noise is not secure.

    >>> import torch
    >>> from privet.clipping.clipped_sum import clipped_sum
    >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(5, 3), torch.randint(2, (5,))
    >>> c = clipped_sum(model, torch.nn.CrossEntropyLoss(reduction="none"), (x, y), rule="flat", clipping_norm=0.5)
    >>> step = Step(noise_multiplier=2.0, sample_rate=0.01, clipping_norm=0.5)
    >>> r = release(c, "flat", step=step, batch_size=6, randomness=Randomness())
    >>> round(r.std, 6), r.clipping_norm, r.grads["weight"].shape
    (1.0, 0.5, torch.Size([2, 3]))

    Raises:
        Unsupported: the rule is unsound, or no theorem covers the relation.
        InvalidValue: the sum was not clipped by this rule at this clip, or the result is not finite.
    """
    _check.positive(batch_size=batch_size)
    chosen = clipping_rule(rule, uncertified=uncertified)
    held = bounded(chosen)
    if held.remembers and chosen is not rule:
        raise InvalidValue(
            f"rule={rule!r} must be the object that clipped the sum. It learns from each release; one made anew has "
            "forgotten. Make it once with rule_for, and give it to clipped_sum and release."
        )
    if secure_noise and held.is_uncertified:
        raise Unsupported(
            "secure_noise=True has nothing to prove for a rule without a guarantee. Leave it out, or use a sound rule."
        )
    releaser = releaser_for(
        held, clipped.grads, randomness=randomness, adjacency=adjacency, secure_noise=secure_noise, in_place=in_place
    )
    return releaser.release(
        clipped, issue_uncharged(step, held.clip_in_force(step.clipping_norm)), batch_size=batch_size
    )


def match_strides(parameter: Tensor, values: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """A gradient, or what an optimizer keeps, with the strides of its parameter: fused steps walk through raw memory.

    Its precision is the parameter's, or `dtype`.
    """
    dtype = parameter.dtype if dtype is None else dtype
    if values.dtype == dtype and values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter, dtype=dtype, requires_grad=False).copy_(values)


def gradient_noise(noise: float, statistics_noise: float) -> float:
    """The gradient's multiplier where it and extra values are one step charged at `noise`, rounded up.

        sigma_g = (sigma^-2 - sigma_b^-2)^(-1/2)

    One example moves the pair (sum / std_g, statistics / std_b) by at most sqrt(sigma_g^-2 + sigma_b^-2) = 1 / sigma,
    and both come from one sample: one Gaussian step. Charged as two steps they would cost less than the truth.
    Source: Andrew et al. 2021, arXiv:1905.03871, Theorem 1.
    """
    _check.positive(noise_multiplier=noise)
    if not statistics_noise > noise:
        raise InvalidValue(
            f"count_noise={statistics_noise!r} must be above the step's noise_multiplier={noise!r}. The count alone "
            "would cost more than the step is charged. Leave it out, or give more."
        )
    ratio = noise / statistics_noise
    return noise / math.sqrt((1 - ratio) * (1 + ratio)) * (1 + 1e-15)


def _check_finite(grads: Mapping[str, Tensor]) -> None:
    whole = shared_buffer(list(grads.values())) if grads else None
    if whole is not None and math.isfinite(float(whole.sum())):
        return
    for name, grad in grads.items():
        if not math.isfinite(float(grad.sum())) and not bool(grad.isfinite().all()):  # the sum is quicker
            raise InvalidValue(
                f"grads[{name!r}] is not finite after clipping and noise. An optimizer would spoil the model with it. "
                "Use a smaller clip, or a rule that bounds each example."
            )


def _check_sum(grads: Mapping[str, Tensor]) -> None:
    if not all(bool(value.isfinite().all()) for value in grads.values()):
        raise InvalidValue(
            "grads: their sum over the ranks is not finite. An optimizer would spoil the model with it. Use a smaller "
            "clip."
        )
