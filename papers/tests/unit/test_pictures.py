"""Public pictures as tasks, from tiny files in their formats; what is broken is refused."""

import builtins
import gzip
import io
import pickle
import struct
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from privet.data import DataFolders, task
from privet.data.files import File
from privet.errors import InvalidValue
from privet_papers.datasets import cifar, lfw, mnist
from privet_papers.datasets.mnist import IdxPair, idx
from privet_papers.datasets.safe_pickle import Call, read_plain_values
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


def png(width: int, height: int, *, mode: str = "RGB", colour: object = 0) -> bytes:
    from PIL import Image

    packed = io.BytesIO()
    Image.new(mode, (width, height), colour).save(packed, "PNG")
    return packed.getvalue()


# --- idx --------------------------------------------------------------------------------------------


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_pair(folder: Path, dataset: str, part: str, count: int, *, labels: np.ndarray | None = None) -> IdxPair:
    """Two tiny files in the folder, and the pair that describes them."""
    contents = {
        f"{part}-images-idx3-ubyte.gz": RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        f"{part}-labels-idx1-ubyte.gz": np.arange(count, dtype=np.uint8) % 10 if labels is None else labels,
    }
    files = []
    for name, array in contents.items():
        packed = gzip.compress(idx_bytes(array))
        put(folder / name, packed)
        files.append(File(dataset=dataset, name=name, sha256=sha256(packed).hexdigest(), size=len(packed)))
    return IdxPair(images=files[0], labels=files[1], count=count)


@pytest.mark.parametrize(
    ("name", "table", "folder"), [("mnist", "MNIST", "mnist"), ("fashion-mnist", "FASHION", "fashion_mnist")]
)
def test_idx_tasks(name, table, folder, where, monkeypatch, tmp_path):
    pairs = idx_pair(tmp_path / folder, name, "train", 20), idx_pair(tmp_path / folder, name, "t10k", 10)
    monkeypatch.setattr(mnist, table, pairs)
    made = task(name, where=where)
    check_usable(made)
    assert (made.size, len(made.held_out[1]), made.name) == (20, 10, name)
    raw = gzip.decompress((tmp_path / folder / "train-images-idx3-ubyte.gz").read_bytes())[16:]
    assert (made.train[0] * 255).round().byte().numpy().tobytes() == raw
    assert torch.equal(task(f"{name}:size=7", where=where).train[0], made.train[0][:7])
    refused(lambda: task(f"{name}:size=21", where=where), "more than the 20")
    assert pairs[0].images.sha256 in made.source


def test_a_missing_dataset_says_what_to_put_where(where):
    refused(lambda: task("mnist", where=where), r"needs train-images-idx3-ubyte.gz.*ossci-datasets.*PRIVET_DATA")


def test_a_label_out_of_range_is_refused(where, monkeypatch, tmp_path):
    wrong = idx_pair(tmp_path, "mnist", "train", 20, labels=np.full(20, 10, dtype=np.uint8))
    monkeypatch.setattr(mnist, "MNIST", (wrong, wrong))
    refused(lambda: task("mnist", where=where), "has another label in record 1")


GOOD = idx_bytes(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "begins with"),
        (b"\0\0\x0d\x02" + GOOD[4:], "begins with 00 00 0d 02, not 00 00 08 02"),
        (b"\0\0\x08\x01" + GOOD[4:], "begins with"),
        (GOOD[:4], "says its shape is"),
        (GOOD[:7], "says its shape is"),
        (idx_bytes(np.zeros((3, 3), dtype=np.uint8)), r"says its shape is \[3, 3\]"),
        (GOOD[:4] + b"\xff" * 8 + GOOD[12:], "says its shape is"),
        (GOOD[:-1], "has 5 values"),
        (GOOD + b"\0", "has 7 values"),
        (GOOD[:12], "has 0 values"),
    ],
    ids=words,
)
def test_a_broken_idx_file_is_refused(content, match):
    assert idx(GOOD, shape=(2, 3), name="good").tolist() == [[0, 1, 2], [3, 4, 5]]
    refused(lambda: idx(content, shape=(2, 3), name="a"), match)


# --- cifar10 ----------------------------------------------------------------------------------------

COUNT = 4


def made_up(data: cifar.Cifar) -> dict[str, np.ndarray]:
    """Four records for each batch, in the binary form."""
    width = len(data.classes) + 3072
    found = {batch.name: RANDOM.integers(0, 256, (COUNT, width), dtype=np.uint8) for batch in data.batches}
    for rows in found.values():
        rows[:, : len(data.classes)] %= np.array(list(data.classes.values()), dtype=np.uint8)
    return found


def known(data: cifar.Cifar, rows: dict[str, np.ndarray], archive: bytes, **pickles: bytes) -> cifar.Cifar:
    """The dataset if these were its public files."""
    batches = tuple(
        cifar.Batch(
            name=name, count=len(held), sha256=sha256(held.tobytes()).hexdigest(),
            pickled=sha256(pickles[name]).hexdigest() if name in pickles else "",
        )
        for name, held in rows.items()
    )  # fmt: skip
    file = replace(data.archive, sha256=sha256(archive).hexdigest(), size=len(archive))
    return replace(data, batches=batches, archive=file)


ROWS = made_up(cifar.CIFAR10)


def short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def old_pickle(
    rows: np.ndarray, *, kind: bytes = short(b"u1") + b"K\x00K\x01", labels: tuple[str, ...] = ("labels",)
) -> bytes:
    """A batch as Python 2 wrote it: strings are bytes, the array is rebuilt by numpy.core.multiarray."""
    raw = rows[:, len(labels) :].tobytes()
    number = lambda value: b"M" + struct.pack("<H", value)  # noqa: E731
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nq\x02K\x00\x85U\x01btRq\x03"
        + b"(K\x01" + number(len(rows)) + number(3072) + b"\x86cnumpy\ndtype\n(" + kind + b"tRq\x04"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )  # fmt: skip
    lists = b"".join(
        short(name.encode()) + b"](" + b"".join(b"K" + bytes([label]) for label in rows[:, column]) + b"e"
        for column, name in enumerate(labels)
    )
    return (
        b"\x80\x02}q\x00(" + short(b"data") + array + lists
        + short(b"batch_label") + short(b"training batch 1") + short(b"filenames") + b"](" + short(b"a.png") + b"eu."
    )  # fmt: skip


def new_pickle(rows: np.ndarray, protocol: int = 2, labels: tuple[str, ...] = ("labels",)) -> bytes:
    lists = {name.encode(): rows[:, column].tolist() for column, name in enumerate(labels)}
    return pickle.dumps({b"data": rows[:, len(labels) :], **lists}, protocol=protocol)


def tgz(folder: str, contents: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def webp(rows: np.ndarray) -> bytes:
    from PIL import Image

    tiled = rows[:, 1:].reshape(2, 2, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(64, 64, 3)
    packed = io.BytesIO()
    Image.fromarray(tiled).save(packed, "WEBP", lossless=True)
    return packed.getvalue()


def npz(**arrays: object) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


LABELS = npz(
    train=np.concatenate([rows[:, 0] for name, rows in ROWS.items() if name != "test_batch"]),
    test=ROWS["test_batch"][:, 0],
)
BINARY = {f"{name}.bin": rows.tobytes() for name, rows in ROWS.items()}
PYTHON = {name: old_pickle(rows) for name, rows in ROWS.items()}
FORMS = {
    "binary": {f"cifar10/cifar-10-batches-bin/{name}": content for name, content in BINARY.items()},
    "python": {f"cifar-10-batches-py/{name}": content for name, content in PYTHON.items()},
    "python 3": {f"cifar10/{name}": new_pickle(rows) for name, rows in ROWS.items()},
    "protocol 4": {f"cifar10/{name}": new_pickle(rows, 4) for name, rows in ROWS.items()},
    "python archive": {"cifar10/cifar-10-python.tar.gz": tgz("cifar-10-batches-py", PYTHON)},
    "binary archive": {"cifar-10-binary.tar.gz": tgz("cifar-10-batches-bin", BINARY)},
    "webp": {f"cifar10/{name}.webp": webp(rows) for name, rows in ROWS.items()} | {"cifar10/labels.npz": LABELS},
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 with four images in a batch."""
    archive = FORMS["binary archive"]["cifar-10-binary.tar.gz"]
    monkeypatch.setattr(cifar, "CIFAR10", known(cifar.CIFAR10, ROWS, archive))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_cifar10_gives_the_same(form, where, tiny, tmp_path):
    for name, content in FORMS[form].items():
        put(tmp_path / name, content)
    made = task("cifar10", where=where)
    check_usable(made)
    rows = np.concatenate(list(ROWS.values()))
    for (x, y), part in ((made.train, rows[:-COUNT]), (made.held_out, rows[-COUNT:])):
        assert np.array_equal((x * 255).round().byte().numpy().reshape(len(part), 3072), part[:, 1:])
        assert y.tolist() == part[:, 0].tolist()
    assert torch.equal(task("cifar10:size=6", where=where).train[0], made.train[0][:6])


TWICE = b"q\x07h\x07\x86"  # what was there, two times: of n of them it is there 2^n times


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("data_batch_1.bin", b"", "has 0 bytes"),
        ("data_batch_1.bin", BINARY["data_batch_1.bin"] + b"\0", "bytes, not"),
        ("data_batch_1.bin", BINARY["data_batch_2.bin"], "its content differs"),
        ("data_batch_1.bin", b"\x0a" + BINARY["data_batch_1.bin"][1:], "another label in record 1. There are 10"),
        ("data_batch_1", b"", "not a whole pickle"),
        ("data_batch_1", PYTHON["data_batch_1"][:5000], "not a whole pickle"),
        ("data_batch_1", PYTHON["data_batch_2"], "its content differs"),
        ("data_batch_1", old_pickle(ROWS["data_batch_1"][:3]), "has 3 labels"),
        ("data_batch_1", old_pickle(ROWS["data_batch_1"], kind=short(b"O8")), "'O8'"),
        ("data_batch_1", old_pickle(ROWS["data_batch_1"], kind=b""), "no data and labels"),
        ("data_batch_1", old_pickle(ROWS["data_batch_1"], kind=b"]" + TWICE * 20), "of no known type"),
        ("data_batch_1", b"\x80\x02}(" + short(b"labels") + b"]K\x01a" + TWICE * 20 + b"u.", "are no list of numbers"),
        ("data_batch_1", b"\x80\x02})\x85Ns.", "key that is neither text nor"),  # a deep one's hash breaks the stack
        ("data_batch_1", pickle.dumps([1], protocol=2), "no data and labels"),
        ("data_batch_1", pickle.dumps({"labels": [1]}, protocol=2), "no data and labels"),
        ("data_batch_1", pickle.dumps({"labels": [1, -4], "data": 5}, protocol=2), "no data and labels"),
        ("data_batch_1.webp", b"RIFF", "not a whole picture"),
        ("data_batch_1.webp", webp(ROWS["data_batch_1"])[:3000], "not a whole picture"),
        ("data_batch_1.webp", webp(ROWS["data_batch_1"]), "labels.npz: cannot be read"),
        ("cifar-10-python.tar.gz", tgz("x", {"readme": b""}), "has no data_batch_1"),
        ("cifar-10-python.tar.gz", tgz("..", PYTHON), "outside its folder"),
        ("cifar-10-binary.tar.gz", tgz("..", BINARY), "outside its folder"),
    ],
    ids=words,
)
def test_broken_cifar10_is_refused(name, content, match, where, tiny, tmp_path):
    put(tmp_path / "cifar10" / name, content)
    refused(lambda: task("cifar10", where=where), match)


@pytest.mark.parametrize(
    "labels", [b"", npz(train=np.zeros(3, np.uint8)), npz(test=LABELS), npz(train=np.zeros(20))], ids=words
)
def test_broken_labels_are_refused(labels, where, tiny, tmp_path):
    put(tmp_path / "data_batch_1.webp", webp(ROWS["data_batch_1"]))
    put(tmp_path / "labels.npz", labels)
    refused(lambda: task("cifar10", where=where), "labels.npz: ")


# --- cifar100 ---------------------------------------------------------------------------------------

BOTH = ("coarse_labels", "fine_labels")
ROWS100 = made_up(cifar.CIFAR100)
BINARY100 = {f"{name}.bin": rows.tobytes() for name, rows in ROWS100.items()}
PYTHON100 = {name: old_pickle(rows, labels=BOTH) for name, rows in ROWS100.items()}
FORMS100 = {
    "binary": {f"cifar-100-binary/{name}": content for name, content in BINARY100.items()},
    "binary files": {f"cifar100/{name}": content for name, content in BINARY100.items()},
    "python": {f"cifar100/cifar-100-python/{name}": content for name, content in PYTHON100.items()},
    "python 3": {f"cifar100/{name}": new_pickle(rows, 4, BOTH) for name, rows in ROWS100.items()},
    "python archive": {"cifar-100-python.tar.gz": tgz("cifar-100-python", {**PYTHON100, "meta": b"not read"})},
    "binary archive": {"cifar100/cifar-100-binary.tar.gz": tgz("cifar-100-binary", BINARY100)},
}
ARCHIVE100 = FORMS100["binary archive"]["cifar100/cifar-100-binary.tar.gz"]


@pytest.fixture
def tiny100(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-100 with four images in each batch."""
    monkeypatch.setattr(cifar, "CIFAR100", known(cifar.CIFAR100, ROWS100, ARCHIVE100))


@pytest.mark.parametrize("form", FORMS100)
def test_every_form_of_cifar100_gives_the_same(form, where, tiny100, tmp_path):
    for name, content in FORMS100[form].items():
        put(tmp_path / name, content)
    fine, coarse = task("cifar100", where=where), task("cifar100:labels=coarse", where=where)
    check_usable(fine)
    check_usable(coarse)
    assert (fine.facts["classes"], coarse.facts["classes"], fine.name) == (100, 20, "cifar100")
    for part, rows in (("train", ROWS100["train"]), ("held_out", ROWS100["test"])):
        (x, y), (same, groups) = getattr(fine, part), getattr(coarse, part)
        assert np.array_equal((x * 255).round().byte().numpy().reshape(COUNT, 3072), rows[:, 2:])
        assert torch.equal(x, same)
        assert (groups.tolist(), y.tolist()) == (rows[:, 0].tolist(), rows[:, 1].tolist())
    assert torch.equal(task("cifar100:size=3", where=where).train[0], fine.train[0][:3])
    assert cifar.CIFAR100.batches[0].sha256 in fine.source
    assert "fine_labels" in fine.source


def test_cifar100_has_its_published_sizes():
    assert [batch.count for batch in cifar.CIFAR100.batches] == [50_000, 10_000]
    assert {len(digest) for batch in cifar.CIFAR100.batches for digest in (batch.sha256, batch.pickled)} == {64}


@pytest.mark.parametrize("network", ["cnn", "tanh-cnn", "pool-cnn", "shallow-cnn", "resnet", "mlp", "linear"])
def test_networks_for_cifar10_tell_a_hundred_classes(network, where, tiny100, tmp_path):
    for name, content in FORMS100["binary"].items():
        put(tmp_path / name, content)
    made = task("cifar100", where=where)
    assert made.network(network)(made.train[0]).shape == (COUNT, 100)


@pytest.mark.parametrize("features", ["scattering", "mirrored"])
def test_cifar100_has_the_features_of_cifar10(features, where, tiny100, tmp_path):
    for name, content in FORMS100["binary"].items():
        put(tmp_path / name, content)
    check_trains(task(f"cifar100:features={features}", where=where))


def test_the_public_archive_proves_what_is_in_it(where, monkeypatch, tmp_path):
    backwards = {name: rows[::-1] for name, rows in ROWS100.items()}
    monkeypatch.setattr(cifar, "CIFAR100", known(cifar.CIFAR100, backwards, ARCHIVE100))
    put(tmp_path / "cifar100/cifar-100-binary.tar.gz", ARCHIVE100)
    check_usable(task("cifar100", where=where))
    put(tmp_path / "cifar100/cifar-100-binary.tar.gz", tgz("another", BINARY100))
    with pytest.raises(InvalidValue, match="its content differs"):
        task("cifar100", where=where)


def test_a_pickle_of_cifar100_is_known_by_itself_too(where, monkeypatch, tmp_path):
    """Should the binary form be in another order, the published pickle still is what it is."""
    backwards = {name: rows[::-1] for name, rows in ROWS100.items()}
    for name, content in FORMS100["python"].items():
        put(tmp_path / name, content)
    monkeypatch.setattr(cifar, "CIFAR100", known(cifar.CIFAR100, backwards, ARCHIVE100))
    refused(lambda: task("cifar100", where=where), "is not the train of CIFAR-100: its content differs")
    monkeypatch.setattr(cifar, "CIFAR100", known(cifar.CIFAR100, backwards, ARCHIVE100, **PYTHON100))
    made = task("cifar100", where=where)
    assert made.train[1].tolist() == ROWS100["train"][:, 1].tolist()
    assert sha256(ROWS100["train"].tobytes()).hexdigest() in made.source  # of what was read


def spoiled(column: int, label: int) -> np.ndarray:
    rows = ROWS100["train"].copy()
    rows[2, column] = label
    return rows


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("train.bin", b"", "has 0 bytes, not 12,296"),
        ("train.bin", BINARY100["train.bin"][:-1], "has 12,295 bytes, not 12,296"),
        ("train.bin", ROWS["data_batch_1"].tobytes(), "has 12,292 bytes, not 12,296"),  # records of CIFAR-10
        ("train.bin", BINARY100["test.bin"], "is not the train of CIFAR-100: its content differs"),
        ("train.bin", spoiled(0, 20).tobytes(), "has another label in record 3. There are 20 classes"),
        ("train.bin", spoiled(1, 100).tobytes(), "has another label in record 3. There are 100 classes"),
        ("train", b"", "not a whole pickle"),
        ("train", PYTHON100["train"][:5000], "not a whole pickle"),
        ("train", PYTHON100["test"], "its content differs"),
        ("train", PYTHON["data_batch_1"], "no data and labels as CIFAR-100 has them"),
        ("train", old_pickle(ROWS100["train"], labels=("fine_labels",)), "no data and labels"),
        ("train", old_pickle(ROWS100["train"][:3], labels=BOTH), "has 3 labels"),
        ("train", old_pickle(spoiled(1, 100), labels=BOTH), "has another label in record 3"),
        ("train", pickle.dumps({"coarse_labels": [1], "fine_labels": [1, 2], "data": 5}, protocol=2), "same shape"),
        ("train", pickle.dumps({"coarse_labels": [1], "fine_labels": [300], "data": 5}, protocol=2), "from 0 to 255"),
        ("cifar-100-python.tar.gz", tgz("x", {"meta": b""}), "has no train"),
        ("cifar-100-python.tar.gz", tgz("..", PYTHON100), "outside its folder"),
        ("cifar-100-binary.tar.gz", ARCHIVE100[:-30], "is not a whole tar.gz"),
    ],
    ids=words,
)
def test_broken_cifar100_is_refused(name, content, match, where, tiny100, tmp_path):
    put(tmp_path / "cifar100" / name, content)
    refused(lambda: task("cifar100", where=where), match)


def test_cifar100_that_is_missing_says_what_to_put_where(where, tmp_path):
    """Names that any dataset may have are not taken for it beside the datasets' folders."""
    put(tmp_path / "train", b"of something else")
    put(tmp_path / "test.bin", b"of something else")
    refused(lambda: task("cifar100", where=where), r"task='cifar100' needs cifar-100-binary.tar.gz.*cs.toronto.edu")
    refused(lambda: task("cifar100:labels=all", where=where), "labels='all' must be one of")


# --- pickles ----------------------------------------------------------------------------------------


class Trap:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return builtins.open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_is_read_and_never_run(tmp_path, where, tiny, protocol):
    trap = pickle.dumps({"data": Trap(tmp_path / "caught"), "labels": [1]}, protocol=protocol)
    put(tmp_path / "data_batch_1", trap)
    refused(lambda: task("cifar10", where=where), "data is")
    found = read_plain_values(trap, name="trap")
    assert isinstance(found["data"], Call)
    assert not (tmp_path / "caught").exists()


@pytest.mark.parametrize(
    "content",
    [b".", b"N", b"NN.", b"0.", b"(.", b"e.", b"a.", b"R.", b"NNR.", b"b.", b"Nb.", b"h\x05.", b"\x93.", b"Na.",
     b"}(Nu.", b"}](Nu.", b"(Nt", b"](N\x85\x86e.", b"\x81.", b"P1\n.", b"i__main__\nX\n.", b"T\xff\xff\xff\x7f.",
     b"\xff"], ids=words)  # fmt: skip
def test_a_broken_or_odd_pickle_is_refused(content):
    refused(lambda: read_plain_values(content, name="a"), "not a whole pickle")


@pytest.mark.parametrize("call", [b"c_codecs\nencode\nh\x01U\x06latin1\x86R", b"h\x01h\x01\x93"])
def test_a_pickle_makes_no_more_than_it_has(call):
    text = b"(X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x01"
    assert read_plain_values(text + call + b"t.", name="a")
    refused(lambda: read_plain_values(text + call * 50 + b"t.", name="a"), "makes more than it has")


# --- lfw --------------------------------------------------------------------------------------------


def jpeg(shade: int) -> bytes:
    from PIL import Image

    pixels = np.full((250, 250, 3), 255, dtype=np.uint8)
    pixels[70:195, 78:172] = (shade, 0, 0)  # the box of the face has one colour
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "JPEG", quality=95)
    return packed.getvalue()


FACES = {
    f"{person}/{person}_{number:04}.jpg": jpeg(shade)
    for person, shade, count in [("Ann_A", 10, 5), ("Bob_B", 90, 4), ("Cy_C", 200, 2)]
    for number in range(1, count + 1)
}


@pytest.mark.parametrize("form", ["archive", "folder", "folder in folder"])
def test_lfw(form, where, tmp_path, monkeypatch):
    if form == "archive":
        packed = put(tmp_path / "lfw/lfw.tgz", tgz("lfw", FACES)).read_bytes()
        file = File(dataset="lfw", name="lfw.tgz", sha256=sha256(packed).hexdigest(), size=len(packed))
        monkeypatch.setattr(lfw, "ARCHIVE", file)
    for name, content in FACES.items() if form != "archive" else ():
        put(tmp_path / ("lfw" if form == "folder" else "lfw/lfw") / name, content)
    made = task("lfw:least=4", where=where)
    check_usable(made)
    assert made.facts == {"shape": (3, 32, 32), "classes": 2}
    assert (made.size, len(made.held_out[1])) == (6, 3)  # every fourth of nine, from the first
    for x, y in (made.train, made.held_out):
        shades = (x[:, 0].mean((1, 2)) * 255).round()
        assert torch.allclose(shades, torch.tensor([10.0, 90.0])[y], atol=12)  # the frame is cut away
    assert task("lfw:least=2,side=16", where=where).facts == {"shape": (3, 16, 16), "classes": 3}
    refused(lambda: task("lfw:least=5", where=where), "fewer than two people")


def test_lfw_that_is_missing_or_broken(where, tmp_path):
    refused(lambda: task("lfw", where=where), r"needs lfw.tgz.*figshare")
    for name in FACES:
        put(tmp_path / "lfw" / name, b"\xff\xd8 no picture")
    refused(lambda: task("lfw:least=2", where=where), "Ann_A_0001.jpg: is not a whole picture")
