"""Files of datasets: where they are looked for, how they are proven, and unpacked."""

import gzip
import io
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from privet.data.files import DataFolders, File, find, gunzip, read, unzip_arrays
from privet.errors import InvalidValue

CONTENT = bytes(range(256)) * 4000  # about a megabyte: many pieces
FILE = File(
    dataset="some-set", name="some.bin", sha256=sha256(CONTENT).hexdigest(), size=len(CONTENT),
    url="http://nowhere.invalid"
)  # fmt: skip


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No PRIVET_DATA, a cache of its own, no proxy."""
    monkeypatch.delenv("PRIVET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def words(value: object) -> str:
    """Bytes have no part in a test's name: some hold the time."""
    return value if isinstance(value, str) else "content"


def refused(call: object, match: str) -> str:
    with pytest.raises(InvalidValue, match=match) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
    return str(caught.value)


# --- looking ----------------------------------------------------------------------------------------


def test_folders_are_looked_at_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "shared"))
    where = DataFolders(folder=tmp_path / "given")
    assert where.folders() == [tmp_path / "given", tmp_path / "shared", tmp_path / "cache/privet"]
    for folder in reversed(where.folders()):
        path = put(folder / "some-set/some.bin")
        assert find(where, "some-set", "some.bin") == path
    assert DataFolders().download_folder() == tmp_path / "cache/privet"  # never PRIVET_DATA, which others may share


@pytest.mark.parametrize("place", ["some-set/some.bin", "some_set/some.bin", "some.bin"])
def test_a_file_is_found_in_the_datasets_folder_or_beside_it(tmp_path, place):
    put(tmp_path / place)
    assert read(DataFolders(folder=tmp_path, download=False), FILE) == CONTENT


def test_another_content_is_refused(tmp_path):
    put(tmp_path / "some-set/some.bin", CONTENT[:-1])
    line = refused(lambda: read(DataFolders(folder=tmp_path), FILE), "SHA-256")
    assert "1,023,999 bytes of 1,024,000" in line
    assert str(tmp_path / "some-set/some.bin") in line


def test_a_file_of_the_same_name_beside_the_folders_is_passed_over(tmp_path):
    """mnist and fashion-mnist have the same names."""
    put(tmp_path / "some.bin", b"another dataset's")
    put(tmp_path / "cache/privet/some-set/some.bin")
    assert read(DataFolders(folder=tmp_path, download=False), FILE) == CONTENT
    (tmp_path / "cache/privet/some-set/some.bin").unlink()
    refused(lambda: read(DataFolders(folder=tmp_path, download=False), FILE), "is not the public file")


def test_what_is_missing_is_said_with_what_to_put_where(tmp_path):
    line = refused(lambda: read(DataFolders(download=False), FILE), "PRIVET_DATA")
    assert "some.bin" in line
    assert str(tmp_path / "cache/privet/some-set") in line
    assert FILE.url in line


# --- unpacking --------------------------------------------------------------------------------------

PACKED = gzip.compress(CONTENT)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "ends in the middle"),
        (b"no gzip at all", "not a whole gzip"),
        (PACKED[:-1], "ends in the middle"),
        (PACKED[:100], "ends in the middle"),
        (PACKED[:-8] + b"\0" * 8, "not a whole gzip"),
        (PACKED + b"\0", "bytes after"),
        (PACKED + PACKED, "bytes after"),
        (gzip.compress(CONTENT + b"!"), "more than 1,024,000 bytes"),
        (gzip.compress(bytes(2**26)), "more than 1,024,000 bytes"),
    ],
    ids=words,
)
def test_a_damaged_or_swollen_gzip_is_refused(content, match):
    refused(lambda: gunzip(content, limit=len(CONTENT), name="a.gz"), match)


def npz(**arrays: object) -> bytes:
    import numpy as np

    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not a whole NPZ"),
        (b"PK\x03\x04 and no more", "not a whole NPZ"),
        (npz(x=[1, 2, 3])[:-10], "not a whole NPZ"),
        (npz(x=[{"an": "object"}]), "objects, which are not unpickled"),
        (npz(x=[0] * 300_000), "more than 1,000,000"),
    ],
    ids=words,
)
def test_a_damaged_or_hostile_npz_is_refused(content, match):
    refused(lambda: unzip_arrays(content, limit=1_000_000, name="a.npz"), match)


def test_what_is_no_array_is_left_out_of_an_npz():
    packed = io.BytesIO(npz(x=[1, 2]))
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("y.npy", b"text in the place of an array")
    assert list(unzip_arrays(packed.getvalue(), limit=1000, name="a.npz")) == ["x"]
