"""infinite-mnist: idx files of any number of records, what judges them, and what damage says."""

import gzip
import struct
from hashlib import sha256

import numpy as np
import pytest
import torch

from privet.data import task
from privet.data.files import File
from privet.errors import InvalidValue
from privet_papers.datasets import mnist as infinite
from privet_papers.datasets.mnist import IdxPair
from public_files import alone, put
from three_steps import check_trains

RANDOM = np.random.default_rng(0)
FOLDER = "infinite_mnist"


@pytest.fixture
def where(tmp_path, monkeypatch):
    return alone(tmp_path, monkeypatch)


def idx_bytes(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(count, first=0):
    """Images and labels as infimnist writes them."""
    pixels = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return idx_bytes(pixels), idx_bytes((np.arange(count) + first).astype(np.uint8) % 10)


def place(where, part, pair, folder=FOLDER, packed=False):
    for kind, content in zip(("images-idx3", "labels-idx1"), pair, strict=True):
        name = f"{folder}/{part}-{kind}-ubyte"
        put(where, name + ".gz" * packed, gzip.compress(content) if packed else content)


@pytest.fixture
def mnist(where, monkeypatch):
    """Five digits in the place of MNIST's test set; a function puts them into a folder."""
    pair = digits(5, first=3)
    names = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    packed = [gzip.compress(content) for content in pair]
    images, labels = (
        File(dataset="mnist", name=name, sha256=sha256(content).hexdigest(), size=len(content))
        for name, content in zip(names, packed, strict=True)
    )
    monkeypatch.setattr(infinite, "MNIST", (None, IdxPair(images=images, labels=labels, count=5)))

    def give(folder="mnist/"):
        for name, content in zip(names, packed, strict=True):
            put(where, folder + name, content)

    return give


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["infinite_mnist", "infinite-mnist"])
def test_as_many_records_as_the_files_have(where, mnist, folder, packed):
    mnist()
    images, labels = digits(23)
    place(where, "train", (images, labels), folder, packed)
    made = task("infinite-mnist", where=where)
    check_trains(made)
    assert (made.name, made.size, made.facts) == ("infinite-mnist", 23, {"shape": (1, 28, 28), "classes": 10})
    assert (made.train[0] * 255).round().byte().numpy().tobytes() == images[16:]
    assert made.train[1].tolist() == [k % 10 for k in range(23)]
    assert made.held_out[1].tolist() == [3, 4, 5, 6, 7]
    assert made.evaluation.startswith("MNIST's test set")
    assert "not the digit that several come from" in made.evaluation
    for known in (sha256(images).hexdigest(), sha256(labels).hexdigest(), infinite.MNIST[1].images.sha256):
        assert known in made.source
    few = task("infinite-mnist:size=7", where=where)
    assert torch.equal(few.train[0], made.train[0][:7])
    with pytest.raises(InvalidValue, match="size=24 is more than the 23"):
        task("infinite-mnist:size=24", where=where)


@pytest.mark.parametrize("packed", [False, True])
def test_test_files_of_the_same_folder_judge_where_mnist_has_none(where, mnist, packed):
    place(where, "train", digits(20))
    place(where, "t10k", digits(4), packed=packed)
    made = task("infinite-mnist", where=where)
    check_trains(made)
    assert made.held_out[1].tolist() == [0, 1, 2, 3]
    assert made.evaluation.startswith("4 digits of t10k-images-idx3-ubyte, whose content was not checked")
    mnist("")  # beside the folders: proven, but the files of the task's own folder are nearer
    assert len(task("infinite-mnist", where=where).held_out[1]) == 4
    mnist()
    assert len(task("infinite-mnist", where=where).held_out[1]) == 5


def test_mnists_files_may_lie_beside_the_folders(where, mnist):
    place(where, "train", digits(20))
    mnist("")
    assert task("infinite-mnist", where=where).held_out[1].tolist() == [3, 4, 5, 6, 7]


def test_features_are_those_of_mnist(where, mnist):
    place(where, "train", digits(12))
    mnist()
    check_trains(task("infinite-mnist:features=scattering", where=where))


IMAGES, LABELS = digits(20)


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (IMAGES, b"", "labels-idx1-ubyte: begins with"),
        (IMAGES, LABELS[:6], "says its shape is"),
        (IMAGES, LABELS[:-1], "has 19 values, its head says 20"),
        (IMAGES, LABELS + b"\0", "has 21 values"),
        (IMAGES, LABELS[:4] + b"\xff" * 4 + LABELS[8:], "its head says 4,294,967,295"),
        (IMAGES, IMAGES, "begins with 00 00 08 03, not 00 00 08 01"),
        (IMAGES, LABELS[:-1] + b"\x0a", "has another label in record"),
        (IMAGES, idx_bytes(np.zeros(0, dtype=np.uint8)), "has no records"),
        (LABELS, LABELS, "begins with 00 00 08 01, not 00 00 08 03"),
        (IMAGES[:-1], LABELS, "images-idx3-ubyte: has 15,679 values"),
        (digits(19)[0], LABELS, r"says its shape is \[19, 28, 28\], not \[20, 28, 28\]"),
        (idx_bytes(np.zeros((20, 32, 32), dtype=np.uint8)), LABELS, r"\[20, 32, 32\], not \[20, 28, 28\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_broken_files_are_refused(where, mnist, images, labels, match):
    mnist()
    place(where, "train", (images, labels))
    with pytest.raises(InvalidValue, match=match) as caught:
        task("infinite-mnist", where=where)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("labels-idx1-ubyte.gz", gzip.compress(LABELS)[:-9], "gzip"),
        ("labels-idx1-ubyte.gz", gzip.compress(bytes(infinite.MOST + 9)), "unpacks to more than"),
        ("images-idx3-ubyte.gz", gzip.compress(IMAGES + bytes(99)), "unpacks to more than 15,696 bytes"),
        ("images-idx3-ubyte.gz", IMAGES, "is not a whole gzip file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_packed_files_are_unpacked_to_what_they_may_hold(where, mnist, name, content, match):
    place(where, "train", (IMAGES, LABELS), packed=True)
    put(where, f"{FOLDER}/train-{name}", content)
    with pytest.raises(InvalidValue, match=match):
        task("infinite-mnist", where=where)


def test_what_is_missing_is_said_in_one_line(where, mnist):
    """It must be made: nothing is fetched. MNIST's own file of the same name is not taken for it."""
    put(where, "train-labels-idx1-ubyte.gz", gzip.compress(LABELS))

    def refused(match):
        with pytest.raises(InvalidValue, match=match) as caught:
            task("infinite-mnist", where=where)
        assert str(caught.value).isprintable()

    refused(r"task='infinite-mnist' needs train-labels.*`infimnist lab 10000 69999`.*Put it in .*leon\.bottou\.org")
    put(where, f"{FOLDER}/train-labels-idx1-ubyte", LABELS)
    refused("needs train-images-idx3-ubyte.*`infimnist pat 10000 69999`")
    put(where, f"{FOLDER}/train-images-idx3-ubyte", IMAGES)
    refused(r"task='mnist' needs t10k-images-idx3-ubyte\.gz")
    put(where, f"{FOLDER}/t10k-images-idx3-ubyte", digits(4)[0])
    refused("needs t10k-labels-idx1-ubyte.*`infimnist lab 0 9999`")
