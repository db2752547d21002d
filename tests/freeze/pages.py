"""What the planner page is answered: plans, curves, the attacker, the view ahead, files and the gallery of runs."""

import http.client
import json
import threading
import time
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from freeze import files, runs, toy
from freeze.renames import call, keyed, kw, name

ASKED = {"epsilon": 2, "delta": 1e-4, "size": 600, "batch": 60, "steps": 40}
WAYS = ("plan", "curves", "attacker", "ahead")
MORE = (
    {"method": "growing-mu", "rho_noise": 2}, {"method": "auto-linear", "as_published": True},
    {"relation": "replace", "method": "noisy-sgd"}, {"method": "dynamic"}, {"size": 0}, {"epochs": 3, "steps": None},
)  # fmt: skip


def probe(*, quick: bool) -> dict[str, Any]:
    given = kw("Settings", lr=0.2, reserve=1, task="freeze.toy:task", dataset_name="people")
    for seed in (3, 4):
        plan = runs.planned(size=toy.SIZE, batch=20, steps=6)
        call("privet:train", plan, out=f"runs/{seed}", seed=seed, **given)
    asked = [ASKED] if quick else [ASKED, *(ASKED | more for more in MORE)]
    fixed, time.monotonic = (
        time.monotonic,
        time.perf_counter,
    )  # a server needs a clock that goes on; what it says is not compared
    door = name("privet.web.guard:door_for")("127.0.0.1", None)
    server = name("privet.web.server:server")(door=door, runs=Path("runs"))
    with name("privet.web.server:bound")("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            return _answers(listening.getsockname()[1], asked)
        finally:
            server.should_exit = True
            thread.join(60)
            time.monotonic = fixed


def _answers(port: int, asked: list[dict[str, Any]]) -> dict[str, Any]:
    found = {path: _ask(port, "GET", path) for path in ("/api/options", "/api/runs", "/runs/none/report.html")}
    for given in asked:
        for way in WAYS:
            found[f"{way} {given}"] = _ask(port, "POST", f"/api/{way}", json.dumps(keyed(given)))
        for file in ("plan.json", "recipe.toml"):
            words = urlencode({key: value for key, value in keyed(given).items() if value is not None})
            found[f"{file} {given}"] = _ask(port, "GET", f"/api/{file}?{words}")
    return found


def _ask(port: int, method: str, path: str, body: str | None = None) -> dict[str, Any]:
    """The status and the answer; a refusal's words under `refusal`."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        line.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = line.getresponse()
        status, text = answer.status, answer.read().decode()
    finally:
        line.close()
    if status >= 400:
        return {"status": status, "refusal": text}
    return {"status": status, "answer": tomllib.loads(text) if path.startswith("/api/recipe") else files.json_of(text)}
