"""Gaussian noise on a clipped sum: how much, in one place, and drawn so that its tail is not cut off.

`noise` is the multiplier of the plan, std = noise * sensitivity. Noise is drawn in float32 or better whatever the
model's precision. That the values are floating-point numbers, and that the generator is not a cryptographic one,
belongs to the threat model: a `certified` epsilon is a statement in real arithmetic. `secure.py` does without both.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from privet import _check
from privet.accounting import Step
from privet.accounting.guarantee import ADJACENCIES, Adjacency
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness

TAIL = 4.0  # standard deviations beyond which a value is drawn again, in double precision
BLOCK = 3 << 14  # values at a time: they stay in the cache


def sensitivity(l2_bound: float, adjacency: Adjacency = "zero-out") -> float:
    """How far one record moves the clipped sum: its share's norm bound, or twice that if it is replaced."""
    _check.positive(l2_bound=l2_bound)
    _check.one_of(ADJACENCIES, adjacency=adjacency)
    return 2 * l2_bound if adjacency == "replace-one" else l2_bound


def noise_std(step: Step, *, l2_bound: float, adjacency: Adjacency = "zero-out") -> float:
    """The standard deviation of a step's noise, std = noise * sensitivity, rounded up.

    >>> round(noise_std(Step(noise_multiplier=2.0, sample_rate=0.01), l2_bound=0.5), 6)
    1.0

    Raises:
        Unsupported: `replace` at a rate below 1, where only fixed-size sampling has a theorem.
    """
    sensitivity(l2_bound, adjacency)  # checks them
    return rescaled_noise_std(step.noise_multiplier, l2_bound, step, adjacency)


def rescaled_noise_std(noise: float, l2_bound: float, step: Step, adjacency: Adjacency) -> float:
    """`noise_std` at another multiplier than the step's, as a part of its noise has, for a relation that is checked."""
    if not 0 < l2_bound < math.inf:
        _check.positive(l2_bound=l2_bound)
    if adjacency != "replace-one":
        return math.nextafter(noise * l2_bound, math.inf)
    if step.sample_rate < 1 and step.sampling.name != "fixed-size":
        raise Unsupported(
            f"adjacency='replace-one' at sample_rate={step.sample_rate:g} has no theorem with {step.sampling} "
            "sampling. Use adjacency='zero-out', rate 1, or fixed-size sampling."
        )
    return math.nextafter(noise * (2 * l2_bound), math.inf)


def std_per_rank(std: float, world: int) -> float:
    """What each of `world` ranks adds so that the sum of their independent noises has `std`: std / sqrt(world), up.

    Every rank draws from a source of its own, and every rank's noise must arrive: with one missing, the rest is short.

    >>> std_per_rank(2.0, 4) >= 1.0
    True
    """
    _check.positive(std=std)
    _check.whole(world=world)
    return std / math.sqrt(world) * (1 + 2.0**-50) if world > 1 else std  # three roundings, each below 2^-53


def add_noise(
    grads: Mapping[str, Tensor], *, std: float, randomness: Randomness, divisor: float = 1.0, in_place: bool = False
) -> dict[str, Tensor]:
    """(sum + N(0, std^2) on every entry) / divisor: the release. `grads` is left as it is, unless `in_place`.

    All tensors of a device and precision lie in one flat buffer, float64 where a sum is, float32 otherwise; the result
    is views of it. `in_place` takes the buffer that `clipped_sum` made, if it is one: then the sums themselves are
    gone. `divisor` is a public constant, the planned batch, never the realised one.

    >>> noised = add_noise({"w": torch.zeros(2, 3)}, std=1.0, randomness=Randomness(0))
    >>> noised["w"].shape, noised["w"].dtype
    (torch.Size([2, 3]), torch.float32)
    """
    if type(std) is not float or not (0 < std < math.inf and 0 < divisor < math.inf):
        _check.positive(std=std, divisor=divisor)
    flat = shared_buffer(list(grads.values())) if in_place and grads else None
    if flat is not None:  # one buffer for all of them
        _add_noise_to(flat, std, divisor, randomness)
        return dict(grads)
    noised: dict[str, Tensor] = {}
    for (_, precision), names in _group_by_precision(grads).items():
        sums = [grads[name] for name in names]
        flat = shared_buffer(sums) if in_place else None
        if flat is None:
            flat = torch.cat([s.detach().reshape(-1).to(precision) for s in sums])
            pieces = torch.split(flat, [s.numel() for s in sums])
            sums = [piece.view(s.shape) for piece, s in zip(pieces, sums, strict=True)]
        _add_noise_to(flat, std, divisor, randomness)
        noised |= zip(names, sums, strict=True)
    return {name: noised[name] for name in grads}


def _add_noise_to(flat: Tensor, std: float, divisor: float, randomness: Randomness) -> None:
    """flat <- flat / divisor + N(0, (std / divisor)^2), by one generator for all of it."""
    check_range(std / divisor, flat.dtype)
    held = flat.new_empty(min(BLOCK, flat.numel()))  # noise for one block at a time
    source = randomness.torch_generator(flat.device)
    for block in torch.split(flat, BLOCK):
        noise = _fill(held[: block.numel()], std / divisor, source)
        torch.add(noise, block, alpha=1 / divisor, out=block)


def shared_buffer(sums: Sequence[Tensor]) -> Tensor | None:
    """The buffer that the sums fill one after the other; None if there is no such."""
    base, at = sums[0]._base, 0
    for s in sums:
        if s._base is not base or s.storage_offset() != at or not s.is_contiguous():
            return None
        at += s.numel()
    return base if base is not None and base.shape == (at,) and base.dtype in (torch.float32, torch.float64) else None


def _group_by_precision(grads: Mapping[str, Tensor]) -> dict[tuple[torch.device, torch.dtype], list[str]]:
    groups: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, grad in grads.items():
        check_real(name, grad)
        precision = torch.float64 if grad.dtype == torch.float64 else torch.float32
        groups.setdefault((grad.device, precision), []).append(name)
    return groups


def check_real(name: str, grad: Tensor) -> None:
    if not grad.is_floating_point() or grad.layout != torch.strided:
        raise Unsupported(
            f"grads[{name!r}] is a {grad.layout} tensor of {grad.dtype}. Noise goes on every entry of a real one. "
            "Give a dense tensor of floating-point numbers."
        )


def draw(flat: Tensor, *, std: float, generator: "Randomness | torch.Generator") -> Tensor:
    """Fill `flat` with independent N(0, std^2), also far out, and give it back.

    torch's float32 normal never exceeds 5.77 standard deviations: beyond that a shifted value betrays itself, in one
    step with chance Phi(1/noise - 5.77), near 1e-6 at noise 1. So values beyond 4 are drawn again from the exact law
    there, in double precision. That costs a tenth to a third of the time.
    A generator of torch's goes on where it stands: one, and no more, serves all blocks of a release.
    """
    _check_drawable(flat, std)
    source = generator.torch_generator(flat.device) if isinstance(generator, Randomness) else generator
    for block in torch.split(flat.view(-1), BLOCK):
        _fill(block, std, source)
    return flat


def _fill(block: Tensor, std: float, source: torch.Generator) -> Tensor:
    _redraw_tail(block.normal_(0.0, std, generator=source), std, source)
    return block


def _check_drawable(flat: Tensor, std: float) -> None:
    _check.positive(std=std)
    if flat.dtype not in (torch.float32, torch.float64) or not flat.is_contiguous():
        raise InvalidValue(
            f"flat={flat.dtype} must be contiguous and float32 or float64. Noise is drawn in float32 or better. "
            "Use add_noise, which makes the buffer."
        )
    check_range(std, flat.dtype)


def check_range(std: float, precision: torch.dtype) -> None:
    """Raise unless noise of this size is neither nothing nor beyond every number of the precision."""
    limits = torch.finfo(precision)
    if not limits.tiny <= std <= limits.max / 64:
        raise InvalidValue(
            f"std={std!r} is out of the range of {precision}. The noise would round to nothing, or overflow. "
            "Use another clip."
        )


def _redraw_tail(block: Tensor, std: float, source: torch.Generator) -> None:
    """Replace what lies beyond TAIL by |z| = -Phi^-1(u Phi(-TAIL)), u uniform; the sign stays."""
    if block.device.type == "cpu":
        values = block.numpy()
        far = (np.abs(values) > TAIL * std).nonzero()[0]  # NumPy looks through a block five times faster than torch
        if len(far):
            values[far] = np.copysign(_draw_tail(len(far), std, source), values[far])
        return
    there = (block.abs() > TAIL * std).nonzero().view(-1)
    if len(there):
        size = torch.from_numpy(_draw_tail(len(there), std, source)).to(block)
        block[there] = torch.copysign(size, block[there])


def _draw_tail(count: int, std: float, source: torch.Generator) -> NDArray[np.float64]:
    u = torch.rand(count, dtype=torch.float64, generator=source, device=source.device)  # in [0, 1)
    found: NDArray[np.float64] = special.ndtri((1.0 - u.cpu().numpy()) * special.ndtr(-TAIL)) * -std
    return found
