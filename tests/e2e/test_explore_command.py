"""`privet plan --explore`, as a user types it."""

import json
from pathlib import Path

import pytest

from privet.planning import Plan, ahead
from typed import answer, refused, run

BASE = "plan --explore --size 60000 --epsilon 2 --delta 1e-5"
GRID = f"{BASE} --batches 256,600 --steps 60000"


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    line = "plan --size 1000 --batch 100 --steps 1000 --epsilon 2 --delta 1e-5 --unit client --out"
    assert run(line, str(file)).exit_code == 0
    return str(file)


def test_the_view_is_a_table_with_its_label(tmp_path: Path) -> None:
    result = run(GRID, "--plot", str(tmp_path / "ahead.png"))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith(
        "noise multiplier for epsilon 2 at delta 1e-05 [certified: pld; poisson, zero-out, per example]"
    )
    assert lines[1].endswith("closed form 3.676")
    assert lines[2].split() == ["*", "60000", "256", "256", "2.2034", "0.00861", "95", "%", "holds,", "1.092"]
    assert lines[3].split() == ["60000", "600", "600", "4.9411", "0.00824", "99", "%", "fails,", "2.817"]
    assert lines[-1] == f"wrote {tmp_path / 'ahead.png'}"
    assert (tmp_path / "ahead.png").stat().st_size > 10_000


def test_json_says_the_same_as_python() -> None:
    found = answer(GRID)
    python = ahead(epsilon=2.0, delta=1e-5, dataset_size=60000, batches=[256, 600], steps=[60000]).as_dict()
    assert {key: found[key] for key in python} == json.loads(json.dumps(python))
    assert found["cells"][0]["guarantee"]["epsilon"] <= 2


def test_a_range_goes_in_equal_ratios() -> None:
    found = answer("plan --explore --size 1000 --epsilon 2 --batches 10:1000:3 --steps 1000:1000:1")
    assert [cell["batch_size"] for cell in found["cells"]] == [10, 100, 1000]
    found = answer("plan --explore --size 1000 --epsilon 2 --batches 1000 --epochs 1:4:3")
    assert [cell["steps"] for cell in found["cells"]] == [1, 2, 4]


def test_a_method_moves_the_noise() -> None:
    line = "plan --explore --size 1000 --epsilon 2 --batches 100 --steps 2000 --method growing-mu --rho-noise 2"
    (cell,) = answer(line)["cells"]
    assert cell["noise_multiplier"] / cell["noise_last"] == pytest.approx(2, rel=1e-3)
    text = run(line).stdout
    assert ", growing-mu" in text
    assert " to " in text.splitlines()[2]


def test_a_cell_without_an_answer_is_a_row_that_says_why() -> None:
    text = run(
        "plan --explore --size 100 --epsilon 2 --batches 100 --steps 5,50 --noise-schedule linear:decay=0.1"
    ).stdout
    assert "none" in text.splitlines()[3]
    assert "is 0 at step 10" in text.splitlines()[3]


def test_the_view_around_a_plan_and_a_recipe(plan_file: str, tmp_path: Path) -> None:
    found = answer("plan --explore", plan_file, "--batches", "100")
    assert [cell["steps"] for cell in found["cells"]] == [100, 300, 1000, 3000, 10000]
    own = next(cell for cell in found["cells"] if cell["steps"] == 1000)
    assert own["guarantee"] == Plan.load(plan_file).guarantee.as_dict()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("dataset_size = 1000\nepsilon = 2.0\ndelta = 1e-5\n")  # the grid says the rest
    cells = answer("plan --explore --batches 100 --steps 1000", str(recipe))["cells"]
    assert [cell["noise_multiplier"] for cell in cells] == [own["noise_multiplier"]]
    richer = answer("plan --explore --batches 100 --steps 1000 --epsilon 4", plan_file)
    assert richer["cells"][0]["noise_multiplier"] < own["noise_multiplier"]


def test_more_rounds_of_a_plan(plan_file: str) -> None:
    result = run("plan --explore --more 100,500 --within 2.5", plan_file)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("epsilon <= 1.99")
    assert lines[0].endswith("per client] after the 1000 planned steps")
    assert [line.split()[:2] for line in lines[2:4]] == [["100", "1100"], ["500", "1500"]]
    assert "certified: pld" in lines[4]
    found = answer("plan --explore --more 100,500 --within 2.5", plan_file)
    assert f"at most {found['most']} more steps" in lines[5]
    for row, line in zip(found["rows"], lines[2:4], strict=True):
        low, _, high, noise = line.split()[2:]
        assert float(low) <= row["guarantee"]["epsilon_lower"] <= row["guarantee"]["epsilon"] <= float(high)
        assert row["noise_multiplier"] <= float(noise) <= row["noise_multiplier"] * 1.001
        assert row["within"]["epsilon"] <= 2.5
    assert "noise for" not in run("plan --explore --more 100", plan_file).stdout


def test_a_large_delta_draws_one_warning() -> None:
    result = run("plan --explore --size 100 --delta 0.01 --epsilon 1 --batches 100 --steps 10 --json")
    assert result.exit_code == 0
    assert result.stderr.startswith("privet: warning: delta=0.01 is at least 1/dataset_size")
    assert result.stderr.count("\n") == 1


def test_a_table_is_written_for_programs(tmp_path: Path) -> None:
    out = tmp_path / "ahead.csv"
    assert answer("plan --explore --size 100 --epsilon 1 --batches 100 --steps 10,20", "--plot", str(out))[
        "plot"
    ] == str(out)
    assert out.read_text().count("\n") == 3


# --- bad input: one line, exit 2 --------------------------------------------------------------------

FLAGS = {
    "nothing": ("plan --explore", "epsilon is missing"),
    "no size": ("plan --explore --epsilon 2 --delta 1e-5", "size is missing"),
    "no budget": ("plan --explore --size 60000", "epsilon is missing"),
    "epsilon 0": (f"{BASE} --epsilon 0", "epsilon=0.0 must be finite and > 0"),
    "epsilon nan": (f"{BASE} --epsilon nan", "'nan' is not a finite number"),
    "delta 1": (f"{BASE} --delta 1", "delta=1.0 must lie strictly between"),
    "out of reach": ("plan --explore --size 9 --epsilon 1e-12 --delta 1e-200 --batches 9 --steps 9",
                     "cannot be reached"),
    "batch above size": (f"{BASE} --batches 256,70000", "batches=70000 must be at most dataset_size=60000"),
    "batch 0": (f"{BASE} --batches 0", "'0' is not a whole number"),
    "batch a word": (f"{BASE} --batches 64,big", "'big' is not a whole number"),
    "a hole in a list": (f"{BASE} --batches 64,,256", "'' is not a whole number"),
    "half a range": (f"{BASE} --steps 10:100", "a range first:last:count"),
    "a range that falls": (f"{BASE} --steps 100:10:3", "must rise from above 0"),
    "a range from 0": (f"{BASE} --steps 0:10:3", "must rise from above 0"),
    "a range without end": (f"{BASE} --steps 1:1e12:1e9", "at most 1000 values"),
    "steps half": (f"{BASE} --steps 1.5", "'1.5' is not a whole number"),
    "steps endless": (f"{BASE} --steps 1e13", "'1e13' is not a whole number"),
    "steps and epochs": (f"{BASE} --steps 5 --epochs 1", "steps and epochs are both given"),
    "epochs 0": (f"{BASE} --epochs 0", "epochs=0.0 must be finite and > 0"),
    "epochs endless": (f"{BASE} --epochs 1e12 --batches 1", "more than 1e+12 steps"),
    "too many cells": (f"{BASE} --steps 1:1e6:900 --batches 1:100:9", "cells, must be at most 1000"),
    "method misspelt": (f"{BASE} --method dynamc", "Did you mean 'dynamic'"),
    "method without rho": (f"{BASE} --method growing-mu", "rho_noise is missing"),
    "shape misspelt": (f"{BASE} --noise-schedule exponental", "Did you mean 'exponential'"),
    "relation without a theorem": (f"{BASE} --relation replace", "has no theorem here"),
    "unit unknown": (f"{BASE} --unit person", "unit='person' must be one of"),
    "plot of no kind": (f"{BASE} --plot ahead.gif", "must end in .png, .svg, .pdf, .csv"),
    "plot nowhere": (f"{BASE} --plot no/such/folder/ahead.png", "directory that does not exist"),
    "file nowhere": ("plan --explore nowhere.toml", "there is no such file"),
    "more of nothing": ("plan --explore --more 500", "--more needs a plan"),
    "more of nowhere": ("plan --explore nowhere.json --more 500", "there is no such file"),
    "within without more": (f"{BASE} --within 3", "--within needs --more"),
    "option misspelt": (f"{BASE} --bathces 64", "No such option"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAGS)
def test_bad_flags_are_one_line_and_exit_2(case: str) -> None:
    line, words = FLAGS[case]
    refused(run(line), words)


MORE = {
    "more 0": ("--more 0", "'0' is not a whole number"),
    "more without end": ("--more 1e12", "must keep the steps within"),
    "within what is spent": ("--more 5 --within 1.5", "within=1.5 must be above"),
    "within a word": ("--more 5 --within lots", "'lots' is not a finite number"),
    "another budget": ("--more 5 --epsilon 3", "--epsilon cannot be combined with --more"),
    "another batch": ("--more 5 --batches 3", "--batches cannot be combined with --more"),
    "another noise": ("--more 5 --noise-schedule cosine", "--noise-schedule cannot be combined with --more"),
    "a figure": ("--more 5 --plot more.png", "--plot cannot be combined with --more"),
}


@pytest.mark.parametrize("case", MORE)
def test_bad_questions_about_a_plan_are_one_line_and_exit_2(case: str, plan_file: str) -> None:
    more, words = MORE[case]
    refused(run("plan --explore", plan_file, *more.split()), words)


def test_a_torn_plan_and_a_plan_without_a_guarantee_are_refused(plan_file: str, tmp_path: Path) -> None:
    torn, unsound = tmp_path / "torn.json", tmp_path / "unsound.json"
    torn.write_text(Path(plan_file).read_text()[:700])
    refused(run("plan --explore --more 5", str(torn)), "torn or edited")
    refused(run("plan --explore", str(torn)), "torn or edited")
    line = "plan --size 100 --batch 10 --steps 10 --epsilon 2 --method auto-linear --as-published --out"
    assert run(line, str(unsound)).exit_code == 0
    refused(run("plan --explore --more 5", str(unsound)), "has no guarantee")
    refused(run("plan --explore", str(unsound)), "uncertified does not apply here")
