"""The release: one noise on the clipped sum of a whole step, over a public batch. Nothing else may leave the engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from privet import _check
from privet.accounting import Step
from privet.accounting.guarantee import Relation
from privet.engine.clip import Adaptive, Published, Rule, is_adaptive, is_published, rule_for
from privet.engine.clip.bounded import bound_of, clip_in_force, groups_of
from privet.engine.noise import add_noise, buffer_of, noise_std
from privet.engine.randomness import Randomness
from privet.engine.secure import add_secure_noise, grid_for
from privet.engine.summing import ClippedSum
from privet.errors import InvalidValue, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Released:
    """What a step gave away: all of it is noisy, or was public before."""

    grads: Mapping[str, Tensor]  # the noisy average, one for each parameter
    clip: float  # in force in this step
    batch: float  # the divisor
    std: (
        float | None
    )  # of the noise on each entry of the clipped sum; None where a published rule reads it off the data


def release(
    clipped: ClippedSum,
    rule: "str | Rule",
    *,
    step: Step,
    batch: float,
    generator: Randomness,
    relation: Relation = "zero-out",
    as_published: bool = False,
    secure: bool = False,
    in_place: bool = False,
) -> Released:
    """(clipped sum + N(0, std^2)) / batch, with std = step.noise * sensitivity: what the optimizer may see.

    Call it once for each step that is charged, with the sum over all pieces of its batch, also when that is empty. An
    adaptive rule is given as the object that clipped the sum; it learns from what is released. The values it adds to
    the gradient share the step's noise, so that the whole costs what `step` is charged.

    Args:
        step: the planned step; the sum was clipped at `step.clip`.
        batch: the planned (expected) batch, rate * size: a public constant, never the realised one.
        as_published: let an unsound rule have the noise its paper gives it. Then there is no guarantee.
        secure: release whole cells of a grid, with noise from a cryptographic generator; then `std` is a little larger.
        in_place: noise may go on the sums themselves, which are gone then: saves a copy, where noise is not secure.

    >>> import torch
    >>> from privet.engine import clipped_sum
    >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(5, 3), torch.randint(2, (5,))
    >>> c = clipped_sum(model, torch.nn.CrossEntropyLoss(reduction="none"), (x, y), rule="flat", clip=0.5)
    >>> step = Step(noise=2.0, rate=0.01, clip=0.5)
    >>> r = release(c, "flat", step=step, batch=6, generator=Randomness())
    >>> round(r.std, 6), r.clip, r.grads["weight"].shape
    (1.0, 0.5, torch.Size([2, 3]))

    Raises:
        Unsupported: the rule is unsound, or no theorem covers the relation.
        InvalidValue: the sum was not clipped by this rule at this clip, or the result is not finite.
    """
    _check.positive(batch=batch)
    chosen = _chosen(rule, as_published=as_published)
    clip = clip_in_force(chosen, step.clip)
    _check_clipped(clipped, chosen, clip)
    if is_published(chosen):
        if secure:
            raise Unsupported(
                "secure=True has nothing to prove for a rule without a guarantee. Leave it out, or use a sound rule."
            )
        return _as_published(clipped, chosen, step, clip, batch, generator, relation)
    noise, extra = step.noise, clipped.raw_bits
    if is_adaptive(chosen) and extra is not None and len(extra):
        bit_noise = chosen.bit_noise(step.noise, batch)
        noise = gradient_noise(step.noise, bit_noise)
        spread = noise_std(replace(step, noise=bit_noise), norm_bound=chosen.bit_bound, relation=relation)
        told, _ = _noised({"bits": extra}, spread, bit_noise, batch, generator, secure=secure)
        extra = told["bits"]
    std = noise_std(replace(step, noise=noise), norm_bound=clipped.norm_bound, relation=relation)
    grads, std = _noised(clipped.grads, std, noise, batch, generator, secure=secure, in_place=in_place)
    _check_finite(grads)
    if is_adaptive(chosen):
        grads = _learnt(chosen, grads, extra, clip=clip, std=std, batch=batch)
    return Released(grads=grads, clip=clip, batch=batch, std=std)


def _noised(
    grads: Mapping[str, Tensor], std: float, noise: float, batch: float, generator: Randomness, *, secure: bool,
    in_place: bool = False,
) -> tuple[dict[str, Tensor], float]:  # fmt: skip
    """The noisy average, and the standard deviation of what was added to the sum."""
    if not secure:
        return add_noise(grads, std=std, generator=generator, divisor=batch, in_place=in_place), std
    grid = grid_for(grads, std=std, noise=noise, batch=batch)
    return add_secure_noise(grads, grid=grid, generator=generator, divisor=batch), grid.std


def laid_as(parameter: Tensor, values: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """A gradient, or what an optimizer keeps, with the strides of its parameter: fused steps walk through raw memory.

    Its precision is the parameter's, or `dtype`.

    >>> import torch
    >>> p = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> laid_as(p, torch.ones(2, 3, 4, 4)).stride() == p.stride()
    True
    """
    dtype = parameter.dtype if dtype is None else dtype
    if values.dtype == dtype and values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter, dtype=dtype, requires_grad=False).copy_(values)


def gradient_noise(noise: float, bit_noise: float) -> float:
    """The gradient's multiplier where it and extra values are one step charged at `noise`, rounded up.

        sigma_g = (sigma^-2 - sigma_b^-2)^(-1/2)

    One example moves the pair (sum / std_g, bits / std_b) by at most sqrt(sigma_g^-2 + sigma_b^-2) = 1 / sigma, and
    both come from one sample: one Gaussian step. Charged as two steps they would cost less than the truth.
    Source: Andrew et al. 2021, arXiv:1905.03871, Theorem 1.

    >>> round(gradient_noise(1.0, 12.8), 6)
    1.003066
    """
    _check.positive(noise=noise)
    if not bit_noise > noise:
        raise InvalidValue(
            f"count_noise={bit_noise!r} must be above the step's noise={noise!r}. The count alone would cost more than "
            "the step is charged. Leave it out, or give more."
        )
    ratio = noise / bit_noise
    return noise / math.sqrt((1 - ratio) * (1 + ratio)) * (1 + 1e-15)


def _chosen(rule: Any, *, as_published: bool) -> Rule:
    chosen = rule_for(rule, as_published=as_published)
    if is_adaptive(chosen) and chosen is not rule:
        raise InvalidValue(
            f"rule={rule!r} must be the object that clipped the sum. It learns from each release; one made anew has "
            "forgotten. Make it once with rule_for, and give it to clipped_sum and release."
        )
    return chosen


def _check_clipped(clipped: ClippedSum, rule: Rule, clip: float) -> None:
    """Raise unless the sum's bound is the rule's at this clip: otherwise the noise would be of another size."""
    bound = bound_of(rule, clip, len(groups_of(rule, list(clipped.grads))))
    if clipped.norm_bound != bound:
        raise InvalidValue(
            f"norm_bound={clipped.norm_bound!r} of the sum must be {bound!r}, the rule's at clip={clip!r}. The noise "
            "would not be of the size charged. Clip the batch by this rule at the step's clip, and release it once."
        )


def _learnt(
    rule: Adaptive, grads: Mapping[str, Tensor], bits: Tensor | None, *, clip: float, std: float, batch: float
) -> dict[str, Tensor]:
    if bits is None:
        raise InvalidValue("raw_bits=None must hold what the rule releases beside the gradient. Use clipped_sum.")
    _check_finite({"bits": bits})
    found = rule.released(grads, bits, clip=clip, std=std, batch=batch)
    _check_finite(found)
    return found


def _as_published(
    clipped: ClippedSum, rule: Published, step: Step, clip: float, batch: float, generator: Randomness,
    relation: Relation,
) -> Released:  # fmt: skip
    """The paper's noise, of whatever size it takes the sensitivity to be: none at all for a batch of zeros."""
    raw_scale = float(rule.raw_scale(clipped.raw_norms, clip))
    if raw_scale > 0:
        std = noise_std(step, norm_bound=raw_scale, relation=relation)
        grads = add_noise(clipped.grads, std=std, generator=generator, divisor=batch)
    else:
        grads = {name: grad.detach() / batch for name, grad in clipped.grads.items()}
    _check_finite(grads)
    return Released(grads=grads, clip=clip, batch=batch, std=None)


def _check_finite(grads: Mapping[str, Tensor]) -> None:
    whole = buffer_of(list(grads.values())) if grads else None
    if whole is not None and math.isfinite(float(whole.sum())):
        return
    for name, grad in grads.items():
        if not math.isfinite(float(grad.sum())) and not bool(grad.isfinite().all()):  # the sum is quicker
            raise InvalidValue(
                f"grads[{name!r}] is not finite after clipping and noise. An optimizer would spoil the model with it. "
                "Use a smaller clip, or a rule that bounds each example."
            )
