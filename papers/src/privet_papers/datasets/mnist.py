"""MNIST, Fashion-MNIST, and MNIST made larger: by a program's distortions (`infinite-mnist`), or by ours.

All are float32 in [0, 1]: bytes divided by 255. That is a public constant; a mean or spread of the training records
would be a statistic of private data. `features=scattering` has wavelet features in the place of pixels.
"""

import math
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privet import _check
from privet.data.files import DataFolders, File, find, gunzip, missing_file_message, read, read_content
from privet.data.task import Pixels, Task, first, register, tensors
from privet.errors import InvalidValue
from privet_papers.datasets.archives import unpack
from privet_papers.datasets.features import image_features

# --- mnist, fashion-mnist ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxPair:
    """Images and their labels, as two idx.gz files."""

    images: File
    labels: File
    count: int


def _pairs(dataset: str, base: str, *rows: tuple[str, str, int]) -> tuple[IdxPair, IdxPair]:
    files = [File(dataset=dataset, name=name, sha256=digest, size=size, url=base + name) for name, digest, size in rows]
    return (
        IdxPair(images=files[0], labels=files[1], count=60000),
        IdxPair(images=files[2], labels=files[3], count=10000),
    )


MNIST = _pairs(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
)
FASHION = _pairs(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26421880),
    ("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29515),
    ("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4422102),
    ("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5148),
)


@register("mnist")
def mnist(
    *, where: DataFolders, size: int | None = None, features: str = "pixels", enlarged: int | None = None,
    directions: int | None = None,
) -> Task:  # fmt: skip
    """70,000 handwritten digits, 28 x 28: 60,000 to train on (or the first `size`), 10,000 to judge by.

    `enlarged`: so many to train on, each a digit that is turned, stretched, slanted and moved a little. Then several
    come from one writer's digit, so a guarantee for one of them is weaker for the digit: for experiments only.
    `directions`: how many numbers `features=whitened` has, by default 600.
    """
    made = _idx_task(MNIST, where=where, size=size, source="MNIST (LeCun, Cortes, Burges)")
    made = made if enlarged is None else enlarge(made, enlarged)
    return image_features(made, features, where, directions=directions)


@register("fashion-mnist")
def fashion_mnist(
    *, where: DataFolders, size: int | None = None, features: str = "pixels", directions: int | None = None
) -> Task:
    """70,000 pictures of clothes, ten kinds, 28 x 28: 60,000 to train on (or the first `size`), 10,000 to judge by."""
    made = _idx_task(FASHION, where=where, size=size, source="Fashion-MNIST (Zalando)")
    return image_features(made, features, where, directions=directions)


def _idx_task(pairs: tuple[IdxPair, IdxPair], *, where: DataFolders, size: int | None, source: str) -> Task:
    train, test = pairs
    taken = first(size, train.count)
    hashes = ", ".join(f"{file.name} {file.sha256}" for pair in pairs for file in (pair.images, pair.labels))
    return Task(
        name=train.images.dataset,
        train=tensors(*(part[:taken] for part in read_pair(train, where))),
        held_out=tensors(*read_pair(test, where)),
        evaluation=f"the public test set, {test.count:,} images that are never trained on",
        model="cnn",
        facts={"shape": (1, 28, 28), "classes": 10},
        source=f"{source}, divided by 255; SHA-256: {hashes}",
    )


def read_pair(pair: IdxPair, where: DataFolders) -> tuple[Pixels, Pixels]:
    """Images (N, 1, 28, 28) and labels of two public files."""
    images = _unpacked(pair.images, where, (pair.count, 28, 28))
    labels = _unpacked(pair.labels, where, (pair.count,))
    check_digits(labels, str(pair.labels))
    return images[:, None], labels


def check_digits(labels: Pixels, name: str) -> None:
    """Raise unless labels are from 0 to 9."""
    if labels.max() > 9:
        raise InvalidValue(
            f"{name}: has another label in record {int(labels.argmax()) + 1}. There are ten classes, 0 to 9. Fetch or "
            "make it again."
        )


def _unpacked(file: File, where: DataFolders, shape: tuple[int, ...]) -> Pixels:
    head = 4 + 4 * len(shape)
    return idx(gunzip(read(where, file), limit=head + int(np.prod(shape)), name=str(file)), shape=shape, name=str(file))


def idx(content: bytes, *, shape: tuple[int, ...], name: str) -> Pixels:
    """The array of bytes in an idx file, which must have this shape: magic 00 00 08 rank, sizes, then the bytes.

    >>> idx(b"\\0\\0\\x08\\x01" + b"\\0\\0\\0\\x02" + b"ab", shape=(2,), name="two").tolist()
    [97, 98]
    """
    head = bytes((0, 0, 8, len(shape)))
    sizes = np.array(shape, dtype=">u4").tobytes()
    if content[:4] != head:
        raise InvalidValue(f"{name}: begins with {content[:4].hex(' ')}, not {head.hex(' ')}. It is no such idx file.")
    if content[4 : 4 + len(sizes)] != sizes:
        found = np.frombuffer(content[4 : 4 + len(sizes)][: len(content) // 4 * 4 - 4], dtype=">u4").tolist()
        raise InvalidValue(f"{name}: says its shape is {found}, not {list(shape)}. It is another idx file.")
    body = content[4 + len(sizes) :]
    if len(body) != np.prod(shape):
        raise InvalidValue(
            f"{name}: has {len(body):,} values, its head says {np.prod(shape):,}. Fetch or make it again."
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


# --- infinite-mnist: as many digits as the program infimnist of Loosli, Canu and Bottou was asked to make -------


NAME = "infinite-mnist"
PROGRAM = "https://leon.bottou.org/projects/infimnist"
MOST = 2**24  # labels that a packed file may unpack to
KINDS = {"images": ("idx3", "pat"), "labels": ("idx1", "lab")}  # in the name of the file, and to the program
PLACES = {"train": "10000 69999", "t10k": "0 9999"}  # where MNIST's records are among those it can make


@register(NAME)
def infinite_mnist(
    *, where: DataFolders, size: int | None = None, features: str = "pixels", directions: int | None = None
) -> Task:
    """Digits that infimnist made, 28 x 28: as many as the files have (or the first `size`), judged by MNIST's test set.

    The folder `infinite_mnist` has `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, plain or `.gz`:

        infimnist pat 10000 1009999 > train-images-idx3-ubyte
        infimnist lab 10000 1009999 > train-labels-idx1-ubyte

    MNIST's own test files judge if `mnist` has them, else `t10k-...` in the same folder. Beyond 60,000 several records
    come from one writer's digit, so a guarantee for one of them is weaker for the digit. Their number is public.
    """
    (pixels, labels), source = _read_generated(where, "train")
    taken = first(size, len(labels))
    judging, words, judged = _read_held_out(where)
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


def _read_held_out(where: DataFolders) -> tuple[tuple[Pixels, Pixels], str, str]:
    """What judges, what to say of it, and its SHA-256."""
    test = MNIST[1]
    theirs = all(find(where, file.dataset, file.name, beside=False) for file in (test.images, test.labels))
    if theirs or not any(_find_generated_file(where, "t10k", kind) for kind in KINDS):
        hashes = ", ".join(f"{file.name} {file.sha256}" for file in (test.images, test.labels))
        said = (
            f"MNIST's test set, {test.count:,} images: numbers 0 to 9,999 of infimnist, of which none may be trained on"
        )
        return read_pair(test, where), said, hashes
    pair, hashes = _read_generated(where, "t10k")
    return pair, f"{len(pair[1]):,} digits of t10k-images-idx3-ubyte, whose content was not checked", hashes


def _read_generated(where: DataFolders, part: str) -> tuple[tuple[Pixels, Pixels], str]:
    """Images (N, 1, 28, 28) and labels of two files that were made, and their SHA-256, unpacked."""
    named, content = _read_generated_file(where, part, "labels", limit=8 + MOST)
    count = int.from_bytes(content[4:8], "big")
    labels = idx(content, shape=(count,), name=named)
    if count == 0:
        raise InvalidValue(f"{named}: has no records. There is nothing to train on or to judge by. Make some.")
    check_digits(labels, named)
    shown, pixels = _read_generated_file(where, part, "images", limit=16 + 28 * 28 * count)
    images = idx(pixels, shape=(count, 28, 28), name=shown)
    hashes = zip(KINDS, (sha256(pixels), sha256(content)), strict=True)
    return (images[:, None], labels), ", ".join(
        f"{_generated_file_name(part, kind)} {found.hexdigest()}" for kind, found in hashes
    )


def _read_generated_file(where: DataFolders, part: str, kind: str, *, limit: int) -> tuple[str, bytes]:
    """The path of a file that was made, and what it holds, unpacked to at most `limit` bytes."""
    path = _find_generated_file(where, part, kind)
    if path is None:
        asked = f"{_generated_file_name(part, kind)} (or .gz), as `infimnist {KINDS[kind][1]} {PLACES[part]}` makes it"
        raise InvalidValue(missing_file_message(where, NAME, asked, source=PROGRAM))
    return str(path), unpack(read_content(path), limit=limit, name=str(path))


def _find_generated_file(where: DataFolders, part: str, kind: str) -> Path | None:
    """The file, plain or packed, in the folder of this task: beside it MNIST's own has the same name."""
    name = _generated_file_name(part, kind)
    return find(where, NAME, name, name + ".gz", beside=False)


def _generated_file_name(part: str, kind: str) -> str:
    return f"{part}-{kind}-{KINDS[kind][0]}-ubyte"


# --- enlarged ---------------------------------------------------------------------------------------


TURN, STRETCH, SLANT, MOVE = math.radians(12), 0.1, 0.15, 2.0  # at most; radians, shares, shares, pixels
AT_ONCE = 5000


def enlarge(task: Task, size: int) -> Task:
    """The task with `size` images to train on: those it has, in their order, again and again, each time distorted.

    The first of each is as it was. All else is drawn from a fixed seed, so the same call gives the same images.

    >>> x, y = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
    >>> small = Task(name="small", train=(x, y), held_out=(x, y), evaluation="made up", model="linear")
    >>> more = enlarge(small, 7)
    >>> more.size, more.train[1].tolist(), bool((more.train[0][:3] == x).all())
    (7, [0, 1, 2, 0, 1, 2, 0], True)
    """
    _check.whole(least=task.size, enlarged=size)
    images, labels = task.train
    source = torch.arange(size) % task.size
    made = torch.empty(size, *images.shape[1:])
    made[: task.size] = images
    generator = torch.Generator().manual_seed(0)
    for rows in torch.split(torch.arange(task.size, size), AT_ONCE):
        made[rows] = distort(images[source[rows]], generator)
    note = "; where a record is protected it is one of the enlarged images, not the image that several come from"
    return replace(
        task, train=(made, labels[source]), users=None, evaluation=task.evaluation + note,
        source=f"{task.source}; {size:,} in all, by affine distortions of those{note}",
    )  # fmt: skip


def distort(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (N, C, H, W) under an affine map of its own, drawn evenly from the ranges above; 0 outside."""
    draws = 2 * torch.rand(6, len(images), generator=generator) - 1
    turn, slant = TURN * draws[0], SLANT * draws[1]
    wide, high = 1 + STRETCH * draws[2], 1 + STRETCH * draws[3]
    right, down = (2 * MOVE * draws[4 + k] / side for k, side in enumerate((images.shape[-1], images.shape[-2])))
    across = torch.stack([wide * turn.cos(), wide * (slant * turn.cos() - turn.sin()), right], dim=1)
    along = torch.stack([high * turn.sin(), high * (slant * turn.sin() + turn.cos()), down], dim=1)
    places = F.affine_grid(torch.stack([across, along], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, places, align_corners=False)
