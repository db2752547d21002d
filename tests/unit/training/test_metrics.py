"""The metrics file: whole lines, no number that JSON lacks, and what a crash leaves."""

import errno
import json
import sys
import types

import pytest

from privet.errors import InvalidValue
from privet.training import metrics
from privet.training.metrics import NAME, Metrics, evaluation_lines, read

pytestmark = pytest.mark.usefixtures("few_checks")

LOST = '{"step": 1, "event": "resumed", "weights_of": "1"}'  # of no weights


def written(folder, *lines):
    made = Metrics(folder)
    for line in lines:
        made.add(line)
    made.close()


def test_lines_come_back_in_order_and_the_file_goes_on(tmp_path):
    written(tmp_path, {"step": 1, "held_out_loss": 0.5}, {"step": 2, "held_out_loss": float("nan")})
    written(tmp_path, {"step": 3, "event": "note"})
    found = read(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3]
    assert found[1]["held_out_loss"] is None
    assert evaluation_lines(found) == list(found[:2])
    assert "NaN" not in (tmp_path / NAME).read_text()


def test_raw_figures_are_never_called_private(tmp_path):
    line = {"step": 1, "held_out_loss": 0.5, "private": True}
    written(tmp_path, line | {"raw_train_loss": 0.1}, line)
    raw, public = read(tmp_path)
    assert (raw["private"], raw["not_private"]) == (False, ["raw_train_loss"])
    assert public == line
    assert metrics.scores_of_weights(raw) == {"step": 1, "held_out_loss": 0.5}  # what is left was not raw
    assert metrics.scores_of_weights(line | {"raw_train_loss": 0.1}) == line  # as older files have it


def test_no_file_is_no_lines(tmp_path):
    assert read(tmp_path) == ()


def test_lines_of_lost_weights_stay_in_the_file_but_are_not_the_runs(tmp_path):
    written(tmp_path, {"step": 10, "held_out_loss": 0.5}, {"step": 20, "held_out_loss": 0.4})
    written(tmp_path, {"step": 22, "event": "resumed", "weights_of": 10}, {"step": 30, "held_out_loss": 0.3})
    assert [line["step"] for line in evaluation_lines(read(tmp_path))] == [10, 30]
    assert len((tmp_path / NAME).read_text().splitlines()) == 4


@pytest.mark.parametrize("torn", ['{"step": 2, "held', "{", '{"step": 2, "event": "x"'])
def test_a_torn_line_is_passed_over_and_the_next_is_whole(tmp_path, torn):
    written(tmp_path, {"step": 1})
    with (tmp_path / NAME).open("a") as stream:
        stream.write(torn)
    assert [line["step"] for line in read(tmp_path)] == [1]
    written(tmp_path, {"step": 3})
    found = read(tmp_path)
    assert [line["step"] for line in found] == [1, 3]


@pytest.mark.parametrize("odd", ["[1, 2]", '"step"', "{}", '{"step": "one"}', "null", '{"step": 1.5}', LOST])
def test_what_is_not_a_line_of_metrics_is_named(tmp_path, odd):
    (tmp_path / NAME).write_text('{"step": 1}\n' + odd + '\n{"step": 2}\n')
    with pytest.raises(InvalidValue, match="line 2"):
        read(tmp_path)


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path, monkeypatch):
    made = Metrics(tmp_path)
    made.add({"step": 1})

    def full(number, text):
        import os

        os.write(number, text[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(metrics, "write_all", full)
    with pytest.raises(InvalidValue, match=r"No space left.*safe in the ledger.*--resume"):
        made.add({"step": 2})
    made.close()
    assert (tmp_path / NAME).read_text() == '{"step": 1}\n'


def test_a_folder_in_its_place_is_refused(tmp_path):
    (tmp_path / NAME).mkdir()
    with pytest.raises(InvalidValue, match="cannot be written"):
        Metrics(tmp_path)


def test_tensorboard_gets_the_figures_if_it_is_installed(tmp_path, monkeypatch):
    seen = []

    class Writer:
        def __init__(self, folder):
            seen.append(folder)

        def add_scalar(self, tag, value, step):
            seen.append((tag, value, step))

        def close(self):
            seen.append("closed")

    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: types.SimpleNamespace(name=name))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    written(tmp_path, {"step": 4, "held_out_loss": 0.25, "label": "certified", "private": True})
    assert seen == [str(tmp_path / "tensorboard"), ("held_out_loss", 0.25, 4), "closed"]
    assert json.loads((tmp_path / NAME).read_text())["label"] == "certified"
