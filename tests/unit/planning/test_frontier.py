"""The plan-ahead view: van Dijk's figures, the grid, the frontier, and cells without an answer."""

import dataclasses
import math

import pytest

from privet.accounting import Budget, gdp
from privet.errors import InvalidValue, NoSolution, Unsupported
from privet.planning import Recipe, ahead
from privet.planning.frontier import FrontierPoint, mark_frontier

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
QUICK = {**BUDGET, "dataset_size": 1000, "batches": [100, 200], "steps": [1000, 2000]}


@pytest.mark.parametrize(
    ("size", "batch", "steps", "epsilon", "formula", "needed", "holds"),
    [
        (60000, 256, 60000, 2.0, 3.676, 2.203, True),
        (60000, 600, 60000, 2.0, 3.676, 4.941, False),
        (10000, 1000, 10000, 2.0, 3.676, 19.97, False),
        (1, 1, 1, 0.1, 15.24, 30.75, False),
    ],
)
def test_the_closed_form_beside_the_need(size, batch, steps, epsilon, formula, needed, holds):
    """Closed form of van Dijk et al. 2021 (abstract); the need and the verdict, recomputed outside this library."""
    delta = 1e-5
    found = ahead(epsilon=epsilon, delta=delta, dataset_size=size, batches=[batch], steps=[steps])
    (cell,) = found.cells
    assert found.closed_noise == pytest.approx(formula, abs=5 * 10.0 ** -len(f"{formula}".partition(".")[2]) / 10)
    assert cell.noise_multiplier == pytest.approx(needed, rel=3e-4)
    assert cell.holds is holds
    assert (cell.closed.epsilon <= epsilon) is holds
    assert cell.closed.label == "certified"


def test_a_cell_says_what_its_noise_means():
    found = ahead(**QUICK, clipping_norm=4.0)
    assert [(cell.batch_size, cell.steps) for cell in found.cells] == [
        (100, 1000),
        (100, 2000),
        (200, 1000),
        (200, 2000),
    ]
    for cell in found.cells:
        assert cell.guarantee.label == "certified"
        assert 2.0 * (1 - 1e-4) <= cell.guarantee.epsilon <= 2.0
        assert cell.noise_multiplier == cell.noise_last
        assert cell.std == pytest.approx(cell.noise_multiplier * 4.0 / cell.batch_size)
        assert cell.epochs == pytest.approx(cell.steps * cell.batch_size / 1000)
        strength = math.sqrt(cell.steps) * cell.batch_size / cell.noise_multiplier
        assert cell.signal == pytest.approx(strength / (1000 * gdp.mu_of(2.0, 1e-5)))
    assert found.batches == (100, 200)
    assert [cell.steps for cell in found.row(200)] == [1000, 2000]


@pytest.mark.parametrize("steps", [1, 30])
def test_a_run_on_full_batches_has_all_the_signal(steps):
    (cell,) = ahead(**BUDGET, dataset_size=500, batches=[500], steps=[steps]).cells
    assert cell.signal == pytest.approx(1, rel=1e-3)


def test_a_schedule_is_measured_over_its_steps():
    """std is the root mean square of noise_t clip_t / batch, signal sums (batch / noise_t)^2."""
    (cell,) = ahead(
        **BUDGET,
        dataset_size=1000,
        batches=[100],
        steps=[1500],
        noise_multiplier="linear:end=0.5",
        clipping_norm="linear:end=3",
    ).cells
    noises = [cell.noise_multiplier * (1 - 0.5 * i / 1499) for i in range(1500)]
    clips = [1 + 2 * i / 1499 for i in range(1500)]
    squares = sum((s * c) ** 2 for s, c in zip(noises, clips, strict=True)) / 1500
    assert cell.noise_last == pytest.approx(cell.noise_multiplier / 2)
    assert cell.std == pytest.approx(math.sqrt(squares) / 100)
    mu = gdp.mu_of(2.0, 1e-5)
    assert cell.signal == pytest.approx(math.sqrt(sum((100 / s) ** 2 for s in noises)) / (1000 * mu))


# --- the frontier -----------------------------------------------------------------------------------


def cell(steps: int, batch: float, std: float | None) -> FrontierPoint:
    return FrontierPoint(steps=steps, batch_size=batch, epochs=1.0, std=std)


@pytest.mark.parametrize(
    ("cells", "best"),
    [
        ([cell(10, 1, 1.0), cell(10, 2, 0.5)], [False, True]),  # less noise at as many rounds
        ([cell(10, 1, 0.52), cell(10, 2, 0.5)], [True, False]),  # within 5 %: less work
        ([cell(10, 1, 0.53), cell(10, 2, 0.5)], [False, True]),
        ([cell(10, 4, 1.0), cell(20, 1, 1.0)], [False, True]),  # more rounds at no more noise and work
        ([cell(10, 1, 1.0), cell(20, 1, 1.2)], [True, True]),  # more rounds cost noise: both stand
        ([cell(10, 1, None), cell(20, 1, 1.2)], [False, True]),
        ([cell(10, 1, 1.08), cell(10, 2, 1.04), cell(10, 3, 1.0)], [False, True, False]),  # 5 % of the least, no chain
        ([cell(10, 1, None)], [False]),
    ],
)
def test_the_frontier(cells, best):
    assert [found.frontier for found in mark_frontier(cells)] == best
    assert [found.frontier for found in mark_frontier(cells[::-1])] == best[::-1]


def test_the_view_marks_one_batch_for_each_number_of_rounds():
    found = ahead(**BUDGET, dataset_size=60000, batches=[256, 4096, 16384], steps=[1000, 100_000])
    assert [(best.steps, best.batch_size) for best in found.best] == [(100_000, 256), (1000, 4096)]


# --- the grid ---------------------------------------------------------------------------------------


def test_epochs_mean_other_steps_for_each_batch():
    found = ahead(**BUDGET, dataset_size=1000, batches=[100, 300], epochs=[100, 200])
    assert [(c.batch_size, c.steps) for c in found.cells] == [(100, 1000), (100, 2000), (300, 334), (300, 667)]


def test_the_view_lies_around_a_recipe():
    recipe = Recipe(budget=Budget(**BUDGET), dataset_size=1000, sample_rate=0.3, steps=1000)
    found = ahead(recipe, steps=[2000])
    assert found.batches == (75, 150, 300, 600, 1000)  # four times as much is more than there is
    found = ahead(recipe, batches=[1000])
    assert [cell.steps for cell in found.cells] == [100, 300, 1000, 3000, 10_000]


def test_without_a_grid_there_is_one():
    found = ahead(epsilon=2.0, dataset_size=50)
    assert found.batches == (50,)
    assert [cell.steps for cell in found.cells] == [300, 1000, 3000, 10_000, 30_000, 100_000]
    assert found.budget.delta == 1 / 500


def test_progress_is_told():
    told = []
    ahead(
        **BUDGET,
        dataset_size=50,
        batches=[50],
        steps=[1, 2, 3, 4],
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(k, 4) for k in range(5)]


def test_a_large_delta_draws_a_warning():
    with pytest.warns(UserWarning, match="at least 1/dataset_size"):
        ahead(epsilon=1.0, delta=0.01, dataset_size=100, batches=[100], steps=[1])


# --- cells without an answer ------------------------------------------------------------------------


def test_a_cell_without_an_answer_says_why():
    found = ahead(**BUDGET, dataset_size=1000, batches=[1000], steps=[5, 50], noise_multiplier="linear:decay=0.1")
    good, bad = found.cells
    assert good.noise_multiplier is not None
    assert (bad.noise_multiplier, bad.std, bad.guarantee, bad.frontier) == (None, None, None, False)
    assert "is 0 at step 10" in bad.why


def test_out_of_reach_is_called_so():
    found = ahead(epsilon=1e-4, delta=1e-200, dataset_size=1000, batches=[1000], steps=[1, 10**9])
    assert found.cells[0].why == ""
    assert found.cells[1].why.startswith("no noise reaches it: epsilon=0.0001 cannot be reached")


def test_no_cell_at_all_is_an_error_that_helps():
    with pytest.raises(NoSolution, match="Use fewer rounds, smaller batches"):
        ahead(epsilon=1e-12, delta=1e-200, dataset_size=1000, batches=[1000], steps=[10])
    with pytest.raises(Unsupported, match="adjacency='replace-one'"):
        ahead(**QUICK, adjacency="replace-one")


def test_tuning_is_charged_and_has_no_closed_form():
    given = {**BUDGET, "dataset_size": 50, "batches": [50], "steps": [9]}
    one, three = (ahead(**given, trials=trials).cells[0] for trials in (None, 3))
    assert three.noise_multiplier > 1.5 * one.noise_multiplier
    assert three.closed is None
    assert three.holds is None


RECIPE = Recipe(budget=Budget(**BUDGET), dataset_size=1000, batch_size=100, steps=10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**QUICK, "epochs": [1.0]}, "steps and epochs are both given"),
        ({**QUICK, "batch_size": 100}, "batch_size=100 does not apply here"),
        ({**QUICK, "sample_rate": 0.1}, "sample_rate=0.1 does not apply here"),
        ({**QUICK, "solve": "steps"}, "solve='steps' does not apply here"),
        ({**QUICK, "batches": []}, "must be a list of at least one number"),
        ({**QUICK, "batches": "64"}, "must be a list of at least one number"),
        ({**QUICK, "batches": 64}, "must be a list of at least one number"),
        ({**QUICK, "batches": [1001]}, "batches=1001 must be at most dataset_size=1000"),
        ({**QUICK, "batches": [math.nan]}, "batches=nan must be finite"),
        ({**QUICK, "steps": [1.5]}, "steps=1.5 must be a whole number"),
        ({**QUICK, "steps": [0]}, "steps=0 must be a whole number"),
        ({**QUICK, "steps": [10**13]}, "must be at most"),
        ({**QUICK, "steps": None, "epochs": [0.0]}, "epochs=0.0 must be finite and > 0"),
        ({**QUICK, "steps": list(range(1, 502))}, "1002 cells, must be at most 1000"),
        ({**QUICK, "epsilon": None}, "epsilon is missing"),
        ({**QUICK, "epsilon": -1.0}, "epsilon=-1.0 must be finite and > 0"),
        ({**QUICK, "epslon": 1.0}, "Did you mean 'epsilon'"),
        ({**QUICK, "method": "dynamc"}, "Did you mean 'dynamic'"),
        ({**QUICK, "method": "dynamic"}, "rho_noise is missing"),
    ],
)
def test_bad_input_is_named(given, words):
    with pytest.raises(InvalidValue, match=words):
        ahead(**given)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (dataclasses.replace(RECIPE, solve="steps", steps=None, noise_multiplier=1.0), "solve='steps' asks for steps"),
        (dataclasses.replace(RECIPE, batch_size="100 * linear:end=2"), "changes over the steps"),
        (dataclasses.replace(RECIPE, method="proactive", uncertified=True), "uncertified does not apply here"),
        ("recipe.toml", "must be a Recipe"),
    ],
)
def test_a_recipe_that_asks_something_else_is_refused(recipe, words):
    with pytest.raises(InvalidValue, match=words):
        ahead(recipe)


def test_keywords_beside_a_recipe_are_refused():
    with pytest.raises(InvalidValue, match="epsilon cannot be given with a recipe"):
        ahead(RECIPE, epsilon=3.0)
