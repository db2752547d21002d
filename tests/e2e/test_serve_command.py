"""`privet serve`, as a user types it: a real process on a free port, and what it refuses to begin with."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from typed import refused, run
from web_server import CONTROLS, Client


@pytest.fixture
def started(tmp_path: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "privet", "serve", "--port", "0", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_it_says_where_it_is_answers_and_stops(started: "subprocess.Popen[str]") -> None:
    line = started.stdout.readline()
    found = re.fullmatch(r"the planner is at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C stops it\)\n", line)
    assert found is not None
    client = Client(int(found[1]))
    assert b"<title>Privet planner</title>" in client.get("/").body
    assert client.post("/api/plan", CONTROLS).json()["guarantee"]["label"] == "certified"
    started.send_signal(signal.SIGINT)
    rest, errors = started.communicate(timeout=120)
    assert "Traceback" not in errors
    assert rest == ""


def test_a_taken_port_and_a_weak_token_are_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(run(f"serve --port {taken.getsockname()[1]}"), "cannot listen")
    refused(run("serve --port 0 --token short"), "token must have at least 16")
    result = run("serve --port 0 --host no.such.host.invalid")
    refused(result, "host='no.such.host.invalid': cannot listen")
    assert "port" not in result.stderr
    assert run("serve --port 99999").exit_code == 2


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("privet.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.datastructures", None)
    refused(run("serve --port 0"), "pip install 'privet[web]'")
