"""`privet recipes` and `privet train --recipe` as a user types them; quick versions on the digits that ship."""

from pathlib import Path

import pytest

from typed import answer, refused, run


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def test_the_list_says_what_is_reached_at_which_budget_and_how_to_train_it():
    result = run("recipes")
    assert result.exit_code == 0
    for words in ("epsilon (certified)", "mnist-1.2", "98.1", "privet train --recipe adult-1"):
        assert words in result.stdout
    found = {one["name"]: one for one in answer("recipes")["recipes"]}
    mnist = found["mnist-1.2"]
    assert (mnist["epsilon"], mnist["published"], mnist["label"]) == (1.2, 98.1, "certified")
    assert mnist["delta"] == pytest.approx(1 / 600_000)
    assert mnist["recipe"]["training"]["task"] == "mnist:features=whitened"


def test_one_recipe_in_full_and_as_a_file_to_change():
    said = run("recipes digits-3 --save own.toml").stdout
    plan = "60 steps, batch size 1000 of 4,000, clipping norm 0.1"
    for words in ("certified by pld from the run's ledger", plan, "privet train own.toml"):
        assert words in said
    planned = answer("plan own.toml --out plan.json")
    assert planned["guarantee"]["epsilon"] <= 3.0
    refused(run("recipes digits-3 --save own.toml"), "is there already")
    refused(run("recipes digits-3 --save nowhere/own.toml"), "cannot be written")


@pytest.mark.slow
def test_a_recipe_is_trained_privately_and_its_flags_can_be_changed():
    found = answer("train --recipe digits-3 --steps 2 --evaluate-every 2 --out runs/a")
    assert (found["planned"], found["private"]) == (2, True)
    assert found["guarantee"]["label"] == "certified"
    assert 2.9 < found["guarantee"]["epsilon"] <= 3.0
    assert found["settings"]["model"] == "linear"
    spent = answer("epsilon --from runs/a")
    assert spent["epsilon"] == pytest.approx(found["guarantee"]["epsilon"])


@pytest.mark.slow
def test_runs_are_kept_and_not_made_again():
    line = "recipes --run digits-3 --steps 2 --seeds 2 --out results"
    (found,) = answer(line)["recipes"]
    assert found["seeds"] == 2
    assert found["certified"][0] <= found["certified"][1] <= 3.0
    again = run(line)
    assert again.stderr == ""  # nothing is run again
    assert f"{found['reached']:.2f}" in again.stdout
    assert len(list(Path("results/recipes/digits").glob("digits-3.full-2.*.json"))) == 2


def test_mistakes_are_one_line():
    refused(run("recipes mnist-12"), "Did you mean 'mnist-1.2'")
    refused(run("recipes --run nothing"), "must be one of")
    refused(run("recipes --ablation digits-3"), "must be one of")
    refused(run("recipes --save a.toml"), "--save needs the NAME")
    refused(run("recipes mnist-1.2 --run all"), "Ask one")
    refused(run("train --recipe mnist-12"), "Did you mean 'mnist-1.2'")
    refused(run("train own.toml --recipe digits-3"), "RECIPE cannot be given with --recipe")
    refused(run("recipes --page page.md --out nowhere"), "has no full result")
