"""CIFAR-10 as a task, from any of its public forms; each batch is proven by the SHA-256 of its binary form."""

import math
from hashlib import sha256
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from privet._registry import one_line, shortened
from privet.data.archives import untar, unzip_arrays
from privet.data.features import image_features
from privet.data.files import File, Where, content_of, find, read
from privet.data.images import first, tensors
from privet.data.pickled import Call, plain
from privet.data.pictures import picture
from privet.data.task import Task, register
from privet.errors import InvalidValue

Rows = NDArray[np.uint8]  # (N, 3073): a label, then the red, green and blue planes

DATASET = "cifar10"
COUNT = 10000  # images in a batch
BATCHES = {  # SHA-256 of the .bin files, of which the other forms hold the same
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
ARCHIVE = File(
    dataset=DATASET,
    name="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170052171,
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)


@register("cifar10")
def cifar10(*, where: Where, size: int | None = None, features: str = "pixels") -> Task:
    """60,000 colour pictures of ten kinds, 32 x 32: 50,000 to train on (or the first `size`), 10,000 to judge by.

    Accepted: `cifar-10-batches-bin` or `cifar-10-batches-py` (a folder of batches, or its tar.gz), or each batch as one
    lossless WebP picture of 100 x 100 tiles with the labels in `labels.npz` (`train`, `test`).
    `features=scattering` has wavelet features in the place of pixels, `features=mirrored` such as are the same for a
    picture and its mirror image.
    """
    taken = first(size, COUNT * (len(BATCHES) - 1))
    training = list(BATCHES)[: math.ceil(taken / COUNT)]
    rows = _batches([*training, "test_batch"], where)
    made = Task(
        name=DATASET,
        train=_images(rows[:-COUNT][:taken]),
        held_out=_images(rows[-COUNT:]),
        evaluation=f"the public test set, {COUNT:,} images that are never trained on",
        model="cnn",
        facts={"shape": (3, 32, 32), "classes": 10},
        source="CIFAR-10 (Krizhevsky 2009), divided by 255; SHA-256 of the binary batches: "
        + ", ".join(f"{name} {digest}" for name, digest in BATCHES.items()),
    )
    return image_features(made, features, where)


def _images(rows: Rows) -> tuple[object, object]:
    return tensors(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])


def _batches(batches: list[str], where: Where) -> Rows:
    """These batches one below the other, whichever form each is found in."""
    archive: dict[str, bytes] = {}
    parts = []
    for batch in batches:
        path = find(
            where, DATASET, f"cifar-10-batches-bin/{batch}.bin", f"{batch}.bin", f"cifar-10-batches-py/{batch}", batch,
            f"{batch}.webp",
        )  # fmt: skip
        if path is None and not archive:
            archive = _archive(where)
        if path is None:
            name = next((name for name in (f"{batch}.bin", batch) if name in archive), None)
            if name is None:
                raise InvalidValue(f"the archive of {DATASET} has no {batch}. It is another one. Fetch it again.")
            path, content = Path(name), archive[name]
        else:
            content = content_of(path)
        rows = _rows(batch, path, content)
        if sha256(rows.tobytes()).hexdigest() != BATCHES[batch]:
            raise InvalidValue(f"{path}: is not the {batch} of CIFAR-10: its content differs. Fetch it again.")
        parts.append(rows)
    return np.concatenate(parts)


def _archive(where: Where) -> dict[str, bytes]:
    """The files of whichever archive is there, by name; the binary one is fetched if neither is."""
    path = find(where, DATASET, ARCHIVE.name, "cifar-10-python.tar.gz")
    content, name = (read(where, ARCHIVE), str(ARCHIVE)) if path is None else (content_of(path), str(path))
    return {PurePosixPath(member).name: held for member, held in untar(content, limit=2**28, name=name)}


def _rows(batch: str, path: Path, content: bytes) -> Rows:
    if path.suffix == ".bin":
        if len(content) != COUNT * 3073:
            raise InvalidValue(f"{path}: has {len(content):,} bytes, not {COUNT * 3073:,}. Fetch it again.")
        return np.frombuffer(content, dtype=np.uint8).reshape(COUNT, 3073)
    if path.suffix == ".webp":
        pixels, labels = _tiles(content, str(path)), _webp_labels(batch, path.with_name("labels.npz"))
    else:
        pixels, labels = _unpickled(content, str(path))
    return np.concatenate([labels[:, None], pixels], axis=1)


def _tiles(content: bytes, name: str) -> Rows:
    tiled = picture(content, name=name)
    high, wide = tiled.shape[1] // 32, tiled.shape[2] // 32
    if tiled.shape != (3, 32 * high, 32 * wide) or high * wide != COUNT:
        raise InvalidValue(f"{name}: is {tiled.shape[2]} x {tiled.shape[1]} pixels, not {COUNT:,} tiles of 32 x 32.")
    return tiled.reshape(3, high, 32, wide, 32).transpose(1, 3, 0, 2, 4).reshape(COUNT, 3072)


def _webp_labels(batch: str, path: Path) -> Rows:
    part, number = ("test", 0) if batch == "test_batch" else ("train", int(batch[-1]) - 1)
    arrays = unzip_arrays(content_of(path), limit=2**20, name=str(path))
    labels: Rows = np.atleast_1d(arrays.get(part, 0))[COUNT * number : COUNT * (number + 1)]
    if labels.shape != (COUNT,) or labels.dtype != np.uint8:
        kind = shortened(str(labels.dtype))
        raise InvalidValue(f"{path}: {part} is {kind} {list(labels.shape)}, not {COUNT:,} bytes a batch.")
    return labels


def _unpickled(content: bytes, name: str) -> tuple[Rows, Rows]:
    """Pixels and labels of a batch of the Python version: a dict with `data` (an array) and `labels` (a list)."""
    held = plain(content, name=name)
    try:
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in held.items()}
        labels, pixels = _bytes(named["labels"]), _array(named["data"])
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        what = shortened(one_line(error), 200)
        raise InvalidValue(f"{name}: has no data and labels as CIFAR-10 has them: {what}. Fetch it again.") from None
    if labels.shape != (COUNT,) or pixels.shape != (COUNT, 3072):
        raise InvalidValue(
            f"{name}: has {labels.size:,} labels and images of shape {list(pixels.shape)}. Fetch it again."
        )
    return pixels, labels


def _bytes(labels: object) -> Rows:
    """A list of numbers from 0 to 255, and of nothing else: lists in lists may unfold without end."""
    if type(labels) is not list or not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise ValueError("labels are no list of numbers from 0 to 255")
    return np.array(labels, dtype=np.uint8)


def _array(call: Call) -> Rows:
    """The array of bytes that a pickle describes: (version, shape, dtype, whether by columns, bytes)."""
    if not call.function.endswith("multiarray _reconstruct"):
        raise ValueError(f"data is {call.function!r}")
    _, shape, dtype, by_columns, raw = call.state
    kind = dtype.arguments[0]
    if kind != "u1":
        raise ValueError(f"data is of {kind!r}" if isinstance(kind, str) else "data is of no known type")
    values = np.frombuffer(raw.encode("latin-1") if isinstance(raw, str) else raw, dtype=np.uint8)
    return values.reshape(shape, order="F" if by_columns else "C")
