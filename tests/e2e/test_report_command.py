"""`privet report` as a user types it: a run in, a page out; audits and attacks leave what it shows."""

import json
import shutil
from pathlib import Path

import pytest

import report_runs
from privet.planning import plan
from privet.training.train import train
from typed import answer, refused, run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_checks")]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures, one step long, and a rival."""
    root = tmp_path_factory.mktemp("report")
    made = plan(delta=1e-3, dataset_size=100, batch_size=100, steps=1, noise_multiplier=4.0, solve="epsilon")
    for name in ("a", "b"):
        train(made, "digits:size=100", out=root / name, model="linear", lr=0.1)
    return root


@pytest.fixture
def runs(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(kept, tmp_path / "runs"))


def test_a_run_becomes_a_page_in_its_folder(runs: Path) -> None:
    result = run("report runs/a")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].strip() == "wrote runs/a/report.html"
    assert "[certified: pld" in result.stdout
    assert "Not audited yet" in (runs / "a" / "report.html").read_text()


def test_runs_are_compared_in_every_format(runs: Path) -> None:
    found = answer("report runs/a runs/b --out r.html --out r.md --out r.json")
    assert found["files"] == ["r.html", "r.md", "r.json"]
    assert [one["name"] for one in found["runs"]] == ["a", "b"]
    assert json.loads(Path("r.json").read_text())["runs"] == found["runs"]
    assert Path("r.html").read_text().startswith("<!DOCTYPE html>")
    assert "beside b" in Path("r.md").read_text()


def test_json_alone_writes_nothing(runs: Path) -> None:
    assert answer("report runs/a")["files"] == []
    assert not (runs / "a" / "report.html").exists()


def test_audits_and_attacks_leave_their_evidence(runs: Path) -> None:
    audited = run("audit --run runs/a --kind replay --seed 0 --json")
    assert audited.exit_code == 0, audited.output
    assert "kept runs/a/audit.json" in audited.stderr
    assert json.loads(audited.stdout)["verdict"] == "consistent"
    attacked = run("attack --run runs/a --attack prior --examples 2 --candidates 20 --json")
    assert attacked.exit_code == 0, attacked.output
    assert "raw_attack.json for `privet report`: it is not private" in attacked.stderr
    hidden = answer("report runs/a")
    assert hidden["runs"][0]["audit"]["verdict"] == "consistent"
    assert "not_private" not in hidden["runs"][0]
    shown = answer("report runs/a --show-private --out r.html")
    assert shown["runs"][0]["not_private"]["attacks"]["outcomes"][0]["victims"] == 2
    assert "data:image/png" in Path("r.html").read_text()
    assert run("report runs/a --show-private").stdout.splitlines()[-1].strip() == "wrote runs/a/raw_report.html"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("report none", "there is no such file"),
        ("report runs", "run.json"),
        ("report runs/a --out r.docx", "must end in .html"),
        ("report runs/a --out none/r.html", "does not exist"),
        ("report runs/a runs/none", "runs/none"),
        ("report " + "runs/a " * 9, "at most 8"),
        ("report", "Missing argument"),
    ],
)
def test_mistakes_are_one_line(runs: Path, line: str, words: str) -> None:
    refused(run(line), words)


def test_a_damaged_ledger_is_one_line(runs: Path) -> None:
    (runs / "a" / "ledger.jsonl").write_bytes(b"{}\n")
    refused(run("report runs/a"), "ledger.jsonl")


def test_hostile_evidence_is_one_line(runs: Path) -> None:
    (runs / "a" / "audit.json").write_text(json.dumps(report_runs.audit_of(runs / "a", label="certified")))
    refused(run("report runs/a"), "audit.json")
