"""The recipes that ship: each plans within its budget, uses the test set once, and says what the results say."""

import json
import zlib
from pathlib import Path
from statistics import fmean

import pytest
import torch

from privet import data, plan
from privet.errors import InvalidValue
from privet.models import model
from privet.planning import Recipe
from privet.training.settings import Settings
from privet_papers import recipes, recipes as ablation
from privet_papers.datasets.ngrams import hash_sets, parse_orders, to_columns
from privet_papers.reproduce.page import write_page
from privet_papers.reproduce.results import read

NAMES = list(recipes.recipes())
RESULTS = Path(__file__).parents[2] / "results"  # of a checkout
KEPT = sorted((RESULTS / recipes.NAME).glob("*/*.full.*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_keeps_its_budget_and_asks_the_test_set_once(name):
    one = recipes.best(name)
    recipe = one.recipe()
    settings = Settings.of(recipe.training)
    assert recipe.budget.delta == pytest.approx(1 / (10 * recipe.dataset_size))
    assert settings.evaluate_every == recipe.count
    assert settings.keep == "last"
    assert settings.stop_at is None
    assert settings.task.partition(":")[0] in data.registry.names()
    planned = plan(recipe)
    assert planned.guarantee.label == "certified"
    assert planned.guarantee.epsilon <= recipe.budget.epsilon
    assert planned.guarantee.epsilon > 0.98 * recipe.budget.epsilon  # nothing of it is left unused


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_recipe_is_whole(name):
    one = recipes.best(name)
    assert one.path.is_file()
    assert one.says
    assert one.tuned
    assert (one.published is None) == (one.by == "") == (one.label is None)
    assert name.startswith(f"{one.dataset}-")
    assert float(name.removeprefix(f"{one.dataset}-")) == one.recipe().budget.epsilon


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name)
def test_committed_results_are_of_the_recipes_as_they_are(file):
    """Whoever changes a recipe runs it again: its result is of another fingerprint, and its figure of another run."""
    result = read(file)
    one = recipes.best(result.key.rpartition(":")[2])
    assert result.fingerprint == one.row().fingerprint
    budget = one.recipe().budget
    assert result.certified is not None
    assert result.certified[1] <= budget.epsilon
    assert (result.delta, result.steps) == (budget.delta, one.recipe().count)
    values = [read(other).figures[one.measure].value for other in file.parent.glob(f"{one.name}.full.*.json")]
    assert one.reached == pytest.approx(fmean(values), abs=0.006)
    assert one.seeds == len(values)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(InvalidValue, match=r"recipe='mnist-1' must be one of .*Did you mean 'mnist-1.2'"):
        recipes.best("mnist-1")


def test_a_table_for_people_is_no_part_of_a_recipe(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("epsilon = 1\ndataset_size = 100\nsteps = 5\nbatch_size = 10\n[about]\nnote = 'for us'\n")
    assert Recipe.load(file) == Recipe.of(epsilon=1.0, dataset_size=100, steps=5, batch_size=10)


# --- ablation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ablation.ablation_paper().tables)
def test_each_row_of_an_ablation_changes_one_part(name):
    whole, *others = ablation.rows_of(name)
    assert whole.as_recipe() == recipes.best(name).recipe()
    assert len({row.fingerprint for row in (whole, *others)}) == len(others) + 1
    for row in others:
        assert row.as_recipe().budget == whole.as_recipe().budget
        assert row.name.partition("-")[0] in ("features", "model", "batch", "schedule", "accountant")


def test_clt_allows_less_noise_and_renyi_asks_for_more():
    rows = {row.name: row for row in ablation.rows_of("mnist-1.2")}
    clt, exact, renyi = (
        rows[name].plan().steps[0].noise_multiplier for name in ("accountant-clt", "whole", "accountant-renyi")
    )
    assert clt < exact < renyi


# --- hashed n-grams -------------------------------------------------------------------------------------


def test_sets_and_columns_hold_what_a_text_has():
    """By hand: CRC-32 of each word, each once, the last ones if there are too many."""
    texts = [["good", "film", "good"], [], ["a", "b", "c", "d"]]
    numbers = [[1 + zlib.crc32(word.encode()) % 63 for word in text] for text in texts]
    sets = hash_sets(texts, words=64, length=3)
    for row, wanted in zip(sets.tolist(), ({*numbers[0]}, set(), {*numbers[2][1:]}), strict=True):
        assert {number for number in row if number} == wanted
        assert row.count(0) == 3 - len(wanted)
    found = to_columns(sets, words=64)
    assert found[0].nonzero().flatten().tolist() == sorted({*numbers[0]})
    assert found.norm(dim=1).tolist() == pytest.approx([1.0, 0.0, 1.0])


def test_a_linear_model_on_columns_is_a_bag_of_the_set_whatever_noise_does_to_the_padding():
    texts = [["good", "film"], ["bad"], []]
    sets = hash_sets(texts, words=64, length=4)
    bag, linear = model("bag:bias=learned", words=64, classes=2), model("linear", shape=(64,), classes=2)
    with torch.no_grad():
        bag.scores.weight.copy_(torch.randn(64, 2))
        linear[1].weight.copy_(bag.scores.weight.T)
        linear[1].bias.copy_(bag.bias.copy_(torch.randn(2)))
    assert torch.allclose(bag(sets), linear(to_columns(sets, words=64)), atol=1e-6)


@pytest.mark.parametrize("given", ["0", "3-1", "1-10", "two", "", "1-"])
def test_orders_that_are_none_are_refused(given):
    with pytest.raises(InvalidValue, match="Write order=2, or order=1-3"):
        parse_orders(given)


def test_results_are_small():
    assert all(len(json.loads(file.read_bytes())["curve"]["x"]) == 1 for file in KEPT)


def test_the_page_has_recipes_with_the_command_that_runs_them_again(tmp_path):
    if not KEPT:
        pytest.skip("not a checkout")
    page = tmp_path / "page.md"
    assert write_page(RESULTS, page) >= len({file.name.split(".full")[0] for file in KEPT})
    text = page.read_text(encoding="utf-8")
    for file in KEPT:
        name = file.name.split(".full")[0]
        assert f"`privet recipes --run {name} --seeds {recipes.best(name).seeds}`" in text
