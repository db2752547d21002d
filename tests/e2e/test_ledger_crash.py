"""The ledger against real processes: killed at random moments, forked, two at once, on a full disk; and the command."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from children import told
from disks import small_disk
from privet import plan, spent
from privet.cli import main
from privet.errors import InvalidValue
from privet.ledger.file import LedgerFile
from privet.ledger.reading import NAME, read_ledger
from privet.planning import Plan

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and locks are those of Unix")

# Starts a trainer for each line on its input. A trainer charges a step, then "draws its noise": a line in `marks`.
TRAINERS = r"""
import os, sys, time
from pathlib import Path
from privet.planning import Plan
from privet import _files
from privet.ledger.file import LedgerFile

folder, piece = Path(sys.argv[1]), int(sys.argv[2])
plan = Plan.load(folder.parent / "plan.json")

def in_pieces(number, text):
    for start in range(0, len(text), piece):
        os.write(number, text[start : start + piece])
        time.sleep(2e-5)

def train():
    if piece:
        _files.write_all = in_pieces
    begun = (folder / "ledger.jsonl").exists()
    ledger = LedgerFile.open(folder, plan) if begun else LedgerFile.create(folder, plan, steps_per_line=4)
    marks = os.open(folder / "marks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while (number := ledger.next_step) < len(plan.steps):
        if number == ledger.charged and number % 3:
            ledger.reserve(min(4, len(plan.steps) - number))
        ledger.charge(number, plan.steps[number])
        os.write(marks, f"{number} {os.urandom(8).hex()}\n".encode())
    ledger.close()

for _ in sys.stdin:
    child = os.fork()
    if not child:
        code = 1
        try:
            train()
            code = 0
        finally:
            os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def said(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def start(process: "subprocess.Popen[str]") -> int:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return said(process)


def size(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / NAME).stat().st_size
    return 0


def killed_after_a_line(process: "subprocess.Popen[str]", folder: Path, chance: random.Random) -> bool:
    """Start a trainer, wait for a new line of the ledger, kill it a random moment later; False if it was done first."""
    before = size(folder)
    child = start(process)
    with contextlib.suppress(ProcessLookupError):
        while size(folder) <= before:
            os.kill(child, 0)  # fails, and so does not wait for ever, once the trainer is gone
            time.sleep(1e-4)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    ended = said(process)
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


def check_covered(folder: Path, p: Plan) -> int:
    """Every noise that was drawn is charged, none was drawn for a step twice; gives how many were."""
    text = (folder / "marks").read_text() if (folder / "marks").exists() else ""
    marks = [line.split() for line in text.splitlines()]
    numbers = [int(number) for number, _ in marks]
    found = read_ledger(folder)
    assert numbers == sorted(set(numbers))
    assert len({noise for _, noise in marks}) == len(marks)
    assert not numbers or numbers[-1] < found.ledger.steps
    assert found.ledger == p.ledger().first(found.ledger.steps)
    return len(marks)


def kill_often(folder: Path, *, kills: int, steps: int, piece: int) -> tuple[int, Plan]:
    """Kill and resume a run, until it has drawn some noise too; gives how many kills hit it before it was done."""
    p = plan(
        delta=1e-5,
        dataset_size=1000,
        batch_size=10,
        steps=steps,
        noise_multiplier="2 * exponential:end=0.5",
        solve="epsilon",
    )
    p.save(folder.parent / "plan.json")
    chance = random.Random(kills)
    hits = drawn = 0
    with told(TRAINERS, folder, piece) as process:
        while min(hits, drawn) < kills and killed_after_a_line(process, folder, chance):
            hits += 1
            drawn = check_covered(folder, p)
    assert check_covered(folder, p) >= kills
    assert spent(read_ledger(folder).ledger, 1e-5).epsilon <= p.guarantee.epsilon
    return hits, p


@pytest.mark.slow
@pytest.mark.parametrize("piece", [0, 30], ids=["whole lines", "lines in pieces"])
def test_a_killed_run_never_used_more_than_is_charged(tmp_path: Path, piece: int) -> None:
    hits, _ = kill_often(tmp_path / "a", kills=8, steps=4000, piece=piece)
    assert hits


@pytest.mark.prove
@pytest.mark.parametrize("piece", [0, 7, 50], ids=lambda piece: f"pieces of {piece}" if piece else "whole lines")
def test_a_run_that_is_killed_a_hundred_times_and_finishes(tmp_path: Path, piece: int) -> None:
    folder = tmp_path / "a"
    hits, p = kill_often(folder, kills=100, steps=20_000, piece=piece)
    assert hits >= 50
    if piece:
        assert read_ledger(folder).notes  # some kills did tear a line
    with told(TRAINERS, folder, 0) as process:
        start(process)
        assert said(process) == 0
    check_covered(folder, p)
    assert read_ledger(folder).ledger == p.ledger()


# --- two processes ----------------------------------------------------------------------------------

# Holds the ledger, forks a child that tries to spend from it and lives on, and waits.
HOLDER = r"""
import os, sys, time
from pathlib import Path
from privet.errors import PrivetError
from privet.planning import Plan
from privet.ledger.file import LedgerFile

folder = Path(sys.argv[1])
plan = Plan.load(folder.parent / "plan.json")
ledger = LedgerFile.create(folder, plan)
ledger.charge(0, plan.steps[0])
child = os.fork()
if not child:
    try:
        ledger.charge(1, plan.steps[1])
        said = "charged"
    except PrivetError as error:
        said = str(error)
    os.write(1, f"{os.getpid()} {said}\n".encode())
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.slow
def test_two_processes_and_a_forked_child(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    p = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier=2.0, solve="epsilon")
    p.save(tmp_path / "plan.json")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child, _, said_by_child = holder.stdout.readline().partition(" ")
        try:
            assert f"belongs to process {holder.pid}, and this is a copy of it, {child}." in said_by_child
            with pytest.raises(InvalidValue, match=f"in use by process {holder.pid}. "):
                LedgerFile.open(folder, p)
            assert read_ledger(folder).ledger.steps == 1
            holder.kill()
            holder.wait()
            with LedgerFile.open(folder, p) as ledger:  # although the child, which began with the lock, lives on
                os.kill(int(child), 0)
                assert ledger.next_step == 1
                ledger.charge(1, p.steps[1])
        finally:
            holder.kill()
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_reading_a_run_that_is_going_on(tmp_path: Path) -> None:
    """Readers see a ledger that only grows, whole or with its last line charged, and the command answers."""
    p = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=60_000, noise_multiplier=2.0, solve="epsilon")
    p.save(tmp_path / "plan.json")
    folder = tmp_path / "a"
    with told(TRAINERS, folder, 7) as process:
        child = start(process)
        while not size(folder):
            time.sleep(1e-3)
        lines = [0]
        while len(lines) < 30 or lines[-1] < 3:
            os.kill(child, 0)  # it goes on
            found = read_ledger(folder)
            lines.append(found.position.lines)
            assert found.ledger.steps >= found.position.lines - 1
        assert lines == sorted(lines)
        assert run("epsilon", "--from", str(folder)).exit_code == 0
        os.kill(child, signal.SIGKILL)
        said(process)
    assert read_ledger(folder).position.lines >= lines[-1]


# --- a full disk ------------------------------------------------------------------------------------


def charge_until_refused(ledger: LedgerFile, p: Plan, reason: str) -> int:
    """Charge steps until the disk refuses one; what was charged is what is read."""

    def charge_all() -> None:
        for number in range(ledger.next_step, len(p.steps)):
            ledger.charge(number, p.steps[number])

    with pytest.raises(InvalidValue, match=reason):
        charge_all()
    assert read_ledger(ledger._file.path).ledger == p.ledger().first(ledger.next_step)
    return ledger.next_step


PLAN = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=4000, noise_multiplier=2.0, solve="epsilon")


def test_a_file_that_may_not_grow_refuses_the_step(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk where nothing can be mounted: lines fit in part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LedgerFile.create(tmp_path, PLAN) as ledger:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
            stopped = charge_until_refused(ledger, PLAN, "cannot be written: File too large")
            assert charge_until_refused(ledger, PLAN, "cannot be written: File too large") == stopped > 0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        ledger.charge(stopped, PLAN.steps[stopped])
    assert read_ledger(tmp_path).ledger == PLAN.ledger().first(stopped + 1)


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", size="64k") as place:
        yield place


def test_a_small_disk_that_is_full_and_then_read_only(small_disk: Path) -> None:
    folder = small_disk / "run"
    with LedgerFile.create(folder, PLAN) as ledger:
        (small_disk / "filling").write_bytes(bytes(40_000))
        stopped = charge_until_refused(ledger, PLAN, "cannot be written: No space left on device")
        assert stopped > 0
        (small_disk / "filling").unlink()
        ledger.charge(stopped, PLAN.steps[stopped])
        ledger.reserve(1)
    with contextlib.suppress(OSError):
        (small_disk / "filling").write_bytes(bytes(64_000))
    (folder / NAME).write_bytes((folder / NAME).read_bytes()[:-3])
    with contextlib.suppress(OSError), (small_disk / "more").open("wb") as stream:
        stream.write(bytes(8000))
    torn = read_ledger(folder)
    assert torn.ledger.steps >= stopped + 2
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(InvalidValue, match="Read-only file system"):
        LedgerFile.open(folder, PLAN)
    assert read_ledger(folder) == torn


# --- the command ------------------------------------------------------------------------------------


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def half(tmp_path: Path) -> Path:
    with LedgerFile.create(tmp_path / "a", PLAN, steps_per_line=500) as ledger:
        for _ in range(4):
            ledger.reserve(500)
    return tmp_path / "a"


def test_what_a_run_has_spent_beside_what_it_planned(half: Path) -> None:
    result = run("epsilon", "--from", str(half))
    assert result.exit_code == 0, result.output
    expected = spent(PLAN.ledger().first(2000), 1e-5)
    lines = result.stdout.splitlines()
    assert lines[0] == str(replace(expected, assumptions=("not recorded",)))
    assert "not recorded: what was checked of the loop" in lines[-1]
    assert f"2000 of 4000 planned steps; the whole plan: {PLAN.certified}" in result.stdout
    assert "fixed beforehand" in lines[-2]
    found = json.loads(run("epsilon", "--from", str(half / NAME), "--json").stdout)
    assert (found["epsilon"], found["label"], found["delta"]) == (expected.epsilon, "certified", 1e-5)
    assert found["planned"] == PLAN.certified.as_dict()
    assert (found["planned_steps"], found["torn"]) == (4000, [])
    assert "fixed beforehand" in found["stopping"]
    assert json.loads(run("epsilon", "--from", str(half), "--delta", "1e-6", "--json").stdout)["delta"] == 1e-6
    at = json.loads(run("epsilon", "--from", str(half), "--epsilon", "1", "--json").stdout)
    assert (at["label"], at["planned_steps"]) == ("certified", 4000)


def test_a_torn_line_is_said_and_charged(half: Path) -> None:
    with (half / NAME).open("ab") as stream:
        stream.write(b'{"step":2000,"c')
    result = run("epsilon", "--from", str(half))
    assert "2500 of 4000 planned steps" in result.stdout
    assert "torn, or just being written; charged as 500 steps" in result.stdout.splitlines()[-2]


def test_a_finished_run_needs_no_remark(half: Path) -> None:
    with LedgerFile.open(half, PLAN) as ledger:
        for _ in range(4):
            ledger.reserve(500)
    found = json.loads(run("epsilon", "--from", str(half), "--json").stdout)
    assert (found["stopping"], found["epsilon"]) == (None, PLAN.guarantee.epsilon)


def test_a_run_that_has_no_epsilon_gets_none(tmp_path: Path) -> None:
    given = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 1000, "batch_size": 10, "steps": 40}
    LedgerFile.create(tmp_path / "seeded", PLAN, seeded=True).close()
    published = plan(**given, method="auto-linear", uncertified=True)
    LedgerFile.create(tmp_path / "published", published).close()
    for name, reason in (("seeded", "is not private"), ("published", "no accountant covers the run")):
        for more in ((), ("--json",), ("--epsilon", "1"), ("--accountant", "all")):
            result = run("epsilon", "--from", str(tmp_path / name), *more)
            assert (result.exit_code, result.stdout) == (2, "")
            assert reason in result.stderr
            assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "more",
    [("--relation", "replace-one"), ("--noise", "2"), ("--sampling", "shuffled"), ("--delta", "2"), ("--size", "x")],
)
def test_a_question_that_does_not_fit_a_run_is_one_line(half: Path, more: tuple[str, ...]) -> None:
    result = run("epsilon", "--from", str(half), *more)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_damage_is_one_line_and_exit_2(half: Path) -> None:
    lines = (half / NAME).read_bytes().splitlines(keepends=True)
    (half / NAME).write_bytes(b"".join([lines[0], lines[2], lines[1]]))
    result = run("epsilon", "--from", str(half))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"{half / NAME}: line 2" in result.stderr
