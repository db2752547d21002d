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
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

ULP = 2.0**-53
REACH = 9.0  # e^(-81/2) = 2.6e-18: how far past the bulk of a Gaussian the sums go
MOST_TERMS = 4e6  # terms held at a time
LARGEST_ERROR = 1e-13  # of a quadrature whose error is not carried along
DECADES = 42.0  # -log of the relative quadrature error asked for: e^-42 = 6e-19


class TooHard(Exception):
    """The quadrature would need too many nodes; another route takes over."""


@dataclass(frozen=True, slots=True)
class Quadrature:
    """A trapezoid rule on the whole line, cut at both ends: `nodes`, `step`, and its relative error bound."""

    nodes: Floats
    step: float
    error: float  # |sum - integral| <= error * Psi(Re s), for every level and every |Im s| up to the one asked for


def exponent(direction: Direction, z: float) -> float:
    """The s with E[e^(zL)] = Psi(s)."""
    return 1.0 + z if direction == "remove" else -z


def log_payoff(c: float) -> float:
    """log max_t (1 - e^-t) e^(-ct) = log(c^c / (1 + c)^(1 + c)): delta(eps) <= that times E[e^(c (L - eps))]."""
    return -c * math.log1p(1 / c) - math.log1p(c)


def loss(rate: Floats, mu: Floats, x: Floats) -> Floats:
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
        raise TooHard(f"{(right - left) / step:.3g} quadrature nodes")
    count = math.ceil((right - left) / step)
    nodes = left + step * np.arange(count + 1, dtype=np.float64)
    # Psi >= 1 by Jensen, and Psi >= E[(q e^(mu x - mu^2/2))^s] for s >= 0.
    least = np.maximum(0.0, s * np.log(rate) + s * (s - 1) * mu**2 / 2) if s >= 0 else np.zeros_like(mu)
    cut = ends_cut(rate, mu, s, nodes, step, least)
    if not cut <= 1e-16:  # the sum itself is a better lower bound on Psi
        found = np.concatenate([_log_sum(rate[part], mu[part], s, nodes, step) for part in _shares(rate, nodes)])
        cut = ends_cut(rate, mu, s, nodes, step, np.maximum(least, found - 1e-9))
    return Quadrature(nodes, step, 2 * math.exp(-DECADES) + cut)


def _log_sum(rate: Floats, mu: Floats, s: float, nodes: Floats, step: float) -> Floats:
    log_terms = s * loss(rate, mu, nodes) - nodes**2 / 2 + math.log(step) - 0.5 * math.log(2 * math.pi)
    return np.asarray(np.logaddexp.reduce(log_terms, axis=1))


def _shares(rate: Floats, nodes: Floats) -> list[slice]:
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


def ends_cut(rate: Floats, mu: Floats, s: float, nodes: Floats, step: float, least: Floats) -> float:
    """What the sum loses beyond its ends, relative to Psi >= e^least: tails that fall faster than at their end."""
    ends = nodes[[0, -1]]
    density = np.exp(-(ends**2) / 2 + s * loss(rate, mu, ends) - 0.5 * math.log(2 * math.pi) - least[:, None])
    return float((density / end_slopes(rate, mu, s, ends) + step * density).sum(axis=1).max())


def end_slopes(rate: Floats, mu: Floats, s: float, ends: Floats) -> Floats:
    """How steeply log(w^s phi) falls beyond both ends, at least, for each level."""
    if s >= 0:
        slopes = np.stack((np.full_like(mu, -ends[0]), ends[1] - s * mu), axis=1)
    else:
        hit = np.exp(np.log(rate) + mu * ends[0] - mu**2 / 2 - loss(rate, mu, ends[:1])[:, 0])
        slopes = np.stack((-ends[0] + s * mu * hit, np.full_like(mu, ends[1])), axis=1)
    if (slopes <= 0).any():
        raise TooHard("the end of the quadrature does not clear the bulk")
    return slopes


@dataclass(frozen=True, slots=True)
class Tilted:
    """log Psi(s) of each level and the first moments of its loss under the tilted law w^s phi / Psi."""

    log_psi: Floats
    mean: Floats  # of log w
    variance: Floats  # of log w
    excess: Floats  # Psi - 1, accurate when small


def tilted(rate: Floats, mu: Floats, s: float) -> Tilted:
    """Real moments for every level."""
    order = np.argsort(mu)
    if len(mu) > 1 and mu[order[-1]] > 4 * mu[order[0]]:  # the finest level sets the nodes: keep like with like
        cut = int(np.searchsorted(mu[order], mu[order[-1]] / 4))
        low, high = (tilted(rate[part], mu[part], s) for part in (order[:cut], order[cut:]))
        back = np.argsort(order)
        return Tilted(*(np.concatenate((getattr(low, f.name), getattr(high, f.name)))[back] for f in fields(Tilted)))
    rule = quadrature(rate, mu, s, 0.0)
    if not rule.error <= LARGEST_ERROR:
        raise TooHard(f"quadrature error {rule.error:.3g}")
    parts = [_summed(rate[part], mu[part], s, rule) for part in _shares(rate, rule.nodes)]
    return (
        parts[0]
        if len(parts) == 1
        else Tilted(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Tilted)))
    )


def _summed(rate: Floats, mu: Floats, s: float, rule: Quadrature) -> Tilted:
    losses, law, log_psi = tilted_law(rate, mu, s, rule)
    mean = (law * losses).sum(axis=1)
    variance = (law * (losses - mean[:, None]) ** 2).sum(axis=1)
    with np.errstate(over="ignore"):
        return Tilted(log_psi, mean, variance, np.expm1(log_psi))


def tilted_law(rate: Floats, mu: Floats, s: float, rule: Quadrature) -> tuple[Floats, Floats, Floats]:
    """The losses at the nodes of `rule`, the masses of w^s phi / Psi there, and log Psi, for each level."""
    losses = loss(rate, mu, rule.nodes)
    log_terms = s * losses - rule.nodes**2 / 2 + math.log(rule.step) - 0.5 * math.log(2 * math.pi)
    peak = log_terms.max(axis=1, keepdims=True)
    terms = np.exp(log_terms - peak)
    total = terms.sum(axis=1)
    return losses, terms / total[:, None], np.log(total) + peak[:, 0]


def rounded_losses(rate: Floats, mu: Floats, x: Floats, losses: Floats) -> Floats:
    """The sizes of which a loss has a few ulps of error: where the record takes part, terms of its exponent cancel."""
    terms = mu[:, None] * np.abs(x) + (mu**2 / 2 - np.log(rate))[:, None]
    hit = 1 - np.exp(np.minimum(np.log1p(-rate)[:, None] - losses, 0.0))
    return np.asarray(np.abs(losses) + hit * terms)
