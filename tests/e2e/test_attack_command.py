"""`privet attack` as users type it: comparisons, plans, runs, membership, what is kept, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from privet import attack, plan
from privet.reporting.figures import _columns
from privet.training.train import train
from typed import answer, refused, run

pytestmark = pytest.mark.usefixtures("few_checks")

QUICK = "attack --task digits:size=200 --attack prior --examples 4 --candidates 100 --steps 3"


@pytest.mark.slow
def test_methods_are_compared_with_training_without_privacy() -> None:
    found = answer(f"{QUICK} --method dp-baseline,adaclip --at-steps first,last")
    rows = [(row["method"], row["step"]) for row in found["outcomes"]]
    assert rows == [(name, step) for name in ("non-private", "dp-baseline", "adaclip") for step in (1, 3)]
    assert set(found["baselines"]) == {"black image", "mean image", "pure noise"}
    for row in found["outcomes"]:
        assert row["difference_lower"] <= row["difference"] <= row["difference_upper"]
        assert not row["violation"]
    free, *_, private = found["outcomes"]
    assert (free["top1"], free["ceiling"], free["noise_multiplier"]) == (1.0, None, None)
    assert 0.01 <= private["ceiling"] < 0.02
    assert 0.01 <= private["run_ceiling"] < private["ceiling"]
    assert found["outcomes"][2]["published"] == {"iterations": 13.4, "success": 0.23, "mse": 0.547}
    assert "certified" in found["guarantees"]["adaclip"]


def test_the_table_says_what_is_trivially_met_and_shows_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.cli.common.OFTEN", 0.001)
    result = run("attack --task digits:size=100 --attack invert-l2:iterations=2 --examples 2 --candidates 50 --steps 2")
    assert result.exit_code == 0, result.output
    for words in ("trivially met", "black image", "Table III", "non-private", "2 victims of 1 unknown record"):
        assert words in result.stdout
    assert "attacking: non-private, step 1, invert-l2:iterations=2 (0 of 1 done), 0 s so far" in result.stderr


def test_a_whole_run_is_attacked_where_it_has_one() -> None:
    found = answer(f"{QUICK} --method noisy-sgd --rate 0.5 --at-steps all")
    (row,) = found["outcomes"]
    assert (row["method"], row["step"], row["ceiling"]) == ("noisy-sgd", "all", row["run_ceiling"])
    assert not row["violation"]


def test_an_unsound_rule_has_no_ceiling() -> None:
    found = answer(f"{QUICK} --method dyn-s-sigma --as-published")
    row = found["outcomes"][-1]
    assert (row["rule"], row["ceiling"], row["run_ceiling"]) == ("l2_max", None, None)
    assert "claimed" in found["guarantees"]["dyn-s-sigma"]


@pytest.mark.slow
def test_what_was_done_is_not_done_again(tmp_path: Path) -> None:
    line = f"{QUICK} --out {tmp_path / 'kept'}"
    first = answer(f"{line} --method dp-baseline")
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "kept").iterdir()}
    assert len(files) == 2
    second = answer(f"{line} --method dp-baseline,quantile")
    assert second["outcomes"][:2] == first["outcomes"]
    assert all(file.stat().st_mtime_ns == then for file, then in files.items())
    damaged = next(iter(files))
    damaged.write_text("{")
    assert answer(f"{line} --method dp-baseline")["outcomes"][0]["top1"] == 1.0
    json.loads(damaged.read_text())
    answer(f"{line} --seed 1")  # other victims: another file
    assert len(list((tmp_path / "kept").iterdir())) == 4


@pytest.mark.slow
def test_the_picture_and_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    for name in ("grid.svg", "grid.csv"):
        result = run(f"attack --task digits:size=100 --attack invert-l2:iterations=2 --examples 1 --candidates 9 "
                     f"--steps 2 --plot {tmp_path / name}")  # fmt: skip
        assert result.exit_code == 0, result.output
    assert "not private: shows a training record" in (tmp_path / "grid.svg").read_text()
    lines = (tmp_path / "grid.csv").read_text().splitlines()
    assert lines[0].startswith("method,attack,step,")
    assert len(lines) == 2


def test_the_columns_of_the_picture_are_in_order() -> None:
    """A first row that was over soon does not push later iterations behind the end."""
    frames = {word: [] for word in ("0", "5", "100", "300", "end", "control")}
    rows = [SimpleNamespace(frames=frames, iterations=count) for count in (91.0, 300.0, 4.0)]
    assert _columns(rows) == ["0", "5", "100", "300", "end", "control"]
    assert _columns(rows[:1]) == ["0", "5", "end", "control"]


@pytest.mark.slow
def test_a_plan_and_a_run_are_attacked(tmp_path: Path) -> None:
    made = plan(
        epsilon=2.0, dataset_size=200, batch_size=20, steps=6, clipping_norm=0.5, method="quantile",
        training={"task": "digits:size=200", "model": "mlp"},
    )  # fmt: skip
    made.save(tmp_path / "plan.json")
    short = "--attack prior,analytic --examples 3 --candidates 50"
    found = answer(f"attack --plan {tmp_path / 'plan.json'} {short} --at-steps last")
    assert [row["method"] for row in found["outcomes"]] == ["non-private"] * 2 + ["plan"] * 2
    assert found["outcomes"][2]["noise_multiplier"] == pytest.approx(made.steps[5].noise_multiplier)
    train(made, out=tmp_path / "run", seed=1)
    found = answer(f"attack --run {tmp_path / 'run'} {short}")
    assert [(row["method"], row["step"]) for row in found["outcomes"]] == [("run", 6), ("run", 6)]
    assert "claimed" in found["guarantees"]["run"]  # a seeded run proves nothing
    assert found["outcomes"][0]["ceiling"] is not None
    file = tmp_path / "run" / "run.json"
    about = json.loads(file.read_text()) | {"source": "COUNTED WITHOUT PRIVACY"}
    file.write_text(json.dumps({key: value for key, value in about.items() if key != "non_private_preprocessing"}))
    found = answer(f"attack --run {tmp_path / 'run'} {short}")
    assert "guarantee: none, vocabulary=counted" in found["guarantees"]["run"]
    assert found["outcomes"][0]["ceiling"] is None


@pytest.mark.slow
def test_members_are_looked_for(tmp_path: Path) -> None:
    line = (
        "attack --membership --task digits:size=80 --model linear --method noisy-sgd --records 30 --shadows 6 "
        f"--targets 3 --steps 4 --plot {tmp_path / 'roc.png'}"
    )
    found = answer(line)
    free, private = found["methods"]
    assert free["ceilings"] is None
    assert private["ceilings"]["0.001"] < private["ceilings"]["0.01"] < 1
    assert not any(attack["violation"] for attack in private["attacks"])
    assert (tmp_path / "roc.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("attack --method nothing", "method='nothing' is not known"),
        ("attack --task tiny_task:task", "not one of images"),
        ("attack --attack invert", "attack='invert' is not known"),
        (f"{QUICK} --at-steps 9", "from 1 to 3"),
        ("attack --attack invert-l2 --at-steps all", "is for the attack `prior`"),
        (f"{QUICK} --batch 9", "at most 8"),
        (f"{QUICK} --examples 101", "more than the 100 candidates"),
        ("attack --method dynamic --plan x.json", "Give one of --method, --plan and --run"),
        ("attack --plan missing.json", "missing.json"),
        ("attack --run missing", "missing"),
        ("attack --records 5", "--records needs --membership"),
        ("attack --membership --examples 5", "--examples has no part in --membership"),
        ("attack --run x --noise 3", "--noise-multiplier needs --method"),
        ("attack --run x --at-steps last", "--at-steps has no part in --run: a run is attacked where its checkpoint"),
        ("attack --run x --model mlp", "--model has no part in --run"),
        ("attack --plan x --as-published", "--uncertified needs --method"),
        ("attack --plot grid.gif", "--plot='grid.gif' must end in"),
        ("attack --attack analytic --task digits:size=50 --examples 1 --candidates 9", "no closed form"),
    ],
)
def test_mistakes_are_one_line(line: str, words: str) -> None:
    refused(run(line), words)


def test_what_is_kept_without_privacy_is_of_the_same_batches(tmp_path):
    """The weights at step 5 depend on the rate at which batches were drawn, also where there is no plan."""
    given = {"attacks": ["prior"], "examples": 2, "candidates": 9, "at_steps": [5], "steps": 6, "model": "linear"}
    for rate in (0.1, 0.9, 0.9):
        attack(None, "digits:size=60", sample_rate=rate, out=tmp_path, **given)
    assert len(list(tmp_path.iterdir())) == 2
