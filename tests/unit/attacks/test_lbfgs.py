"""Many minimisations at once: each is what it would be alone, and as good as SciPy's."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from privet.attacks.inversion import minimise

SCALES = torch.tensor([1.0, 5.0, 20.0], dtype=torch.float64)


def valley(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rosenbrock's valley in four dimensions, steeper in each row."""
    with torch.enable_grad():
        x = points.detach().requires_grad_()
        a, b = x[:, 1:], x[:, :-1]
        values = (SCALES[rows, None] * (a - b**2) ** 2 + (1 - b) ** 2).sum(1)
        return values.detach(), torch.autograd.grad(values.sum(), x)[0]


START = torch.tensor([[-1.2, 1.0, -0.5, 0.8]] * 3, dtype=torch.float64)


def test_every_problem_is_solved_and_costs_about_what_scipy_needs() -> None:
    found = minimise(valley, START, iterations=300, enough=1e-18)
    assert torch.allclose(found.points, torch.ones_like(START), atol=1e-6)
    for row in range(3):

        def one(x: "np.ndarray[tuple[int], np.dtype[np.float64]]", row: int = row) -> tuple[float, object]:
            value, slope = valley(torch.tensor(x)[None], torch.tensor([row]))
            return float(value), slope[0].numpy()

        peer = optimize.minimize(one, START[row].numpy(), jac=True, method="L-BFGS-B", options={"gtol": 1e-9})
        assert int(found.evaluations[row]) <= 2 * peer.nfev + 20


def test_a_problem_does_not_feel_the_others() -> None:
    together = minimise(valley, START, iterations=12)
    for row in range(3):
        alone = minimise(lambda x, _, row=row: valley(x, torch.tensor([row])), START[row : row + 1], iterations=12)
        assert torch.allclose(alone.points[0], together.points[row], rtol=1e-9)
        assert int(alone.evaluations) == int(together.evaluations[row])


def test_values_never_rise_and_frames_are_the_way_there() -> None:
    found = minimise(valley, START, iterations=40, frames=(0, 3, 10, 40))
    values = [valley(found.frames[number], torch.arange(3))[0] for number in (0, 3, 10, 40)]
    assert torch.equal(found.frames[0], START)
    assert all(bool((later <= earlier).all()) for earlier, later in pairwise(values))
    assert torch.equal(found.frames[40], found.points)
    short = minimise(valley, START, iterations=3)
    assert torch.equal(found.frames[3], short.points)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_problem_without_a_value_ends_and_the_others_go_on(bad: float) -> None:
    def spoilt(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = valley(x, rows)
        values[rows == 1] = bad
        return values, slopes

    found = minimise(spoilt, START, iterations=300, enough=1e-12)
    assert torch.equal(found.points[1], START[1])
    assert torch.allclose(found.points[2], torch.ones(4, dtype=torch.float64), atol=1e-3)


def test_a_flat_function_ends_at_once() -> None:
    found = minimise(lambda x, _: (torch.ones(len(x)), torch.zeros_like(x)), torch.zeros(2, 3), iterations=100)
    assert found.evaluations.tolist() == [1, 1]
