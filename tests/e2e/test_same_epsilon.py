"""`privet epsilon --same-epsilon-by`, as a user types it."""

import json
from pathlib import Path

import pytest

from typed import refused, run

RECIPE = (
    "delta = 1e-5\ndataset_size = 60000\nbatch_size = 256\nepochs = 20\nnoise_multiplier = 1.3\n"
    "accountant = 'moments'\nsolve = 'epsilon'\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("same")
    (folder / "recipe.toml").write_text(RECIPE)
    words = ["plan", str(folder / "recipe.toml"), "--out", str(folder / "plan.json")]
    assert run(*words).exit_code == 0
    return str(folder / "recipe.toml"), str(folder / "plan.json")


def test_a_table_with_labels_and_what_is_proven(files: tuple[str, str]) -> None:
    recipe, plan = files
    result = run("epsilon --from", plan, "--same-epsilon-by", "gdp,pld")
    assert result.exit_code == 0, result.output
    _, head, own, gdp, pld = result.stdout.splitlines()
    assert "certified epsilon at that noise" in head
    assert own.split()[:4] == ["moments", "certified", "1.3", "1.0000"]
    assert gdp.split()[:2] == ["gdp", "approximate"]
    assert gdp.endswith("1.41749  OVER BUDGET by 5.1 %")
    assert "OVER" not in own + pld
    assert run("epsilon --from", recipe, "--same-epsilon-by", "gdp,pld").stdout == result.stdout


def test_json_has_the_same(files: tuple[str, str]) -> None:
    found = json.loads(run("epsilon --from", files[1], "--same-epsilon-by", "gdp", "--json").stdout)
    own, gdp = found["rows"]
    assert own["ratio"] == 1
    assert (gdp["accountant"], gdp["label"], gdp["certified"]["label"]) == ("gdp", "approximate", "certified")
    assert gdp["noise_multiplier"] == pytest.approx(1.056, abs=1e-3)
    assert gdp["over_budget"] == pytest.approx(gdp["certified"]["epsilon"] / found["epsilon"] - 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "nowhere.json", "--same-epsilon-by", "gdp"], "there is no such file"),
        (["--from", "{plan}", "--same-epsilon-by", "pdl"], "Did you mean 'pld'"),
        (["--from", "{plan}", "--same-epsilon-by", " , "], "has an empty name"),
        (["--from", "{plan}", "--same-epsilon-by", "no.where:Mine"], "cannot be imported"),
        (
            ["--from", "{plan}", "--same-epsilon-by", "gdp", "--noise", "1"],
            "--noise-multiplier cannot be given with --same-ep",
        ),
        (["--from", "{plan}", "{plan}", "--same-epsilon-by", "gdp"], "needs --from with one plan"),
        (["--from", "{torn}", "--same-epsilon-by", "gdp"], "torn or edited"),
        (["--from", "{text}", "--same-epsilon-by", "gdp"], "not TOML"),
        (["--same-epsilon-by", "gdp"], "needs --from with one plan"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(files: tuple[str, str], tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "torn.json").write_bytes(Path(files[1]).read_bytes()[:500])
    (tmp_path / "text").write_text("hello there")
    places = {"{plan}": files[1], "{torn}": str(tmp_path / "torn.json"), "{text}": str(tmp_path / "text")}
    result = run("epsilon", *(places.get(word, word) for word in words))
    refused(result, said)
