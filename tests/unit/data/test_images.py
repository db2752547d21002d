"""Pictures as tasks: the digits that ship, and pictures in any form; what is broken is refused."""

import gzip
import importlib.util
import io
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from privet.data import DataFolders, images, registry, task
from privet.data.images import decode_picture
from privet.errors import InvalidValue, MissingExtra
from three_steps import check_trains

RANDOM = np.random.default_rng(0)


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolders:
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return DataFolders(folder=tmp_path, download=False)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def check_usable(made: object) -> None:
    """A task trains and can be judged; shapes, ranges and facts agree."""
    (x, y), (tested, _) = made.train, made.held_out
    assert x.dtype == tested.dtype == torch.float32
    assert y.dtype == torch.int64
    assert 0 <= x.min() <= x.max() <= 1
    assert x.shape[1:] == tested.shape[1:] == made.facts["shape"]
    assert y.max() < made.facts["classes"]
    check_trains(made)
    assert made.evaluation
    assert made.source


def words(value: object) -> str:
    """Bytes have no part in a test's name: some hold the time."""
    return value if isinstance(value, str) else "content"


def refused(call: object, match: str) -> None:
    with pytest.raises(InvalidValue, match=match) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value).isprintable()


# --- digits -----------------------------------------------------------------------------------------


def test_digits_are_real_balanced_and_always_the_same():
    made = task("digits")
    check_usable(made)
    assert made.size == 4000
    assert made.train[1].bincount().tolist() == [400] * 10
    assert made.held_out[1].bincount().tolist() == [100] * 10
    assert made.train[1][:10].tolist() == list(range(10))
    pixels = (torch.cat([made.train[0], made.held_out[0]]) * 255).round().byte().numpy()
    assert len({image.tobytes() for image in pixels}) == 5000  # no digit is both trained on and judged by
    assert sha256(pixels.tobytes()).hexdigest()[:16] == "d7099ff73588a67d"
    assert images.DIGITS_SHA256 in made.source


def test_the_first_digits_are_the_same_digits():
    few, all_ = task("digits:size=30"), task("digits")
    assert few.size == 30
    assert few.train[1].bincount().tolist() == [3] * 10
    assert torch.equal(few.train[0], all_.train[0][:30])
    assert torch.equal(few.held_out[0], all_.held_out[0])


def test_a_tasks_tensors_are_its_own():
    task("digits").train[0].fill_(7)
    assert task("digits").train[0].max() == 1


@pytest.mark.parametrize("size", ["0", "-3", "4001", "2.5", "many"])
def test_a_size_that_cannot_be_is_refused(size):
    refused(lambda: task(f"digits:size={size}"), "^size=")


def test_digits_without_the_package_say_what_to_install(monkeypatch):
    images._read_shipped_digits.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'privet\[demo\]'"):
        task("digits")


def test_another_file_of_digits_is_refused(monkeypatch, tmp_path):
    images._read_shipped_digits.cache_clear()
    other = put(tmp_path / "mnist_5k.csv.gz", gzip.compress(b"1,2"))
    monkeypatch.setattr(images, "_find_shipped_file", lambda package, name: other)
    refused(lambda: task("digits"), "is not the file of 5,000 digits")


@pytest.mark.slow
def test_importing_tasks_reads_nothing_and_loads_nothing_heavy():
    code = "import sys, privet.data as d; d.task('digits'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not {"pandas", "sklearn", "PIL", "mlxtend"} & set(done.stdout.split())
    assert {"digits", "csv", "npz", "folder"} <= set(registry.names())


# --- pictures ---------------------------------------------------------------------------------------


def png(width: int, height: int, *, mode: str = "RGB", colour: object = 0) -> bytes:
    from PIL import Image

    packed = io.BytesIO()
    Image.new(mode, (width, height), colour).save(packed, "PNG")
    return packed.getvalue()


def test_pictures_of_any_mode_and_size():
    assert decode_picture(png(5, 7), name="p").shape == (3, 7, 5)
    assert decode_picture(png(5, 7, mode="L", colour=9), name="p", colours=1, side=4).tolist() == [[[9] * 4] * 4]
    assert decode_picture(png(5, 5, mode="P"), name="p", side=2).shape == (3, 2, 2)
    for value, shade in ((0, 0), (255, 0), (256, 1), (40_000, 156), (65_535, 255)):
        for colours in (1, 3):
            grey = decode_picture(png(2, 2, mode="I;16", colour=value), name="p", colours=colours)
            assert grey.tolist() == [[[shade] * 2] * 2] * colours


def test_pixels_of_an_unknown_range_are_refused(monkeypatch):
    from PIL import Image

    monkeypatch.setattr(Image, "open", lambda *given, **more: Image.new("F", (2, 2), 700.0))
    refused(lambda: decode_picture(b"", name="p"), "has pixels of neither 8 nor 16 bits")


def test_a_swollen_or_odd_picture_is_refused(monkeypatch):
    monkeypatch.setattr("privet.data.images.MOST", 99)
    refused(lambda: decode_picture(png(10, 10), name="p"), "more than 99 pixels")
    refused(lambda: decode_picture(png(5, 5), name="p", box=(0, 0, 6, 5)), "too few")
    refused(lambda: decode_picture(b"%!PS-Adobe-3.0 EPSF-3.0", name="p"), "not a whole picture")


def test_pictures_without_pillow_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'privet\[images\]'"):
        decode_picture(b"", name="p")
