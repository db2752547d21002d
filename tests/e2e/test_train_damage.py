"""`privet train` on full disks and with damaged files: one clear line or a safe end, and never too small an epsilon."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from crash_task import FOLDER
from crashes import RESUME, TRAIN, Server, check_covered, check_finished, one_line, placed, releases, server
from disks import small_disk
from privet import spent
from privet.planning import Plan
from typed import run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits are those of Unix")

SELDOM = TRAIN.replace("--save-every 4 --evaluate-every 5", "--save-every 99 --evaluate-every 99 --reserve 1")
OFTEN = TRAIN.replace("--keep best --save-every 4 --evaluate-every 5", "--save-every 99 --evaluate-every 1")
PAGE = 4096  # bytes: what a tmpfs gives at a time
FILES = (
    "plan.json", "run.json", "ledger.jsonl", "ledger.count", "checkpoint.safetensors", "best/checkpoint.safetensors",
    "metrics.jsonl",
)  # fmt: skip


@pytest.fixture(scope="module")
def forks() -> Iterator[Server]:
    with server() as made:
        yield made


# --- full disks -------------------------------------------------------------------------------------


def check_goes_on(forks: Server, place: Path, p: Plan) -> None:
    """With room again the run is ended, or, if nothing of it was kept yet, begun."""
    check_covered(place, p)
    begun = (place / FOLDER / "run.json").exists()
    if not begun and (place / FOLDER).exists():
        assert not releases(place)
        shutil.rmtree(place / FOLDER)
    assert forks.run(place, RESUME if begun else TRAIN) == 0, (place / "stderr").read_text()
    check_finished(place, p)


def stopped_at(forks: Server, place: Path, p: Plan, line: str = TRAIN, **how: int) -> str | None:
    """The file at which a run had no room any more, of which one line tells; None if it had enough."""
    code = forks.run(place, line, **how)
    assert code in (0, 2), (place / "stderr").read_text()
    if code == 0:
        check_finished(place, p)
        return None
    said = one_line(place)
    assert "cannot be written: " in said
    return said.split("privet: ")[1].split(": cannot")[0].removeprefix(f"{FOLDER}/")


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.prove)], ids=["few", "many"])
def test_files_that_may_not_grow_stop_the_run_with_one_line(tmp_path: Path, forks: Server, few: bool) -> None:
    """A limit on the size of files stands for the full disk: any file is cut at any byte."""
    found = set()
    limits = range(250, 6000, 250)
    tried = [(4000, TRAIN), (1500, SELDOM), (3000, OFTEN)] if few else list(product(limits, (TRAIN, SELDOM, OFTEN)))
    for number, (limit, line) in enumerate(tried):
        place = tmp_path / str(number)
        p = placed(place, steps=20)
        stop = stopped_at(forks, place, p, line, limit=limit)
        found.add((stop, bool(releases(place))))
        check_goes_on(forks, place, p)
    assert found >= {("ledger.jsonl", True), ("checkpoint.safetensors", True), ("metrics.jsonl", True)}
    assert few or found >= {("ledger.jsonl", False), ("plan.json", False), (None, True)}


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", size="96k") as place:
        yield place


def fill(disk: Path, *, free: int) -> Path:
    """Fill a disk up to so many free pages."""
    filling = disk / "filling"
    with contextlib.suppress(OSError), filling.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(PAGE))
    os.truncate(filling, filling.stat().st_size // PAGE * PAGE - free * PAGE)
    return filling


def on_disk(place: Path, disk: Path) -> Plan:
    """A folder to call the command in, whose runs lie on a disk of their own."""
    p = placed(place, steps=20)
    (place / "runs").symlink_to(disk)
    return p


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.prove)], ids=["few", "many"])
def test_a_run_on_a_full_disk_stops_with_one_line_and_goes_on(
    tmp_path: Path, small_disk: Path, forks: Server, few: bool
) -> None:
    """From no room at all to enough: each stage finds the disk full once."""
    found = set()
    for free in (5,) if few else range(16):
        place = tmp_path / str(free)
        p = on_disk(place, small_disk)
        filling = fill(small_disk, free=free)
        found.add(stopped_at(forks, place, p))
        filling.unlink()
        check_goes_on(forks, place, p)
        shutil.rmtree(small_disk / "a")
    assert found - {None}
    assert few or (len(found) >= 5 and None in found)


@pytest.mark.slow
def test_a_folder_that_became_read_only_is_one_line_and_can_be_read(
    tmp_path: Path, small_disk: Path, forks: Server
) -> None:
    place = tmp_path / "here"
    p = on_disk(place, small_disk)
    assert forks.run(place, TRAIN, crash=50) == -signal.SIGKILL
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert forks.run(place, RESUME) == 2
    assert "Read-only file system" in one_line(place)
    assert run(f"epsilon --from {small_disk / 'a'}").exit_code == 0
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    check_goes_on(forks, place, p)


# --- damaged files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, forks: Server) -> tuple[Path, Plan]:
    """A run that was killed after some steps, some of them since its last checkpoint."""
    place = tmp_path_factory.mktemp("damage") / "whole"
    for crash in range(70, 500, 10):
        p = placed(place, steps=14)
        forks.run(place, TRAIN, crash=crash)
        if len(releases(place)) >= 10:
            break
        shutil.rmtree(place)
    assert all((place / FOLDER / file).exists() for file in FILES)
    assert len(releases(place)) < 14
    return place, p


def check_safe(forks: Server, place: Path, p: Plan) -> int:
    """Resume a damaged run: one line, or the rest of its steps; what it is then said to have cost is not too little."""
    code = forks.run(place, RESUME)
    assert code in (0, 2), (place / "stderr").read_text()
    if code == 2:
        one_line(place)
    seen = releases(place)
    assert len({line["digest"] for line in seen}) == len(seen) <= len(p.steps)
    told = run(f"epsilon --from {place / FOLDER} --json")
    assert told.exit_code in (0, 2)
    if told.exit_code == 0:
        check_covered(place, p)
        least = spent(p.ledger().first(len(seen)), p.recipe.budget.delta).epsilon_lower
        assert least is not None
        assert json.loads(told.stdout)["epsilon"] >= least
    else:
        assert told.stderr.count("\n") == 1
        assert told.stderr.startswith("privet: ")
    assert code == 2 or told.exit_code == 0
    return code


def damages(size: int, few: bool) -> list[tuple[str, int]]:
    """(how, where) for a file of so many bytes."""
    chance = random.Random(size)
    if few:
        return [("cut", chance.randrange(size)), ("flip", chance.randrange(size))]
    cuts = [("cut", where) for where in [0, 1, size - 1, *chance.sample(range(size), min(size, 40))]]
    return cuts + [("flip", where) for where in [0, size - 1, *chance.sample(range(size), min(size, 40))]]


def damage(file: Path, how: str, where: int) -> None:
    content = bytearray(file.read_bytes())
    if how == "cut":
        del content[where:]
    else:
        content[where] ^= 1 << random.Random(where).randrange(8)
    file.write_bytes(bytes(content))


def check_damages(stopped: tuple[Path, Plan], forks: Server, name: str, few: bool) -> list[int]:
    whole, p = stopped
    codes = []
    for how, where in damages((whole / FOLDER / name).stat().st_size, few):
        place = whole.parent / "damaged"
        shutil.copytree(whole, place)
        damage(place / FOLDER / name, how, where)
        codes.append(check_safe(forks, place, p))
        shutil.rmtree(place)
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_harmless(stopped: tuple[Path, Plan], forks: Server, name: str) -> None:
    codes = check_damages(stopped, forks, name, few=True)
    if name == "ledger.count":
        assert codes == [0, 0]
    if name in ("plan.json", "checkpoint.safetensors"):
        assert codes == [2, 2]


@pytest.mark.prove
@pytest.mark.parametrize("name", FILES)
def test_a_file_damaged_in_many_places_is_refused_or_harmless(
    stopped: tuple[Path, Plan], forks: Server, name: str
) -> None:
    assert check_damages(stopped, forks, name, few=False)
