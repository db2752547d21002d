"""Hostile and damaged checkpoints: refused with one plain line; nothing is changed, unpickled or followed."""

import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

from privet.errors import InvalidValue
from privet.training import checkpoint_format
from privet.training.checkpoint import load, peek, save
from privet.training.checkpoint_format import NAME, parse_json

Parts = tuple[nn.Module, optim.Optimizer, Any]


def states(parts: Parts) -> bytes:
    """All that the parts hold, as bytes: the same exactly if nothing was changed."""
    return pickle.dumps([_plain(part.state_dict()) for part in parts])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    return (str(value.dtype), value.tolist()) if isinstance(value, Tensor) else str(value)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """A model that was trained for two steps, saved in `tmp_path`, and trained for one more."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = optim.Adam(model.parameters())
    scheduler = lr_scheduler.MultiStepLR(optimizer, [2, 3])
    for number in range(3):
        if number == 2:
            save(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler, extra={"step": 2})
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


def check_refused(folder: Path, parts: Parts, reason: str) -> None:
    before = states(parts)
    with pytest.raises(InvalidValue, match=reason) as caught:
        load(folder, model=parts[0], optimizer=parts[1], scheduler=parts[2])
    assert states(parts) == before
    assert str(caught.value).startswith(f"{folder / NAME}: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_the_file_is_good_before_it_is_spoilt(tmp_path: Path, parts: Parts) -> None:
    before = states(parts)
    load(tmp_path, model=parts[0], optimizer=parts[1], scheduler=parts[2])
    assert states(parts) != before


# --- files with any content -------------------------------------------------------------------------


def sealed(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with a checksum that fits."""
    text = struct.pack("<Q", len(header) if length is None else length) + header + data
    return text + sha256(text).digest()


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("bombed",))


def torch_saved() -> bytes:
    out = io.BytesIO()
    torch.save({"model": Bomb()}, out)
    return out.getvalue()


def entry(start: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def two(**entries: Any) -> bytes:
    """The header of a file with the JSON, the checksum, and `entries`."""
    return json.dumps({"json": entry(0, 2), **entries, "sha256": entry(2, 34)}, separators=(",", ":")).encode()


AGAIN = b'{"json":' + json.dumps(entry(0, 2)).encode() + b',"json"'
CHECKSUM, LIBRARY = "its checksum does not fit", "is not a safetensors file"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", CHECKSUM),
    "short": (b"x" * 31, CHECKSUM),
    "only a checksum": (sha256(b"").digest(), CHECKSUM),
    "zeros": (bytes(4096), CHECKSUM),
    "a pickle": (pickle.dumps(Bomb()), "may be a pickle"),
    "torch.save": (torch_saved(), "may be a pickle"),
    "torch.save with a checksum": (torch_saved() + sha256(torch_saved()).digest(), LIBRARY),
    "a header longer than the file": (sealed(b"{}", length=2**40), LIBRARY),
    "a header longer than all": (sealed(b"{}", length=2**64 - 1), LIBRARY),
    "a deep header": (sealed(b'{"a":' * 50_000), LIBRARY),
    "a deep list": (sealed(b"[" * 50_000), LIBRARY),
    "not text": (sealed(b'{"\xff":1}'), LIBRARY),
    "no tensors": (sealed(b"{}"), LIBRARY),
    "a name twice": (sealed(two().replace(b'{"json"', AGAIN, 1), b"{}"), "its header is not as"),
    "another key": (sealed(two().replace(b'"U8"', b'"U8","x":1', 1), b"{}"), "its header is not as"),
    "another spelling": (sealed(two() + b"  ", b"{}"), "its header is not as"),
    "a shape that overflows": (sealed(two(a=entry(0, 2, [2**62, 2**62])), b"{}"), LIBRARY),
    "overlapping": (sealed(two(a=entry(0, 2)), b"{}"), LIBRARY),
    "a hole": (sealed(two(a=entry(40, 44)), b"{}"), LIBRARY),
    "an unknown type": (sealed(two(a=entry(2, 2, [0], "F4")), b"{}"), LIBRARY),
    "a complex one": (sealed(two(a=entry(2, 2, [0], "C64")), b"{}"), "is not a (checkpoint|safetensors)"),
    "json of another type": (
        sealed(two().replace(b'"U8","shape":[2]', b'"I16","shape":[1]', 1), b"{}"), "is not a checkpoint of Privet",
    ),
    "terminal codes in a name": (sealed(two(**{"\x1b[2J\n": entry(9, 9)}), b"{}"), LIBRARY),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, parts: Parts, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, reason = HOSTILE[name]
    (tmp_path / NAME).write_bytes(data)
    check_refused(tmp_path, parts, reason)
    assert os.listdir(tmp_path) == [NAME]  # no bomb went off


# --- files with a good checksum and a good header ---------------------------------------------------


def change(document: Any, *path: Any, to: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    if to is None:
        del document[path[-1]]
    else:
        document[path[-1]] = to


STATE = ("optimizer", "state", "$dict")
FORGED: dict[str, tuple[Callable[[Any, dict[str, Tensor]], None], str]] = {
    "a name that climbs": (
        lambda d, t: (t.update({"../../x": torch.zeros(1)}), change(d, "model", "../../x", to={"$tensor": "../../x"})),
        "model has '../../x'",
    ),
    "a tensor nobody speaks of": (lambda d, t: t.update({"\x1b[31m\n": torch.zeros(1)}), "nothing in it speaks of"),
    "a tensor that is missing": (lambda d, t: t.pop("model.0.weight"), "model.0.weight is not written"),
    "another shape": (lambda d, t: t.update({"model.0.weight": torch.zeros(3, 4)}), r"\(3, 4\)"),
    "no tensor": (lambda d, t: (t.pop("model.0.bias"), change(d, "model", "0.bias", to=[1.0] * 4)), "no tensor"),
    "another version": (lambda d, t: change(d, "version", to=2), "version 1"),
    "another format": (lambda d, t: change(d, "format", to="x"), "version 1"),
    "no section": (lambda d, t: change(d, "rule", to=None), "sections"),
    "extra is a list": (lambda d, t: change(d, "extra", to=[1]), "must be tables"),
    "all are lists": (lambda d, t: (t.clear(), d.update(model=[1], optimizer=[])), "model is not a table"),
    "an unknown tag": (lambda d, t: change(d, "extra", to={"$pickle": "gAR"}), "extra is not written"),
    "two tags": (lambda d, t: change(d, "extra", to={"$float": "nan", "$tuple": []}), "extra is not written"),
    "a list as key": (lambda d, t: change(d, "extra", to={"$dict": [[[], 1]]}), "extra is not written"),
    "a key twice in pairs": (lambda d, t: change(d, "extra", to={"$dict": [[1, 1], [1, 2]]}), "extra is not written"),
    "a float that is none": (lambda d, t: change(d, "extra", to={"a": {"$float": "1_0"}}), "extra.a is not written"),
    "tensors in extra's shape": (lambda d, t: change(d, "extra", to={"a\nb": {"$tensor": []}}), "is not written"),
    "a tensor in extra": (lambda d, t: change(d, "extra", to={"a": d["model"]["0.bias"]}), "extra.a is not written"),
    "a deep nest": (lambda d, t: change(d, "extra", to=json.loads('{"a":' * 200 + "1" + "}" * 200)), "is not written"),
    "another class": (lambda d, t: change(d, "kinds", "optimizer", to="\x1b[2J"), "its optimizer is"),
    "no kinds": (lambda d, t: change(d, "kinds", to=[]), "kinds is not a table"),
    "a state of no parameter": (lambda d, t: change(d, *STATE, 0, 0, to=99), "state.99 is of no parameter"),
    "a negative parameter": (lambda d, t: change(d, *STATE, 0, 0, to=-1), "state.-1 is of no parameter"),
    "a state of another shape": (
        lambda d, t: t.update({"optimizer.state.0.exp_avg": torch.zeros(1, 3)}), "'exp_avg' has not the shape",
    ),
    "state is a list": (lambda d, t: change(d, "optimizer", "state", to=[]), "nothing in it speaks of|not a table"),
    "no learning rate": (lambda d, t: change(d, "optimizer", "param_groups", 0, "lr", to=None), "other groups"),
    "other groups": (lambda d, t: change(d, "optimizer", "param_groups", to=[]), "other groups"),
    "another order": (lambda d, t: d["order"][0].reverse(), "other groups"),
    "an attribute of the scheduler": (lambda d, t: change(d, "scheduler", "step", to="x"), "scheduler has 'step'"),
    "a table for a number": (lambda d, t: change(d, "scheduler", "gamma", to={"a": 1}), "gamma is of another kind"),
    "an average of nothing": (lambda d, t: change(d, "average", to={"x\n": 1}), "average.x.n is no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_forged_files_with_a_good_checksum_are_refused(tmp_path: Path, parts: Parts, name: str) -> None:
    document, tensors, _ = checkpoint_format.read(tmp_path / NAME)
    forge, reason = FORGED[name]
    forge(document, tensors)
    whole = {"json": torch.frombuffer(bytearray(json.dumps(document).encode()), dtype=torch.uint8)} | tensors
    data = b"".join(checkpoint_format._file_pieces(whole))
    (tmp_path / NAME).write_bytes(data + sha256(data).digest())
    check_refused(tmp_path, parts, reason)


@pytest.mark.parametrize(
    "text",
    [b'{"a":1,"a":2}', b'[{"b":1,"b":1}]', b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"1" * 5000, b"{", b"\xff"],
)
def test_json_that_is_not_plain_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidValue, match="its JSON cannot be read"):
        parse_json(text)


# --- what stands in the place of the file -----------------------------------------------------------


def test_links_folders_and_pipes_are_refused(tmp_path: Path, parts: Parts) -> None:
    file, elsewhere = tmp_path / NAME, tmp_path / "elsewhere"
    os.rename(file, elsewhere)
    check_refused(tmp_path, parts, "there is no such file")
    file.symlink_to(elsewhere)
    check_refused(tmp_path, parts, "is a symbolic link")
    save(tmp_path, model=parts[0], optimizer=parts[1], scheduler=parts[2], extra={"step": 9})
    assert (file.is_symlink(), peek(tmp_path).extra) == (False, {"step": 9})  # replaced, not followed
    assert not elsewhere.is_symlink()
    file.unlink()
    os.mkfifo(file)
    check_refused(tmp_path, parts, "is not a file")
    file.unlink()
    file.mkdir()
    check_refused(tmp_path, parts, "is not a file|Is a directory")
    with pytest.raises(InvalidValue, match="cannot be written: Is a directory"):
        save(tmp_path, model=parts[0], optimizer=parts[1], extra={})
    assert sorted(os.listdir(tmp_path)) == sorted([NAME, "elsewhere"])


def test_what_a_killed_process_left_is_removed_and_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / ".checkpoint-1-aa.new").write_bytes(bytes(100))
    (run / ".checkpoint-2-bb.new").symlink_to(victim)
    model = nn.Linear(1, 1)
    save(run, model=model, optimizer=optim.SGD(model.parameters(), lr=1), extra={})
    assert os.listdir(run) == [NAME]
    assert victim.read_text() == "keep me"
