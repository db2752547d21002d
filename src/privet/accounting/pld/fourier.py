"""delta(epsilon) of a composition by one Fourier sum with every error bounded.

With L the total privacy loss and K(z) = sum_t log E[e^(z L_t)], for any c > 0

    delta(eps) = 1/(2 pi) integral of e^(K(z) - z eps) / (z (z + 1)) du,   z = c + iu.

The trapezoid sum of spacing h equals sum_k delta(eps + k A) e^(c k A), A = 2 pi / h, exactly (Poisson). All its
terms are >= 0, so it is an upper bound; Chernoff bounds on the terms k != 0 give the lower bound. Added on both
sides: the frequencies left out (`frequencies`), quadrature and interpolation (`moments`, `interpolation`), rounding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from privet.accounting.ledger import Floats, Ints
from privet.accounting.pld.frequencies import Complexes, Frequencies, choose_frequencies, transform
from privet.accounting.pld.interpolation import Blend, Nodes, compress
from privet.accounting.pld.levels import LossLevels
from privet.accounting.pld.loss_moments import (
    ULP,
    Direction,
    Quadrature,
    QuadratureTooCostly,
    log_payoff,
    loss_rounding_sizes,
    quadrature,
    quadrature_ends,
    tilt_exponent,
    tilted_law,
)
from privet.accounting.pld.saddle_point import IntegrationLine

MOST_WORK = 4e8  # evaluations, about a second
ATOM, LEVEL = 60, 2e5  # what an atom or a frequency, and a level, cost on their way through the FFT, in evaluations
BLOCK = 8192  # complex numbers that stay in the cache
MOST_HELD = 1 << 20  # blended transforms held at a time, to bound memory


@dataclass(frozen=True, slots=True)
class Sum:
    """A summand at u = 0, h, 2h, ..., in units of e^K(c), with what is known of its errors."""

    summand: Complexes
    wrong: float  # sum of the bounds on |summand - truth|
    turning: float  # sum of u |weight|: what a rounding of the phases u * eps can do
    rest: float  # the frequencies left out add at most this much

    def bounds(self, frequencies: Floats, epsilon: float) -> tuple[float, float]:
        """(value, error) of the trapezoid sum at epsilon."""
        h = float(frequencies[1])
        terms = (self.summand * np.exp(-1j * epsilon * frequencies)).real
        total = h / (2 * math.pi) * (2 * float(terms.sum()) - float(terms[0]))
        return total, h / math.pi * (self.wrong + 4 * ULP * abs(epsilon) * self.turning) + self.rest


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The transform of delta(epsilon) on a line, as two sums: one that bounds it from above, one from below."""

    c: float
    log_moment: float  # K(c)
    frequencies: Floats
    over: Sum
    under: Sum
    above: tuple[tuple[float, float], ...]  # (c', b): the aliases k > 0 are at most e^(b - c' eps)

    def lower(self, epsilon: float) -> float:
        """A lower bound on log delta(epsilon); may be -inf."""
        total, slack = self.under.bounds(self.frequencies, epsilon)
        scale, drift = self._scale(epsilon)
        below = -2 * math.pi / float(self.frequencies[1]) * self.c  # log of e^(-cA): the aliases k < 0, delta <= 1
        below -= math.log(-math.expm1(below)) + scale
        above = min(bound - c * epsilon for c, bound in self.above) - scale
        left = total - slack - math.exp(min(below, 700.0)) - math.exp(min(above, 700.0))
        if math.isnan(left + scale + drift):
            raise QuadratureTooCostly("not a number in the Fourier sum")
        return min(0.0, math.log(left) + scale) - drift if left > 0 else -math.inf

    def upper(self, epsilon: float) -> float:
        """An upper bound on log delta(epsilon)."""
        total, slack = self.over.bounds(self.frequencies, epsilon)
        scale, drift = self._scale(epsilon)
        if not math.isfinite(total + slack + scale + drift) or total + slack <= 0:
            raise QuadratureTooCostly("not a number in the Fourier sum")
        return min(0.0, math.log(total + slack) + scale + drift)

    def _scale(self, epsilon: float) -> tuple[float, float]:
        """log e^(K(c) - c eps), and what its rounding can do."""
        size = abs(self.log_moment) + self.c * abs(epsilon)
        return self.log_moment - self.c * epsilon, 8 * ULP * size + 1e-15


def alias_bounds(line: IntegrationLine, blur: float = 0.0) -> tuple[tuple[float, float], ...]:
    """(c', b) with sum_(k>=1) e^(c k A) delta(eps + k A) <= e^(b - c' eps).

    By delta(x) <= m e^(K(c') - c' x), log m = log_payoff(c'). A Gaussian of mu^2 = `blur` is added to the ledger.
    """
    found = []
    for c, moment in line.moments:
        if c > line.c * 1.01:
            gap, grown = (c - line.c) * line.period, moment + c * (c + 1) * blur / 2 * (1 + 1e-9)
            found.append((c, log_payoff(c) + grown - gap - math.log(-math.expm1(-gap))))
    return tuple(found)


def spectrum(
    levels: LossLevels, direction: Direction, line: IntegrationLine, *, work: float = MOST_WORK, effort: int = 0
) -> Spectrum:
    """The transform on the chosen line. Raises TooHard where it would be too much work."""
    return spectra(levels, [levels], direction, line, work=work, effort=effort)[0]


def spectra(
    levels: LossLevels, ledgers: list[LossLevels], direction: Direction, line: IntegrationLine, *,
    work: float = MOST_WORK, effort: int = 0,
) -> list[Spectrum]:  # fmt: skip
    """The transforms of several ledgers on one line, sharing what is dear: the transforms of the levels.

    The ledgers have the levels of `levels`, each at most as often, and are sorted from large to small.
    """
    c = line.c
    slowest = ledgers[-1].drop_empty()  # its decay serves all
    chosen = choose_frequencies(slowest, direction, line, effort=effort)
    u = chosen.values
    gaussian = np.array([ledger.gaussian for ledger in ledgers]) + chosen.blur
    log_moments = c * (c + 1) * gaussian / 2
    exponents = np.multiply.outer(gaussian, -(u**2) / 2 + 1j * u * (2 * c + 1) / 2)
    errors, damp = 8 * ULP * (1 + np.abs(exponents)), np.exp(exponents.real)
    if len(levels.mu):
        counts = np.stack([ledger.count for ledger in ledgers])
        tolerance = min(max(1e-13, 1e-9 * line.value() * c, 0.01 * chosen.goal * c), 1e-9)
        nodes = compress(levels, counts, direction=direction, c=c, top=float(u[-1]), tolerance=tolerance)
        moments, more, bounds = _sampled_log_moments(nodes, direction, c, chosen, work)
        log_moments, exponents, errors = log_moments + moments, exponents + more, errors + bounds
    pole = (c + 1j * u) * (c + 1 + 1j * u)
    above = alias_bounds(line, chosen.blur)
    over = np.asarray(1 / pole, dtype=np.complex128)
    under = over - chosen.weight_deficit
    with np.errstate(under="ignore"):
        products, wrong = np.exp(exponents), damp * (np.expm1(errors) + 32 * ULP)
    return [
        Spectrum(
            c, float(moment), u, over=_build_sum(product, size, u, over, chosen.rest),
            under=_build_sum(product, size, u, under, chosen.rest_under), above=above,
        )
        for moment, product, size in zip(log_moments, products, wrong, strict=True)
    ]  # fmt: skip


def _build_sum(product: Complexes, wrong: Floats, u: Floats, weight: Complexes, rest: float) -> Sum:
    size = np.abs(weight)
    return Sum(
        product * weight, float((wrong * size).sum()),
        float((u * np.minimum(np.abs(product) + wrong, 1.0) * size).sum()), rest,
    )  # fmt: skip


def _sampled_log_moments(
    nodes: Nodes, direction: Direction, c: float, chosen: Frequencies, work: float
) -> tuple[Floats, Complexes, Floats]:
    """K(c), K(c + iu) - K(c) and a bound on the error of the latter, for the sampled steps of each ledger."""
    size = chosen.last + 1
    moments = np.zeros(len(nodes.weight))
    exponents = np.zeros((len(nodes.weight), size), dtype=np.complex128)
    errors = np.full((len(nodes.weight), size), nodes.error)
    kept = _Kept(nodes, size)
    for part, log_psi, values, wrong in _level_transforms(nodes, direction, tilt_exponent(direction, c), chosen, work):
        kept.store(part, log_psi, values, wrong)
        weight = nodes.weight[:, part]
        if not weight.any():
            continue
        logs = _safe_log(values)
        moments += weight @ log_psi
        exponents += weight @ logs
        # The sum over the nodes: as many roundings as nodes, of sizes up to the largest logarithm.
        largest = np.minimum(-logs.real.min(axis=1), 1.0) + np.abs(logs.imag).max(axis=1)
        wrong = wrong + (2 * ULP * len(nodes.mu) * largest)[:, None]
        # An interpolated node has |M| >= 1/2 and Psi <= 3/2, so its log errs by 3 times as much at most.
        errors += (np.abs(weight) * np.where(nodes.exact[part], 1.0, 3.2)) @ wrong
    for blend in nodes.blends:
        for part in np.array_split(np.arange(len(blend.basis)), len(blend.basis) * size // MOST_HELD + 1):
            count = blend.count[:, part]
            log_psi, values, slips = kept.blend_transforms(Blend(blend.nodes, blend.basis[part], count))
            moments += count @ log_psi
            logs, rounding = _sum_logarithms(count, values)
            exponents += logs
            errors += slips + rounding
    return moments, exponents, errors


class _Kept:
    """The transforms of the nodes that blends are made of."""

    def __init__(self, nodes: Nodes, size: int) -> None:
        used = np.concatenate([blend.nodes for blend in nodes.blends]) if nodes.blends else np.zeros(0, dtype=np.int64)
        self._place = np.full(len(nodes.mu), -1)
        self._place[used] = np.arange(len(used))
        self._log_psi = np.empty(len(used))
        self._values = np.empty((len(used), size), dtype=np.complex128)
        self._wrong = np.empty((len(used), size))

    def store(self, part: Ints, log_psi: Floats, values: Complexes, wrong: Floats) -> None:
        place = self._place[part]
        used = place >= 0
        self._log_psi[place[used]], self._values[place[used]] = log_psi[used], values[used]
        self._wrong[place[used]] = wrong[used]

    def blend_transforms(self, blend: Blend) -> tuple[Floats, Complexes, Floats]:
        """log Psi and the transforms of the levels of a blend, and the errors of all of them in each ledger."""
        here = self._place[blend.nodes]
        scale = self._log_psi[here].max()
        psi = np.exp(self._log_psi[here] - scale)
        base = float(psi[0])  # the rows of the basis add up to 1, so only what differs from a constant is rounded
        differ = psi[:, None] * self._values[here] - base
        mixed = base + blend.basis @ differ
        at_c = mixed[:, 0].real.copy()
        if not (at_c > 0).all():
            raise QuadratureTooCostly("an interpolated moment is not positive")
        mixed /= at_c[:, None]
        each, share = psi[:, None] * (self._wrong[here] + 16 * ULP), blend.count / at_c
        slips = share @ np.abs(blend.basis) @ each
        slips += share.sum(axis=1)[:, None] * (blend.rounding * np.abs(differ).max(axis=0) + 16 * ULP)
        return np.log(at_c) + scale, mixed, slips


def _sum_logarithms(count: Floats, values: Complexes) -> tuple[Complexes, float]:
    """sum_t count_t log values_t for each ledger, and what rounding does to it."""
    if len(count) == 1 and (count == 1).all():  # the product first: several times faster, and less is rounded
        return _safe_log(values.prod(axis=0))[None, :], 8 * ULP * len(values)
    return np.asarray(count @ _safe_log(values)), 16 * ULP * len(values) * float(count.sum(axis=1).max())


def _safe_log(values: Complexes) -> Complexes:
    """The logarithm, where a transform that is exactly 0 is e^-10^4: 0 for ledgers that have its level."""
    with np.errstate(divide="ignore"):
        logs = np.log(values)
    return np.where(np.isfinite(logs.real), logs, -1e4)


def _group_by_mu(mu: Floats) -> list[Ints]:
    """Nodes in groups of similar mu: the largest of a group sets how fine its quadrature is."""
    order = np.argsort(mu)
    octaves = np.floor(np.log2(mu[order] / mu.max()) * 1.5 + 1e-9)
    return list(np.split(order, np.flatnonzero(np.diff(octaves)) + 1))


def _level_transforms(
    nodes: Nodes, direction: Direction, s: float, chosen: Frequencies, work: float
) -> Iterator[tuple[Ints, Floats, Complexes, Floats]]:
    """(which, log Psi, E e^(iuL) under the tilted law, a bound on its error), the nodes some at a time.

    By running products of phases where there are few frequencies, by FFT (`transform`) where there are many.
    """
    size, top = chosen.last + 1, chosen.h * chosen.last
    known = np.array([pair in chosen.known for pair in zip(nodes.rate.tolist(), nodes.mu.tolist(), strict=True)])
    for k in np.flatnonzero(known):
        log_psi, values, wrong = chosen.known[float(nodes.rate[k]), float(nodes.mu[k])]
        yield (np.array([k]), np.array([log_psi]), values[None, :size], wrong[None, :size])
    rest = np.flatnonzero(~known)
    groups = [rest[alike] for alike in _group_by_mu(nodes.mu[rest])] if len(rest) else []
    each = [_node_count(nodes.rate[alike], nodes.mu[alike], s, top) for alike in groups]
    needed = sum(len(a) * min(n * size, _gridding_cost(n, size)) for a, n in zip(groups, each, strict=True))
    if needed > work:
        raise QuadratureTooCostly(f"{len(nodes.mu)} levels, {size} frequencies: {needed:.3g} evaluations")
    for alike, count in zip(groups, each, strict=True):
        if count * size > _gridding_cost(count, size):
            for k in alike:
                rate, mu = float(nodes.rate[k]), float(nodes.mu[k])
                log_psi, values, wrong = transform(rate, mu, direction, s, chosen.h, chosen.last)
                yield (np.array([k]), np.array([log_psi]), values[None, :], wrong[None, :])
            continue
        rule = quadrature(nodes.rate[alike], nodes.mu[alike], s, top)
        for part in np.array_split(alike, max(1, len(alike) * len(rule.nodes) // BLOCK)):
            yield (part, *_transform_by_phases(nodes.rate[part], nodes.mu[part], direction, s, rule, chosen.values))


def _gridding_cost(nodes: float, size: int) -> float:
    return LEVEL + ATOM * (nodes + size)


def _node_count(rate: Floats, mu: Floats, s: float, top: float) -> float:
    """About how many quadrature nodes a level of the group takes."""
    left, right = quadrature_ends(rate, mu, s)
    return (right - left) * (top * float(mu.max()) / (2 * math.pi) + 3.5)


def _transform_by_phases(
    rate: Floats, mu: Floats, direction: Direction, s: float, rule: Quadrature, u: Floats
) -> tuple[Floats, Complexes, Floats]:
    """log Psi, E e^(iuL) under the tilted law, and a bound on its error, for each level: running products of phases."""
    x = rule.nodes
    losses, law, log_psi = tilted_law(rate, mu, s, rule)
    values = np.ones((len(law), len(u)), dtype=np.complex128)
    phase = np.exp((1j if direction == "remove" else -1j) * u[1] * losses)
    running = law.astype(np.complex128)
    for j in range(1, len(u)):
        running *= phase
        values[:, j] = running.sum(axis=1)
    # Rounding, relative to Psi(c): arguments of exp, the running product of phases, the sum.
    sizes = loss_rounding_sizes(rate, mu, x, losses)
    spread = (law * (x**2 / 2 + abs(s) * sizes)).sum(axis=1)
    turning = u[1] * (law * sizes).sum(axis=1)
    base = rule.error + 4 * ULP * (12 + 2 * spread + math.log2(len(x)))
    return (log_psi, values, base[:, None] + 4 * ULP * np.arange(len(u)) * (3 + 2 * turning)[:, None])
