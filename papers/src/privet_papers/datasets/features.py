"""Features in the place of a task's own inputs: computed from each record alone by public constants, kept on disk.

`mnist:features=scattering` is a task like any other. What one record becomes depends on no other record, so that a
guarantee on features is one on records.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from privet import _check
from privet.data.files import DataFolders
from privet.data.task import Task
from privet.errors import InvalidValue, Unsupported
from privet_papers.datasets.scattering import GROUP, VERSION, Scattering, normalise_channels
from privet_papers.datasets.synthetic_pictures import VERSION as MADE_UP, draw_pictures

KINDS = ("pixels", "scattering", "mirrored", "whitened")
FOLDER = "features"
_PART = 4096  # images between two calls of what is computed
Made = Callable[[Tensor], Tensor]


def image_features(task: Task, kind: str, where: DataFolders | None, *, directions: int | None = None) -> Task:
    """The task with its images as `kind`: `pixels` as they are, or `scattering`, normalised for each image alone.

    `mirrored` are the same for a picture and its mirror image, and half as many. `whitened` are seen from the middle
    of those of made-up pictures, in the `directions` in which these spread most. Features are kept in `features/` of
    the folder for fetched files, under a name made of the SHA-256 of the images and of the transform; a file that is
    damaged is made again.
    """
    _check.one_of(KINDS, features=kind)
    if directions is not None and kind != "whitened":
        raise InvalidValue(
            f"directions={directions!r} is for features='whitened', not {kind!r}. Others have a number of their own. "
            "Leave it out."
        )
    if kind == "pixels":
        return task
    side = task.facts["shape"][-1]
    transform = Scattering(side=side, centred=kind == "mirrored")
    said = f"{VERSION}, side {side}, {transform.scales} scales, {transform.directions} directions, groups of {GROUP}"
    if kind == "mirrored":
        said += f", {MIRRORED}, floor {MIRRORED_FLOOR}"
    folder = (DataFolders() if where is None else where).download_folder() / FOLDER

    def scattered(images: Tensor) -> Tensor:
        return (
            mirror_features(images, transform) if kind == "mirrored" else normalise_channels(transform(images))
        ).half()

    stages: list[tuple[str, Made]] = [(said, scattered)]
    if kind == "whitened":
        stages.append(
            _choose_whitening(
                task.facts["shape"],
                scattered,
                DIRECTIONS if directions is None else directions,
                said=said,
                folder=folder,
            )
        )
    (train, labels), (held_out, judged) = task.train, task.held_out
    for named, made in stages:
        train, held_out = (
            compute_cached(x, made, said=named, folder=folder, name=task.name) for x in (train, held_out)
        )
    return replace(
        task, train=(train, labels), held_out=(held_out, judged), model="linear",
        facts={**task.facts, "shape": tuple(train.shape[1:])}, source=f"{task.source}; {kind} ({stages[-1][0]})",
    )  # fmt: skip


def _choose_whitening(
    shape: tuple[int, ...], scattered: Made, directions: int, *, said: str, folder: Path
) -> tuple[str, Made]:
    """What makes whitened features of scattering features, and what to say of it.

    The map is kept too: made again elsewhere it may differ, in the signs of its directions at least.
    """
    if shape[0] != 1:
        raise Unsupported(
            f"features='whitened' is not for {shape[0]} colours. The made-up pictures are grey. Write "
            "features=scattering."
        )
    _check.whole(directions=directions)
    _check.between(0, PICTURES, directions=directions)
    said = f"{said}, {MADE_UP}, {PICTURES} pictures, {directions} directions, power {POWER}, floor {FLOOR}"

    def mapped() -> Tensor:
        return whitening_map(
            scattered(draw_pictures(PICTURES, side=shape[-1])).float().flatten(1), directions=directions
        )

    matrix = _read_or_compute(mapped, key=sha256(said.encode()).hexdigest(), folder=folder, name="whitening")
    return f"{said}, {tensor_digest(matrix)}", lambda found: whiten(found.flatten(1), matrix).half()


def compute_cached(inputs: Tensor, made: Made, *, said: str, folder: Path, name: str) -> Tensor:
    """`made(inputs)` as float32, read from `folder` if it was made there before and is whole; else made and kept.

    Args:
        made: gives float16, which the disk holds; each row must depend on one row of `inputs` alone.
        said: all that decides what `made` gives but `inputs`: a part of the key.
        name: how the file's name begins.
    """

    def whole() -> Tensor:
        return torch.cat([made(part) for part in torch.split(inputs, _PART)])

    key = sha256(said.encode() + tensor_digest(inputs).encode()).hexdigest()
    return _read_or_compute(whole, key=key, folder=folder, name=name).float()


def _read_or_compute(made: Callable[[], Tensor], *, key: str, folder: Path, name: str) -> Tensor:
    """What `made` gives, from `folder` if it is there under this key and whole."""
    file = folder / f"{name}-{key[:24]}.safetensors"
    found = _read(file, key)
    if found is None:
        found = made()
        _write(file, key, found)
    return found


def tensor_digest(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes, its shape and its type."""
    whole = sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    whole.update(tensor.contiguous().numpy().data)
    return whole.hexdigest()


def _read(file: Path, key: str) -> Tensor | None:
    """The features in a file; None if there is none, or it is damaged or of other images."""
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
            found: Tensor = opened.get_tensor("features")
        return found if about == {"key": key, "sha256": tensor_digest(found)} else None
    except Exception:  # a damaged file may fail in any way: by a type that has no bytes here, for one
        return None


def _write(file: Path, key: str, features: Tensor) -> None:
    """Keep features, whole or not at all; a disk that is full or read-only only costs the time to make them again."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        about = {"key": key, "sha256": tensor_digest(features)}
        safetensors.torch.save_file({"features": features.contiguous()}, beside, metadata=about)
        os.replace(beside, file)
    except (OSError, safetensors.SafetensorError):
        with contextlib.suppress(OSError):
            beside.unlink()


# --- whitened ---------------------------------------------------------------------------------------


PICTURES = 2000  # that are made up
DIRECTIONS = 600  # that are kept, those of the largest spread: 97 % of it
POWER = 0.3  # 0 leaves the spread as it is, 0.5 makes it the same in all directions
LEAST = 512  # rows of a product
FLOOR = 1e-3  # of the largest variance: directions below it are not made much larger


def whitening_map(features: Tensor, *, directions: int = DIRECTIONS, power: float = POWER) -> Tensor:
    """(d + 1, k): the map of `whitened`, from public features (N, d) of which k = min(directions, N - 1) are kept.

        (x - m) U diag(v / v_1 + FLOOR)^-power,   U and v the directions and variances of the features, m their mean

    as a matrix with the constant in the last row. In double precision, by the N x N inner products, with N < d.

    >>> far = torch.tensor([[5.0, 1.0, 0.0], [5.0, -1.0, 0.0], [5.0, 0.0, 0.1], [5.0, 0.0, -0.1]])
    >>> whitening_map(far, directions=1, power=0.5).abs().round(decimals=2).tolist()
    [[0.0], [1.0], [0.0], [0.0]]
    """
    wide = features.double()
    centre = wide.mean(0)
    wide = wide - centre
    variances, sides = torch.linalg.eigh(wide @ wide.T / len(wide))
    kept = min(directions, len(wide) - 1)
    variances, sides = variances.flip(0)[:kept].clamp(min=0), sides.flip(1)[:, :kept]
    spread = wide.T @ sides / (variances * len(wide)).sqrt().clamp(min=1e-12)
    matrix = spread * (variances / variances[0] + FLOOR) ** -power
    return torch.cat([matrix, -(centre @ matrix)[None]]).float()


def whiten(features: Tensor, matrix: Tensor) -> Tensor:
    """(N, k): features (N, d) through the map, each row then scaled to a mean square of 1, by itself.

    A product of few rows is rounded in another way than one of many, and then the number of records would show: to
    few rows, empty ones are added.
    """
    padded = torch.cat([features, features.new_zeros(max(0, LEAST - len(features)), features.shape[1])])
    found = (padded @ matrix[:-1] + matrix[-1])[: len(features)]
    return found / found.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)


# --- mirrored ---------------------------------------------------------------------------------------


MIRRORED = "mirrored 1"  # changes with whatever changes the result
MIRRORED_FLOOR = 1e-6  # of a variance; fine detail of a faint colour lies below 1e-5
_OPPONENT = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, -1 / 2, 0.0), (1 / 4, 1 / 4, -1 / 2))  # light, red-green, yellow-blue


def mirror_features(images: Tensor, transform: Scattering) -> Tensor:
    """Scattering of light and two opponent colours, that of the mirror image added, one half kept and normalised.

        F(c, y, x) = S(c, y, x) + S(m(c), y, W - 1 - x),   x < W / 2,   m(c) the path with its directions mirrored

    The other half repeats it: F(m(c), y, W - 1 - x) = F(c, y, x). (N, 3, side, side) or (N, 1, side, side) to
    (N, C K, W, W / 2), W = side / 2^J, the half rounded up. `transform` must be centred, for places to have a mirror
    image; that they lie on a grid leaves a small difference.

    >>> mirror_features(torch.rand(2, 3, 32, 32), Scattering(side=32, centred=True)).shape
    torch.Size([2, 243, 8, 4])
    """
    if images.shape[1] == 3:
        images = torch.einsum("kc,nchw->nkhw", torch.tensor(_OPPONENT), images)
    found = transform(images)
    paths = _mirror_paths(transform.scales, transform.directions)
    other = torch.cat([part[:, paths] for part in torch.split(found, transform.channels, 1)], 1).flip(-1)
    return normalise_channels((found + other)[..., : -(-found.shape[-1] // 2)], floor=MIRRORED_FLOOR)


@functools.cache
def _mirror_paths(scales: int, directions: int) -> Tensor:
    """The path that each becomes when left and right change places: direction k becomes L - k, as angles do."""
    turned = [-k % directions for k in range(directions)]
    first = [1 + j * directions + k for j in range(scales) for k in turned]
    pairs = scales * (scales - 1) // 2
    start = 1 + scales * directions
    second = [start + (pair * directions + a) * directions + b for pair in range(pairs) for a in turned for b in turned]
    return torch.tensor([0, *first, *second])
