"""The fast route: delta(epsilon) of a composition by one short Fourier sum with every error bounded.

With L the total privacy loss and K(z) = sum_t log E[e^(z L_t)], for any c > 0

    delta(eps) = 1/(2 pi) integral of e^(K(z) - z eps) / (z (z + 1)) du,   z = c + iu.

The trapezoid sum of spacing h equals sum_k delta(eps + k A) e^(c k A), A = 2 pi / h, exactly (Poisson). All its
terms are >= 0, so it is an upper bound; Chernoff bounds on the terms k != 0 give the lower bound. Added on both
sides: the frequencies left out (`decay`), quadrature and interpolation (`moments`, `interpolation`), rounding.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.accounting.aim import TOLERANCE, Line
from privet.accounting.decay import Decay
from privet.accounting.interpolation import Nodes, compress
from privet.accounting.levels import Levels, binned
from privet.accounting.moments import ULP, Direction, TooHard, exponent, loss, quadrature

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

MOST_FREQUENCIES = 20_000
MOST_WORK = 3e8  # node evaluations before the lattice is the better route
BLOCK = 8192  # complex numbers that stay in the cache


@dataclass(frozen=True, slots=True)
class Spectrum:
    """e^(K(c + iu) - K(c)) at u = 0, h, 2h, ..., with what is known of its errors."""

    c: float
    log_moment: float  # K(c)
    frequencies: Floats
    values: Complexes
    errors: Floats  # |values - truth| <= errors
    rest: float  # (1/pi) integral from the last frequency on of |e^(K - K(c))| / u^2 is at most this
    aliases: tuple[tuple[float, float], ...]  # (c', upper bound on K(c')) for Chernoff bounds

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bounds on log delta(epsilon); lower may be -inf."""
        z = self.c + 1j * self.frequencies
        terms = self.values * np.exp(-1j * self.frequencies * epsilon) / (z * (z + 1))
        h = self.frequencies[1]
        total = h / (2 * math.pi) * (2 * float(terms.real.sum()) - float(terms.real[0]))
        phase = 4 * ULP * self.frequencies * abs(epsilon)
        slack = h / math.pi * float(((self.errors + phase + 32 * ULP) / np.abs(z * (z + 1))).sum()) + self.rest
        scale = self.log_moment - self.c * epsilon
        drift = 8 * ULP * (abs(self.log_moment) + self.c * abs(epsilon)) + 1e-15
        if not math.isfinite(total + slack + scale + drift) or total + slack <= 0:
            raise TooHard("not a number in the Fourier sum")
        upper = min(0.0, math.log(total + slack) + scale + drift)
        rest = total - slack - self._aliased(epsilon, 2 * math.pi / h)
        lower = math.log(rest) + scale - drift if rest > 0 else -math.inf
        return lower, upper

    def _aliased(self, epsilon: float, period: float) -> float:
        """An upper bound on the terms k != 0, in units of e^(K(c) - c eps)."""
        scale = self.log_moment - self.c * epsilon
        below = -self.c * period - math.log(-math.expm1(-self.c * period)) - scale
        above = min(_above(c, moment, self.c, epsilon, period) for c, moment in self.aliases) - scale
        return math.exp(min(below, 700.0)) + math.exp(min(above, 700.0))


def _above(c: float, moment: float, base: float, epsilon: float, period: float) -> float:
    """log of sum_(k>=1) e^(base k A) delta(eps + k A), by delta(x) <= m(c) e^(K(c) - c x), m = max (1-e^-t) e^-ct."""
    log_m = c * math.log(c) - (1 + c) * math.log1p(c)
    gap = (c - base) * period
    return log_m + moment - c * epsilon - gap - math.log(-math.expm1(-gap))


def spectrum(levels: Levels, direction: Direction, line: Line, work: float = MOST_WORK) -> Spectrum:
    """The transform on the chosen line. Raises TooHard where another route is better."""
    return spectra(levels, [levels], direction, line, work)[0]


def spectra(
    levels: Levels, ledgers: list[Levels], direction: Direction, line: Line, work: float = MOST_WORK
) -> list[Spectrum]:
    """The transforms of several ledgers on one line, sharing what is dear: the transforms of the levels.

    The ledgers have the levels of `levels`, each at most as often, and are sorted from large to small.
    """
    c = line.c
    least = ledgers[-1].kept()  # the slowest decay serves all
    last, rest = _cutoff(Decay(binned(least, 12), least.gaussian, direction, c), line)
    h = 2 * math.pi / line.period
    size = math.ceil(last / h) + 1
    if size > MOST_FREQUENCIES:
        raise TooHard(f"{size} frequencies")
    frequencies = h * np.arange(size + 1)
    gaussian = np.array([ledger.gaussian for ledger in ledgers])
    log_moments = c * (c + 1) * gaussian / 2
    exponents = np.multiply.outer(gaussian, -(frequencies**2) / 2 + 1j * frequencies * (2 * c + 1) / 2)
    errors = 8 * ULP * (1 + np.abs(exponents))
    if len(levels.mu):
        counts = np.stack([ledger.count for ledger in ledgers])
        nodes = compress(levels, counts, direction=direction, c=c, top=float(frequencies[-1]))
        moments, more, bounds = _sampled(nodes, direction, c, frequencies, work)
        log_moments, exponents, errors = log_moments + moments, exponents + more, errors + bounds
    aliases = tuple((other, moment) for other, moment in line.moments if other > c * 1.01)
    with np.errstate(under="ignore"):
        return [
            Spectrum(c, float(moment), frequencies, np.exp(exponent_), np.expm1(error), rest, aliases)
            for moment, exponent_, error in zip(log_moments, exponents, errors, strict=True)
        ]


def _cutoff(decay: Decay, line: Line) -> tuple[float, float]:
    """The first frequency beyond which the rest is negligible, and the proven size of that rest."""
    log_goal = math.log(TOLERANCE) + line.log_delta + line.c * line.epsilon - dict(line.moments)[line.c]
    goal = math.exp(min(log_goal, 700.0))
    u = 4 / line.spread * np.cumprod([1.25] * 14 + [2.0] * 16)
    rest = _beyond(decay, u)
    good = np.flatnonzero(rest <= goal)
    if not len(good):
        raise TooHard("far frequencies do not die")
    return float(u[good[0]]), float(rest[good[0]])


def _beyond(decay: Decay, u: Floats, until: float = math.inf) -> Floats:
    """(1/pi) integral from each u[m] to `until` of e^-decay / v^2 dv, at most."""
    # Made to fall with u: only then is the sum over the frequencies left out at most the integral.
    height = np.exp(-np.minimum.accumulate(decay.between(u, until)[::-1])[::-1])
    return np.asarray(np.cumsum((height * (1 / u - np.append(1 / u[1:], 1 / until)))[::-1])[::-1] / math.pi)


def _sampled(
    nodes: Nodes, direction: Direction, c: float, frequencies: Floats, work: float
) -> tuple[Floats, Complexes, Floats]:
    """K(c), K(c + iu) - K(c) and a bound on the error of the latter, for the sampled steps of each ledger."""
    s = exponent(direction, c)
    sign = 1.0 if direction == "remove" else -1.0
    rule = quadrature(nodes.rate, nodes.mu, s, float(frequencies[-1]))
    x = rule.nodes
    if len(nodes.mu) * len(x) * len(frequencies) > work:
        raise TooHard(f"{len(nodes.mu)} levels x {len(x)} nodes x {len(frequencies)} frequencies")
    moments = np.zeros(len(nodes.weight))
    exponents = np.zeros((len(nodes.weight), len(frequencies)), dtype=np.complex128)
    errors = np.full((len(nodes.weight), len(frequencies)), nodes.error)
    turns = np.arange(len(frequencies))
    for part in np.array_split(np.arange(len(nodes.mu)), max(1, len(nodes.mu) * len(x) // BLOCK)):
        losses = loss(nodes.rate[part], nodes.mu[part], x)
        log_terms = s * losses - x**2 / 2 + math.log(rule.step) - 0.5 * math.log(2 * math.pi)
        peak = log_terms.max(axis=1, keepdims=True)
        terms = np.exp(log_terms - peak)
        total = terms.sum(axis=1)
        law = terms / total[:, None]
        weight, size = nodes.weight[:, part], np.abs(nodes.weight[:, part])
        moments += weight @ (np.log(total) + peak[:, 0])
        logs = _log_transform(law, sign * losses, frequencies[1], len(frequencies))
        exponents += _times(weight, logs)
        # Rounding, relative to Psi(c): arguments of exp, the running product of phases, the sum.
        sizes = _rounded(nodes.rate[part], nodes.mu[part], x, losses)
        spread = (law * (x**2 / 2 + abs(s) * sizes)).sum(axis=1)
        turning = frequencies[1] * (law * sizes).sum(axis=1)
        base = rule.error + 4 * ULP * (12 + 2 * spread + math.log2(len(x)))
        # The sum over the nodes: as many roundings as nodes, of sizes up to the largest logarithm.
        base += 2 * ULP * len(nodes.mu) * (np.minimum(-logs.real.min(axis=1), 1.0) + np.abs(logs.imag).max(axis=1))
        per = base[:, None] + 4 * ULP * turns * (3 + 2 * turning)[:, None]
        # An interpolated node has |M| >= 1/2 and Psi <= 3/2, so its log errs by 3 times as much at most.
        errors += (size * np.where(nodes.exact[part], 1.0, 3.2)) @ per
    return moments, exponents, errors


def _rounded(rate: Floats, mu: Floats, x: Floats, losses: Floats) -> Floats:
    """The sizes of which a loss has a few ulps of error: where the record takes part, terms of its exponent cancel."""
    terms = mu[:, None] * np.abs(x) + (mu**2 / 2 - np.log(rate))[:, None]
    hit = 1 - np.exp(np.minimum(np.log1p(-rate)[:, None] - losses, 0.0))
    return np.asarray(np.abs(losses) + hit * terms)


def _times(weight: Floats, logs: Complexes) -> Complexes:
    """weight @ logs, where a transform that is exactly 0 (log -inf) counts only for ledgers that have its level."""
    if np.isfinite(logs.real).all():
        return np.asarray(weight @ logs)
    with np.errstate(invalid="ignore"):
        products = np.where(weight[:, :, None] == 0, 0.0, weight[:, :, None] * logs[None])
    return np.asarray(products.sum(axis=1))


def _log_transform(law: Floats, losses: Floats, h: float, size: int) -> Complexes:
    """log E e^(i j h L) for j = 0 .. size-1, each row under its law: a running product of phases."""
    out = np.empty((len(law), size), dtype=np.complex128)
    phase = np.exp(1j * h * losses)
    running = law.astype(np.complex128)
    out[:, 0] = 1.0
    for j in range(1, size):
        running *= phase
        out[:, j] = running.sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(out))
