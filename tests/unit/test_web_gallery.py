"""The gallery shows runs and reaches nothing outside its folder."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from privet.planning import plan
from privet.training.loop import train
from privet.web.app import REPORT_POLICY
from privet.web.gallery import Gallery
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
    made = plan(epsilon=3.0, delta=1e-3, size=SIZE, batch=20, steps=10)
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
