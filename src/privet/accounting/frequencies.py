"""Which frequencies the Fourier sum takes, with a proof that the rest is small.

delta(eps) = E p(L - eps) has a payoff p(x) = (1 - e^-x)_+ with a corner, so far frequencies die only as fast as the
steps make them. Three ways to leave frequencies out:

    decay     the steps are so many that a bound on each shows it (`decay`);
    blur      add a Gaussian release of tiny mu^2 = s to the ledger. Its delta D is above delta, its far frequencies die
              like e^(-s u^2 / 2) whatever the steps are, and with phi the normal density

                  0 <= D(eps) - delta(eps) <= E b(L - eps),   b(x) = sqrt(s) e^(-x/2) phi(x / sqrt(s)),

              second order in sqrt(s). E b has the transform of D times s e^(s/8) z (z + 1): no more work;
    shorten   of the frequencies that either leaves, most are dead already: a few of the steps show it, as leaving
              steps out only raises |e^K|. Those that die first are tried first, so few see the highest frequencies.

docs/math.md has the proofs.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from privet.accounting.aim import TOLERANCE, Line
from privet.accounting.decay import Decay
from privet.accounting.gridding import gridded
from privet.accounting.interpolation import FEW
from privet.accounting.levels import Levels, binned
from privet.accounting.moments import ULP, Direction, TooHard, exponent, rounded_losses, tilted_law
from privet.accounting.trapezoid import fine

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
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
    def less(self) -> float:
        """The lower sum has the weight 1/(z (z + 1)) - less."""
        return self.blur * math.exp(self.blur / 8)


def frequencies_for(levels: Levels, direction: Direction, line: Line, *, effort: int = 0) -> Frequencies:
    """Frequencies for a ledger on a line; the `effort` falls from 0 on."""
    width, most = EFFORTS[effort]
    found = _by_blur(line, width, most)
    try:
        exact = _by_decay(levels, direction, line)
        found = exact if exact.last <= found.last else found
    except TooHard:
        pass
    return _shortened(found, levels, direction, line)


def _by_decay(levels: Levels, direction: Direction, line: Line) -> Frequencies:
    """Up to the first frequency beyond which the decay alone proves that the rest is small."""
    decay = Decay(binned(levels, 12), levels.gaussian, direction, line.c)
    u = 4 / line.spread * np.cumprod(np.array([1.12] * 30 + [2.0] * 16))
    # Made to fall with u: only then is the sum over the frequencies left out at most the integral.
    height = np.exp(-np.minimum.accumulate(decay.between(u, math.inf)[::-1])[::-1])
    rest = np.cumsum((height * (1 / u - np.append(1 / u[1:], 0.0)))[::-1])[::-1] / math.pi
    goal, h = TOLERANCE * line.value(), 2 * math.pi / line.period
    good = np.flatnonzero(rest <= goal)
    if not len(good):
        raise TooHard("far frequencies do not die")
    last, left_out = math.ceil(u[good[0]] / h) + 1, float(rest[good[0]])
    return Frequencies(h, last, 0.0, goal, left_out, left_out)


def _by_blur(line: Line, width: float, most: int) -> Frequencies:
    """The blur that makes epsilon about as wide as asked, and frequencies up to where it leaves little of that."""
    width *= max(line.saddle * line.epsilon, 1e-3)  # of log delta
    found = _blurred(line, width)
    if found.last > most:  # their number goes with 1 / sqrt(width)
        found = _blurred(line, width * (1.05 * found.last / most) ** 2)
    return found


def _blurred(line: Line, width: float) -> Frequencies:
    blur, h = width / (line.saddle * (line.saddle + 1)), 2 * math.pi / line.period
    if blur > WIDEST:
        raise TooHard("a blur so wide that it says nothing")
    goal, reach = LEFT_OUT * min(width, 0.1) * line.value(), 4.0
    for _ in range(6):  # e^(-reach^2 / 2) / (pi u) = goal
        reach = math.sqrt(2 * max(1.0, -math.log(math.pi * goal * reach / math.sqrt(blur))))
    last = max(2, math.ceil(min(reach / math.sqrt(blur) / h, 1e9)))
    # (1/pi) integral from u on of e^(-s u^2/2) / u^2, and of s' e^(-s u^2/2), by Mills' ratio.
    u = h * last
    share = math.exp(-blur * u**2 / 2) / (math.pi * u)
    rest = share / (blur * u**2)
    return Frequencies(h, last, blur, goal, rest, rest + share * math.exp(blur / 8))


def _shortened(found: Frequencies, levels: Levels, direction: Direction, line: Line) -> Frequencies:
    """Fewer frequencies, as far as some of the steps can show that the others have died."""
    s, enough = exponent(direction, line.c), FAR * (14 / line.deviation / found.h + 1)
    order = np.argsort(6.8 * levels.mu - np.log(levels.rate * levels.mu))  # about the frequency where a step has died
    order = order[: _worth(levels)]
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
        found = _cut(found, np.exp(log_size), line.c)
    return found


def _worth(levels: Levels) -> int:
    """How many levels are worth a try: all of those that are transformed in any case."""
    if len(levels.mu) <= FEW:
        return len(levels.mu)
    return 63 if len(np.unique(levels.rate)) * FEW > len(levels.mu) else 15


def _cut(found: Frequencies, size: Floats, c: float) -> Frequencies:
    """Without the highest frequencies, whose share, of a product of at most `size`, is small."""
    u = found.values
    weight = 1 / np.sqrt((c**2 + u**2) * ((c + 1) ** 2 + u**2))
    both = (size * (weight + found.less))[:0:-1]  # from the last to 1
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
    rule = fine(rate, mu, s, h * last)
    losses, law, log_psi = tilted_law(*level, s, rule)
    sign = 1.0 if direction == "remove" else -1.0
    found, error = gridded(law[0], sign * losses[0], 2 * math.pi / h, last)
    # Rounding, relative to Psi(c): arguments of exp, the sum, the places of the losses.
    sizes = rounded_losses(*level, rule.nodes, losses)
    spread = float((law * (rule.nodes**2 / 2 + abs(s) * sizes)).sum())
    error += 2 * rule.error + 4 * ULP * (12 + 2 * spread + math.log2(len(rule.nodes)))
    places = 8 * ULP * h * float((law * sizes).sum())
    return float(log_psi[0]), found, np.asarray(error + places * np.arange(last + 1), dtype=np.float64)
