"""Characteristic functions at very many frequencies at once: Gaussian gridding and one FFT, with a proven error.

    F_j = sum_m mass_m e^(2 pi i j l_m / A),   j = 0 .. last,

for atoms at any places l_m. Each atom is spread by a Gaussian over the points of a lattice of R >= 8 last points on the
circle of length A, the lattice is transformed, and the Gaussian is divided out again. By Poisson
summation what is left wrong is what the lattice aliases and what the cut Gaussian lacks: `ERROR` in all (docs/math.md).
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from privet.accounting.moments import ULP

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

BETA = 1.5  # the Gaussian's standard deviation, in lattice points
REACH = 13  # lattice points kept on each side of it
FINER = 8  # lattice points for each frequency
BLOCK = 64  # atoms of one cell that are summed at a time

_TURN = 2 * math.pi * BETA
_LIFT = math.exp((_TURN / FINER) ** 2 / 2)  # the most that dividing the Gaussian out magnifies
_ALIAS = 1.1 * math.exp(-(_TURN**2) * (1 - 2 / FINER) / 2)
_CUT = 2 * math.exp(-((REACH + 0.5) ** 2) / (2 * BETA**2)) / -math.expm1(-(REACH + 0.5) / BETA**2)
ERROR = _ALIAS + _CUT * _LIFT / (BETA * math.sqrt(2 * math.pi))  # 5e-15, of the total mass


def gridded(mass: Floats, places: Floats, period: float, last: int) -> tuple[Complexes, float]:
    """F_0 .. F_last for masses that add up to 1 at `places`, and a bound on the error of each.

    >>> found, error = gridded(np.array([0.5, 0.5]), np.array([-0.1, 0.1]), 1.0, 3)
    >>> bool(np.abs(found - np.cos(0.2 * np.pi * np.arange(4))).max() <= error)
    True
    """
    size = fft.next_fast_len(max(FINER * last, 4 * REACH), real=True)
    where = places * (size / period)
    nearest = np.rint(where)
    cell = nearest.astype(np.int64) % size
    lattice = _spread(mass, where - nearest, cell, size)
    lift = np.exp((_TURN / size * np.arange(last + 1)) ** 2 / 2) / (BETA * math.sqrt(2 * math.pi))
    # The FFT errs by the logarithm of its size, the powers by REACH, a sum of n masses in blocks by BLOCK + n / BLOCK.
    crowd = float(np.bincount(cell) @ np.bincount(cell, weights=mass))
    rounding = ULP * _LIFT * (4 * (math.log2(size) + REACH + 8) + 2 * (BLOCK + crowd / BLOCK))
    return np.conj(fft.rfft(lattice)[: last + 1]) * lift, ERROR + rounding


def _spread(mass: Floats, away: Floats, cell: NDArray[np.int64], size: int) -> Floats:
    """The lattice with each atom as a Gaussian of deviation b, `away` = f from its cell.

    e^(-(k - f)^2 / 2b^2) = e^(-f^2 / 2b^2) (e^(f / b^2))^k e^(-k^2 / 2b^2): one exponential for all k.
    """
    padded = np.zeros(size + 2 * REACH)  # a circle with its ends repeated
    centre = mass * np.exp(-(away**2) / (2 * BETA**2))
    # Atoms that lie together are summed in blocks first: there can be thousands in a cell.
    block = np.cumsum((np.diff(cell, prepend=-1) != 0) | (np.arange(len(cell)) % BLOCK == 0)) - 1
    target = np.zeros(block[-1] + 1, dtype=np.int64)
    target[block] = cell
    for sign in (1, -1):
        running, ratio = centre.copy(), np.exp(sign * away / BETA**2)
        for k in range(REACH + 1):
            if k:
                running *= ratio
            if k or sign > 0:
                share = np.bincount(block, weights=running) * math.exp(-(k**2) / (2 * BETA**2))
                np.add.at(padded, target + (REACH + sign * k), share)
    padded[REACH : 2 * REACH] += padded[-REACH:]
    padded[-2 * REACH : -REACH] += padded[:REACH]
    return padded[REACH:-REACH]
