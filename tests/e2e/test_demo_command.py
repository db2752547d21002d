"""`privet demo`: the whole story in a few steps, taken up where it was broken off; the real one is proven by make."""

import json
from pathlib import Path

import pytest

from privet.cli import demo
from privet.ledger.reading import read_ledger
from typed import refused, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_checks")]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The demo with its attack left out, which has tests of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "QUICK", demo.QUICK | {"steps": 2})
    monkeypatch.setattr(demo, "_attack", lambda *_: None)
    return tmp_path / "demo"


def test_the_story_is_told_and_not_told_twice(small: Path) -> None:
    first = run("demo --quick")
    assert first.exit_code == 0, first.output
    assert "report    demo/report.html" in first.stdout
    for words in ("dynamic   epsilon <= ", "constant  epsilon <= ", "without privacy", "result    dynamic did "):
        assert words in first.stdout
    ledgers = {name: (small / name / "ledger.jsonl").read_bytes() for name in ("dynamic", "constant")}
    (small / "dynamic" / "audit.json").write_bytes(b"torn")
    again = run("demo --quick --json")
    assert again.exit_code == 0, again.output
    assert again.stderr.count("trained already") == 2
    assert "3. the same network without privacy (done already)" in again.stderr
    assert "4. audit: is the claim kept?\n" in again.stderr
    found = json.loads(again.stdout)
    assert [one["guarantee"]["label"] for one in found["runs"]] == ["certified", "certified"]
    assert found["runs"][0]["guarantee"]["epsilon"] <= 3 >= found["runs"][1]["guarantee"]["epsilon"]
    for name, ledger in ledgers.items():
        assert (small / name / "ledger.jsonl").read_bytes() == ledger  # nothing is spent twice


def test_a_broken_off_run_goes_on(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after its first step, and a rival that was killed before it began."""
    from privet.training.loop import TrainingLoop

    go = TrainingLoop.run

    def stopped(rounds: TrainingLoop) -> None:
        monkeypatch.setattr(TrainingLoop, "run", go)  # once

    monkeypatch.setattr(TrainingLoop, "run", stopped)
    first = run("demo --quick")
    assert first.exit_code == 130
    assert "`privet demo --out demo` goes on there" in first.stderr
    (small / "constant").mkdir()
    (small / "constant" / "ledger.jsonl").write_text("")
    again = run("demo --quick")
    assert again.exit_code == 0, again.output
    assert "goes on at step 0" in again.stderr
    assert read_ledger(small / "dynamic").ledger.steps == read_ledger(small / "constant").ledger.steps == 2


@pytest.mark.parametrize("name", ["thesis.txt", "plan.json"])
def test_what_is_not_ours_is_left_alone(small: Path, name: str) -> None:
    mine = small / "dynamic" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused_line = run("demo --quick")
    refused(refused_line, "is not a run of the demo")
    assert mine.read_text() == "mine"
    (small.parent / "file").write_text("")
    refused(run("demo --quick --out file"), "cannot be made")
