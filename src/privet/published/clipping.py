"""Rules of the papers whose proofs do not cover them, for comparison and as targets of audits: `uncertified` only."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privet.clipping.fixed import ClipWhole, PerLayer, clip_scales
from privet.clipping.rule import register
from privet.errors import InvalidValue
from privet.planning.clipping_rules import UNSOUND_RULES


def _caveat_field(name: str) -> str:
    """Why the rule has no guarantee, as a field that is no option."""
    found: str = field(default=UNSOUND_RULES[name], init=False, repr=False)
    return found


@register("own_norm")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNorm(ClipWhole):
    """Each example's threshold is its own norm times W, c_b = W |g_b|, so that every gradient is just multiplied by W.

    The noise goes by the mean of these thresholds, s = sum_b c_b / B. Source: Auto DP-SGD, Algorithms 1 and 2.
    Nothing is clipped and the scale of the noise is private data. The sound sibling is `normalised`.
    """

    scale: float = 1.0  # W
    caveat: str = _caveat_field("own_norm")

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise InvalidValue(f"scale={self.scale!r} must be > 0 and <= 1. It is the paper's W. Give 1 to leave it.")

    def scales(self, norms: Tensor, clip: float) -> Tensor:
        return torch.full_like(norms, self.scale)

    def l2_bound(self, clip: float, groups: int) -> float:
        return math.inf

    def claimed_sensitivity(self, norms: Tensor, clip: float) -> float:
        counted = norms[norms.isfinite()]  # the others count as zero
        return self.scale * float(counted.double().sum()) / max(len(norms), 1)


@register("per_layer_c")
@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerC(PerLayer):
    """Each of M layers is clipped to the whole clip, g_m min(1, clip / |g_m|), and clip is charged, not sqrt(M) clip.

    Source: Wei and Liu 2021, Algorithm 1. Their Algorithm 2 adds the noise after the division by B, B times too much;
    here it goes on the sum, as their figures need it. The sound sibling is `per_layer`.
    """

    caveat: str = _caveat_field("per_layer_c")

    def scales(self, norms: Tensor, clip: float) -> Tensor:
        return clip_scales(norms, clip)

    def l2_bound(self, clip: float, groups: int) -> float:
        return math.nextafter(math.sqrt(groups) * clip, math.inf)

    def claimed_sensitivity(self, norms: Tensor, clip: float) -> float:
        return clip


@register("l2_max")
@dataclass(frozen=True, slots=True, kw_only=True)
class L2Max(PerLayerC):
    """Layers clipped as in `per_layer_c`; the noise goes by the largest norm in the batch, at most clip.

    Source: Wei and Liu 2021, section IV-A: the smaller of the maximum l2 norm and C (norms before clipping, of whole
    gradients). An adversary's quiet batch has next to no noise. The sound sibling is `quantile`.
    """

    caveat: str = _caveat_field("l2_max")

    def claimed_sensitivity(self, norms: Tensor, clip: float) -> float:
        counted = norms[~norms.isnan()]
        return min(clip, float(counted.max())) if len(counted) else 0.0
