"""Checkpoints against real processes and disks: killed while saving, a full disk. The old or the new is there."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn, optim

from children import told
from disks import small_disk
from privet import _files
from privet.errors import InvalidValue
from privet.training import checkpoint_format
from privet.training.checkpoint import load, peek, save
from privet.training.checkpoint_format import NAME

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits are those of Unix")

# Starts a saver for each line on its input. A saver goes on from the checkpoint, and saves step after step: all weights
# and momenta are the number of the step. What `save` said is done is a line in `done`.
SAVERS = r"""
import os, sys, time
from pathlib import Path
import torch
from torch import nn, optim
from privet import _files
from privet.training.checkpoint_format import NAME; from privet.training.checkpoint import load, save

folder, piece = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)  # the first imports much: once here, not in each saver

def in_pieces(number, text):
    for start in range(0, len(text), piece):
        os.write(number, text[start : start + piece])
        time.sleep(2e-5)

def run():
    _files.write_all = in_pieces if piece else _files.write_all
    model = nn.Linear(40, 10)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = load(folder, model=model, optimizer=optimizer).extra["step"] if (folder / NAME).exists() else 0
    done = os.open(folder / "done", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(done, b"%d\n" % step)  # the one before may have been killed between the two
    while True:
        step += 1
        for parameter in model.parameters():
            parameter.data.fill_(step)
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, step)
        save(folder, model=model, optimizer=optimizer, extra={"step": step, "filling": "x" * 2000})
        os.write(done, b"%d\n" % step)

for _ in sys.stdin:
    child = os.fork()
    if not child:
        try:
            run()
        finally:
            os._exit(1)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def lines_in(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def killed_while_saving(process: "subprocess.Popen[str]", folder: Path, chance: random.Random, *, saves: int) -> bool:
    """Start a saver, kill it a random moment after it has begun to write once more than `saves` times.

    Whether it left an unfinished file.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    done = lines_in(folder / "done") + 1 + saves  # the first line of a saver is of the one before
    process.stdin.write("go\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    with contextlib.suppress(ProcessLookupError):
        while lines_in(folder / "done") < done:
            os.kill(child, 0)
        left = set(folder.glob(".checkpoint-*"))
        while not set(folder.glob(".checkpoint-*")) - left:
            os.kill(child, 0)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
    assert int(process.stdout.readline()) == -signal.SIGKILL
    return bool(list(folder.glob(".checkpoint-*")))


def check_whole(folder: Path) -> int:
    """The step of the checkpoint: the last that was said to be done, or the one after, and all of it is of that."""
    done = (folder / "done").read_text().split() if (folder / "done").exists() else []
    last = int(done[-1]) if done else 0
    if not (folder / NAME).exists():
        assert last == 0
        return 0
    model = nn.Linear(40, 10)
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.1)
    step = load(folder, model=model, optimizer=optimizer).extra["step"]
    assert step in (last, last + 1)
    for parameter in model.parameters():
        assert (parameter == step).all()
        assert (optimizer.state[parameter]["momentum_buffer"] == step).all()
    assert optimizer.param_groups[0]["lr"] == 0.1
    return int(step)


def kill_often(folder: Path, *, kills: int, piece: int) -> tuple[int, int]:
    """How many kills left an unfinished file, and how far the savers came."""
    folder.mkdir()
    chance, unfinished, step = random.Random(piece), 0, 0
    with told(SAVERS, folder, piece) as process:
        for number in range(kills):
            unfinished += killed_while_saving(process, folder, chance, saves=number % 2)
            now = check_whole(folder)
            assert now >= step
            step = now
            assert len(list(folder.glob(".checkpoint-*"))) <= 1  # the next saver removes what the one before left
    return unfinished, step


@pytest.mark.slow
def test_a_saver_that_is_killed_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    unfinished, step = kill_often(tmp_path / "a", kills=10, piece=200)
    assert unfinished >= 1  # nine of ten, mostly
    assert step >= 5


@pytest.mark.prove
@pytest.mark.parametrize("piece", [0, 50, 1000])
def test_a_saver_that_is_killed_two_hundred_times(tmp_path: Path, piece: int) -> None:
    unfinished, step = kill_often(tmp_path / "a", kills=200, piece=piece)
    assert unfinished >= (20 if piece else 1)
    assert step >= 100


# --- disks ------------------------------------------------------------------------------------------


def parts() -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Linear(60, 60)
    return model, optim.Adam(model.parameters())


def check_refused(folder: Path, reason: str) -> None:
    """Saving fails with one line, the checkpoint of step 1 stays as it was, and nothing is left beside it."""
    before = (folder / NAME).read_bytes()
    model, optimizer = parts()
    with pytest.raises(InvalidValue, match=reason) as caught:
        save(folder, model=model, optimizer=optimizer, extra={"step": 2})
    assert "What is there is whole: the checkpoint before it" in str(caught.value)
    assert (folder / NAME).read_bytes() == before
    assert [file for file in os.listdir(folder) if file.startswith(".")] == []
    assert peek(folder).extra == {"step": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, optimizer = parts()
    save(tmp_path, model=model, optimizer=optimizer, extra={"step": 1})
    return tmp_path


def test_a_file_that_may_not_grow_keeps_the_old_checkpoint(folder: Path) -> None:
    """A limit on the size of files stands for the full disk where nothing can be mounted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / NAME).stat().st_size
    for limit in (0, 100, size // 2, size - 1):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            check_refused(folder, "cannot be written: File too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("call", ["os.rename", "sync", "_remove_leftovers", "write_all"])
def test_a_call_that_fails_keeps_the_old_checkpoint(folder: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    owner = {"os.rename": os, "write_all": _files}.get(call, checkpoint_format)
    monkeypatch.setattr(owner, call.removeprefix("os."), fail)
    check_refused(folder, "cannot be written: Input/output error")


def test_the_new_file_is_on_the_disk_before_it_takes_the_place_of_the_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(owner: object, name: str) -> None:
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (calls.append(name), call(*given))[1])

    for owner, name in ((_files, "write_all"), (checkpoint_format, "sync"), (os, "rename"), (os, "fsync")):
        noted(owner, name)
    model, optimizer = parts()
    save(folder, model=model, optimizer=optimizer, extra={"step": 2})
    assert list(dict.fromkeys(calls)) == ["write_all", "sync", "rename", "fsync"]
    assert calls[-3:] == ["sync", "rename", "fsync"]


def test_an_interrupt_while_saving_keeps_the_old_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_format, "sync", interrupt)
    model, optimizer = parts()
    with pytest.raises(KeyboardInterrupt):
        save(folder, model=model, optimizer=optimizer, extra={"step": 2})
    assert os.listdir(folder) == [NAME]
    assert peek(folder).extra == {"step": 1}


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", size="100k") as place:
        yield place


def test_a_small_disk_that_is_full_keeps_the_old_checkpoint(small_disk: Path) -> None:
    model, optimizer = parts()
    save(small_disk, model=model, optimizer=optimizer, extra={"step": 1})
    (small_disk / "filling").write_bytes(bytes(75_000))
    check_refused(small_disk, "cannot be written: No space left on device")
    (small_disk / "filling").rename(small_disk / ".checkpoint-1-left.new")  # as a killed saver leaves it
    save(small_disk, model=model, optimizer=optimizer, extra={"step": 3})
    assert peek(small_disk).extra == {"step": 3}


def test_a_writer_whose_file_is_removed_replaces_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process saves into the same folder at the same time: one of them fails, none is torn."""
    sync, other = _files.sync, parts()

    def meanwhile(number: int) -> None:
        monkeypatch.setattr(checkpoint_format, "sync", sync)
        save(folder, model=other[0], optimizer=other[1], extra={"step": 7})
        sync(number)

    monkeypatch.setattr(checkpoint_format, "sync", meanwhile)
    model, optimizer = parts()
    with pytest.raises(InvalidValue, match="cannot be written: No such file"):
        save(folder, model=model, optimizer=optimizer, extra={"step": 2})
    assert peek(folder).extra == {"step": 7}
    assert torch.equal(load(folder, model=model, optimizer=optimizer) and model.weight, other[0].weight)
