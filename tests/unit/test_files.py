"""Files of a run's folder are its own: no link leads what is written, cut off or locked to another file."""

import os
import signal
from pathlib import Path

import pytest

from privet import plan
from privet._files import open_own, read_file, read_start, write_new
from privet.errors import InvalidValue
from privet.ledger.file import LedgerFile
from privet.training.metrics import Metrics
from privet.training.progress import Progress
from privet.training.train import resume_run, train
from tiny_task import SIZE

pytestmark = pytest.mark.usefixtures("few_checks")

P = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier=2.0, solve="epsilon")
PRECIOUS = b"what someone else relies on\n"
APPENDED = ("ledger.lock", "ledger.count", "ledger.jsonl")


def begin(folder: Path) -> None:
    with LedgerFile.create(folder, P) as ledger:
        ledger.charge(0, P.steps[0])


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", APPENDED)
def test_a_resumed_run_does_not_write_through_a_link(tmp_path, name, link):
    begin(tmp_path / "run")
    precious, place = tmp_path / "precious", tmp_path / "run" / name
    precious.write_bytes(place.read_bytes() if name == "ledger.jsonl" else PRECIOUS)
    before = precious.read_bytes()
    place.unlink()
    link(precious, place)
    with pytest.raises(InvalidValue, match=rf"{name}: (is a symbolic|has a second name).*Put a copy"):
        LedgerFile.open(tmp_path / "run", P)
    assert precious.read_bytes() == before
    place.unlink()
    place.write_bytes(before)
    if name != "ledger.count":  # that one is of no run then
        LedgerFile.open(tmp_path / "run", P).close()


@pytest.mark.parametrize("name", ["ledger.lock", "ledger.jsonl.new"])
def test_a_new_run_does_not_write_through_a_link(tmp_path, name):
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_bytes(PRECIOUS)
    folder.mkdir()
    (folder / name).symlink_to(precious)
    with pytest.raises(InvalidValue, match=f"{name}: is a symbolic link"):
        LedgerFile.create(folder, P)
    assert precious.read_bytes() == PRECIOUS


def test_a_new_run_removes_the_count_of_an_earlier_one_and_does_not_follow_it(tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_bytes(PRECIOUS)
    folder.mkdir()
    (folder / "ledger.count").symlink_to(precious)
    LedgerFile.create(folder, P).close()
    assert not (folder / "ledger.count").is_symlink()
    assert precious.read_bytes() == PRECIOUS


def test_the_folder_itself_may_be_a_link(tmp_path):
    begin(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with LedgerFile.open(tmp_path / "link", P) as ledger:
        assert ledger.next_step == 1


class Interrupting(Progress):
    """Ends the run in its midst, as Ctrl-C does."""

    def step(self, number, spent, speed):
        if number == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["metrics.jsonl", *APPENDED])
def test_a_run_is_not_resumed_with_a_link_and_ends_without(tmp_path, name, link):
    out, precious = tmp_path / "run", tmp_path / "precious"
    train(
        plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=6),
        "tiny_task:task",
        out=out,
        watcher=Interrupting(),
    )
    (out / name).rename(precious)
    before = precious.read_bytes()
    link(precious, out / name)
    with pytest.raises(InvalidValue, match=name):
        resume_run(out)
    assert precious.read_bytes() == before
    (out / name).unlink()
    (out / name).write_bytes(before)
    assert resume_run(out).steps == 6


@pytest.mark.parametrize("name", ["plan.json", "run.json", "checkpoint.safetensors"])
def test_a_new_run_replaces_links_that_wait_in_its_folder(tmp_path, name):
    """Links to nowhere: what is there would be taken for another run's."""
    out = tmp_path / "run"
    out.mkdir()
    (out / name).symlink_to(tmp_path / "elsewhere")
    train(plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=2), "tiny_task:task", out=out)
    assert not (tmp_path / "elsewhere").exists()
    assert not (out / name).is_symlink()


def test_what_is_replaced_is_not_followed(tmp_path):
    precious, place = tmp_path / "precious", tmp_path / "run.json"
    precious.write_bytes(PRECIOUS)
    place.symlink_to(precious)
    write_new(place, b"{}")
    assert (precious.read_bytes(), place.is_symlink(), place.read_bytes()) == (PRECIOUS, False, b"{}")


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_no_pipe_is_waited_for(tmp_path, kind):
    place = tmp_path / "metrics.jsonl"
    os.mkfifo(place) if kind == "pipe" else place.mkdir()
    with pytest.raises(InvalidValue, match=r"is no plain file|cannot be written: Is a directory"):
        Metrics(tmp_path)
    with pytest.raises((InvalidValue, OSError)):
        open_own(place, os.O_WRONLY | os.O_APPEND)
    with pytest.raises(InvalidValue, match="is no plain file"):
        read_file(place, most=10)
    assert read_start(place, 10) == b""


def test_a_file_is_read_up_to_its_limit(tmp_path):
    place = tmp_path / "a"
    place.write_bytes(b"0123456789")
    assert read_file(place, most=10) == b"0123456789"
    assert read_start(place, 3) == b"012"
    with pytest.raises(InvalidValue, match="is more than"):
        read_file(place, most=9)
    with pytest.raises(InvalidValue, match="is no plain file"):
        read_file(Path("/dev/zero"), most=9)


def test_no_board_is_written_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidValue, match="tensorboard: is a symbolic link"):
        Metrics(tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == []
