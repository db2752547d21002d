"""Infinite MNIST as a task: as many digits as the program infimnist of Loosli, Canu and Bottou was asked to make.

`mnist:enlarged` has distortions of its own; this reads theirs, which only their program makes.
"""

from hashlib import sha256
from pathlib import Path

from privet.data.features import image_features
from privet.data.files import Where, content_of, find, missing
from privet.data.images import MNIST, Pixels, check_digits, first, idx, read_pair, tensors
from privet.data.packed import unpack
from privet.data.task import Task, register
from privet.errors import InvalidValue

NAME = "infinite-mnist"
PROGRAM = "https://leon.bottou.org/projects/infimnist"
MOST = 2**24  # labels that a packed file may unpack to
KINDS = {"images": ("idx3", "pat"), "labels": ("idx1", "lab")}  # in the name of the file, and to the program
PLACES = {"train": "10000 69999", "t10k": "0 9999"}  # where MNIST's records are among those it can make


@register(NAME)
def infinite_mnist(
    *, where: Where, size: int | None = None, features: str = "pixels", directions: int | None = None
) -> Task:
    """Digits that infimnist made, 28 x 28: as many as the files have (or the first `size`), judged by MNIST's test set.

    The folder `infinite_mnist` has `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, plain or `.gz`:

        infimnist pat 10000 1009999 > train-images-idx3-ubyte
        infimnist lab 10000 1009999 > train-labels-idx1-ubyte

    MNIST's own test files judge if `mnist` has them, else `t10k-...` in the same folder. Beyond 60,000 several records
    come from one writer's digit, so a guarantee for one of them is weaker for the digit. Their number is public.
    """
    (pixels, labels), source = _made(where, "train")
    taken = first(size, len(labels))
    judging, words, judged = _judging(where)
    made = Task(
        name=NAME,
        train=tensors(pixels[:taken], labels[:taken]),
        held_out=tensors(*judging),
        evaluation=f"{words}; where a record is protected it is one that was made, not the digit that several come "
        "from",
        model="cnn",
        facts={"shape": (1, 28, 28), "classes": 10},
        source=f"infinite MNIST (Loosli, Canu, Bottou 2007), {len(labels):,} digits made by {PROGRAM}, whose content "
        f"was not checked, divided by 255; SHA-256: {source}, {judged}",
    )
    return image_features(made, features, where, directions=directions)


def _judging(where: Where) -> tuple[tuple[Pixels, Pixels], str, str]:
    """What judges, what to say of it, and its SHA-256."""
    test = MNIST[1]
    theirs = all(find(where, file.dataset, file.name, beside=False) for file in (test.images, test.labels))
    if theirs or not any(_path(where, "t10k", kind) for kind in KINDS):
        hashes = ", ".join(f"{file.name} {file.sha256}" for file in (test.images, test.labels))
        said = (
            f"MNIST's test set, {test.count:,} images: numbers 0 to 9,999 of infimnist, of which none may be trained on"
        )
        return read_pair(test, where), said, hashes
    pair, hashes = _made(where, "t10k")
    return pair, f"{len(pair[1]):,} digits of t10k-images-idx3-ubyte, whose content was not checked", hashes


def _made(where: Where, part: str) -> tuple[tuple[Pixels, Pixels], str]:
    """Images (N, 1, 28, 28) and labels of two files that were made, and their SHA-256, unpacked."""
    named, content = _content(where, part, "labels", limit=8 + MOST)
    count = int.from_bytes(content[4:8], "big")
    labels = idx(content, shape=(count,), name=named)
    if count == 0:
        raise InvalidValue(f"{named}: has no records. There is nothing to train on or to judge by. Make some.")
    check_digits(labels, named)
    shown, pixels = _content(where, part, "images", limit=16 + 28 * 28 * count)
    images = idx(pixels, shape=(count, 28, 28), name=shown)
    hashes = zip(KINDS, (sha256(pixels), sha256(content)), strict=True)
    return (images[:, None], labels), ", ".join(f"{_name(part, kind)} {found.hexdigest()}" for kind, found in hashes)


def _content(where: Where, part: str, kind: str, *, limit: int) -> tuple[str, bytes]:
    """The path of a file that was made, and what it holds, unpacked to at most `limit` bytes."""
    path = _path(where, part, kind)
    if path is None:
        asked = f"{_name(part, kind)} (or .gz), as `infimnist {KINDS[kind][1]} {PLACES[part]}` makes it"
        raise InvalidValue(missing(where, NAME, asked, source=PROGRAM))
    return str(path), unpack(content_of(path), limit=limit, name=str(path))


def _path(where: Where, part: str, kind: str) -> Path | None:
    """The file, plain or packed, in the folder of this task: beside it MNIST's own has the same name."""
    name = _name(part, kind)
    return find(where, NAME, name, name + ".gz", beside=False)


def _name(part: str, kind: str) -> str:
    return f"{part}-{kind}-{KINDS[kind][0]}-ubyte"
