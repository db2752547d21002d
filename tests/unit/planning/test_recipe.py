"""Recipes: keywords, files and flags say the same; what cannot be right is named."""

import math
from dataclasses import replace

import pytest

from privet.accounting import Budget
from privet.errors import InvalidValue, Unsupported
from privet.planning import Recipe
from privet.planning.recipe import NO_LIMIT, steps_in_epochs
from privet.schedules import Exponential

BASE = {"epsilon": 1.2, "delta": 1e-5, "dataset_size": 60000, "batch_size": 256, "epochs": 60}
TOML = """
epsilon = 1.2
delta = 1e-5
dataset_size = 60000
batch_size = 256
epochs = 60
method = "dynamic"
rho_noise = 3.3
rho_clip = 3.3

[training]
task = "mnist"
layers = [16, 32]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(TOML)
    return path


def test_keywords_and_the_class_say_the_same():
    recipe = Recipe(budget=Budget(epsilon=1.2, delta=1e-5), dataset_size=60000, batch_size=256, epochs=60)
    assert Recipe.of(**BASE) == recipe
    assert (recipe.count, recipe.base_rate) == (14063, 256 / 60000)


def test_a_file_says_the_same(file):
    found = Recipe.load(file)
    training = {"task": "mnist", "layers": [16, 32]}
    assert found == Recipe.of(**BASE, method="dynamic", rho_noise=3.3, rho_clip=3.3, training=training)
    assert found.training["layers"] == [16, 32]


def test_a_budget_table_says_the_same(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        "dataset_size = 60000\nsample_rate = '256/60000'\nsteps = 9\n[budget]\nepsilon = 1\ndelta = 1e-6\nunit = "
        "'client'\n"
    )
    found = Recipe.load(path)
    assert found.budget == Budget(epsilon=1, delta=1e-6, unit="client")
    assert found.sample_rate == 256 / 60000


def test_flags_win_over_the_file(file):
    assert Recipe.load(file, epsilon=3.0).budget.epsilon == 3.0
    fewer = Recipe.load(file, steps=100)  # replaces epochs, which says the same
    assert (fewer.steps, fewer.epochs) == (100, None)
    assert Recipe.load(file, sample_rate=0.01).batch_size is None
    solved = Recipe.load(file, solve="epsilon", noise_multiplier=1.5)
    assert (solved.budget.epsilon, solved.solve) == (NO_LIMIT, "epsilon")


def test_what_is_left_out_is_filled_in():
    recipe = Recipe.of(epsilon=1.0, dataset_size=60000, epochs=1)
    assert (recipe.budget.delta, recipe.batch_size) == (1 / 600000, 256)
    assert Recipe.of(epsilon=1.0, dataset_size=100, steps=5, delta=1e-4).batch_size == 100


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("exponential:end=0.5", "exponential:end=0.5"),
        ({"kind": "exponential", "end": 0.5}, "exponential:end=0.5"),
        (Exponential(end=0.5), "exponential:end=0.5"),
        ([3.0, 2.0], "table:3,2"),
    ],
)
def test_a_shape_has_one_spelling_however_it_is_given(given, kept):
    assert Recipe.of(**BASE, noise_multiplier=given).noise_multiplier == kept


def test_a_number_stays_a_number():
    recipe = Recipe.of(**{**BASE, "batch_size": "256", "clipping_norm": "4.0"})
    assert (recipe.batch_size, recipe.clipping_norm) == (256.0, 4.0)


@pytest.mark.parametrize(
    "more", [{}, {"solve": "epsilon", "noise_multiplier": 2.0}, {"clipping_norm": "2 * linear:end=0.5"}]
)
def test_plain_values_and_back(more):
    given = {**BASE, **more, "training": {"a": {"b": [1, 2.5, True]}}}
    if more.get("solve") == "epsilon":
        del given["epsilon"]
    recipe = Recipe.of(**given)
    assert Recipe.of(**recipe.as_dict()) == recipe


def test_a_recipe_is_frozen_and_keeps_its_own_training_table():
    table = {"task": "mnist"}
    recipe = Recipe.of(**BASE, training=table)
    table["task"] = "other"
    assert recipe.training["task"] == "mnist"
    with pytest.raises(AttributeError):
        recipe.dataset_size = 3  # type: ignore[misc]
    assert replace(recipe, dataset_size=70000).count == steps_in_epochs(60, 256 / 70000)


@pytest.mark.parametrize(("epochs", "batch", "size", "steps"), [
    (60, 256, 60000, 14063), (0.1, 100, 60000, 60), (1, 10, 10, 1), (0.01, 10, 10, 1), (18, 256, 29305, 2061),
])  # fmt: skip
def test_epochs_become_steps(epochs, batch, size, steps):
    assert Recipe.of(epsilon=1, delta=1e-5, dataset_size=size, batch_size=batch, epochs=epochs).count == steps


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0}, "epsilon=0 must be finite and > 0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 1}, "delta=1 must lie strictly between 0 and 1"),
        ({"sampling": "truncated-poisson:cap=400,size=300"}, "Write size=60000"),
        ({"sampling": "truncated-poisson:cap=400,size=60000", "adjacency": "add-remove"}, "Write size=60001"),
        ({"rule": "privet.published.clipping:OwnNorm"}, "address of a rule of ours. A name says"),
        ({"dataset_size": 0}, "dataset_size=0"),
        ({"dataset_size": 2.5}, "dataset_size=2.5 must be a whole number"),
        ({"dataset_size": None}, "size"),
        ({"batch_size": 60001}, "batch_size=60001 must be at most dataset_size=60000"),
        ({"batch_size": -1}, "batch_size=-1"),
        ({"batch_size": math.inf}, "batch_size=inf"),
        ({"sample_rate": 0.5}, "batch_size and sample_rate are both given"),
        ({"steps": 3}, "steps and epochs are both given"),
        ({"epochs": None}, "steps or epochs is missing"),
        ({"epochs": 1e30}, "more than 1e\\+12 steps"),
        ({"method": "dynamc"}, "Did you mean 'dynamic'"),
        ({"method": 3}, "method=3 is not known"),
        ({"rho_noise": 0.5}, "rho_noise=0.5 must be >= 1.*Try 2"),
        ({"rule": "flatt"}, "Did you mean 'flat'"),
        ({"accountant": "pdl"}, "Did you mean 'pld'"),
        ({"accountant": 3}, "accountant=3"),
        ({"sampling": "posson"}, "Did you mean 'poisson'"),
        ({"solve": "sigma"}, "solve='sigma' must be one of"),
        ({"solve": "steps"}, "solve='steps' asks for steps, but epochs=60.* is given"),
        ({"solve": "epsilon"}, "solve='epsilon' asks for epsilon"),
        ({"noise_multiplier": 2.0}, "solve='noise' asks for noise, but noise_multiplier=2.0 is given"),
        ({"noise_multiplier": "exponental:end=1"}, "Did you mean 'exponential'"),
        ({"clipping_norm": 0}, "clipping_norm=0 must be finite and > 0"),
        ({"batch_size": "256 * linear:end=2"}, "is undefined when the batch changes"),
        ({"uncertified": "yes"}, "uncertified='yes' must be true or false"),
        ({"training": 3}, "training=3 must be a table"),
        ({"training": {"when": object()}}, "training"),
        ({"bacth": 256}, "Did you mean 'batch_size'"),
        ({"budget": Budget(epsilon=1, delta=1e-5)}, "Give one of them"),
        ({"adjacency": "replaced"}, "Did you mean 'replace-one'"),
        ({"unit": "person"}, "unit='person'"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_named(changes, words):
    with pytest.raises(InvalidValue, match=words):
        Recipe.of(**{**BASE, **changes})


def test_an_unsound_rule_needs_so_many_words():
    with pytest.raises(Unsupported, match="rule='l2_max' has no guarantee: the sensitivity is read off the batch"):
        Recipe.of(**BASE, rule="l2_max")
    assert Recipe.of(**BASE, rule="l2_max", method="dp-baseline", uncertified=True).rule == "l2_max"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon = 1\ndataset_size = 60000\nepcohs = 3\n", "'epcohs' is not known in a recipe. Did you mean 'epochs'"),
        ("rho-noise = 3\n", "Did you mean 'rho_noise'"),
        ("version = 2\n", "version=2 must be 1"),
        ("epsilon = \n", "not TOML"),
        ("budget = 3\n", "budget=3 must be a table"),
        ("[budget]\nepsilom = 3\n", "budget.epsilom is not known. Did you mean 'epsilon'"),
        ("epsilon = 1\n[budget]\nepsilon = 1\n", "epsilon is given twice"),
        ("epsilon = 'lots'\ndataset_size = 10\nsteps = 3\n", "epsilon='lots'"),
        ("epsilon = nan\ndataset_size = 10\nsteps = 3\n", "epsilon=nan"),
        ("epsilon = 1\nsteps = 3\n", "size"),
        ("epsilon = 1\ndataset_size = 100\nsteps = 3\n[training]\nday = 2020-01-01\n", "training"),
    ],
)
def test_a_bad_file_is_named_with_the_reason(tmp_path, text, words):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(InvalidValue, match=words) as caught:
        Recipe.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(InvalidValue, match="no such file"):
        Recipe.load(tmp_path / "nowhere.toml")
    with pytest.raises(InvalidValue, match="is no plain file"):
        Recipe.load(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="byte 0 is not text"):
        Recipe.load(tmp_path / "bytes")
