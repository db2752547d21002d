"""A planner server on a free port of this machine, in a thread, and plain HTTP to talk to it."""

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from privet.web.guard import Door, make_door
from privet.web.server import bind_socket, server

CONTROLS = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 6000, "batch_size": 600, "steps": 40, "method": "noisy-sgd"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    port: int

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request over its own connection; headers with _ for -."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            line.request(method, path, body, named)
            found = line.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            line.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, content: Any, **headers: str) -> Answer:
        return self.ask("POST", path, json.dumps(content).encode(), **{"content_type": "application/json", **headers})

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)


@contextmanager
def serving(runs: Path, door: Door | None = None) -> Iterator[Client]:
    """A server while the block runs."""
    one = server(door=door or make_door("127.0.0.1", None), runs=runs)
    with bind_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=one.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not one.started:
                time.sleep(0.01)
            yield Client(listening.getsockname()[1])
        finally:
            one.should_exit = True
            thread.join(120)


# What a server's own processes may be made to do: they find it here by its name.


def broken(_: Any) -> NoReturn:
    raise RuntimeError("/root/private/path")


def endless(folder: Path, _: Any) -> NoReturn:
    """Leaves the number of its process in the folder, and never looks whether somebody waits."""
    (folder / str(os.getpid())).touch()
    while True:
        pow(3, 10**6)
