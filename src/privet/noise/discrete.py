"""The rounded Gaussian, round(N(0, s^2)), drawn from random words: nothing of a floating-point number is left in it.

A word is a sign and 63 bits of a tail chance p, more bits when asked for: |Z| = round(s |z|), p = P[N(0, 1) > |z|].
Double precision finds |Z| where it cannot err. Where p lies near the border of two cells, or far out, 256 more bits are
drawn and the border is computed to 110 digits. Proof: docs/math.md, "Secure noise".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from privet import _check
from privet.clipping.clipped_sum import float_dtype
from privet.errors import InvalidValue
from privet.noise.gaussian import check_range, check_real
from privet.noise.randomness import Randomness

Words = NDArray[np.uint64]

BLOCK = 1 << 16  # values at a time: they stay in the cache
WIDEST = 2.0**40  # s at most, so that doubles hold every value
DOUBT = 2.0**-40  # |z| in double precision is off by less than this, times max(1, |z|); scipy's ndtri by 1e-15
FEW = 1 << 44  # a p below this many 2^-64 is taken exactly: its own last bit would matter
MORE = 4  # words that a doubtful value has in addition
BITS = 64 * (MORE + 1)
DIGITS = 120
FARTHEST = 22  # P[N(0, 1) > 22] < 2^-353: no border lies beyond
_TINY = Decimal(10) ** -122
_PI = Decimal(
    "3.141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825342117067982148086513282306647093844609550582231725359"
)


def rounded_gaussian(count: int, *, spread: float, randomness: Randomness) -> NDArray[np.int64]:
    """Independent whole numbers with P[Z = j] = Phi((j + 1/2) / s) - Phi((j - 1/2) / s), s = `spread`.

    Their law is within 2^-270 of that in total variation.
    """
    _check.whole(least=0, count=count)
    _check.positive(spread=spread)
    if spread > WIDEST:
        raise InvalidValue(
            f"spread={spread!r} must be at most 2^40. Doubles would not hold the values. Use less noise."
        )
    found = np.empty(count, np.int64)
    for start in range(0, count, BLOCK):
        block = found[start : start + BLOCK]
        block[:] = _gaussian_from_words(randomness.random_words(len(block)), spread, randomness)
    return found


def _gaussian_from_words(words: Words, spread: float, randomness: Randomness) -> NDArray[np.int64]:
    bits = words >> np.uint64(1)
    size = -special.ndtri((bits + 0.5) * 2.0**-64)  # |z| for the middle of what the bits leave open
    cells = size * spread
    whole = np.rint(cells)
    near = np.abs(np.abs(cells - whole) - 0.5) <= (spread * DOUBT) * np.maximum(size, 1.0)
    doubtful = np.flatnonzero(near | (bits < FEW))
    found = whole.astype(np.int64)
    if len(doubtful):
        more = randomness.random_words(MORE * len(doubtful)).reshape(-1, MORE)
        for place, extra in zip(doubtful, more.tolist(), strict=True):
            found[place] = _exact_value(_join_words([int(bits[place]), *extra]), spread)
    signed: NDArray[np.int64] = np.where(words & np.uint64(1), -found, found)
    return signed


def _join_words(words: list[int]) -> int:
    """The words as one number, the first on top."""
    number = 0
    for word in words:
        number = number << 64 | word
    return number


def _exact_value(p: int, spread: float) -> int:
    """|Z| for the tail chance p 2^-BITS: the least j for which s |z| is not beyond j + 1/2."""
    with localcontext(Context(prec=DIGITS)):
        width = Decimal(spread)

        def is_beyond(j: int) -> bool:
            return p < int(_gaussian_tail((j + Decimal("0.5")) / width) * 2**BITS)

        j = round(-float(special.ndtri(max(p, 1) / 2**BITS)) * spread)
        while is_beyond(j):
            j += 1
        while j > 0 and not is_beyond(j - 1):
            j -= 1
    return j


def _gaussian_tail(z: Decimal) -> Decimal:
    """P[N(0, 1) > z] for z >= 0, to 110 digits after the point.

        1/2 - phi(z) (z + z^3 / 3 + z^5 / (3 5) + z^7 / (3 5 7) + ...)

    All terms are positive, so their sum has a relative error of a few hundred roundings. It ends where each term is
    less than half of the one before, and the last below 1e-122 of the sum: what is left out is less than that.
    """
    if z > FARTHEST:
        return Decimal(0)
    square, term, total, odd = z * z, z, z, 1
    while odd <= 2 * square or term > total * _TINY:
        odd += 2
        term = term * square / odd
        total += term
    return Decimal("0.5") - (-square / 2).exp() / (2 * _PI).sqrt() * total


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


def rounding_allowance(batch: float, precision: torch.dtype = torch.float32) -> float:
    """How much further than its bound a record may move the *computed* sum, as a share of the bound.

        2 eps (B + 32) max(1, sqrt(B / 4096))

    One example more, and the others may be added in another order, or multiplied by another path through a matrix
    product. Then each may come out differently by 2 eps of the bound. In batches up to 4,096 half of that is the most
    that was seen; beyond, it grows as the square root. This is assumed and tested, not proved.
    """
    _check.positive(batch=batch)
    return ROUNDINGS * torch.finfo(precision).eps * (batch + SPARE) * max(1.0, math.sqrt(batch / MANY))


def choose_grid(grads: Mapping[str, Tensor], *, std: float, noise: float, batch: float) -> Grid:
    """The grid for a sum that should have noise of `std`, `noise` times its sensitivity D, and the noise it then needs.

        g = the power of two below D / (4096 sqrt(d)),    s = noise (D (1 + allowance) / g + sqrt(d)), rounded up

    Rounding moves each of d entries by half a cell, so two sums whose distance is D come to lie within D / g + sqrt(d)
    cells. The noise is larger for it by a 4096th at most, and by the allowance.

    >>> grid = choose_grid({"w": torch.zeros(100, 100)}, std=2.0, noise=2.0, batch=256)
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
    spread = (std / width * (1 + rounding_allowance(batch, coarsest)) + noise * root) * (1 + 2.0**-48)
    return Grid(width=width, spread=spread)


def round_to_grid(values: Tensor, width: float) -> Tensor:
    """The nearest whole number of cells, exactly: `width` is a power of two."""
    cells = (values.detach().to("cpu", torch.float64) * (1 / width)).round_()
    return cells.clamp_(-FURTHEST, FURTHEST).to(torch.int64)


def add_secure_noise(
    grads: Mapping[str, Tensor], *, grid: Grid, randomness: Randomness, divisor: float = 1.0
) -> dict[str, Tensor]:
    """(sum on the grid + rounded Gaussian) * width / divisor: the release. `grads` is left as it is.

    Made on the processor from the operating system's cryptographic generator, wherever the sums are. The results are
    float64 where a sum is, float32 otherwise: to scale and to round what is released costs nothing.

    >>> sums = {"w": torch.ones(2, 3)}
    >>> noised = add_secure_noise(sums, grid=Grid(width=2.0**-20, spread=2.0**20), randomness=Randomness(0))
    >>> bool(torch.equal(noised["w"] * 2**20, (noised["w"] * 2**20).round()))
    True
    """
    _check.positive(divisor=divisor)
    for name, grad in grads.items():
        check_range(grid.std / divisor, float_dtype(grad))
        if not bool(grad.isfinite().all()):
            raise InvalidValue(f"grads[{name!r}] is not finite. It has no place on a grid. Clip it with clipped_sum.")
    sizes = [grad.numel() for grad in grads.values()]
    drawn = torch.from_numpy(rounded_gaussian(sum(sizes), spread=grid.spread, randomness=randomness))
    return {
        name: ((round_to_grid(grad, grid.width) + piece.view(grad.shape)).double() * (grid.width / divisor)).to(
            grad.device, float_dtype(grad)
        )
        for (name, grad), piece in zip(grads.items(), torch.split(drawn, sizes), strict=True)
    }
