"""`privet compare` and `privet plan --optimize`, as a user types them."""

from pathlib import Path

import pytest

from privet.planning import Plan
from typed import answer, refused, run

RUN = "--epsilon 1.2 --size 6000 --batch 6000 --steps 300 --delta 1e-5"  # full batches: planned at once
BASE = f"compare {RUN} --methods noisy-sgd,dynamic --rho-noise 3.3 --rho-clip 2"
SEARCH = f"plan --optimize {RUN} --method sensitivity-decay --over rho-clip"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A plan and a recipe of the same budget."""
    folder = tmp_path_factory.mktemp("compare")
    made, recipe = folder / "made.json", folder / "mine.toml"
    assert run(f"plan {RUN}", "--out", str(made)).exit_code == 0
    recipe.write_text(
        "epsilon = 1.2\ndelta = 1e-5\ndataset_size = 6000\nbatch_size = 6000\nsteps = 300\nnoise_multiplier = "
        "'cosine:end=0.5'\n"
    )
    return str(made), str(recipe)


# --- compare ----------------------------------------------------------------------------------------


def test_every_epsilon_and_estimate_has_its_label() -> None:
    result = run(BASE)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for words in (
        "noisy-sgd", "dynamic", "epsilon of the plan", "certified interval", "CLT (gdp)", "utility (estimate)",
        "noise std (noise x clip)", "noise energy", "gains from schedules are small in practice",
    ):  # fmt: skip
        assert words in result.stdout
    assert "Note" not in result.stdout


def test_the_label_of_each_accountant_stands_beside_it() -> None:
    lines = run(f"compare {RUN.replace('--batch 6000', '--batch 60')} --methods noisy-sgd").stdout.splitlines()
    assert next(line for line in lines if "CLT (gdp)" in line).endswith("approximate ")
    assert next(line for line in lines if "Rényi (rdp)" in line).endswith("certified ")
    assert "approximate" not in next(line for line in run(BASE).stdout.splitlines() if "CLT (gdp)" in line)


def test_json_has_both_plans() -> None:
    found = answer(BASE)
    constant, dynamic = found["plans"]
    assert found["same_budget"] is True
    assert [constant["name"], dynamic["name"]] == ["noisy-sgd", "dynamic"]
    for row in found["plans"]:
        assert row["certified"]["epsilon_lower"] <= row["certified"]["epsilon"] <= 1.2
        assert row["clt"]["label"] == "certified"  # exact on full batches
        assert row["utility"]["label"] == "estimate"
        assert row["noise_std"] == pytest.approx(
            [n * c for n, c in zip(row["noise_multiplier"], row["clipping_norm"], strict=True)]
        )
    assert dynamic["noise_multiplier"][0] / dynamic["noise_multiplier"][1] == pytest.approx(3.3, rel=0.01)


def test_files_and_methods_stand_together(files: tuple[str, str]) -> None:
    found = answer("compare", *files)
    assert [row["name"] for row in found["plans"]] == ["made", "mine"]
    assert found["plans"][0]["hash"] == Plan.load(files[0]).hash
    both = answer(BASE, files[0], files[0])
    assert [row["name"] for row in both["plans"]] == ["made", "made (2)", "noisy-sgd", "dynamic"]


def test_different_budgets_are_shown_with_a_note(files: tuple[str, str]) -> None:
    result = run(BASE.replace("1.2", "2"), files[0])
    assert result.exit_code == 0
    assert "Note: The budgets differ" in result.stdout
    assert answer(BASE.replace("1.2", "2"), files[0])["same_budget"] is False


def test_what_epsilons_are_for_is_said_below_the_table(files: tuple[str, str], tmp_path: Path) -> None:
    assert "\nAll: sampling poisson; adjacency: zero-out; unit: example\n" in run("compare", *files).stdout
    run(f"plan --size 600 --steps 2 --epsilon 1 --unit client --relation add-remove --out {tmp_path / 'other.json'}")
    said = run("compare", *files, str(tmp_path / "other.json")).stdout
    assert "\nmade, mine: sampling poisson; adjacency: zero-out; unit: example\n" in said
    assert "\nother: sampling poisson; adjacency: add-remove; unit: client\n" in said


def test_a_claim_is_a_claim() -> None:
    result = run(f"compare {RUN.replace('6000 --batch 6000', '60000 --batch 600')} --methods auto-exp --as-published")
    assert result.exit_code == 0, result.output
    assert "1.2 claimed" in result.stdout
    assert "no proof covers its clipping rule" in result.stdout


def test_a_profile_moves_the_estimate(tmp_path: Path) -> None:
    file = tmp_path / "norms.csv"
    file.write_text("norm\n8\n4\n2\n")
    usual = answer(BASE)["plans"][0]["utility"]
    for given in (str(file), "8,4,2"):
        found = answer(BASE, "--profile", given, "--dimension", "100", "--half-life", "50")
        assert found["profile"]["norms"] == [8.0, 4.0, 2.0]
        assert found["plans"][0]["utility"]["kept"] < usual["kept"]


@pytest.mark.slow
def test_the_figure_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "compare.png"
    result = run(BASE, "--plot", str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"wrote {file}"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_the_numbers_are_written(tmp_path: Path) -> None:
    file = tmp_path / "compare.csv"
    assert answer(BASE, "--plot", str(file))["plot"] == str(file)
    assert file.read_text(encoding="utf-8").startswith("plan,step,quantity,method,label,lower,value\n")


BAD = {
    "nothing": ("compare", "Give --methods"),
    "a budget alone": (f"compare {RUN}", "Give --methods"),
    "no methods": (f"compare {RUN} --methods ,", "has an empty name"),
    "method misspelt": (f"compare {RUN} --methods noisy-sgd,dynamc", "Did you mean 'dynamic'"),
    "rho missing": (f"compare {RUN} --methods noisy-sgd,growing-mu", "rho_noise is missing"),
    "rho of no use": (f"compare {RUN} --methods noisy-sgd --rho-clip 3", "has no meaning for any of methods"),
    "rho below 1": (f"{BASE} --rho-noise 0.5", "must be >= 1"),
    "no size": ("compare --epsilon 1 --delta 1e-5 --steps 5 --methods noisy-sgd", "size is missing"),
    "no epsilon": ("compare --size 600 --steps 5 --methods noisy-sgd", "epsilon is missing"),
    "out of reach": (f"{BASE} --epsilon 1e-12 --delta 1e-200", "cannot be reached"),
    "file missing": ("compare nowhere.json", "there is no such file"),
    "recipe missing": ("compare nowhere.toml", "there is no such file"),
    "a flag beside a file": ("compare nowhere.json --epsilon 3", "--epsilon needs --methods"),
    "plot of no kind": (f"{BASE} --plot compare.gif", "must end in .png"),
    "plot nowhere": (f"{BASE} --plot no/such/folder/a.png", "directory that does not exist"),
    "too many to draw": (f"compare {' '.join('abcdefg')} --plot a.png", "can show 6 plans, not 7"),
    "profile missing": (f"{BASE} --profile nowhere.csv", "cannot be read"),
    "profile nan": (f"{BASE} --profile 1,nan", "must be finite and > 0"),
    "profile negative": (f"{BASE} --profile 1,-2", "must be finite and > 0"),
    "profile empty": (f"{BASE} --profile 1,,2", "cannot be read"),
    "dimension 0": (f"{BASE} --dimension 0", "not a whole number"),
    "half-life 0": (f"{BASE} --half-life 0", "half_life=0.0 must be finite and > 0"),
    "search: unknown": (SEARCH.replace("rho-clip", "sigma"), "over='sigma' must be one of"),
    "search: nothing": (f"plan --optimize {RUN} --over ,", "has an empty name"),
    "search: no such shape": (f"plan --optimize {RUN} --over rho-noise", "does not apply to method=None"),
    "search: no limits": (f"plan --optimize {RUN} --over steps=100", "must read name=least..largest"),
    "search: bad limits": (f"plan --optimize {RUN} --over steps=1..x", "'x' is not a finite number"),
    "search: falling limits": (f"plan --optimize {RUN} --over steps=9..2", "must rise"),
    "search: beyond": (f"plan --optimize {RUN} --over batch_size=1..6001", "at most 6000"),
    "search: most 0": (f"{SEARCH} --most 0", "not a whole number"),
    "search: out nowhere": (f"{SEARCH} --out no/such/folder/plan.json", "lies in a directory that does not exist"),
    "search: no recipe": ("plan --optimize nowhere.toml", "there is no such file"),
    "search: no steps": ("plan --optimize --epsilon 1 --size 600 --over steps=10..20", "steps or epochs is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_2(case: str) -> None:
    line, words = BAD[case]
    refused(run(line), words)


@pytest.mark.parametrize(("text", "words"), [("1\nnan\n", "rows[1] in"), ("", "has no rows"), ("a,b\n1,2\n", "column")])
def test_a_bad_profile_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "norms.csv"
    file.write_text(text)
    refused(run(BASE, "--profile", str(file)), words)


def test_a_torn_plan_is_refused(files: tuple[str, str], tmp_path: Path) -> None:
    torn = tmp_path / "torn.json"
    torn.write_bytes(Path(files[0]).read_bytes()[:400])
    refused(run("compare", str(torn)), "torn or edited")


# --- search -----------------------------------------------------------------------------------------


def test_search_finds_a_certified_plan(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = run(SEARCH, "--out", str(out))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("epsilon <= 1.19")
    assert "[certified: pld" in lines[0]
    assert "(estimate)" in result.stdout
    assert lines[-1] == f"wrote {out}"
    assert Plan.load(out).guarantee.epsilon <= 1.2


def test_search_json_has_what_was_tried() -> None:
    found = answer(SEARCH)
    assert found["recipe"]["rho_clip"] == found["found"]["rho_clip"]
    assert found["guarantee"]["label"] == "certified"
    assert found["utility"]["label"] == "estimate"
    assert sum(trial["certified"] for trial in found["trials"]) >= 2
    assert all("utility_estimate" in trial for trial in found["trials"])


def test_search_keeps_limits_and_says_where_it_ends(files: tuple[str, str]) -> None:
    result = run("plan --optimize --over steps=50..100 --most 9", files[1])
    assert result.exit_code == 0, result.output
    assert "steps is at its limit" in result.stdout
    assert answer("plan --optimize --over steps=50..100 --most 9", files[1])["at_the_edge"] == ["steps"]
