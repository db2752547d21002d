"""Secure noise: the clipped sum on a grid of whole numbers, plus a Gaussian that is rounded to whole numbers.

The last bits of a floating-point number betray which sum the noise was added to (Mironov 2012). Here every value that
can come out is a whole number of cells, whatever the sum. For whole k, k + round(N(0, s^2)) is round(N(k, s^2)): what
the Gaussian mechanism gives, rounded afterwards. So each accountant's bound holds as it is, also with sampling, where
the discrete Gaussian has a theorem of its own for Rényi bounds only. Proof, and what is not proved: docs/math.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privet import _check
from privet.engine.noise import check_range, check_real
from privet.engine.randomness import Randomness
from privet.engine.rounded import rounded_gaussian
from privet.errors import InvalidValue

FINE = 2.0**-12  # rounding to the grid lets a record move the sum by at most this share further
ROUNDINGS = 2  # of each example, allowed for in the computed sums, in units of the precision's eps
MANY = 4096  # examples from which a matrix product loses more for each: as the square root of their number
SPARE = 32  # examples that a batch may have beyond the planned ones without a further thought
FURTHEST = 2.0**52  # cells; a sum beyond is cut, which moves no two sums apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where a sum may lie, and the noise on it; both are public."""

    width: float  # of a cell, a power of two
    spread: float  # of the noise before it is rounded, in cells

    @property
    def std(self) -> float:
        """Of the noise, in the units of the sum."""
        return self.width * self.spread


def allowance(batch: float, precision: torch.dtype = torch.float32) -> float:
    """How much further than its bound a record may move the *computed* sum, as a share of the bound.

        2 eps (B + 32) max(1, sqrt(B / 4096))

    One example more, and the others may be added in another order, or multiplied by another path through a matrix
    product. Then each may come out differently by 2 eps of the bound. In batches up to 4,096 half of that is the most
    that was seen; beyond, it grows as the square root. This is assumed and tested, not proved.

    >>> round(allowance(256), 6), allowance(256, torch.float64) < 1e-12
    (6.9e-05, True)
    """
    _check.positive(batch=batch)
    return ROUNDINGS * torch.finfo(precision).eps * (batch + SPARE) * max(1.0, math.sqrt(batch / MANY))


def grid_for(grads: Mapping[str, Tensor], *, std: float, noise: float, batch: float) -> Grid:
    """The grid for a sum that should have noise of `std`, `noise` times its sensitivity D, and the noise it then needs.

        g = the power of two below D / (4096 sqrt(d)),    s = noise (D (1 + allowance) / g + sqrt(d)), rounded up

    Rounding moves each of d entries by half a cell, so two sums whose distance is D come to lie within D / g + sqrt(d)
    cells. The noise is larger for it by a 4096th at most, and by the allowance.

    >>> grid = grid_for({"w": torch.zeros(100, 100)}, std=2.0, noise=2.0, batch=256)
    >>> grid.width == 2.0**-19, round(grid.std, 4)
    (True, 2.0005)
    """
    _check.positive(std=std, noise=noise, batch=batch)
    for name, grad in grads.items():
        check_real(name, grad)
    root = math.sqrt(max(1, sum(grad.numel() for grad in grads.values())))
    _, exponent = math.frexp(std / noise * FINE / root)
    coarsest = max((grad.dtype for grad in grads.values()), key=lambda t: torch.finfo(t).eps, default=torch.float64)
    if not -1000 < exponent < 1000:
        raise InvalidValue(f"std={std!r} is out of the range of a grid of doubles. Use another clip.")
    width = math.ldexp(1.0, exponent - 1)
    spread = (std / width * (1 + allowance(batch, coarsest)) + noise * root) * (1 + 2.0**-48)
    return Grid(width=width, spread=spread)


def on_grid(values: Tensor, width: float) -> Tensor:
    """The nearest whole number of cells, exactly: `width` is a power of two."""
    cells = (values.detach().to("cpu", torch.float64) * (1 / width)).round_()
    return cells.clamp_(-FURTHEST, FURTHEST).to(torch.int64)


def add_secure_noise(
    grads: Mapping[str, Tensor], *, grid: Grid, generator: Randomness, divisor: float = 1.0
) -> dict[str, Tensor]:
    """(sum on the grid + rounded Gaussian) * width / divisor: the release. `grads` is left as it is.

    Made on the processor from the operating system's cryptographic generator, wherever the sums are. The results are
    float64 where a sum is, float32 otherwise: to scale and to round what is released costs nothing.

    >>> sums = {"w": torch.ones(2, 3)}
    >>> noised = add_secure_noise(sums, grid=Grid(width=2.0**-20, spread=2.0**20), generator=Randomness(0))
    >>> bool(torch.equal(noised["w"] * 2**20, (noised["w"] * 2**20).round()))
    True
    """
    _check.positive(divisor=divisor)
    for name, grad in grads.items():
        check_range(grid.std / divisor, _precision(grad))
        if not bool(grad.isfinite().all()):
            raise InvalidValue(f"grads[{name!r}] is not finite. It has no place on a grid. Clip it with clipped_sum.")
    sizes = [grad.numel() for grad in grads.values()]
    drawn = torch.from_numpy(rounded_gaussian(sum(sizes), spread=grid.spread, generator=generator))
    return {
        name: ((on_grid(grad, grid.width) + piece.view(grad.shape)).double() * (grid.width / divisor)).to(
            grad.device, _precision(grad)
        )
        for (name, grad), piece in zip(grads.items(), torch.split(drawn, sizes), strict=True)
    }


def _precision(grad: Tensor) -> torch.dtype:
    return torch.float64 if grad.dtype == torch.float64 else torch.float32
