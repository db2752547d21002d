"""Quadrature for one level at very high frequencies: as few nodes as can be proved enough.

`moments.quadrature` takes the worst for the integral of |g| along Im x = a, g = phi w^(s + iu). Here it is an upper
Riemann sum over cells of x: where few records are hit, w hardly turns, and u times its argument is small. The same
cells show which ends of the line hold next to nothing. docs/math.md has the proof.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.accounting.moments import DECADES, Quadrature, TooHard, end_slopes, ends_cut, loss, quadrature_ends

Floats = NDArray[np.float64]

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


def fine(rate: float, mu: float, s: float, frequency: float) -> Quadrature:
    """Nodes for Psi(s + iu), |u| <= frequency, of one level."""
    level = np.array([rate]), np.array([mu])
    cells = _cells(level, s)
    step = _step(level, s, frequency, cells)
    share = np.exp(cells.most - _log_sum(cells.least))  # of Psi, at most
    first = int(np.searchsorted(np.cumsum(share), LEFT_OUT))
    last = len(share) - int(np.searchsorted(np.cumsum(share[::-1]), LEFT_OUT))
    count = (cells.edges[last] - cells.edges[first]) / step
    if not count < MOST_NODES:
        raise TooHard(f"{count:.3g} quadrature nodes")
    nodes = cells.edges[first] + step * np.arange(math.ceil(count) + 1, dtype=np.float64)
    # The integral left out, and the sum over it: a cell of width d has at most d / step + 1 nodes.
    lost = float(share[:first].sum() + share[last:].sum()) * (2 + step / cells.width)
    beyond = ends_cut(*level, s, cells.edges[[0, -1]], step, np.array([cells.log_psi()]))
    return Quadrature(nodes, step, 2 * math.exp(-DECADES) + lost * (1 + 1e-9) + beyond)


def _cells(level: tuple[Floats, Floats], s: float) -> _Cells:
    """w rises with x, and e^(-x^2/2) is largest at the end nearer 0."""
    left, right = quadrature_ends(*level, s)
    right += FURTHER if s < 0 else 0.0
    count = math.ceil(min(max((right - left) * max(8.0, abs(s) * float(level[1][0]) / 2), 100.0), 3000.0))
    edges = np.linspace(left, right, count + 1)
    log_w, square = s * loss(*level, edges)[0], edges**2 / 2
    nearest = np.where(edges[:-1] * edges[1:] < 0, 0.0, np.minimum(square[:-1], square[1:]))
    return _Cells(
        edges=edges,
        least=np.minimum(log_w[:-1], log_w[1:]) - np.maximum(square[:-1], square[1:]),
        most=np.maximum(log_w[:-1], log_w[1:]) - nearest,
    )


def _step(level: tuple[Floats, Floats], s: float, frequency: float, cells: _Cells) -> float:
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
