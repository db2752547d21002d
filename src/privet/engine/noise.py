"""Gaussian noise on a clipped sum: how much, in one place, and drawn so that its tail is not cut off.

`noise` is the multiplier of the plan, std = noise * sensitivity. Noise is drawn in float32 or better whatever the
model's precision. That the values are floating-point numbers, and that the generator is not a cryptographic one unless
`hardened`, belongs to the threat model: a `certified` epsilon is a statement in real arithmetic.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from privet import _check
from privet.accounting import Step
from privet.accounting.guarantee import RELATIONS, Relation
from privet.engine.randomness import Randomness
from privet.errors import InvalidValue, Unsupported

TAIL = 4.0  # standard deviations beyond which a value is drawn again, in double precision
BLOCK = 1 << 16  # values at a time: they stay in the cache
DRAWS = 4  # of which a hardened value is the sum


def sensitivity(norm_bound: float, relation: Relation = "zero-out") -> float:
    """How far one record moves the clipped sum: its share's norm bound, or twice that if it is replaced.

    >>> sensitivity(0.5), sensitivity(0.5, "replace")
    (0.5, 1.0)
    """
    _check.positive(norm_bound=norm_bound)
    _check.one_of(RELATIONS, relation=relation)
    return 2 * norm_bound if relation == "replace" else norm_bound


def noise_std(step: Step, *, norm_bound: float, relation: Relation = "zero-out") -> float:
    """The standard deviation of a step's noise, std = noise * sensitivity, rounded up.

    >>> round(noise_std(Step(noise=2.0, rate=0.01), norm_bound=0.5), 6)
    1.0

    Raises:
        Unsupported: `replace` at a rate below 1, where only fixed-size sampling has a theorem.
    """
    if relation == "replace" and step.rate < 1 and step.sampling.name != "fixed-size":
        raise Unsupported(
            f"relation='replace' at rate={step.rate:g} has no theorem with {step.sampling} sampling. "
            "Use relation='zero-out', rate 1, or fixed-size sampling."
        )
    return math.nextafter(step.noise * sensitivity(norm_bound, relation), math.inf)


def share(std: float, world: int) -> float:
    """What each of `world` ranks adds so that the sum of their independent noises has `std`: std / sqrt(world), up.

    Every rank draws from a source of its own, and every rank's noise must arrive: with one missing, the rest is short.

    >>> share(2.0, 4) >= 1.0
    True
    """
    _check.positive(std=std)
    _check.whole(world=world)
    return math.nextafter(std / math.sqrt(world), math.inf) if world > 1 else std


def add_noise(
    grads: Mapping[str, Tensor], *, std: float, generator: Randomness, divisor: float = 1.0, hardened: bool = False
) -> dict[str, Tensor]:
    """(sum + N(0, std^2) on every entry) / divisor: the release. `grads` is left as it is.

    The noise is drawn into one flat buffer for all tensors of a device and precision, and the sums are added on top;
    the result is views of it, float64 where a sum is, float32 otherwise. `divisor` is a public constant, the planned
    batch, never the realised one.

    >>> noised = add_noise({"w": torch.zeros(2, 3)}, std=1.0, generator=Randomness(0))
    >>> noised["w"].shape, noised["w"].dtype
    (torch.Size([2, 3]), torch.float32)
    """
    _check.positive(std=std, divisor=divisor)
    noised: dict[str, Tensor] = {}
    for (device, precision), names in _groups(grads).items():
        flat = torch.empty(sum(grads[name].numel() for name in names), device=device, dtype=precision)
        draw(flat, std=std / divisor, generator=generator, hardened=hardened)
        pieces = torch.split(flat, [grads[name].numel() for name in names])
        for name, piece in zip(names, pieces, strict=True):
            noised[name] = piece.view(grads[name].shape).add_(grads[name].detach(), alpha=1 / divisor)
    return {name: noised[name] for name in grads}


def _groups(grads: Mapping[str, Tensor]) -> dict[tuple[torch.device, torch.dtype], list[str]]:
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, grad in grads.items():
        if not grad.is_floating_point() or grad.layout != torch.strided:
            raise Unsupported(
                f"grads[{name!r}] is a {grad.layout} tensor of {grad.dtype}. Noise goes on every entry of a real one. "
                "Give a dense tensor of floating-point numbers."
            )
        precision = torch.float64 if grad.dtype == torch.float64 else torch.float32
        groups.setdefault((grad.device, precision), []).append(name)
    return groups


def draw(flat: Tensor, *, std: float, generator: Randomness, hardened: bool = False) -> Tensor:
    """Fill `flat` with independent N(0, std^2), also far out, and give it back.

    torch's float32 normal never exceeds 5.77 standard deviations: beyond that a shifted value betrays itself, in one
    step with chance Phi(1/noise - 5.77), near 1e-6 at noise 1. So values beyond 4 are drawn again from the exact law
    there, in double precision. That costs a tenth to a third of the time.

    `hardened` sums four double-precision draws made from the operating system's cryptographic generator, and halves
    the sum. Fewer bits of a value then betray the draw. This is hardening without a theorem, some 50 times slower.

    >>> draw(torch.empty(3), std=2.0, generator=Randomness(0)).shape
    torch.Size([3])
    """
    _check_drawable(flat, std)
    whole = flat.view(-1)
    if hardened:
        for block in torch.split(whole, BLOCK):
            block.copy_(torch.from_numpy(_hardened(block.numel(), generator) * std))
        return flat
    torch_generator, numbers = generator.tensors(flat.device), generator.numbers()
    for block in torch.split(whole, BLOCK):
        block.normal_(0.0, std, generator=torch_generator)
        _redraw_tail(block, std, numbers)
    return flat


def _check_drawable(flat: Tensor, std: float) -> None:
    _check.positive(std=std)
    if flat.dtype not in (torch.float32, torch.float64) or not flat.is_contiguous():
        raise InvalidValue(
            f"flat={flat.dtype} must be contiguous and float32 or float64. Noise is drawn in float32 or better. "
            "Use add_noise, which makes the buffer."
        )
    limits = torch.finfo(flat.dtype)
    if not limits.tiny <= std <= limits.max / 64:
        raise InvalidValue(
            f"std={std!r} is out of the range of {flat.dtype}. The noise would round to nothing, or overflow. "
            "Use another clip."
        )


def _redraw_tail(block: Tensor, std: float, numbers: np.random.Generator) -> None:
    """Replace what lies beyond TAIL by |z| = -Phi^-1(u Phi(-TAIL)), u uniform; the sign stays."""
    if block.device.type == "cpu":  # NumPy looks through a block three times faster than torch
        far = torch.from_numpy(np.flatnonzero(np.abs(block.numpy()) > TAIL * std))
    else:
        far = (block.abs() > TAIL * std).nonzero().view(-1)
    if len(far):
        u = 1.0 - numbers.random(len(far))  # in (0, 1]
        size = torch.from_numpy(-special.ndtri(u * special.ndtr(-TAIL)) * std)
        block[far] = torch.copysign(size.to(block), block[far])


def _hardened(count: int, generator: Randomness) -> NDArray[np.float64]:
    """Sum of DRAWS normals over sqrt(DRAWS), each half of a Box-Muller pair: 53 random bits for radius and angle."""
    half = (count + 1) // 2
    bits = (generator.words(2 * DRAWS * half) >> np.uint64(11)).reshape(2, DRAWS, half)
    radius = np.sqrt(-2 * np.log((bits[0] + np.uint64(1)) * 2.0**-53))
    angle = bits[1] * (math.tau * 2.0**-53)
    pairs = np.concatenate(((radius * np.cos(angle)).sum(0), (radius * np.sin(angle)).sum(0)))
    found: NDArray[np.float64] = pairs[:count] / math.sqrt(DRAWS)
    return found
