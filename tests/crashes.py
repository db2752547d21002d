"""Whole runs that are crashed on purpose: the commands, and what must be true after each crash.

Commands run in forks of one process that has imported everything: `with server() as forks: forks.run(place, TRAIN)`.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.stats import chi2

from children import environment
from crash_task import FOLDER, RELEASES, SIZE, VALUES, Net, Witness
from privet import Run, plan
from privet.ledger.reading import read_ledger
from privet.planning import Plan
from typed import answer

NOISE, BATCH = 2.0, 4
ALARM = 1e-9  # chance that right noise is rejected, in each check
TRAIN = (
    f"train --plan plan.json --task crash_task:task --optimizer crash_task:Witness --out {FOLDER} --average 0.9 "
    "--scheduler cosine --keep best --save-every 4 --evaluate-every 5 --reserve 2"
)
RESUME = f"train --resume {FOLDER}"


def placed(place: Path, *, steps: int) -> Plan:
    """A folder with a plan in it, to call the command in."""
    place.mkdir(exist_ok=True)
    p = plan(delta=1e-3, dataset_size=SIZE, batch_size=BATCH, steps=steps, noise_multiplier=NOISE, solve="epsilon")
    p.save(place / "plan.json")
    return p


def releases(place: Path) -> list[dict[str, float]]:
    file = place / RELEASES
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def check_covered(place: Path, p: Plan) -> int:
    """Each release was charged before it happened, and is charged now; no two are equal. Gives how many there were."""
    seen = releases(place)
    assert all(line["charged"] >= number for number, line in enumerate(seen, start=1))
    assert len({line["digest"] for line in seen}) == len(seen)
    if (place / FOLDER / "ledger.jsonl").exists():
        found = read_ledger(place / FOLDER).ledger
        assert found.steps >= len(seen)
        assert found == p.ledger().first(found.steps)
    else:
        assert not seen
    return len(seen)


def check_finished(place: Path, p: Plan) -> None:
    """The plan is spent, neither more nor less; the weights can be used, and their noise was of the right size."""
    drawn = check_covered(place, p)
    found = Run.load(place / FOLDER)
    assert (found.end, found.ledger) == ("complete", p.ledger())
    assert all(torch.isfinite(value).all() for value in found.network().state_dict().values())
    told = answer(f"epsilon --from {place / FOLDER}")
    assert told["label"] == "certified"
    assert told["epsilon"] <= p.guarantee.epsilon
    squares = sum(line["squares"] for line in releases(place)) / (NOISE / BATCH) ** 2
    law = chi2(drawn * VALUES)
    assert law.ppf(ALARM / 2) <= squares <= law.isf(ALARM / 2)
    # and 2 % more or less noise would be noticed, if there were many releases
    if drawn * VALUES > 200_000:
        assert squares * 1.02**2 > law.isf(ALARM / 2)
        assert squares / 1.02**2 < law.ppf(ALARM / 2)


def one_line(place: Path) -> str:
    """The one line that a command said of its failure, behind those of its progress; nothing on standard output."""
    *before, said = (place / "stderr").read_text().splitlines()
    assert (place / "stdout").read_text() == ""
    assert all(line.startswith("step ") for line in before), before
    assert said.startswith("privet: ")
    assert "internal error" not in said
    return said


# --- commands in forks ------------------------------------------------------------------------------

CALLS = ("write", "pwrite", "fdatasync", "fsync", "rename", "ftruncate", "unlink")
_write = os.write  # as it was before a test changed it


class Server:
    """Runs `privet` commands in forks of one process that has imported everything."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def start(self, folder: Path, line: str, *, crash: int | None = None, limit: int | None = None) -> int:
        """The process number of `privet <line>`, called in a folder.

        Args:
            crash: it is killed in this call (from 0) that changes a file; of a write, half is made.
            limit: its files cannot grow beyond so many bytes.
        """
        asked = {"folder": str(folder), "words": line.split(), "crash": crash, "limit": limit}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._number()

    def ended(self) -> int:
        """The exit code of what was started, once it has ended; negative for a signal."""
        return self._number()

    def run(self, folder: Path, line: str, **how: int | None) -> int:
        self.start(folder, line, **how)
        return self.ended()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def server() -> Iterator[Server]:
    words = [sys.executable, "-c", "import crashes; crashes.serve()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            yield Server(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def serve() -> None:
    """A fork for each line on the input: its number, then its exit code, on the output."""
    import privet.training.train  # noqa: F401  each fork would import it again
    from privet.cli import main
    from privet.training import loop_watch

    loop_watch.ALWAYS_CHECKED = 1  # the checks of the loop, and not the crashes, would take most of a short run
    Witness(Net().parameters())
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _command(main, **json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _command(main: Any, *, folder: str, words: list[str], crash: int | None, limit: int | None) -> None:
    code = 1
    try:
        os.chdir(folder)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        _crash_in(-1 if crash is None else crash)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _crash_in(crash: int) -> None:
    """Kill this process in the call number `crash` that changes a file; how many there were is in `calls`."""
    made = 0
    counted = os.open("calls", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **named: Any) -> Any:
            nonlocal made
            if name == "write" and given[0] in (1, 2):
                return call(*given)
            if made == crash:
                if name == "write":
                    call(given[0], given[1][: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            made += 1
            os.lseek(counted, 0, os.SEEK_SET)
            _write(counted, b"%6d" % made)
            return call(*given, **named)

        return changed

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
