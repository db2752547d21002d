"""Moments of the privacy loss of one Poisson-sampled Gaussian release, with proven error bounds.

With x ~ N(0, 1), mu = 1/noise and w(x) = 1 - q + q exp(mu x - mu^2 / 2), everything about a step is in

    Psi(s) = E[w(x)^s].

The loss L = log w has, in the direction "remove" (mixture against N(0,1)), E[e^(zL)] = Psi(1 + z); in the
direction "add" the loss is -log w under N(0,1), with E[e^(zL)] = Psi(-z). docs/math.md proves every bound here.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from privet.accounting.ledger import Floats

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

ULP = 2.0**-53
REACH = 9.0  # e^(-81/2) = 2.6e-18: how far past the bulk of a Gaussian the sums go
MOST_TERMS = 4e6  # terms held at a time
LARGEST_ERROR = 1e-13  # of a quadrature whose error is not carried along
DECADES = 42.0  # -log of the relative quadrature error asked for: e^-42 = 6e-19


class QuadratureTooCostly(Exception):
    """The quadrature would need too many nodes; another route takes over."""


@dataclass(frozen=True, slots=True)
class Quadrature:
    """A trapezoid rule on the whole line, cut at both ends: `nodes`, `step`, and its relative error bound."""

    nodes: Floats
    step: float
    error: float  # |sum - integral| <= error * Psi(Re s), for every level and every |Im s| up to the one asked for


def tilt_exponent(direction: Direction, z: float) -> float:
    """The s with E[e^(zL)] = Psi(s)."""
    return 1.0 + z if direction == "remove" else -z


def log_payoff(c: float) -> float:
    """log max_t (1 - e^-t) e^(-ct) = log(c^c / (1 + c)^(1 + c)): delta(eps) <= that times E[e^(c (L - eps))]."""
    return -c * math.log1p(1 / c) - math.log1p(c)


def privacy_losses(rate: Floats, mu: Floats, x: Floats) -> Floats:
    """log w(x) for each level (rows) at each x (columns)."""
    with np.errstate(divide="ignore"):
        kept, hit = np.log1p(-rate), np.log(rate)
    return np.asarray(np.logaddexp(kept[:, None], hit[:, None] + mu[:, None] * x - (mu**2 / 2)[:, None]))


def quadrature(rate: Floats, mu: Floats, s: float, frequency: float, most: int = 200_000) -> Quadrature:
    """Nodes for Psi(s + iu), |u| <= frequency, for all levels at once.

    The integrand is analytic for |Im x| < pi / mu, so the trapezoid rule of spacing h errs by at most
    2 e^(a^2/2 + |u| mu a) cos(mu a / 2)^(-max(0, -s)) Psi(s) / (e^(2 pi a / h) - 1), any a < pi / mu.
    """
    top = float(mu.max())
    a = np.linspace(0.02, 0.98, 49) * min(math.pi / top, 16.0)
    growth = a**2 / 2 + frequency * top * a - max(0.0, -s) * np.log(np.cos(np.minimum(top * a / 2, 1.56)))
    step = float((2 * math.pi * a / (DECADES + math.log(2) + growth)).max())
    left, right = quadrature_ends(rate, mu, s)
    if (right - left) / step > most:
        raise QuadratureTooCostly(f"{(right - left) / step:.3g} quadrature nodes")
    count = math.ceil((right - left) / step)
    nodes = left + step * np.arange(count + 1, dtype=np.float64)
    # Psi >= 1 by Jensen, and Psi >= E[(q e^(mu x - mu^2/2))^s] for s >= 0.
    least = np.maximum(0.0, s * np.log(rate) + s * (s - 1) * mu**2 / 2) if s >= 0 else np.zeros_like(mu)
    cut = tail_bound(rate, mu, s, nodes, step, least)
    if not cut <= 1e-16:  # the sum itself is a better lower bound on Psi
        found = np.concatenate(
            [_log_sums(rate[part], mu[part], s, nodes, step) for part in _memory_slices(rate, nodes)]
        )
        cut = tail_bound(rate, mu, s, nodes, step, np.maximum(least, found - 1e-9))
    return Quadrature(nodes, step, 2 * math.exp(-DECADES) + cut)


def _log_sums(rate: Floats, mu: Floats, s: float, nodes: Floats, step: float) -> Floats:
    log_terms = s * privacy_losses(rate, mu, nodes) - nodes**2 / 2 + math.log(step) - 0.5 * math.log(2 * math.pi)
    return np.asarray(np.logaddexp.reduce(log_terms, axis=1))


def _memory_slices(rate: Floats, nodes: Floats) -> list[slice]:
    """Levels in groups small enough for memory."""
    size = max(1, int(MOST_TERMS // len(nodes)))
    return [slice(start, start + size) for start in range(0, len(rate), size)]


def quadrature_ends(rate: Floats, mu: Floats, s: float) -> tuple[float, float]:
    """Where the integrand of every level has died: REACH past its bulk on both sides."""
    if s >= 0:
        return -REACH, float((s * mu).max()) + REACH
    with np.errstate(divide="ignore"):  # rate 1 gives an infinite pull, then the other bound serves
        pull = np.sqrt(REACH**2 - 2 * s * -np.log1p(-rate))
    return -float(np.minimum(pull, -s * mu + REACH).max()), max(REACH, float(mu.max()) / 2)


def tail_bound(rate: Floats, mu: Floats, s: float, nodes: Floats, step: float, least: Floats) -> float:
    """What the sum loses beyond its ends, relative to Psi >= e^least: tails that fall faster than at their end."""
    ends = nodes[[0, -1]]
    density = np.exp(-(ends**2) / 2 + s * privacy_losses(rate, mu, ends) - 0.5 * math.log(2 * math.pi) - least[:, None])
    return float((density / end_slopes(rate, mu, s, ends) + step * density).sum(axis=1).max())


def end_slopes(rate: Floats, mu: Floats, s: float, ends: Floats) -> Floats:
    """How steeply log(w^s phi) falls beyond both ends, at least, for each level."""
    if s >= 0:
        slopes = np.stack((np.full_like(mu, -ends[0]), ends[1] - s * mu), axis=1)
    else:
        hit = np.exp(np.log(rate) + mu * ends[0] - mu**2 / 2 - privacy_losses(rate, mu, ends[:1])[:, 0])
        slopes = np.stack((-ends[0] + s * mu * hit, np.full_like(mu, ends[1])), axis=1)
    if (slopes <= 0).any():
        raise QuadratureTooCostly("the end of the quadrature does not clear the bulk")
    return slopes


@dataclass(frozen=True, slots=True)
class Tilted:
    """log Psi(s) of each level and the first moments of its loss under the tilted law w^s phi / Psi."""

    log_psi: Floats
    mean: Floats  # of log w
    variance: Floats  # of log w
    excess: Floats  # Psi - 1, accurate when small


def tilted_moments(rate: Floats, mu: Floats, s: float) -> Tilted:
    """Real moments for every level."""
    order = np.argsort(mu)
    if len(mu) > 1 and mu[order[-1]] > 4 * mu[order[0]]:  # the finest level sets the nodes: keep like with like
        cut = int(np.searchsorted(mu[order], mu[order[-1]] / 4))
        low, high = (tilted_moments(rate[part], mu[part], s) for part in (order[:cut], order[cut:]))
        back = np.argsort(order)
        return Tilted(*(np.concatenate((getattr(low, f.name), getattr(high, f.name)))[back] for f in fields(Tilted)))
    rule = quadrature(rate, mu, s, 0.0)
    if not rule.error <= LARGEST_ERROR:
        raise QuadratureTooCostly(f"quadrature error {rule.error:.3g}")
    parts = [_sum_tilted_moments(rate[part], mu[part], s, rule) for part in _memory_slices(rate, rule.nodes)]
    if len(parts) == 1:
        return parts[0]
    return Tilted(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Tilted)))


def _sum_tilted_moments(rate: Floats, mu: Floats, s: float, rule: Quadrature) -> Tilted:
    losses, law, log_psi = tilted_law(rate, mu, s, rule)
    mean = (law * losses).sum(axis=1)
    variance = (law * (losses - mean[:, None]) ** 2).sum(axis=1)
    with np.errstate(over="ignore"):
        return Tilted(log_psi, mean, variance, np.expm1(log_psi))


def tilted_law(rate: Floats, mu: Floats, s: float, rule: Quadrature) -> tuple[Floats, Floats, Floats]:
    """The losses at the nodes of `rule`, the masses of w^s phi / Psi there, and log Psi, for each level."""
    losses = privacy_losses(rate, mu, rule.nodes)
    log_terms = s * losses - rule.nodes**2 / 2 + math.log(rule.step) - 0.5 * math.log(2 * math.pi)
    peak = log_terms.max(axis=1, keepdims=True)
    terms = np.exp(log_terms - peak)
    total = terms.sum(axis=1)
    return losses, terms / total[:, None], np.log(total) + peak[:, 0]


def loss_rounding_sizes(rate: Floats, mu: Floats, x: Floats, losses: Floats) -> Floats:
    """The sizes of which a loss has a few ulps of error: where the record takes part, terms of its exponent cancel."""
    terms = mu[:, None] * np.abs(x) + (mu**2 / 2 - np.log(rate))[:, None]
    hit = 1 - np.exp(np.minimum(np.log1p(-rate)[:, None] - losses, 0.0))
    return np.asarray(np.abs(losses) + hit * terms)


MOST_NODES = 4_000_000
FURTHER = 50.0  # to the right, where for s < 0 only e^(-x^2/2) holds the turning of w in check
LEFT_OUT = 1e-15  # of Psi, at each end
HEIGHTS = np.append(np.geomspace(1e-5, 0.2, 14), [0.35, 0.5, 0.65, 0.8, 0.9, 0.97])  # of the strip where w has no zero


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of x with bounds on log(w^s e^(-x^2/2)) in each."""

    edges: Floats
    least: Floats
    most: Floats

    @property
    def width(self) -> float:
        return float(self.edges[1] - self.edges[0])

    def log_psi(self) -> float:
        """A lower bound on log Psi(s)."""
        return _log_sum(self.least) + math.log(self.width / math.sqrt(2 * math.pi)) - 1e-9


def fine_quadrature(rate: float, mu: float, s: float, frequency: float) -> Quadrature:
    """Nodes for Psi(s + iu), |u| <= frequency, of one level."""
    level = np.array([rate]), np.array([mu])
    cells = _quadrature_cells(level, s)
    step = _node_spacing(level, s, frequency, cells)
    share = np.exp(cells.most - _log_sum(cells.least))  # of Psi, at most
    first = int(np.searchsorted(np.cumsum(share), LEFT_OUT))
    last = len(share) - int(np.searchsorted(np.cumsum(share[::-1]), LEFT_OUT))
    count = (cells.edges[last] - cells.edges[first]) / step
    if not count < MOST_NODES:
        raise QuadratureTooCostly(f"{count:.3g} quadrature nodes")
    nodes = cells.edges[first] + step * np.arange(math.ceil(count) + 1, dtype=np.float64)
    # The integral left out, and the sum over it: a cell of width d has at most d / step + 1 nodes.
    lost = float(share[:first].sum() + share[last:].sum()) * (2 + step / cells.width)
    beyond = tail_bound(*level, s, cells.edges[[0, -1]], step, np.array([cells.log_psi()]))
    return Quadrature(nodes, step, 2 * math.exp(-DECADES) + lost * (1 + 1e-9) + beyond)


def _quadrature_cells(level: tuple[Floats, Floats], s: float) -> _Cells:
    """w rises with x, and e^(-x^2/2) is largest at the end nearer 0."""
    left, right = quadrature_ends(*level, s)
    right += FURTHER if s < 0 else 0.0
    count = math.ceil(min(max((right - left) * max(8.0, abs(s) * float(level[1][0]) / 2), 100.0), 3000.0))
    edges = np.linspace(left, right, count + 1)
    log_w, square = s * privacy_losses(*level, edges)[0], edges**2 / 2
    nearest = np.where(edges[:-1] * edges[1:] < 0, 0.0, np.minimum(square[:-1], square[1:]))
    return _Cells(
        edges=edges,
        least=np.minimum(log_w[:-1], log_w[1:]) - np.maximum(square[:-1], square[1:]),
        most=np.maximum(log_w[:-1], log_w[1:]) - nearest,
    )


def _node_spacing(level: tuple[Floats, Floats], s: float, frequency: float, cells: _Cells) -> float:
    """The spacing for an error of 2 e^-DECADES Psi: 2 pi a / (DECADES + log(I(a) / Psi) + log 2), the best of some a.

    |w(x + ia)| lies between cos(mu a / 2) w(x) and w(x), and arg w(x + ia) rises with x, up to mu a < pi.
    """
    rate, mu = float(level[0][0]), float(level[1][0])
    a = HEIGHTS * min(math.pi / mu, 16.0)
    log_odds = mu * cells.edges - mu**2 / 2 + math.log(rate) - (math.log1p(-rate) if rate < 1 else -math.inf)
    odds = np.exp(np.minimum(log_odds, 300.0))
    turn = (mu * a)[:, None]
    arg = np.where(odds < 1e100, np.arctan2(odds * np.sin(turn), 1 + odds * np.cos(turn)), turn)
    inside = np.logaddexp.reduce(cells.most + frequency * arg[:, 1:], axis=1)
    # Beyond the cells both tails fall exponentially; the left one turns by less than at its end, the right by mu a.
    slopes = end_slopes(*level, s, cells.edges[[0, -1]])[0]
    ends = cells.most[[0, -1]] + frequency * np.stack((arg[:, 0], turn[:, 0]), axis=1) - np.log(slopes * cells.width)
    lift = max(0.0, -s) * -np.log(np.cos(np.minimum(turn[:, 0] / 2, 1.56)))
    growth = np.logaddexp(inside, np.logaddexp.reduce(ends, axis=1)) - _log_sum(cells.least) + lift + a**2 / 2
    return float((2 * math.pi * a / (DECADES + math.log(2) + np.maximum(growth, 0.0))).max())


def _log_sum(logs: Floats) -> float:
    peak = float(logs.max())
    return peak + math.log(float(np.exp(logs - peak).sum()))
