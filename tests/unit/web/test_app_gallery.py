"""The gallery shows runs and reaches nothing outside its folder."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from privet.ledger.runs import compose_runs, read_runs
from privet.planning import plan
from privet.training.train import train
from privet.web.app import REPORT_POLICY, Gallery
from tiny_task import SIZE
from web_server import Client, serving

NASTY = "<img src=x onerror=alert(1)>"
SECRET = b"a secret outside"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a few steps, one with a report; strange neighbours; a secret next door."""
    root = tmp_path_factory.mktemp("gallery")
    runs = root / "runs"
    runs.mkdir()
    (root / "secret").mkdir()
    (root / "secret" / "report.html").write_bytes(SECRET)
    (root / "secret" / "run.json").write_text("{}")
    made = plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=10)
    train(made, "tiny_task:task", out=runs / "a")
    train(made, "tiny_task:task", out=runs / "seeded", seed=1)
    (runs / "a" / "report.html").write_text("<p>the report</p>")
    (runs / "empty").mkdir()
    (runs / "report.html").write_text("of no run")
    (runs / NASTY).mkdir()
    (runs / NASTY / "run.json").write_text('{"format": "<script>alert(1)</script>"}')
    (runs / "link").symlink_to(root / "secret")
    (runs / "inner").mkdir()
    (runs / "inner" / "run.json").write_text("{}")
    (runs / "inner" / "report.html").symlink_to(root / "secret" / "report.html")
    (runs / "pipe").mkdir()
    (runs / "pipe" / "run.json").write_text("{}")
    os.mkfifo(runs / "pipe" / "plan.json")
    os.mkfifo(runs / "pipe" / "report.html")
    return runs


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[Client]:
    with serving(runs) as found:
        yield found


def test_a_run_is_shown_with_what_it_guarantees(client: Client) -> None:
    found = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    assert found["a"]["guarantee"]["line"].startswith("epsilon <= ")
    assert found["a"]["guarantee"]["label"] == "certified"
    assert found["a"]["steps"] == 10
    assert any(re.fullmatch(r"accuracy [01]\.\d{4}", score) for score in found["a"]["held_out"])  # all 50 right happens
    assert found["a"]["report"]
    assert found["seeded"]["guarantee"]["label"] == "claimed"
    assert not found["seeded"]["report"]


def test_strange_folders_hide_nothing_and_are_named_as_they_are(client: Client) -> None:
    answer = client.get("/api/runs")
    found = {run["name"]: run for run in answer.json()["runs"]}
    assert set(found) == {"a", "seeded", NASTY, "inner", "pipe"}
    assert "is not the description of a run" in found[NASTY]["error"]
    assert "no plain file" in found["pipe"]["error"]
    assert answer.headers["content-type"] == "application/json"  # and nosniff: no browser reads a name as HTML


def test_an_entry_says_what_its_guarantee_assumes(client: Client) -> None:
    found = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    assert found["a"]["assumes"] == ["none (the loop is Privet's own)"]
    assert found["a"]["guarantee"]["assumptions"] == []


def test_what_runs_cost_together_is_told_only_if_every_run_can_be_counted(client: Client) -> None:
    """Among them is a link that leads outside: a sum without what lies there would be too small."""
    [told] = client.get("/api/runs").json()["together"]
    assert told["error"].startswith("link: is a link to") or "of a run, and no ledger" in told["error"]
    assert "guarantee" not in told


def test_each_dataset_has_the_cost_of_its_runs_together(tmp_path: Path) -> None:
    made = plan(epsilon=1.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=5)
    given = {"dataset_name": "people", "total_epsilon": 3.0, "ledger_dir": tmp_path}
    train(made, "tiny_task:task", out=tmp_path / "a", **given)
    gallery = Gallery(tmp_path)
    assert gallery.entries(lambda: None)["together"] == []  # one run is its own entry
    train(made, "tiny_task:task", out=tmp_path / "b", **given)
    train(made, "tiny_task:task", out=tmp_path / "cars", dataset_name="cars")
    [told] = gallery.entries(lambda: None)["together"]
    wanted = compose_runs(read_runs(tmp_path)[:2])
    assert (told["dataset"], told["runs"], told["total"]) == ("people", 2, "3")
    assert (told["guarantee"]["epsilon"], told["guarantee"]["label"]) == (wanted.epsilon, "certified")
    assert told["guarantee"]["assumptions"] == list(wanted.assumptions)
    unnamed = tmp_path.with_name("unnamed")
    train(made, "tiny_task:task", out=unnamed)  # it could not begin below the total
    unnamed.rename(tmp_path / "unnamed")
    found = {row["dataset"]: row["runs"] for row in gallery.entries(lambda: None)["together"]}
    assert found == {"people": 3, "cars": 2}
    train(made, "tiny_task:task", out=tmp_path / "s", dataset_name="cars", seed=1)
    [cars, people] = gallery.entries(lambda: None)["together"]
    assert cars["error"].startswith("guarantee: none. s: is not private")
    assert "guarantee" not in cars
    assert people["runs"] == 3
    (tmp_path / "a" / "ledger.jsonl").unlink()
    (tmp_path / "a" / "ledger.jsonl").symlink_to("/etc/passwd")
    [told] = gallery.entries(lambda: None)["together"]
    assert "a/ledger.jsonl: is a link" in told["error"]
    assert str(tmp_path) not in told["error"]


def test_an_entry_follows_its_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{}")
    gallery = Gallery(tmp_path)
    assert "format" in gallery.entries(lambda: None)["runs"][0]["error"]
    (tmp_path / "b" / "run.json").write_text("not JSON")
    assert "format" not in gallery.entries(lambda: None)["runs"][0]["error"]
    assert Gallery(tmp_path / "none").entries(lambda: None)["runs"] == []


def test_a_report_is_shown_apart_from_the_page(client: Client) -> None:
    answer = client.get("/runs/a/report.html")
    assert (answer.status, answer.body) == (200, b"<p>the report</p>")
    assert answer.headers["content-security-policy"] == REPORT_POLICY
    assert REPORT_POLICY.startswith("sandbox ")
    assert "allow-same-origin" not in REPORT_POLICY


@pytest.mark.parametrize(
    "path",
    [
        "/runs/link/report.html", "/runs/inner/report.html", "/runs/pipe/report.html", "/runs/seeded/report.html",
        "/runs/../secret/report.html", "/runs/%2e%2e/report.html", "/runs/..%2fsecret/report.html",
        "/runs/%2e%2e%2fsecret/report.html", "/runs/..%5csecret/report.html", "/runs/./report.html",
        "/runs//report.html", "/runs/a%00/report.html", "/runs/a/plan.json", "/runs/a/report.html/../plan.json",
        "/runs/%ff/report.html", "/runs/report.html", "/runs/", "/static/../app.py", "/static/%2e%2e/app.py",
        "/static/vendor/../../app.py", "/static//etc/passwd", "/static/vendor/LICENSE", "//etc/passwd", "/..",
    ],
)  # fmt: skip
def test_nothing_else_can_be_reached(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status == 404
    assert SECRET not in answer.body
    assert set(answer.json()) == {"error"}
