"""The server as its clients meet it, kind and hostile: bodies, limits, downloads, time."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from privet.planning import Plan, Recipe
from privet.web import app, server, work
from privet.web.app import MOST_BYTES, static_files
from privet.web.questions import recipe_from_controls
from typed import run
from web_server import CONTROLS, Client, broken, endless, serving

QUERY = "&".join(f"{key}={value}" for key, value in CONTROLS.items())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("runs")) as found:
        yield found


def test_a_plan_is_answered_and_remembered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    found = client.post("/api/plan", CONTROLS)
    assert found.status == 200
    assert found.json()["guarantee"]["label"] == "certified"
    monkeypatch.setattr(work, "_run_in_process", lambda *_: pytest.fail("planned again"))
    assert client.post("/api/plan", dict(reversed(CONTROLS.items()))).body == found.body


def test_the_downloads_are_what_the_commands_accept(client: Client, tmp_path: Path) -> None:
    for name in ("plan.json", "recipe.toml"):
        answer = client.get(f"/api/{name}?{QUERY}")
        assert answer.status == 200
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        (tmp_path / name).write_bytes(answer.body)
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.recipe == Recipe.load(tmp_path / "recipe.toml") == recipe_from_controls(CONTROLS)
    result = run("epsilon --delta 1e-5 --json", "--from", str(tmp_path / "plan.json"))
    assert json.loads(result.stdout)["epsilon"] == loaded.guarantee.epsilon


def test_curves_and_attacker_answer(client: Client) -> None:
    for kind in ("curves", "attacker"):
        found = client.post(f"/api/{kind}", CONTROLS).json()
        assert {line["label"] for line in found["lines"]} == {"certified", "approximate"}


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[" * 60_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b'{"epsilon": 1e999, "dataset_size": 10}', "application/json", 400),
        (b'{"epsilon": 1, "dataset_size": 1' + b"0" * 5000 + b"}", "application/json", 400),
        (json.dumps({**CONTROLS, "steps": 10**9}).encode(), "application/json", 400),
        (json.dumps(CONTROLS).encode(), "text/plain", 415),  # what a form of another site can send
        (json.dumps(CONTROLS).encode(), "", 415),
        (b" " * (MOST_BYTES + 1), "application/json", 413),
    ],
)
def test_a_bad_body_is_one_line(client: Client, body: bytes, kind: str, status: int) -> None:
    answer = client.ask("POST", "/api/plan", body, content_type=kind)
    assert answer.status == status
    assert set(answer.json()) == {"error"}
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/plan"), ("DELETE", "/"), ("POST", "/api/runs"), ("PUT", "/x")]
)
def test_other_methods_are_refused(client: Client, method: str, path: str) -> None:
    answer = client.ask(method, path)
    assert answer.status in (404, 405)
    assert set(answer.json()) == {"error"}


def test_a_body_without_end_is_cut_off(client: Client) -> None:
    with client.raw() as line:
        line.sendall(b"POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")  # fmt: skip
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        with suppress(ConnectionError):  # it may hang up before all is sent
            for _ in range(6):
                line.sendall(chunk)
        assert line.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: loc",
        b"POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ],
)
def test_a_slow_client_is_left(client: Client, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With shorter limits than real ones; a client without any would wait for ever."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    monkeypatch.setattr(app, "BODY_SECONDS", 0.2)
    with client.raw() as line:
        line.sendall(sent)
        heard = _until_closed(line)
    assert heard == b"" or heard.startswith(b"HTTP/1.1 408")


def _until_closed(line: Any) -> bytes:
    try:
        return b"".join(iter(lambda: line.recv(4096), b""))
    except ConnectionResetError:
        return b""


def test_too_much_at_once_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: Any) -> Any:
        raise work.Busy

    monkeypatch.setattr(work.Desk, "answer", busy)
    assert client.post("/api/plan", {**CONTROLS, "epsilon": 2.5}).status == 503


def test_our_own_mistake_says_no_more_than_its_kind(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "make_plan", broken)
    answer = client.post("/api/plan", {**CONTROLS, "epsilon": 2.6})
    assert (answer.status, answer.json()) == (500, {"error": "internal error: RuntimeError"})


# --- hard questions ---------------------------------------------------------------------------------


@pytest.fixture
def hard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The view ahead has no end; each process that makes it leaves its number in this folder."""
    monkeypatch.setattr(app.answers, "ahead_answer", partial(endless, tmp_path))
    return tmp_path


def asking(client: Client, path: str, controls: dict[str, Any]) -> Any:
    """A connection on which something was asked, and nothing is read."""
    line, body = client.raw(), json.dumps(controls).encode()
    line.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n".encode() + body)  # fmt: skip
    return line


def processes(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir()]


def is_over(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_ordinary_questions_are_answered_while_hard_ones_come_and_go(
    client: Client, hard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the server takes at once, and more that wait for them; no limit but leaving ends one here."""
    monkeypatch.setattr(work, "LONGEST_WORK", 1e6)
    lines = [asking(client, "/api/ahead", {**CONTROLS, "epsilon": 3 + k / 8}) for k in range(work.PROCESSES + 2)]
    _wait(lambda: len(processes(hard)) == work.PROCESSES)
    first = processes(hard)
    for line in lines:
        line.close()
    assert client.post("/api/plan", {**CONTROLS, "epsilon": 2.7}).status == 200
    _wait(lambda: all(is_over(process) for process in [*first, *processes(hard)]))
    with asking(client, "/api/ahead", {**CONTROLS, "epsilon": 4}):  # one that stays
        _wait(lambda: len(processes(hard)) > len(first))
        assert client.post("/api/curves", {**CONTROLS, "epsilon": 2.8}).status == 200


def test_a_question_has_a_limit_and_the_way_out_is_told(
    client: Client, hard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "LONGEST_WORK", 0.2)
    answer = client.post("/api/ahead", {**CONTROLS, "method": "dynamic", "rho_noise": 99.5, "rho_clip": 99.5})
    said = answer.json()["error"]
    assert answer.status == 504
    assert "more than 0.2 seconds" in said
    assert "Ask for fewer steps" in said
    assert "privet plan --epsilon 2 " in said
    assert said.endswith("--out plan.json")  # the whole command
    _wait(lambda: all(is_over(process) for process in processes(hard)))


def test_a_user_s_mistake_comes_back_from_the_other_process(client: Client) -> None:
    answer = client.post("/api/ahead", {**CONTROLS, "uncertified": True})
    assert answer.status == 400
    assert "uncertified cannot be explored" in answer.json()["error"]


def _wait(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


# --- the page itself --------------------------------------------------------------------------------


def test_the_page_asks_for_nothing_outside(client: Client) -> None:
    files = static_files()
    text = client.get("/").body.decode()
    links = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert links
    assert all(client.get(link).status == 200 for link in links)
    for name, (_, content) in files.items():
        if not name.startswith("vendor/"):
            outside = re.findall(rb"https?://[^\s\"'`]+", content)
            assert set(outside) <= {b"http://www.w3.org/2000/svg"}, name
            assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", content), name
    for module in re.findall(rb'from "\./([\w.]+)"', b"".join(content for _, content in files.values())):
        assert module.decode() in files
    assert not re.search(r"\son\w+=|style=|<script>", text)  # the policy would not let them


def test_the_vendored_files_are_those_of_the_table() -> None:
    folder = resources.files("privet.web") / "static" / "vendor"
    rows = re.findall(r"\| (uplot\.\w+) \|.*\| ([0-9a-f]{64}) \|", (folder / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == 2
    for name, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert "MIT" in (folder / "LICENSE").read_text(encoding="utf-8")
