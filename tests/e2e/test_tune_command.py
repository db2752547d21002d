"""`privet tune` as users call it: the answer, the picture, one line for a mistake, and kills at any moment."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from crashes import Server, server
from privet import Run
from privet.ledger.reading import read_ledger
from typed import answer, refused, run

TUNE = "tune --task tiny_task:task --epsilon 3 --delta 1e-3 --batch 180 --steps 4"


@pytest.mark.slow
def test_the_answer_says_how_many_runs_and_what_is_not_charged(tmp_path):
    out, plot = tmp_path / "a", tmp_path / "scores.png"
    line = f"{TUNE} --try lr=0.5,1 --try clipping_norm=0.5,1 --out {out} --plot {plot}"
    said = run(line)
    assert said.exit_code == 0, said.output
    assert "tuned tiny_task:task: 4 runs, each on 180 of 200 examples" in said.stdout
    assert "chosen by looking at 4 runs on these records, which is not charged" in said.stdout
    assert "certified: pld" in said.stdout
    assert "not private" in said.stdout
    assert "trial 4 of 4" in said.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    again = answer(f"{line.replace('.png', '.csv')}")  # it is over: only read, and drawn otherwise
    assert (again["runs"], again["guarantee"], again["charge"]) == (4, None, None)
    assert again["one_run"]["label"] == "certified"
    rows = list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert {(row["lr"], row["clipping_norm"]) for row in rows} == {
        ("0.5", "0.5"),
        ("0.5", "1"),
        ("1", "0.5"),
        ("1", "1"),
    }
    assert max(float(row["accuracy"]) for row in rows) == again["score"]
    assert all("not private" in row["scored"] for row in rows)


@pytest.mark.slow
def test_the_chosen_settings_train_on_all_records(tmp_path):
    found = answer(f"{TUNE} --try lr=0.5,0.7 --try scheduler=cosine,step:step_size=2,gamma=0.5 --out {tmp_path / 'a'}")
    trained = answer(f"train {tmp_path / 'a' / 'best.toml'} --out {tmp_path / 'b'}")
    assert trained["settings"]["lr"] == found["best"]["lr"]
    assert trained["settings"]["scheduler"] == found["best"]["scheduler"]
    assert Run.load(tmp_path / "b").plan.recipe.dataset_size == 200
    assert trained["guarantee"]["epsilon"] <= 3


@pytest.mark.slow
def test_a_charged_tuning_gives_one_run_and_the_epsilon_of_the_whole(tmp_path):
    said = run(f"{TUNE} --try lr=0.5,1 --charge geometric --trials 2 --out {tmp_path / 'a'}")
    assert said.exit_code == 0, said.output
    assert "certified: rdp, best of geometric(2) runs" in said.stdout
    assert "epsilon is that of the whole" in said.stdout
    assert said.stderr == "tuning tiny: how many runs there are is secret\n"
    assert f"folder    {tmp_path / 'a' / 'run'}" in said.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "Missing option '--try'"),
        ("--try lr", "must be a key and its values"),
        ("--try lr=1 --try lr=2", "--try lr is given twice"),
        ("--try lrs=1,2", "'lrs' cannot be tuned"),
        ("--try lr=1,2 --charge poisson --trials 2 --plot a.png", "whose scores are private"),
        ("--try lr=1,2 --plot a.txt", "must end in .png"),
        ("--try batch_size=1,2 --charge fixed", "is for trials that cost the same"),
        ("--try lr=1,2 --epochs 3", "They say the same"),
        ("--try lr=1,2 --task nowhere", "task"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, words, said):
    refused(run(f"{TUNE} --out {tmp_path / 'a'} {words}"), said)
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_a_bad_recipe_is_named(tmp_path):
    (tmp_path / "r.toml").write_text("epsilon = ")
    refused(run(f"tune {tmp_path / 'r.toml'} --try lr=1,2"), "r.toml: not TOML")
    (tmp_path / "r.toml").write_text("epsilon = 3\ntrials = 3\n")  # for `privet plan` it is a key
    refused(run(f"tune {tmp_path / 'r.toml'} --try lr=1,2"), "r.toml: trials=3 is set by the tuning itself")


# --- kills ------------------------------------------------------------------------------------------

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="signals are those of Unix"),
    pytest.mark.usefixtures("few_checks"),
]
FIXED = f"{TUNE} --reserve 2 --try lr=0.5,1 --charge fixed --out a"
SECRET = f"{TUNE} --reserve 2 --try lr=0.5,1 --charge poisson --trials 2 --out a"


@pytest.fixture(scope="module")
def forks() -> Iterator[Server]:
    with server() as made:
        yield made


def ended(forks: Server, place: Path, line: str, crashes: tuple[int, ...]) -> int:
    """Kill the command in each of these calls that change a file, one after the other; then let it end. Gives how many
    were killed: the command may make fewer calls than that.

    What was drawn, and every score, is the same ever after; no ledger has more than its plan.
    """
    place.mkdir()
    known: dict[Path, bytes] = {}
    killed = 0
    for crash in (*crashes, None):
        code = forks.run(place, line, crash=crash)
        assert code in ((0,) if crash is None else (0, -9)), (place / "stderr").read_text()
        killed += code == -9
        now = {f: f.read_bytes() for f in (*place.glob("a/*/*.json"), *place.glob("a/*.json"))}
        assert all(now[f] == content for f, content in known.items() if f in now)
        assert all(f in now or (f.parent.name == "secret" and code == 0) for f in known)
        known |= now
        for ledger in place.glob("a/*/*/ledger.jsonl"):
            assert read_ledger(ledger.parent).ledger.steps <= 4
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("crashes", [(3, 9, 20), (14,)])
def test_a_killed_tuning_goes_on_and_spends_what_was_planned(forks, tmp_path, crashes):
    place = tmp_path / "p"
    assert ended(forks, place, FIXED, crashes) >= 1
    runs = [Run.load(folder) for folder in sorted(place.glob("a/trials/0*")) if folder.is_dir()]
    assert len(runs) == 2
    assert all(found.ledger == found.plan.ledger() for found in runs)
    result = json.loads((place / "a" / "result.json").read_text())
    assert result["runs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("crashes", [(0, 5, 24)])
def test_a_killed_secret_stays_one(forks, tmp_path, crashes):
    place = tmp_path / "p"
    assert ended(forks, place, SECRET, crashes) >= 1
    assert not (place / "a" / "secret").exists()
    if (place / "a" / "run").exists():  # Poisson may say 0
        found = Run.load(place / "a" / "run")
        assert found.ledger == found.plan.ledger()
