"""A budget over runs as a user keeps it: `privet train --total-epsilon`, `privet epsilon --from` several runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from children import environment
from privet import plan, spent
from privet.accounting import compose_ledgers
from privet.ledger.reading import read_ledger
from privet.ledger.runs import BEFOREHAND
from tiny_task import SIZE
from typed import answer, refused, run

pytestmark = pytest.mark.usefixtures("few_checks")

RUN = "train --plan plan.json --task tiny_task:task --dataset-name people"
TOTAL = f"{RUN} --total-epsilon 1.9 --ledger-dir runs"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plan of epsilon 1: two such runs come to less than 1.9, three to more."""
    monkeypatch.chdir(tmp_path)
    plan(epsilon=1.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=40).save("plan.json")


def test_runs_begin_until_the_total_is_spent() -> None:
    first, second = run(TOTAL), run(TOTAL)
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert "assumes   none (the loop is Privet's own)" in first.stdout
    assert "total     epsilon <= 1.9 at delta 0.001 [certified: a filter of" in second.stdout
    assert "for all runs on people in" in second.stdout
    assert "2 runs so far" in second.stdout
    refused(run(TOTAL), "total_epsilon=1.9 of 'people' in runs would be exceeded: what has begun (2 runs) comes to")
    refused(run(f"{RUN} --ledger-dir runs"), "would be exceeded")
    refused(run(f"{RUN} --out runs/c"), "would be exceeded")  # a folder with a total is kept to, asked or not
    assert sorted(path.name for path in Path("runs").iterdir() if path.is_dir()) == ["tiny_task", "tiny_task-2"]
    found = answer("train --resume runs/tiny_task")
    assert found["dataset"] == "people"
    [total] = found["totals"]
    assert total["guarantee"]["epsilon"] == 1.9
    assert total["planned"] <= 1.9
    assert len(total["runs"]) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{RUN} --total-epsilon 3", "without ledger_dir"),
        (f"{RUN} --total-epsilon 3 --ledger-dir runs --out other/a", "is not in ledger_dir"),
        (f"{RUN} --ledger-dir runs", "has no total for dataset_name='people'. Nothing would be kept to"),
        (f"{RUN} --total-epsilon 0 --ledger-dir runs", "total_epsilon=0.0 must be finite and > 0"),
        (f"{RUN} --total-epsilon 0.5 --ledger-dir runs", "what has begun (0 runs)"),
        (f"{RUN} --total-epsilon 3 --ledger-dir runs --seed 1", "came from a seed"),
        ("train --plan plan.json --task tiny_task:task --total-epsilon 3 --ledger-dir runs", "dataset_name is missing"),
        (f"{RUN}x/y --total-epsilon 3 --ledger-dir runs", "must be of small letters"),
        ("train --resume runs/a --total-epsilon 3", "--total-epsilon cannot be given with --resume"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(line: str, words: str) -> None:
    refused(run(line), words)
    assert not Path("runs/tiny_task").exists()
    assert not Path("runs/budget.json").exists()


def test_the_name_is_a_key_of_the_recipe() -> None:
    Path("recipe.toml").write_text(
        f"epsilon = 1\ndelta = 1e-3\ndataset_size = {SIZE}\nbatch_size = 20\nsteps = 3\n"
        '[training]\ntask = "tiny_task:task"\ndataset_name = "people"\n'
    )
    assert run("train recipe.toml --out runs/a").exit_code == 0
    assert read_ledger("runs/a").header.dataset == "people"


# --- at the same moment, and killed ---


def started(*more: str) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "privet", *TOTAL.split(), *more]
    return subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.prove
def test_of_runs_that_start_at_the_same_moment_no_more_begin_than_fit() -> None:
    every = [started("--out", f"runs/{name}") for name in "abcd"]
    said = [one.communicate() for one in every]
    assert sorted(one.returncode for one in every) == [0, 0, 2, 2], said
    for one, (_, error) in zip(every, said, strict=True):
        assert one.returncode == 0 or b"would be exceeded" in error
    assert len(list(Path("runs").glob("*/ledger.jsonl"))) == 2


@pytest.mark.prove
def test_a_run_that_is_killed_keeps_its_whole_plan_and_may_be_resumed() -> None:
    for name in "ab":
        one = started("--out", f"runs/{name}", "--reserve", "1")
        ledger = Path(f"runs/{name}/ledger.jsonl")
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 3:
            assert one.poll() is None, one.communicate()
            time.sleep(0.002)
        os.kill(one.pid, signal.SIGKILL)
        one.communicate()
    refused(run(f"{TOTAL} --out runs/c"), "what has begun (2 runs)")
    for name in "ab":
        if Path(f"runs/{name}/run.json").exists():  # killed before, its ledger alone is there, and counted
            assert run(f"train --resume runs/{name}").exit_code == 0
    refused(run(f"{TOTAL} --out runs/c"), "what has begun (2 runs)")


# --- privet epsilon --from ---


def test_what_several_runs_cost_together() -> None:
    for name in "abc":
        assert run(f"{RUN} --out runs/{name}").exit_code == 0
    wanted = spent(compose_ledgers(*(read_ledger(f"runs/{name}").ledger for name in "ab")), 1e-3).epsilon
    found = answer("epsilon --from runs/a runs/b")
    assert found["epsilon"] == found["planned"]["epsilon"] == wanted
    assert (found["label"], found["method"], found["delta"], found["dataset"]) == ("certified", "pld", 1e-3, "people")
    assert found["assumptions"] == [BEFOREHAND]
    assert [row["name"] for row in found["runs"]] == ["runs/a", "runs/b"]
    for line in ("epsilon --from runs", "epsilon --from runs/a runs/b runs/c", "epsilon --from runs/a --from runs"):
        assert answer(line)["steps"] == 120 or line.endswith("--from runs")
        assert len(answer(line)["runs"]) == 3
    said = run("epsilon --from runs --accountant all").stdout
    assert "together  3 runs on people; their whole plans: epsilon <= " in said
    assert "run       runs/b: 40 of 40 steps" in said
    assert f"assumes   {BEFOREHAND}" in said
    assert answer("epsilon --from runs --epsilon 2")["assumptions"] == [BEFOREHAND]
    assert answer("epsilon --from runs --delta 1e-4")["delta"] == 1e-4


def test_runs_that_are_stopped_or_on_other_records() -> None:
    assert run(f"{RUN} --out runs/a --stop-at loss=100 --evaluate-every 4").exit_code == 0
    assert run(f"{RUN} --out runs/b").exit_code == 0
    assert run("train --plan plan.json --task tiny_task:task --out runs/unnamed").exit_code == 0
    assert run(f"{RUN}-of-old --out runs/old").exit_code == 0
    refused(run("epsilon --from runs"), "the runs are on people, people-of-old")
    found = run("epsilon --from runs --dataset-name people").stdout
    assert "3 runs on people" in found
    assert "a: 4 of 40 steps, stopped because of its outputs: its whole plan is counted" in found
    assert "unnamed: 40 of 40 steps; no dataset name: counted as on this dataset" in found
    assert "training  120 steps" in found


def test_sums_that_cannot_be_told_are_refused() -> None:
    assert run(f"{RUN} --out runs/a").exit_code == 0
    assert run(f"{RUN} --out runs/s --seed 1").exit_code == 0
    refused(run("epsilon --from runs/a runs/s"), "runs/s: is not private: its noise came from a seed")
    refused(run("epsilon --from runs/a plan.json"), "--from='plan.json' is not the folder of a run")
    refused(run("epsilon --from runs/a runs/none"), "runs/none")
    refused(run("epsilon runs/a"), "Give runs after --from")
    refused(run("epsilon --from runs/a runs --relation replace"), "")
    Path("runs/t").mkdir()
    Path("runs/t/tuning.json").write_text("{}")
    refused(run("epsilon --from runs"), "runs/t: is a tuning")


def test_one_run_says_what_it_assumes() -> None:
    assert run(f"{RUN} --out runs/a").exit_code == 0
    assert "assumes   none (the loop is Privet's own)" in run("epsilon --from runs/a").stdout
    assert answer("epsilon --from runs/a")["assumptions"] == []
    Path("other").mkdir()
    Path("other/ledger.jsonl").write_bytes(Path("runs/a/ledger.jsonl").read_bytes())
    lines = Path("runs/a/ledger.jsonl").read_text().splitlines(keepends=True)
    loop = [place for place, line in enumerate(lines) if "loop" in json.loads(line)]
    Path("other/ledger.jsonl").write_text("".join(lines[: loop[0]]))
    assert "assumes   not recorded" in run("epsilon --from other").stdout
