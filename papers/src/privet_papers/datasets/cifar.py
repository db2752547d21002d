"""CIFAR-10 and CIFAR-100 as tasks, from any of their public forms; each batch is proven by its SHA-256."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from privet import _check
from privet._text import one_line, shorten
from privet.data.files import DataFolders, File, find, read, read_content, unzip_arrays
from privet.data.images import decode_picture
from privet.data.task import Task, first, register, tensors
from privet.errors import InvalidValue
from privet_papers.datasets.archives import untar
from privet_papers.datasets.features import image_features
from privet_papers.datasets.safe_pickle import Call, read_plain_values

Rows = NDArray[np.uint8]  # (N, L + 3072): L labels, then the red, green and blue planes

PIXELS = 3 * 32 * 32
LABELS = ("fine", "coarse")
_COMMON = ("train", "test")  # names that other datasets have too: beside the datasets' folders they say too little


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One file of images: how many, the SHA-256 of its binary form, and that of its pickle where it is known too."""

    name: str
    count: int
    sha256: str
    pickled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cifar:
    """What tells one dataset from the other."""

    title: str
    classes: dict[str, int]  # how many, by the labels' name in the Python version, in the order of the binary one
    batches: tuple[Batch, ...]  # the last one judges
    binary: str  # the folder in the archive of the binary version
    python: str  # and in that of the Python version
    archive: File  # the binary one
    pickles: str  # the name of the Python one
    tiled: bool = False  # whether a batch may also be one picture, with its labels in labels.npz


def _archive_file(dataset: str, name: str, digest: str, size: int) -> File:
    return File(dataset=dataset, name=name, sha256=digest, size=size, url=f"https://www.cs.toronto.edu/~kriz/{name}")


def _batch_of_10000(name: str, digest: str) -> Batch:
    return Batch(name=name, count=10000, sha256=digest)  # its pickle holds the same


CIFAR10 = Cifar(
    title="CIFAR-10",
    classes={"labels": 10},
    batches=(
        _batch_of_10000("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        _batch_of_10000("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        _batch_of_10000("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        _batch_of_10000("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        _batch_of_10000("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        _batch_of_10000("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    archive=_archive_file(
        "cifar10",
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        170052171,
    ),
    pickles="cifar-10-python.tar.gz",
    tiled=True,
)
CIFAR100 = Cifar(
    title="CIFAR-100",
    classes={"coarse_labels": 20, "fine_labels": 100},
    batches=(
        Batch(
            name="train",
            count=50000,
            sha256="f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            pickled="735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b",
        ),
        Batch(
            name="test",
            count=10000,
            sha256="d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            pickled="4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864",
        ),
    ),
    binary="cifar-100-binary",
    python="cifar-100-python",
    archive=_archive_file(
        "cifar100",
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        168513733,
    ),
    pickles="cifar-100-python.tar.gz",
)


@register("cifar10")
def cifar10(*, where: DataFolders, size: int | None = None, features: str = "pixels") -> Task:
    """60,000 colour pictures of ten kinds, 32 x 32: 50,000 to train on (or the first `size`), 10,000 to judge by.

    Accepted: `cifar-10-batches-bin` or `cifar-10-batches-py` (a folder of batches, or its tar.gz), or each batch as one
    lossless WebP picture of 100 x 100 tiles with the labels in `labels.npz` (`train`, `test`).
    `features=scattering` has wavelet features in the place of pixels, `features=mirrored` such as are the same for a
    picture and its mirror image.
    """
    return image_features(_make_task(CIFAR10, "labels", where=where, size=size), features, where)


@register("cifar100")
def cifar100(*, where: DataFolders, size: int | None = None, features: str = "pixels", labels: str = "fine") -> Task:
    """60,000 colour pictures of a hundred kinds, 32 x 32: 50,000 to train on (or the first `size`), 10,000 to judge by.

    Accepted: `cifar-100-binary` or `cifar-100-python` (a folder with `train` and `test`, or its tar.gz).
    `labels=coarse` has the twenty groups of five kinds each. `features` are those of `cifar10`.
    """
    _check.one_of(LABELS, labels=labels)
    return image_features(_make_task(CIFAR100, f"{labels}_labels", where=where, size=size), features, where)


def _make_task(data: Cifar, labels: str, *, where: DataFolders, size: int | None) -> Task:
    *training, test = data.batches
    taken = first(size, sum(batch.count for batch in training))
    starts = accumulate((batch.count for batch in training), initial=0)
    needed = [batch for start, batch in zip(starts, training, strict=False) if start < taken]
    rows, hashes = zip(*_read_batches(data, [*needed, test], where), strict=True)
    column = list(data.classes).index(labels)
    return Task(
        name=data.archive.dataset,
        train=_image_tensors(np.concatenate(rows[:-1])[:taken], column),
        held_out=_image_tensors(rows[-1], column),
        evaluation=f"the public test set, {test.count:,} images that are never trained on",
        model="cnn",
        facts={"shape": (3, 32, 32), "classes": data.classes[labels]},
        source=f"{data.title} (Krizhevsky 2009){f', {labels}' if len(data.classes) > 1 else ''}, divided by 255; "
        f"SHA-256 of the batches in binary form: {', '.join(hashes)}",
    )


def _image_tensors(rows: Rows, column: int) -> tuple[object, object]:
    return tensors(rows[:, -PIXELS:].reshape(-1, 3, 32, 32), rows[:, column])


def _read_batches(data: Cifar, batches: list[Batch], where: DataFolders) -> Iterator[tuple[Rows, str]]:
    """These batches, whichever form each is found in, each with its name and SHA-256."""
    archive: dict[str, bytes] = {}
    is_public = False
    for batch in batches:
        path = _find_batch(data, batch, where)
        if path is None and not archive:
            archive, is_public = _read_archive(data, where)
        if path is None:
            name = next((name for name in (f"{batch.name}.bin", batch.name) if name in archive), None)
            if name is None:
                raise InvalidValue(
                    f"the archive of {data.archive.dataset} has no {batch.name}. It is another one. Fetch it again."
                )
            path, content, known = Path(name), archive[name], is_public
        else:
            content, known = read_content(path), False
        rows = _parse_rows(data, batch, path, content)
        yield rows, f"{batch.name} {_verify_batch(data, batch, path, content, rows, known=known)}"


def _find_batch(data: Cifar, batch: Batch, where: DataFolders) -> Path | None:
    """The batch as a file of its own."""
    names = [f"{data.binary}/{batch.name}.bin", f"{batch.name}.bin", f"{data.python}/{batch.name}", batch.name]
    names += [f"{batch.name}.webp"] if data.tiled else []
    return find(where, data.archive.dataset, *names, beside=batch.name not in _COMMON)


def _read_archive(data: Cifar, where: DataFolders) -> tuple[dict[str, bytes], bool]:
    """The files of whichever archive is there, by name, and whether it is the public one; that is fetched if needed."""
    path = find(where, data.archive.dataset, data.archive.name, data.pickles)
    content, name = (read(where, data.archive), str(data.archive)) if path is None else (read_content(path), str(path))
    files = {PurePosixPath(member).name: held for member, held in untar(content, limit=2**28, name=name)}
    return files, sha256(content).hexdigest() == data.archive.sha256


def _parse_rows(data: Cifar, batch: Batch, path: Path, content: bytes) -> Rows:
    """What the file holds, in the binary form."""
    if path.suffix == ".bin":
        return _parse_binary(data, batch, path, content)
    if path.suffix == ".webp":
        pixels, labels = (
            _parse_tiles(batch, content, str(path)),
            _read_webp_labels(data, batch, path.with_name("labels.npz")),
        )
        return np.concatenate([labels[:, None], pixels], axis=1)
    return _parse_pickle(data, batch, content, str(path))


def _verify_batch(data: Cifar, batch: Batch, path: Path, content: bytes, rows: Rows, *, known: bool) -> str:
    """The SHA-256 of the binary form, once labels are in range and it, its pickle or its archive is the public one."""
    for column, classes in enumerate(data.classes.values()):
        if rows[:, column].max() >= classes:
            raise InvalidValue(
                f"{path}: has another label in record {int(rows[:, column].argmax()) + 1}. There are {classes} "
                "classes, from 0. Fetch it again."
            )
    found = sha256(rows.tobytes()).hexdigest()
    if not known and found != batch.sha256 and sha256(content).hexdigest() != batch.pickled:
        raise InvalidValue(f"{path}: is not the {batch.name} of {data.title}: its content differs. Fetch it again.")
    return found


def _parse_binary(data: Cifar, batch: Batch, path: Path, content: bytes) -> Rows:
    width = len(data.classes) + PIXELS
    if len(content) != batch.count * width:
        raise InvalidValue(f"{path}: has {len(content):,} bytes, not {batch.count * width:,}. Fetch it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape(batch.count, width)


def _parse_tiles(batch: Batch, content: bytes, name: str) -> Rows:
    tiled = decode_picture(content, name=name)
    high, wide = tiled.shape[1] // 32, tiled.shape[2] // 32
    if tiled.shape != (3, 32 * high, 32 * wide) or high * wide != batch.count:
        raise InvalidValue(
            f"{name}: is {tiled.shape[2]} x {tiled.shape[1]} pixels, not {batch.count:,} tiles of 32 x 32."
        )
    return tiled.reshape(3, high, 32, wide, 32).transpose(1, 3, 0, 2, 4).reshape(batch.count, PIXELS)


def _read_webp_labels(data: Cifar, batch: Batch, path: Path) -> Rows:
    *training, test = data.batches
    part, before = ("test", []) if batch == test else ("train", training[: training.index(batch)])
    start = sum(other.count for other in before)
    arrays = unzip_arrays(read_content(path), limit=2**20, name=str(path))
    labels: Rows = np.atleast_1d(arrays.get(part, 0))[start : start + batch.count]
    if labels.shape != (batch.count,) or labels.dtype != np.uint8:
        kind = shorten(str(labels.dtype))
        raise InvalidValue(f"{path}: {part} is {kind} {list(labels.shape)}, not {batch.count:,} bytes a batch.")
    return labels


def _parse_pickle(data: Cifar, batch: Batch, content: bytes, name: str) -> Rows:
    """The records of a batch of the Python version: a dict with `data` (an array) and lists of labels."""
    held = read_plain_values(content, name=name)
    try:
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in held.items()}
        labels = np.stack([_label_bytes(named[key]) for key in data.classes], axis=1)
        pixels = _array_of_call(named["data"])
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        what = shorten(one_line(error), 200)
        raise InvalidValue(
            f"{name}: has no data and labels as {data.title} has them: {what}. Fetch it again."
        ) from None
    if len(labels) != batch.count or pixels.shape != (batch.count, PIXELS):
        raise InvalidValue(
            f"{name}: has {len(labels):,} labels and images of shape {list(pixels.shape)}. Fetch it again."
        )
    return np.concatenate([labels, pixels], axis=1)


def _label_bytes(labels: object) -> Rows:
    """A list of numbers from 0 to 255, and of nothing else: lists in lists may unfold without end."""
    if type(labels) is not list or not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise ValueError("labels are no list of numbers from 0 to 255")
    return np.array(labels, dtype=np.uint8)


def _array_of_call(call: Call) -> Rows:
    """The array of bytes that a pickle describes: (version, shape, dtype, whether by columns, bytes)."""
    if not call.function.endswith("multiarray _reconstruct"):
        raise ValueError(f"data is {call.function!r}")
    _, shape, dtype, by_columns, raw = call.state
    kind = dtype.arguments[0]
    if kind != "u1":
        raise ValueError(f"data is of {kind!r}" if isinstance(kind, str) else "data is of no known type")
    values = np.frombuffer(raw.encode("latin-1") if isinstance(raw, str) else raw, dtype=np.uint8)
    return values.reshape(shape, order="F" if by_columns else "C")
