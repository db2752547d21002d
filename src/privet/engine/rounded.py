"""The rounded Gaussian, round(N(0, s^2)), drawn from random words: nothing of a floating-point number is left in it.

A word is a sign and 63 bits of a tail chance p, more bits when asked for: |Z| = round(s |z|), p = P[N(0, 1) > |z|].
Double precision finds |Z| where it cannot err. Where p lies near the border of two cells, or far out, 256 more bits are
drawn and the border is computed to 110 digits. Proof: docs/math.md, "Secure noise".
"""

from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privet import _check
from privet.engine.randomness import Randomness
from privet.errors import InvalidValue

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
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651328"
    "2306647093844609550582231725359"
)


def rounded_gaussian(count: int, *, spread: float, generator: Randomness) -> NDArray[np.int64]:
    """Independent whole numbers with P[Z = j] = Phi((j + 1/2) / s) - Phi((j - 1/2) / s), s = `spread`.

    Their law is within 2^-270 of that in total variation.

    >>> rounded_gaussian(5, spread=3.0, generator=Randomness(0)).dtype
    dtype('int64')
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
        block[:] = _drawn(generator.words(len(block)), spread, generator)
    return found


def _drawn(words: Words, spread: float, generator: Randomness) -> NDArray[np.int64]:
    bits = words >> np.uint64(1)
    size = -special.ndtri((bits + 0.5) * 2.0**-64)  # |z| for the middle of what the bits leave open
    cells = size * spread
    whole = np.rint(cells)
    near = np.abs(np.abs(cells - whole) - 0.5) <= (spread * DOUBT) * np.maximum(size, 1.0)
    doubtful = np.flatnonzero(near | (bits < FEW))
    found = whole.astype(np.int64)
    if len(doubtful):
        more = generator.words(MORE * len(doubtful)).reshape(-1, MORE)
        for place, extra in zip(doubtful, more.tolist(), strict=True):
            found[place] = _exactly(_joined([int(bits[place]), *extra]), spread)
    signed: NDArray[np.int64] = np.where(words & np.uint64(1), -found, found)
    return signed


def _joined(words: list[int]) -> int:
    """The words as one number, the first on top."""
    number = 0
    for word in words:
        number = number << 64 | word
    return number


def _exactly(p: int, spread: float) -> int:
    """|Z| for the tail chance p 2^-BITS: the least j for which s |z| is not beyond j + 1/2."""
    with localcontext(Context(prec=DIGITS)):
        width = Decimal(spread)

        def is_beyond(j: int) -> bool:
            return p < int(_tail((j + Decimal("0.5")) / width) * 2**BITS)

        j = round(-float(special.ndtri(max(p, 1) / 2**BITS)) * spread)
        while is_beyond(j):
            j += 1
        while j > 0 and not is_beyond(j - 1):
            j -= 1
    return j


def _tail(z: Decimal) -> Decimal:
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
