"""The middle frequencies: too high to matter, too low for the bound of `decay` to say so.

Their share of the sum is bounded from a few of the steps (leaving steps out only raises |e^K|), each transform roughly
evaluated: within 1 % of Psi(c) is enough, and that takes few nodes.
"""

import math

import numpy as np
from numpy.typing import NDArray

from privet.accounting.levels import Levels
from privet.accounting.moments import Direction, Quadrature, TooHard, exponent, loss, quadrature_ends

Floats = NDArray[np.float64]

ROUGH = 0.01
STEPS, FEWEST = 40, 12  # so many levels speak for all


def middle(
    levels: Levels, direction: Direction, c: float, h: float, first: int, last: int, work: float = math.inf
) -> float:
    """At most (h / pi) sum over first < j <= last of |e^(K(c + ijh) - K(c))| / (jh)^2."""
    s = exponent(direction, c)
    total, spent, steps = 0.0, 0.0, STEPS
    while first < last:
        until = min(2 * first, last)
        pick = np.unique(np.linspace(0, len(levels.mu) - 1, min(steps, len(levels.mu))).round().astype(np.int64))
        rate, mu, count = levels.rate[pick], levels.mu[pick], levels.count[pick]
        rule = rough(rate, mu, s, until * h)
        spent += len(pick) * len(rule.nodes) * (until - first)
        if spent > work:
            raise TooHard(f"{spent:.3g} evaluations of middle frequencies")
        u = h * np.arange(first + 1, until + 1, dtype=np.float64)
        log_sizes = count @ np.log(_sizes(rate, mu, s, rule, u)) - levels.gaussian * u**2 / 2
        total += h / math.pi * float((np.exp(log_sizes) / u**2).sum())
        first, steps = until, max(steps * 2 // 3, FEWEST)  # higher frequencies die faster, and fewer steps show it
    return total * (1 + 1e-9)


def _sizes(rate: Floats, mu: Floats, s: float, rule: Quadrature, u: Floats) -> Floats:
    """Upper bounds on |E e^(iuL)| under the tilted law, for each level (rows) and frequency (columns)."""
    losses = loss(rate, mu, rule.nodes)
    log_terms = s * losses - rule.nodes**2 / 2
    terms = np.exp(log_terms - log_terms.max(axis=1, keepdims=True))
    running = (terms / terms.sum(axis=1, keepdims=True)) * np.exp(1j * u[0] * losses)
    phase = np.exp(1j * (u[1] - u[0]) * losses) if len(u) > 1 else 1.0
    found = np.empty((len(mu), len(u)))
    for j in range(len(u)):
        found[:, j] = np.abs(running.sum(axis=1))
        running *= phase
    # Both the transform and Psi, which it is divided by, are known to within rule.error Psi.
    return np.minimum(found * (1 + rule.error) + rule.error + 1e-9, 1.0)


def rough(rate: Floats, mu: Floats, s: float, frequency: float) -> Quadrature:
    """A trapezoid rule for Psi(s + iu), |u| <= frequency, that errs by at most ROUGH Psi(s), up to its ends."""
    a = np.linspace(0.04, 0.98, 16) * min(math.pi / float(mu.max()), 16.0)
    step = float((2 * math.pi * a / (math.log1p(2 / ROUGH) + _growth(rate, mu, s, frequency, a))).max())
    left, right = quadrature_ends(rate, mu, s)
    if (right - left) / step > 50_000:
        raise TooHard(f"{(right - left) / step:.3g} rough quadrature nodes")
    nodes = left + step * np.arange(math.ceil((right - left) / step) + 1, dtype=np.float64)
    return Quadrature(nodes, step, ROUGH + 1e-9)


def _growth(rate: Floats, mu: Floats, s: float, frequency: float, a: Floats) -> Floats:
    """A bound on log(I(a) / Psi(s)), I(a) the integral of the integrand's modulus along Im x = a < pi / mu.

    Where few records are hit, w hardly turns: an upper Riemann sum over cells of x sees that. |w(x + ia)| lies between
    cos(mu a / 2) w(x) and w(x), which rises with x, and arg w(x + ia) rises with x up to mu a.
    """
    left, right = quadrature_ends(rate, mu, s)
    edges = np.arange(left - 6.0, right + 6.5, 0.5)
    log_w = loss(rate, mu, edges)
    log_odds = mu[:, None] * edges - (mu**2 / 2)[:, None] + (np.log(rate) - np.log1p(-rate))[:, None]
    odds = np.exp(np.minimum(log_odds, 300.0))
    log_phi = -np.where(edges[:-1] * edges[1:] < 0, 0.0, np.minimum(edges[:-1] ** 2, edges[1:] ** 2)) / 2
    modulus = log_phi + np.maximum(s * log_w[:, :-1], s * log_w[:, 1:])
    least = (
        np.maximum(0.0, s * np.log(rate) + s * (s - 1) * mu**2 / 2) if s >= 0 else np.zeros_like(mu)
    )  # log Psi >= this
    found = np.empty_like(a)
    for k, height in enumerate(a):
        turn = mu[:, None] * height
        arg = np.arctan2(odds * np.sin(turn), 1 + odds * np.cos(turn))
        inside = np.logaddexp.reduce(modulus + frequency * arg[:, 1:], axis=1) + math.log(0.5)
        # Beyond the cells both tails fall with slope 6 at least, and turn by mu a at most.
        beyond = np.logaddexp(modulus[:, 0] + frequency * arg[:, 1], modulus[:, -1] + frequency * turn[:, 0])
        lift = max(0.0, -s) * -np.log(np.cos(np.minimum(turn[:, 0] / 2, 1.56)))
        found[k] = float((np.logaddexp(inside, beyond) + lift - least).max()) + height**2 / 2
    return found
