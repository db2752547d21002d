"""L-BFGS on many independent problems at once: one evaluation moves every problem on, each in its own line search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# (points (R, D), rows (R,)) -> values (R,), slopes (R, D): row r of the points is a point of problem rows[r].
Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

HISTORY = 20
ARMIJO, WOLFE = 1e-4, 0.9
TRIALS = 25  # evaluations of one line search
LITTLE, OFTEN = 1e-6, 10  # a value that fell by so small a share, so many times in a row, has settled


@dataclass(slots=True, kw_only=True)
class Minimum:
    """Where each problem ended, (N, ...), and what it cost."""

    points: Tensor
    values: Tensor
    iterations: Tensor
    evaluations: Tensor
    frames: dict[int, Tensor] = field(default_factory=dict)  # points after so many iterations


def minimise(
    evaluate: Evaluate, start: Tensor, *, iterations: int, enough: "float | Tensor" = 0.0, history: int = HISTORY,
    frames: Sequence[int] = (),
) -> Minimum:  # fmt: skip
    """The minimum of each of N functions of D numbers from `start` (N, D), by L-BFGS with a weak Wolfe line search.

    A problem ends at `iterations`, at a value of at most `enough`, when its value has settled, or when its line search
    finds nothing better; from then on it costs nothing. Line search: bisection of Lewis and Overton 2013, which needs
    no case distinctions and so runs on all rows alike.

    >>> goal = torch.tensor([[3.0, -1.0], [0.5, 2.0]])
    >>> scale = torch.tensor([1.0, 40.0])
    >>> def bowl(x, rows):
    ...     return (scale * (x - goal[rows]) ** 2).sum(1), 2 * scale * (x - goal[rows])
    >>> minimise(bowl, torch.zeros(2, 2), iterations=30, enough=1e-10).points.round(decimals=3)
    tensor([[ 3.0000, -1.0000],
            [ 0.5000,  2.0000]])
    """
    state = _State(evaluate, start, history)
    limit = torch.as_tensor(enough, dtype=start.dtype).expand(len(start))
    found = {0: start.clone()} if 0 in frames else {}
    found |= {number: start.clone() for number in frames if number > 0}
    while True:
        active = (~state.stuck & (state.iterations < iterations) & (state.values > limit)).nonzero().view(-1)
        if not len(active):
            break
        accepted = state.advance(active)
        for number, kept in found.items():
            rows = accepted[state.iterations[accepted] <= number] if number else accepted[:0]
            kept[rows] = state.points[rows]
    return Minimum(
        points=state.points, values=state.values, iterations=state.iterations, evaluations=state.evaluations,
        frames=found,
    )  # fmt: skip


class _State:
    """All problems, each somewhere in its line search along its own direction."""

    def __init__(self, evaluate: Evaluate, start: Tensor, history: int) -> None:
        self.evaluate, size = evaluate, len(start)
        self.points = start.clone()
        self.values, self.slopes = evaluate(self.points, torch.arange(size))
        self.steps = start.new_zeros(history, *start.shape)  # s of the past, newest last
        self.turns = start.new_zeros(history, *start.shape)  # y
        self.weights = start.new_zeros(history, size)  # 1 / (s y); 0 where there is no past
        self.scales = start.new_ones(size)
        self.iterations = torch.zeros(size, dtype=torch.int64)
        self.evaluations = torch.ones(size, dtype=torch.int64)
        self.stuck = ~self.values.isfinite()
        self.directions = start.new_zeros(start.shape)
        self.low, self.high, self.length = (start.new_zeros(size) for _ in range(3))
        self.trials = torch.zeros(size, dtype=torch.int64)
        self.idle = torch.zeros(size, dtype=torch.int64)  # steps in a row that gained little
        self._choose_direction(torch.arange(size))

    def advance(self, rows: Tensor) -> Tensor:
        """One evaluation for each of `rows`; gives those that made a step."""
        points = self.points[rows] + self.length[rows, None] * self.directions[rows]
        values, slopes = self.evaluate(points, rows)
        self.evaluations[rows] += 1
        self.trials[rows] += 1
        falls = (self.slopes[rows] * self.directions[rows]).sum(1)
        lower = values.isfinite() & (values <= self.values[rows] + ARMIJO * self.length[rows] * falls)
        flat = (slopes * self.directions[rows]).sum(1) >= WOLFE * falls
        tired = self.trials[rows] >= TRIALS
        good = lower & (flat | tired)
        self._change_length(rows[~good], too_far=~lower[~good])
        self.stuck[rows[tired & ~lower]] = True
        self._accept(rows[good], points[good], values[good], slopes[good])
        return rows[good]

    def _change_length(self, rows: Tensor, *, too_far: Tensor) -> None:
        """Another length: within the bracket, or twice as far while it is open."""
        self.high[rows[too_far]] = self.length[rows[too_far]]
        self.low[rows[~too_far]] = self.length[rows[~too_far]]
        middle = (self.low[rows] + self.high[rows]) / 2
        self.length[rows] = torch.where(self.high[rows].isfinite(), middle, 2 * self.low[rows])

    def _accept(self, rows: Tensor, points: Tensor, values: Tensor, slopes: Tensor) -> None:
        step, turn = points - self.points[rows], slopes - self.slopes[rows]
        product = (step * turn).sum(1)
        bends = product > 1e-10 * (turn * turn).sum(1)  # otherwise the curvature is noise
        kept = rows[bends]
        for past, new in ((self.steps, step[bends]), (self.turns, turn[bends]), (self.weights, 1 / product[bends])):
            past[:-1, kept] = past[1:, kept].clone()
            past[-1, kept] = new
        self.scales[kept] = product[bends] / (turn[bends] ** 2).sum(1)
        gained_little = self.values[rows] - values <= LITTLE * self.values[rows].abs()
        self.idle[rows] = torch.where(gained_little, self.idle[rows] + 1, 0)
        self.points[rows], self.values[rows], self.slopes[rows] = points, values, slopes
        self.iterations[rows] += 1
        self._choose_direction(rows)

    def _choose_direction(self, rows: Tensor) -> None:
        """A new direction for each of `rows`, by the two loops of L-BFGS; the slope itself where there is no past."""
        steps, turns, weights = self.steps[:, rows], self.turns[:, rows], self.weights[:, rows]
        q = self.slopes[rows].clone()
        alphas = []
        for s, y, w in zip(steps.flip(0), turns.flip(0), weights.flip(0), strict=True):
            alphas.append(w * (s * q).sum(1))
            q -= alphas[-1][:, None] * y
        q *= self.scales[rows, None]
        for s, y, w, alpha in zip(steps, turns, weights, reversed(alphas), strict=True):
            q += (alpha - w * (y * q).sum(1))[:, None] * s
        norm = self.slopes[rows].norm(dim=1)
        new = weights[-1] == 0
        self.directions[rows] = -q
        self.length[rows] = torch.where(new, 1 / norm.clamp(min=1e-30), torch.ones_like(norm))
        self.low[rows], self.high[rows], self.trials[rows] = 0.0, torch.inf, 0
        uphill = ~((self.slopes[rows] * self.directions[rows]).sum(1) < 0)
        self.stuck[rows[uphill | (self.idle[rows] >= OFTEN)]] = True
