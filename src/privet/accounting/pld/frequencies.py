"""Characteristic functions at very many frequencies at once: Gaussian gridding and one FFT, with a proven error.

    F_j = sum_m mass_m e^(2 pi i j l_m / A),   j = 0 .. last,

for atoms at any places l_m. Each atom is spread by a Gaussian over the points of a lattice of R >= 8 last points on the
circle of length A, the lattice is transformed, and the Gaussian is divided out again. By Poisson
summation what is left wrong is what the lattice aliases and what the cut Gaussian lacks: `ERROR` in all (docs/math.md).
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from privet.accounting.ledger import Floats, Ints
from privet.accounting.pld.decay import Decay
from privet.accounting.pld.interpolation import FEW
from privet.accounting.pld.levels import LossLevels, bin_levels
from privet.accounting.pld.loss_moments import (
    ULP,
    Direction,
    QuadratureTooCostly,
    fine_quadrature,
    loss_rounding_sizes,
    tilt_exponent,
    tilted_law,
)
from privet.accounting.pld.saddle_point import TOLERANCE, IntegrationLine

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


def nonuniform_fft(mass: Floats, places: Floats, period: float, last: int) -> tuple[Complexes, float]:
    """F_0 .. F_last for masses that add up to 1 at `places`, and a bound on the error of each.

    >>> found, error = nonuniform_fft(np.array([0.5, 0.5]), np.array([-0.1, 0.1]), 1.0, 3)
    >>> bool(np.abs(found - np.cos(0.2 * np.pi * np.arange(4))).max() <= error)
    True
    """
    size = fft.next_fast_len(max(FINER * last, 4 * REACH), real=True)
    where = places * (size / period)
    nearest = np.rint(where)
    cell = nearest.astype(np.int64) % size
    lattice = _spread_gaussians(mass, where - nearest, cell, size)
    lift = np.exp((_TURN / size * np.arange(last + 1)) ** 2 / 2) / (BETA * math.sqrt(2 * math.pi))
    # The FFT errs by the logarithm of its size, the powers by REACH, a sum of n masses in blocks by BLOCK + n / BLOCK.
    crowd = float(np.bincount(cell) @ np.bincount(cell, weights=mass))
    rounding = ULP * _LIFT * (4 * (math.log2(size) + REACH + 8) + 2 * (BLOCK + crowd / BLOCK))
    return np.conj(fft.rfft(lattice)[: last + 1]) * lift, ERROR + rounding


def _spread_gaussians(mass: Floats, away: Floats, cell: Ints, size: int) -> Floats:
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


Transform = tuple[float, Complexes, Floats]

EFFORTS = ((1e-7, 1 << 17), (1e-5, 1 << 14), (1e-3, 1 << 11))  # relative width in epsilon, and how many frequencies
WIDEST = 5000.0  # blur: beyond it nothing is left to say, and e^(blur / 8) is soon no number
LEFT_OUT = 0.01  # of that width, what each other source may add
FAR = 1.5  # more than so many times what is needed is worth shortening


@dataclass(frozen=True, slots=True)
class Frequencies:
    """u = 0, h, .. last * h, the blur s, and what those left out add at most to the upper and to the lower sum."""

    h: float
    last: int
    blur: float
    goal: float  # what may be left out
    rest: float
    rest_under: float
    known: dict[tuple[float, float], Transform] = field(default_factory=dict)  # of levels, at least up to the last

    @property
    def values(self) -> Floats:
        return self.h * np.arange(self.last + 1, dtype=np.float64)

    @property
    def weight_deficit(self) -> float:
        """The lower sum has the weight 1/(z (z + 1)) - less."""
        return self.blur * math.exp(self.blur / 8)


def choose_frequencies(
    levels: LossLevels, direction: Direction, line: IntegrationLine, *, effort: int = 0
) -> Frequencies:
    """Frequencies for a ledger on a line; the `effort` falls from 0 on."""
    width, most = EFFORTS[effort]
    found = _blur_frequencies(line, width, most)
    try:
        exact = _decay_frequencies(levels, direction, line)
        found = exact if exact.last <= found.last else found
    except QuadratureTooCostly:
        pass
    return _shorten_by_decay(found, levels, direction, line)


def _decay_frequencies(levels: LossLevels, direction: Direction, line: IntegrationLine) -> Frequencies:
    """Up to the first frequency beyond which the decay alone proves that the rest is small."""
    decay = Decay(bin_levels(levels, 12), levels.gaussian, direction, line.c)
    u = 4 / line.spread * np.cumprod(np.array([1.12] * 30 + [2.0] * 16))
    # Made to fall with u: only then is the sum over the frequencies left out at most the integral.
    height = np.exp(-np.minimum.accumulate(decay.lower_bounds(u, math.inf)[::-1])[::-1])
    rest = np.cumsum((height * (1 / u - np.append(1 / u[1:], 0.0)))[::-1])[::-1] / math.pi
    goal, h = TOLERANCE * line.value(), 2 * math.pi / line.period
    good = np.flatnonzero(rest <= goal)
    if not len(good):
        raise QuadratureTooCostly("far frequencies do not die")
    last, left_out = math.ceil(u[good[0]] / h) + 1, float(rest[good[0]])
    return Frequencies(h, last, 0.0, goal, left_out, left_out)


def _blur_frequencies(line: IntegrationLine, width: float, most: int) -> Frequencies:
    """The blur that makes epsilon about as wide as asked, and frequencies up to where it leaves little of that."""
    width *= max(line.saddle * line.epsilon, 1e-3)  # of log delta
    found = _frequencies_at_blur(line, width)
    if found.last > most:  # their number goes with 1 / sqrt(width)
        found = _frequencies_at_blur(line, width * (1.05 * found.last / most) ** 2)
    return found


def _frequencies_at_blur(line: IntegrationLine, width: float) -> Frequencies:
    blur, h = width / (line.saddle * (line.saddle + 1)), 2 * math.pi / line.period
    if blur > WIDEST:
        raise QuadratureTooCostly("a blur so wide that it says nothing")
    goal, reach = LEFT_OUT * min(width, 0.1) * line.value(), 4.0
    for _ in range(6):  # e^(-reach^2 / 2) / (pi u) = goal
        reach = math.sqrt(2 * max(1.0, -math.log(math.pi * goal * reach / math.sqrt(blur))))
    last = max(2, math.ceil(min(reach / math.sqrt(blur) / h, 1e9)))
    # (1/pi) integral from u on of e^(-s u^2/2) / u^2, and of s' e^(-s u^2/2), by Mills' ratio.
    u = h * last
    share = math.exp(-blur * u**2 / 2) / (math.pi * u)
    rest = share / (blur * u**2)
    return Frequencies(h, last, blur, goal, rest, rest + share * math.exp(blur / 8))


def _shorten_by_decay(
    found: Frequencies, levels: LossLevels, direction: Direction, line: IntegrationLine
) -> Frequencies:
    """Fewer frequencies, as far as some of the steps can show that the others have died."""
    s, enough = tilt_exponent(direction, line.c), FAR * (14 / line.deviation / found.h + 1)
    order = np.argsort(6.8 * levels.mu - np.log(levels.rate * levels.mu))  # about the frequency where a step has died
    order = order[: _trial_level_count(levels)]
    share = float(levels.count[order].sum()) / max(levels.steps, 1.0)
    if found.last <= enough / math.sqrt(share or 1.0):  # n of T steps die at sqrt(T / n) times the frequency
        return found
    log_size, tried = -(levels.gaussian + found.blur) * found.values**2 / 2, 0
    while tried < len(order) and found.last > enough:
        log_size, picked = log_size[: found.last + 1], order[tried : 2 * tried + 1]
        for rate, mu, count in zip(levels.rate[picked], levels.mu[picked], levels.count[picked], strict=True):
            one = transform(float(rate), float(mu), direction, s, found.h, found.last)
            found.known[float(rate), float(mu)] = one
            log_size += count * np.log(np.minimum(np.abs(one[1]) + one[2], 1.0))
        tried += len(picked)
        found = _drop_negligible(found, np.exp(log_size), line.c)
    return found


def _trial_level_count(levels: LossLevels) -> int:
    """How many levels are worth a try: all of those that are transformed in any case."""
    if len(levels.mu) <= FEW:
        return len(levels.mu)
    return 63 if len(np.unique(levels.rate)) * FEW > len(levels.mu) else 15


def _drop_negligible(found: Frequencies, size: Floats, c: float) -> Frequencies:
    """Without the highest frequencies, whose share, of a product of at most `size`, is small."""
    u = found.values
    weight = 1 / np.sqrt((c**2 + u**2) * ((c + 1) ** 2 + u**2))
    both = (size * (weight + found.weight_deficit))[:0:-1]  # from the last to 1
    tail = np.cumsum(both) * (found.h / math.pi * (1 + 1e-9))
    gone = min(int(np.searchsorted(tail, found.goal, side="right")), found.last - 2)
    if not gone:
        return found
    over = float((size * weight)[: -gone - 1 : -1].sum()) * found.h / math.pi * (1 + 1e-9)
    return replace(
        found, last=found.last - gone, rest=found.rest + over, rest_under=found.rest_under + float(tail[gone - 1])
    )


def transform(rate: float, mu: float, direction: Direction, s: float, h: float, last: int) -> Transform:
    """log Psi of a level, E e^(i j h L) under its tilted law for j = 0 .. last, and a bound on the error of each."""
    level = np.array([rate]), np.array([mu])
    rule = fine_quadrature(rate, mu, s, h * last)
    losses, law, log_psi = tilted_law(*level, s, rule)
    sign = 1.0 if direction == "remove" else -1.0
    found, error = nonuniform_fft(law[0], sign * losses[0], 2 * math.pi / h, last)
    # Rounding, relative to Psi(c): arguments of exp, the sum, the places of the losses.
    sizes = loss_rounding_sizes(*level, rule.nodes, losses)
    spread = float((law * (rule.nodes**2 / 2 + abs(s) * sizes)).sum())
    error += 2 * rule.error + 4 * ULP * (12 + 2 * spread + math.log2(len(rule.nodes)))
    places = 8 * ULP * h * float((law * sizes).sum())
    return float(log_psi[0]), found, np.asarray(error + places * np.arange(last + 1), dtype=np.float64)
