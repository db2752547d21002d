"""One noise for the sums of many ranks, and the same outcome on each."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privet.accounting import Step
from privet.engine.clip import Adaptive, Rule, is_adaptive
from privet.engine.noise import share
from privet.engine.release import Released, release
from privet.engine.summing import ClippedSum
from privet.errors import InvalidValue
from privet.training.distributed import Group

_BITS, _STD = ".bits", ".std"  # beside the gradients; no parameter can have these names


def joint_release(
    group: Group, clipped: ClippedSum, rule: Rule, *, step: Step, batch: float, secure: bool = False, **given: Any
) -> Released:
    """What `release` would give for the sum over all ranks: one noise, and on every rank the same to the last bit.

    Each rank adds noise of std / sqrt(size) to its sum before that leaves the rank, from a source of its own. The sum
    of independent Gaussians is Gaussian with the sum of the variances: that of one noise of std. If a rank is missing
    there is no sum, and nothing is released. Secure noise is rounded, so sums of it are another law: there rank 0 adds
    up what is exact and makes the whole noise. An adaptive rule learns on every rank, the same from the same.
    """
    if secure:
        told = _by_first(group, clipped, rule, step=step, batch=batch, **given)
    else:
        part = replace(step, noise=share(step.noise, group.size))
        mine = _noisy(clipped, rule, share_of=group.size, planned=step, step=part, batch=batch, **given)
        std = mine.pop(_STD) * math.sqrt(group.size)
        told = group.summed(mine) | {_STD: std}
    spread, bits, clip = float(told.pop(_STD)), told.pop(_BITS, None), step.clip
    if is_adaptive(rule):
        assert bits is not None
        clip = rule.threshold(step.clip)
        told = rule.released(told, bits, clip=clip, std=spread, batch=batch)
    if not all(bool(value.isfinite().all()) for value in told.values()):
        raise InvalidValue(
            "grads: their sum over the ranks is not finite. An optimizer would spoil the model with it. Use a smaller "
            "clip."
        )
    return Released(grads=told, clip=clip, batch=batch, std=spread)


def _noisy(clipped: ClippedSum, rule: Rule, *, share_of: int, planned: Step, **given: Any) -> dict[str, Tensor]:
    """What `release` gives, and beside it the noisy bits of an adaptive rule and the noise's standard deviation."""
    held = Unlearnt(rule, planned, share_of) if is_adaptive(rule) else rule
    released = release(clipped, held, **given)
    found = dict(released.grads) | {_STD: torch.tensor(released.std, dtype=torch.float64)}
    return found | {_BITS: held.noisy_bits} if isinstance(held, Unlearnt) else found


def _by_first(group: Group, clipped: ClippedSum, rule: Rule, *, step: Step, **given: Any) -> dict[str, Tensor]:
    """One noise on the sum over all ranks, drawn on rank 0; the others are told the outcome."""
    bits = {} if clipped.raw_bits is None else {_BITS: clipped.raw_bits.double()}
    raw = dict(clipped.grads) | bits
    exact = group.summed_on_first({name: value.double() for name, value in raw.items()})
    told = raw | {_STD: torch.zeros((), dtype=torch.float64)}
    if group.is_first:
        sums = {name: value.to(raw[name].dtype) for name, value in exact.items()}
        whole = replace(clipped, raw_bits=sums.pop(_BITS, None), grads=sums)
        told = _noisy(whole, rule, share_of=1, planned=step, step=step, secure=True, **given)
    return group.from_first(told)


class Unlearnt:
    """An adaptive rule in the hands of one rank: it clips and asks for its share of noise, and does not learn yet."""

    adaptive = True

    def __init__(self, rule: Adaptive, step: Step, size: int) -> None:
        self._rule, self._step, self._size = rule, step, size
        self.bit_bound = rule.bit_bound
        self.noisy_bits = torch.zeros(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)  # groups, factors, norm_bound, threshold, ...

    def bit_noise(self, noise: float, batch: float) -> float:
        return share(self._rule.bit_noise(self._step.noise, batch), self._size)

    def released(self, grads: Mapping[str, Tensor], bits: Tensor, **_: Any) -> dict[str, Tensor]:
        self.noisy_bits = bits
        return dict(grads)
