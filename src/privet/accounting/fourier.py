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
from privet.accounting.interpolation import Blend, Nodes, compress
from privet.accounting.levels import Levels, binned
from privet.accounting.middle import middle
from privet.accounting.moments import (
    ULP,
    Direction,
    Quadrature,
    TooHard,
    exponent,
    log_payoff,
    quadrature,
    tilted_law,
)

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

MOST_FREQUENCIES = 20_000
MOST_WORK = 2.5e9  # node evaluations, a few seconds, before anything else is the better route
BLOCK = 8192  # complex numbers that stay in the cache
MOST_HELD = 1 << 20  # blended transforms held at a time, to bound memory


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The summand e^(K(z) - K(c)) / (z (z + 1)) at u = 0, h, 2h, ..., with what is known of its errors."""

    c: float
    log_moment: float  # K(c)
    frequencies: Floats
    summand: Complexes
    wrong: float  # sum of the bounds on |summand - truth|
    turning: float  # sum of u / |z (z + 1)|: what a rounding of the phases u * eps can do
    rest: float  # (1/pi) integral from the last frequency on of |e^(K - K(c))| / u^2 is at most this
    above: tuple[tuple[float, float], ...]  # (c', b): the aliases k > 0 are at most e^(b - c' eps)

    def lower(self, epsilon: float) -> float:
        """A lower bound on log delta(epsilon)."""
        return self.log_delta(epsilon)[0]

    def upper(self, epsilon: float) -> float:
        """An upper bound on log delta(epsilon)."""
        return self.log_delta(epsilon)[1]

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bounds on log delta(epsilon); lower may be -inf."""
        h = float(self.frequencies[1])
        terms = (self.summand * np.exp(-1j * epsilon * self.frequencies)).real
        total = h / (2 * math.pi) * (2 * float(terms.sum()) - float(terms[0]))
        slack = h / math.pi * (self.wrong + 4 * ULP * abs(epsilon) * self.turning) + self.rest
        scale = self.log_moment - self.c * epsilon
        drift = 8 * ULP * (abs(self.log_moment) + self.c * abs(epsilon)) + 1e-15
        if not math.isfinite(total + slack + scale + drift) or total + slack <= 0:
            raise TooHard("not a number in the Fourier sum")
        upper = min(0.0, math.log(total + slack) + scale + drift)
        below = -2 * math.pi / h * self.c  # log of e^(-cA), the aliases k < 0 of a delta that is at most 1
        below -= math.log(-math.expm1(below)) + scale
        above = min(bound - c * epsilon for c, bound in self.above) - scale
        left = total - slack - math.exp(min(below, 700.0)) - math.exp(min(above, 700.0))
        lower = math.log(left) + scale - drift if left > 0 else -math.inf
        return lower, upper


def _aliases_above(line: Line) -> tuple[tuple[float, float], ...]:
    """(c', b) with sum_(k>=1) e^(c k A) delta(eps + k A) <= e^(b - c' eps).

    By delta(x) <= m e^(K(c') - c' x), log m = log_payoff(c').
    """
    found = []
    for c, moment in line.moments:
        if c > line.c * 1.01:
            gap = (c - line.c) * line.period
            found.append((c, log_payoff(c) + moment - gap - math.log(-math.expm1(-gap))))
    return tuple(found)


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
    h = 2 * math.pi / line.period
    last, rest = _last(least, direction, line, h, work)
    frequencies = h * np.arange(last + 1, dtype=np.float64)
    gaussian = np.array([ledger.gaussian for ledger in ledgers])
    log_moments = c * (c + 1) * gaussian / 2
    exponents = np.multiply.outer(gaussian, -(frequencies**2) / 2 + 1j * frequencies * (2 * c + 1) / 2)
    errors = 8 * ULP * (1 + np.abs(exponents))
    if len(levels.mu):
        counts = np.stack([ledger.count for ledger in ledgers])
        nodes = compress(levels, counts, direction=direction, c=c, top=float(frequencies[-1]))
        moments, more, bounds = _sampled(nodes, direction, c, frequencies, work)
        log_moments, exponents, errors = log_moments + moments, exponents + more, errors + bounds
    pole = (c + 1j * frequencies) * (c + 1 + 1j * frequencies)
    above, turning = _aliases_above(line), float((frequencies / np.abs(pole)).sum())
    with np.errstate(under="ignore"):
        summands = np.exp(exponents) / pole
        wrong = ((np.expm1(errors) + 32 * ULP) / np.abs(pole)).sum(axis=1)
    return [
        Spectrum(c, float(moment), frequencies, summand, float(bound), turning, rest, above)
        for moment, summand, bound in zip(log_moments, summands, wrong, strict=True)
    ]


def _last(levels: Levels, direction: Direction, line: Line, h: float, work: float) -> tuple[int, float]:
    """The number of the last frequency to sum, and the proven size of what is left out."""
    goal = math.exp(
        min(math.log(TOLERANCE) + line.log_delta + line.c * line.epsilon - dict(line.moments)[line.c], 700.0)
    )
    u, rest = _cutoff(Decay(binned(levels, 12), levels.gaussian, direction, line.c), line, goal)
    last = math.ceil(u / h) + 1
    if last > MOST_FREQUENCIES:
        raise TooHard(f"{last} frequencies")
    near = math.ceil(14 / line.deviation / h) + 1
    while near < 0.7 * last and len(levels.mu):
        try:
            left_out = middle(levels, direction, line.c, h, near, last, min(8 * work, 3e8)) + rest
        except TooHard:
            break  # summing all of them may be no dearer
        if left_out <= 10 * goal:
            return near, left_out
        near *= 2
    return last, rest


def _cutoff(decay: Decay, line: Line, goal: float) -> tuple[float, float]:
    """The first frequency beyond which the decay alone proves that the rest is at most `goal`, and its size."""
    u = 4 / line.spread * np.cumprod(np.array([1.12] * 30 + [2.0] * 16))
    rest = _beyond(decay, u)
    good = np.flatnonzero(rest <= goal)
    if not len(good):
        raise TooHard("far frequencies do not die")
    return float(u[good[0]]), float(rest[good[0]])


def _beyond(decay: Decay, u: Floats) -> Floats:
    """(1/pi) integral from each u[m] to infinity of e^-decay / v^2 dv, at most."""
    # Made to fall with u: only then is the sum over the frequencies left out at most the integral.
    height = np.exp(-np.minimum.accumulate(decay.between(u, math.inf)[::-1])[::-1])
    return np.asarray(np.cumsum((height * (1 / u - np.append(1 / u[1:], 0.0)))[::-1])[::-1] / math.pi)


def _sampled(
    nodes: Nodes, direction: Direction, c: float, frequencies: Floats, work: float
) -> tuple[Floats, Complexes, Floats]:
    """K(c), K(c + iu) - K(c) and a bound on the error of the latter, for the sampled steps of each ledger."""
    s, top = exponent(direction, c), float(frequencies[-1])
    groups = [(alike, quadrature(nodes.rate[alike], nodes.mu[alike], s, top)) for alike in _alike(nodes.mu)]
    needed = sum(len(alike) * len(rule.nodes) for alike, rule in groups) * len(frequencies)
    if needed > work:
        raise TooHard(f"{len(nodes.mu)} levels, {len(frequencies)} frequencies: {needed:.3g} evaluations")
    moments = np.zeros(len(nodes.weight))
    exponents = np.zeros((len(nodes.weight), len(frequencies)), dtype=np.complex128)
    errors = np.full((len(nodes.weight), len(frequencies)), nodes.error)
    kept = _Kept(nodes, len(frequencies))
    for alike, rule in groups:
        for part in np.array_split(alike, max(1, len(alike) * len(rule.nodes) // BLOCK)):
            log_psi, logs, wrong = _transforms(nodes.rate[part], nodes.mu[part], direction, s, rule, frequencies)
            kept.keep(part, log_psi, logs, wrong)
            weight, size = nodes.weight[:, part], np.abs(nodes.weight[:, part])
            moments += weight @ log_psi
            exponents += _times(weight, logs)
            # The sum over the nodes: as many roundings as nodes, of sizes up to the largest logarithm.
            largest = np.minimum(-logs.real.min(axis=1), 1.0) + np.abs(logs.imag).max(axis=1)
            wrong += (2 * ULP * len(nodes.mu) * largest)[:, None]
            # An interpolated node has |M| >= 1/2 and Psi <= 3/2, so its log errs by 3 times as much at most.
            errors += (size * np.where(nodes.exact[part], 1.0, 3.2)) @ wrong
    for blend in nodes.blends:
        for part in np.array_split(np.arange(len(blend.basis)), len(blend.basis) * len(frequencies) // MOST_HELD + 1):
            count = blend.count[:, part]
            log_psi, logs, wrong = kept.blended(Blend(blend.nodes, blend.basis[part], count))
            moments += count @ log_psi
            exponents += _times(count, logs)
            wrong += 2 * ULP * len(blend.basis) * (1 + np.abs(logs.imag).max(axis=1))[:, None]
            errors += count @ wrong
    return moments, exponents, errors


class _Kept:
    """The transforms of the nodes that blends are made of."""

    def __init__(self, nodes: Nodes, size: int) -> None:
        used = np.concatenate([blend.nodes for blend in nodes.blends]) if nodes.blends else np.zeros(0, dtype=np.int64)
        self._place = np.full(len(nodes.mu), -1)
        self._place[used] = np.arange(len(used))
        self._log_psi = np.empty(len(used))
        self._logs = np.empty((len(used), size), dtype=np.complex128)
        self._wrong = np.empty((len(used), size))

    def keep(self, part: NDArray[np.int64], log_psi: Floats, logs: Complexes, wrong: Floats) -> None:
        place = self._place[part]
        used = place >= 0
        self._log_psi[place[used]], self._logs[place[used]] = log_psi[used], logs[used]
        self._wrong[place[used]] = wrong[used]

    def blended(self, blend: Blend) -> tuple[Floats, Complexes, Floats]:
        """The same as `_transforms`, for the levels of a blend."""
        here = self._place[blend.nodes]
        scale = self._log_psi[here].max()
        psi = np.exp(self._log_psi[here] - scale)
        mixed = blend.basis @ (psi[:, None] * np.exp(self._logs[here]))
        at_c = mixed[:, 0].real
        if not (at_c > 0).all():
            raise TooHard("an interpolated moment is not positive")
        slips = psi[:, None] * (self._wrong[here] + 4 * ULP * (8 + len(here)))
        wrong = (np.abs(blend.basis) @ slips) / at_c[:, None]
        with np.errstate(divide="ignore"):
            return np.log(at_c) + scale, np.log(mixed / at_c[:, None]), wrong


def _alike(mu: Floats) -> list[NDArray[np.int64]]:
    """Nodes in groups of similar mu: the largest of a group sets how fine its quadrature is."""
    order = np.argsort(mu)
    octaves = np.floor(np.log2(mu[order] / mu.max()) * 1.5 + 1e-9)
    return list(np.split(order, np.flatnonzero(np.diff(octaves)) + 1))


def _transforms(
    rate: Floats, mu: Floats, direction: Direction, s: float, rule: Quadrature, frequencies: Floats
) -> tuple[Floats, Complexes, Floats]:
    """log Psi, log E e^(iuL) under the tilted law, and a bound on the error of its exponential, for each level."""
    x = rule.nodes
    losses, law, log_psi = tilted_law(rate, mu, s, rule)
    sign = 1.0 if direction == "remove" else -1.0
    logs = _log_transform(law, sign * losses, float(frequencies[1]), len(frequencies))
    # Rounding, relative to Psi(c): arguments of exp, the running product of phases, the sum.
    sizes = _rounded(rate, mu, x, losses)
    spread = (law * (x**2 / 2 + abs(s) * sizes)).sum(axis=1)
    turning = frequencies[1] * (law * sizes).sum(axis=1)
    base = rule.error + 4 * ULP * (12 + 2 * spread + math.log2(len(x)))
    wrong = base[:, None] + 4 * ULP * np.arange(len(frequencies)) * (3 + 2 * turning)[:, None]
    return log_psi, logs, wrong


def _rounded(rate: Floats, mu: Floats, x: Floats, losses: Floats) -> Floats:
    """The sizes of which a loss has a few ulps of error: where the record takes part, terms of its exponent cancel."""
    terms = mu[:, None] * np.abs(x) + (mu**2 / 2 - np.log(rate))[:, None]
    hit = 1 - np.exp(np.minimum(np.log1p(-rate)[:, None] - losses, 0.0))
    return np.asarray(np.abs(losses) + hit * terms)


def _times(weight: Floats, logs: Complexes) -> Complexes:
    """weight @ logs, where a transform that is exactly 0 (log -inf) is e^-10^4: 0 for ledgers that have its level."""
    return np.asarray(weight @ np.where(np.isfinite(logs.real), logs, -1e4))


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
