"""examples/federated on Flower's own processes: a SuperLink, two SuperNodes, killed and started again."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from privet import plan
from privet.federated.federate import Federated
from privet.ledger.reading import read_ledger
from privet.planning import Plan

APP = Path(__file__).parents[2] / "examples" / "federated"
BIN = Path(sys.executable).parent
DEADLINE = 600.0  # seconds for each thing waited for: every message starts a process that imports torch
ROUNDS = 4


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Flower:
    """Flower's processes in a folder of their own. They find their programs by PATH, as a user's do."""

    def __init__(self, place: Path) -> None:
        self.place, self.link = place, free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        self._env = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(place / "home"), "PYTHONPATH": paths,
            "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        (place / "home").mkdir()
        (place / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.link}"\ninsecure = true\n'
        )

    def start(self, name: str, line: str) -> "subprocess.Popen[bytes]":
        with (self.place / f"{name}.log").open("ab") as log:
            words = [str(BIN / line.split()[0]), *line.split()[1:]]
            made = subprocess.Popen(words, cwd=self.place, env=self._env, stdout=log, stderr=log)
        self._started.append(made)
        return made

    def superlink(self) -> "subprocess.Popen[bytes]":
        """A SuperLink that listens."""
        made = self.start("link", f"flower-superlink --insecure --port {self.link} "
                          "--disable-runtime-dependency-installation")  # fmt: skip
        self.wait_for("the SuperLink", lambda: _answers(self.link))
        return made

    def supernode(self, client: int) -> "subprocess.Popen[bytes]":
        return self.start(f"node{client}", f"flower-supernode --insecure --superlink 127.0.0.1:{self.link} "
                          f"--port {free_port()} --node-config partition-id={client}")  # fmt: skip

    def submit(self, config: dict[str, object], app: Path = APP) -> None:
        """What a user types: flwr run."""
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        done = subprocess.run(
            [BIN / "flwr", "run", str(app), "here", "--run-config", words], cwd=self.place, env=self._env,
            capture_output=True, timeout=DEADLINE, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def wait_for(self, what: str, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not is_so():
            logs = {log.name: log.read_text()[-1500:] for log in self.place.glob("*.log")}
            assert time.monotonic() < end, f"{what} did not happen: {logs}"
            time.sleep(0.3)

    def kill_all(self) -> None:
        """End all that was started here, and what that has started: they work in this folder."""
        for process in self._started:
            process.kill()
            process.wait()
        for _ in range(20):
            found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and self._is_here(p)]
            for number in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.2)

    def _is_here(self, process: Path) -> bool:
        try:
            return (process / "cwd").resolve() == self.place and int(process.name) != os.getpid()
        except OSError:
            return False


def _answers(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    made = Flower(tmp_path.resolve())
    try:
        yield made
    finally:
        made.kill_all()


def rounds(folder: Path) -> int:
    """How many rounds are charged: 0 before there is a ledger."""
    try:
        return read_ledger(folder).ledger.steps
    except Exception:  # it is just being made
        return 0


@pytest.mark.prove
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="ends processes by their folder in /proc")
def test_a_federation_over_the_network_outlives_its_clients_and_its_server(flower: Flower) -> None:
    p = plan(
        delta=1e-2, dataset_size=2, batch_size=2, steps=ROUNDS, noise_multiplier=2.0, solve="epsilon", unit="client"
    )
    p.save(flower.place / "plan.json")
    out = flower.place / "out"
    config = {
        "plan": str(flower.place / "plan.json"), "out": str(out), "task": "tiny_task:task", "clients": 2, "wait": 2,
        "timeout": 60.0,
    }  # fmt: skip
    link, nodes = flower.superlink(), [flower.supernode(0), flower.supernode(1)]
    flower.submit(config)

    flower.wait_for("a round", lambda: (out / "metrics.jsonl").exists() and "held_out" in _text(out / "metrics.jsonl"))
    nodes[1].kill()  # a client in the midst of a round: it has dropped out
    flower.wait_for("two rounds", lambda: rounds(out) >= 2)
    link.kill()  # and the server
    flower.kill_all()
    charged = rounds(out)
    died = Federated.load(out)
    assert died.spent is not None
    assert 2 <= charged == died.rounds

    flower.superlink()
    for client in range(2):
        flower.supernode(client)
    flower.submit(config)  # the same command: it goes on
    flower.wait_for("all rounds", lambda: Federated.load(out).is_over)
    found = Federated.load(out)
    assert found.spent is not None
    assert died.spent.epsilon <= found.spent.epsilon == Plan.load(flower.place / "plan.json").guarantee.epsilon
    assert read_ledger(out).ledger == p.ledger()
    assert found.spent.label == "certified"


HOSTILE = """
import io
import json
import numpy as np
from flwr.app import Array
from privet.federated.flower import client_app, client_number

app = client_app()
train = app._registered_funcs["train.default"]


def saved(values):
    out = io.BytesIO()
    np.save(out, values, allow_pickle=True)
    return out.getvalue()


def hostile(message, context):
    reply, number = train(message, context), message.content["round"]["number"]
    if client_number(context) != 1:
        return reply
    if number == 0:
        raise RuntimeError("2.718281828")
    if number == 1:
        data = saved(np.full((6, 4), None))
        reply.content["update"]["body.0.weight"] = Array("object", (6, 4), "numpy.ndarray", data)
    if number == 2:
        reply.content["update"]["body.0.weight"] = Array(np.full((6, 4), np.nan, dtype=np.float32))
    if number == 3:
        told = json.loads(reply.content["standing"]["json"]) | {"size": 10**9}
        reply.content["standing"]["json"] = json.dumps(told)
        for name, array in reply.content["update"].items():
            reply.content["update"][name] = Array(np.full(array.shape, 1e20, dtype=np.float32))
    return reply


app._registered_funcs["train.default"] = hostile
"""


@pytest.mark.prove
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="ends processes by their folder in /proc")
def test_a_bad_client_over_the_network_costs_itself_alone(flower: Flower) -> None:
    """Client 1 of three fails, sends objects, then NaN, then 1e20 with a claimed weight of 1e9; all rounds are made."""
    app = flower.place / "app"
    shutil.copytree(APP, app)
    (app / "privet_flower" / "client.py").write_text(HOSTILE)
    faults_file = flower.place / "faults"  # where the log goes is up to who runs the server
    with (app / "privet_flower" / "server.py").open("a") as server:
        server.write(f"\nimport logging\nlogging.getLogger().addHandler(logging.FileHandler({str(faults_file)!r}))\n")
    plan(delta=1e-2, dataset_size=66, batch_size=11, steps=ROUNDS, noise_multiplier=2.0, solve="epsilon").save(
        flower.place / "plan.json"
    )
    out = flower.place / "out"
    config = {
        "plan": str(flower.place / "plan.json"), "out": str(out), "task": "tiny_task:task", "clients": 3, "wait": 3,
        "timeout": 120.0, "local-steps": 1,
    }  # fmt: skip
    flower.superlink()
    for client in range(3):
        flower.supernode(client)
    flower.submit(config, app)
    flower.wait_for("all rounds", lambda: (out / "checkpoint.safetensors").exists() and Federated.load(out).is_over)
    found = Federated.load(out)
    weights = load_file(out / "checkpoint.safetensors")
    assert max(float(weights[name].abs().max()) for name in weights if name.startswith("model.")) < 100
    assert found.standing.keys() == {0, 1, 2}
    assert [found.standing[client]["left"] for client in (0, 2)] == [0, 0]
    faults = ("its app has failed", "its message cannot be read", "its 'body.0.weight' is not finite")
    lines = [f"round {number}: client 1 has dropped out: {fault}" for number, fault in enumerate(faults)]
    log = [line for line in _text(faults_file).splitlines() if "dropped out" in line]
    assert log == lines  # not the last: huge, but finite, it is scaled down to the others


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
