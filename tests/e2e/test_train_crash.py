"""`privet train` against kills, full disks and damaged files: what was released is charged, whatever happens."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from children import environment
from crash_task import FOLDER, HOLD, VALUES
from crashes import RESUME, TRAIN, Server, check_covered, check_finished, one_line, placed, releases, server
from privet import Run
from privet.ledger.reading import read_ledger
from privet.planning import Plan
from typed import refused, run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits are those of Unix")


@pytest.fixture(scope="module")
def forks() -> Iterator[Server]:
    with server() as made:
        yield made


# --- kill -9 at random moments ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command that is running."""

    pid: int
    is_alive: Callable[[], bool]
    ended: Callable[[], int]


def in_fork(forks: Server, place: Path) -> Callable[[str], Started]:
    def begin(line: str) -> Started:
        pid = forks.start(place, line)
        return Started(pid=pid, is_alive=lambda: os.path.exists(f"/proc/{pid}"), ended=forks.ended)

    return begin


def typed(place: Path) -> Callable[[str], Started]:
    """The real command, in a process of its own."""

    def begin(line: str) -> Started:
        words = [sys.executable, "-m", "privet", *line.split()]
        with (place / "stdout").open("w") as out, (place / "stderr").open("w") as err:
            process = subprocess.Popen(words, cwd=place, env=environment(), stdout=out, stderr=err)
        return Started(pid=process.pid, is_alive=lambda: process.poll() is None, ended=process.wait)

    return begin


def lines_in(place: Path) -> int:
    file = place / FOLDER / "ledger.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_a_line(started: Started, place: Path, before: int) -> None:
    while lines_in(place) <= max(before, 1) and started.is_alive():
        time.sleep(1e-3)


def kill_often(begin: Callable[[str], Started], place: Path, p: Plan, *, kills: int, within: float) -> int:
    """Kill a run after a new line of its ledger, and resume it, again and again; how many kills hit it."""
    chance, line, hits = random.Random(kills), TRAIN, 0
    for _ in range(kills):
        before = lines_in(place)
        started = begin(line)
        wait_for_a_line(started, place, before)
        time.sleep(chance.uniform(0, within))
        with contextlib.suppress(ProcessLookupError):
            os.kill(started.pid, signal.SIGKILL)
        code = started.ended()
        assert code in (0, -signal.SIGKILL), (place / "stderr").read_text()
        hits += code != 0
        assert lines_in(place) > before
        check_covered(place, p)
        line = RESUME
    return hits


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_spends_exactly_its_plan(tmp_path: Path, forks: Server) -> None:
    p = placed(tmp_path, steps=400)
    assert kill_often(in_fork(forks, tmp_path), tmp_path, p, kills=3, within=0.05) >= 2
    assert forks.run(tmp_path, RESUME) == 0
    check_finished(tmp_path, p)


@pytest.mark.prove
def test_the_real_command_is_killed_fifty_times_and_spends_exactly_its_plan(tmp_path: Path) -> None:
    p = placed(tmp_path, steps=3000)
    begin = typed(tmp_path)
    assert kill_often(begin, tmp_path, p, kills=50, within=0.2) == 50
    assert begin(RESUME).ended() == 0
    assert len(releases(tmp_path)) * VALUES > 200_000
    check_finished(tmp_path, p)
    resumed = [line for line in Run.load(tmp_path / FOLDER).metrics if line.get("event") == "resumed"]
    assert resumed  # of weights that were kept


# --- signals, two at once, another place ------------------------------------------------------------


@pytest.mark.slow
def test_a_run_ends_cleanly_when_asked_and_only_one_process_may_go_on(tmp_path: Path, forks: Server) -> None:
    p = placed(tmp_path / "here", steps=400)
    place, line = tmp_path / "here", TRAIN
    for asked in (signal.SIGTERM, signal.SIGINT):
        before = lines_in(place)
        (place / HOLD).touch()
        started = in_fork(forks, place)(line)
        wait_for_a_line(started, place, before)
        if line == RESUME:
            refused(run(f"train --resume {place / FOLDER}"), f"is in use by process {started.pid}. ")
        os.kill(started.pid, asked)
        (place / HOLD).unlink()
        assert started.ended() == 130, (place / "stderr").read_text()
        assert "the run stopped" in (place / "stdout").read_text()
        assert check_covered(place, p) == read_ledger(place / FOLDER).ledger.steps  # a clean stop wastes nothing
        line = RESUME
    moved = tmp_path / "there"
    place.rename(moved)
    assert forks.run(moved, RESUME) == 0
    check_finished(moved, p)
    assert len(releases(moved)) == 400


# --- killed in each call that changes a file --------------------------------------------------------


def crash_and_go_on(forks: Server, place: Path, *crashes: int) -> str:
    """Crash a run of ten steps, and then its resumptions, each in the call of that number; then let it end."""
    p = placed(place, steps=10)
    line, story = TRAIN, []
    for crash in crashes:
        code = forks.run(place, line, crash=crash)
        check_covered(place, p)
        assert code in (0, 2, -signal.SIGKILL)
        if code == 0:
            check_finished(place, p)
            return "complete"
        if code == 2:
            story.append(one_line(place))
        if (place / FOLDER / "ledger.jsonl").exists():
            line = RESUME
    code = forks.run(place, line)
    if code == 2:  # it had not begun: no line of it was ever used
        assert not releases(place)
        assert "Begin a new run in another folder" in one_line(place)
        return "not begun"
    assert code == 0, (place / "stderr").read_text()
    check_finished(place, p)
    return "went on"


def check_each_call(forks: Server, place: Path, calls: list[int]) -> set[str]:
    found = set()
    for call in calls:
        found.add(crash_and_go_on(forks, place, call))
        shutil.rmtree(place)
    return found


def number_of_calls(forks: Server, place: Path) -> int:
    assert crash_and_go_on(forks, place, 10**6) == "complete"
    number = int((place / "calls").read_text())
    shutil.rmtree(place)
    return number


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_writes_goes_on(tmp_path: Path, forks: Server) -> None:
    number = number_of_calls(forks, tmp_path / "a")
    some = random.Random(0).sample(range(number), 3)
    assert check_each_call(forks, tmp_path / "a", some) <= {"went on", "not begun"}


@pytest.mark.prove
def test_a_run_that_is_killed_in_any_call_that_changes_a_file_goes_on(tmp_path: Path, forks: Server) -> None:
    number = number_of_calls(forks, tmp_path / "a")
    assert check_each_call(forks, tmp_path / "a", list(range(number))) == {"went on", "not begun"}
    chance = random.Random(1)
    for _ in range(60):  # and the resumption too, twice
        crash_and_go_on(forks, tmp_path / "a", *(chance.randrange(number) for _ in range(3)))
        shutil.rmtree(tmp_path / "a")
