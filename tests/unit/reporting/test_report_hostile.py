"""A folder that lies, is damaged, or leads elsewhere: one line says so, and nothing of elsewhere is read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import report_runs
from privet.errors import InvalidValue
from privet.reporting.evidence import read_attack, read_audit, read_baseline
from privet.reporting.report import report
from privet.training.run import Run
from privet.training.train import resume_run, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_checks")]
EVIDENCE = {
    "audit.json": report_runs.audit_of,
    "raw_attack.json": report_runs.attack_of,
    "raw_plain.json": report_runs.plain_of,
}
FILES = ("run.json", "plan.json", "ledger.jsonl", "metrics.jsonl", *EVIDENCE)
JUNK = (b"", b"\x00\xff\xfe", b"[]", b"null", b"{}", b'{"format": 1}', b"[" * 100_000, b'{"a": NaN}', b"1e999")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "a"
    train(report_runs.tiny_plan(steps=6), "tiny_task:task", out=folder)
    for name, content in EVIDENCE.items():
        (folder / name).write_text(json.dumps(content(folder)))
    assert report(folder).runs[0].audit is not None  # all of it can be read
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "a"))


def refused(run: Path, *words: str, read: Callable[[Path], object] = report) -> None:
    with pytest.raises(InvalidValue) as caught:
        read(run)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 800
    for word in words:
        assert word in str(caught.value)


def found_in(name: str) -> Callable[[Path], object]:
    """The reader of one evidence file alone."""
    reader = {"audit.json": read_audit, "raw_attack.json": read_attack, "raw_plain.json": read_baseline}[name]
    return lambda run: reader(run, json.loads((run / "run.json").read_text())["plan"])


@pytest.mark.parametrize("name", FILES)
def test_junk_is_one_line(run: Path, name: str) -> None:
    for junk in JUNK if name != "metrics.jsonl" else (b"[]\n{}\n", b"junk\nmore\n"):
        (run / name).write_bytes(junk)
        refused(run, name, read=found_in(name) if name in EVIDENCE else report)


def test_a_torn_end_of_the_metrics_is_no_damage(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 6, "held_out_l')
    assert report(run).runs[0].score is not None


@pytest.mark.parametrize("name", [*FILES, "checkpoint.safetensors", "ledger.count"])
def test_links_are_not_followed(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    refused(run, name, "is a link")


@pytest.mark.parametrize("name", FILES)
def test_pipes_and_huge_files_are_refused_at_once(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(run, name)
    (run / name).unlink()
    with (run / name).open("wb") as stream:
        stream.truncate(65 * 2**20)
    refused(run, name)


def test_a_damaged_ledger_is_refused(run: Path) -> None:
    ledger = run / "ledger.jsonl"
    whole = ledger.read_bytes()
    half = len(whole) // 2
    ledger.write_bytes(whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :])
    refused(run, "ledger.jsonl", "line")
    ledger.write_bytes(b"\n".join(whole.splitlines()[:2]) + b"\n")  # lines cut off at the end
    refused(run, "ledger.jsonl")


def test_damaged_weights_are_told_and_the_ledger_still_counts(run: Path) -> None:
    weights, sound = run / "checkpoint.safetensors", report(run)
    whole = weights.read_bytes()
    assert "weights cannot be read" not in sound.markdown()
    for damaged in (whole[:-9], whole[:99] + bytes([whole[99] ^ 1]) + whole[100:], b""):
        weights.write_bytes(damaged)
        with pytest.raises(InvalidValue, match="its checksum does not fit"):
            Run.load(run).check_weights()
    found = report(run)
    assert found.runs[0].run.guarantee == sound.runs[0].run.guarantee
    assert "weights cannot be read" in found.markdown()
    assert found.as_dict()["runs"][0]["damage"].endswith("or not a checkpoint of Privet.")
    with pytest.raises(InvalidValue, match=r"checkpoint\.safetensors: its checksum does not fit"):
        resume_run(run)


def test_files_of_different_runs_do_not_mix(run: Path, tmp_path: Path) -> None:
    train(report_runs.tiny_plan(steps=7), "tiny_task:task", out=tmp_path / "b")
    for name, content in EVIDENCE.items():
        kept = (run / name).read_bytes()
        (run / name).write_text(json.dumps(content(tmp_path / "b")))
        refused(run, name, "another plan")
        (run / name).write_bytes(kept)
    shutil.copy(tmp_path / "b" / "plan.json", run / "plan.json")
    refused(run, "different plans")


@pytest.mark.parametrize(
    "bound", [{"label": "certified"}, {"epsilon": -1.0}, {"epsilon": "0.1"}, {"delta": 2.0}, {"more": 1}]
)
def test_an_audit_cannot_say_more_than_audits_do(run: Path, bound: dict[str, object]) -> None:
    (run / "audit.json").write_text(json.dumps(report_runs.audit_of(run, **bound)))
    refused(run, "audit.json", read=found_in("audit.json"))


def test_a_verdict_must_follow_from_its_findings(run: Path) -> None:
    content = report_runs.audit_of(run, verdict="violation")
    content["found"]["verdict"] = "consistent"
    (run / "audit.json").write_text(json.dumps(content))
    refused(run, "audit.json", "does not follow", read=found_in("audit.json"))


@pytest.mark.parametrize(
    "change",
    [
        {"victims": 0}, {"succeeded": 38}, {"succeeded": True}, {"limits": [0.5, -0.5]}, {"limits": [0.1]},
        {"ceiling": 1.5}, {"frames": {"end": [[[256]]]}}, {"frames": {"end": [[[0, 0]]]}}, {"frames": {"end": []}},
        {"frames": {"end": [[[0]], []]}}, {"frames": {"end": [[["<svg>"]]]}}, {"step": "<script>"}, {"method": 3},
    ],
)  # fmt: skip
def test_an_attack_that_cannot_be_is_refused(run: Path, change: dict[str, object]) -> None:
    (run / "raw_attack.json").write_text(json.dumps(report_runs.attack_of(run, **change)))
    refused(run, "raw_attack.json", read=found_in("raw_attack.json"))


def test_what_is_no_number_is_not_shown_as_one(run: Path) -> None:
    line = {"step": 6, "held_out_loss": 0.1, "held_out_accuracy": "<b>1.0</b>", "raw_x": "<b>", "label": "certified"}
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    found = report(run, show_private=True)
    assert found.runs[0].score is None
    assert "raw_x" not in found.html()
    assert "<b>" not in found.html()


@pytest.mark.parametrize("measure", [{}, {"name": 3, "higher_is_better": True}, {"name": "accuracy"}])
def test_a_description_without_its_parts_is_one_line(run: Path, measure: dict[str, object]) -> None:
    report_runs.changed(run / "run.json", measure=measure)
    if measure.get("name") == 3:
        assert report(run).runs[0].score is None
    else:
        refused(run, str(run))


@pytest.mark.parametrize("changed", [{"a": 3}, {"a": [1]}, {"a": None}])
def test_changes_that_are_no_pairs_are_one_line(run: Path, changed: dict[str, object]) -> None:
    report_runs.changed(run / "run.json", changed=changed)
    refused(run, str(run))


def test_nothing_is_written_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    found = report(run)
    (run / "report.html.new").symlink_to(tmp_path / "precious")
    with pytest.raises(InvalidValue, match="is a symbolic link"):
        found.save(run / "report.html")
    (run / "report.html.new").unlink()
    (run / "report.html").symlink_to(tmp_path / "precious")
    found.save(run / "report.html")
    assert not (run / "report.html").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_there_must_be_a_run(tmp_path: Path) -> None:
    refused(tmp_path, "run.json")
    refused(tmp_path / "none", "run.json")
