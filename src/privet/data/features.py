"""Features in the place of a task's own inputs: computed from each record alone by public constants, kept on disk.

`mnist:features=scattering` is a task like any other. What one record becomes depends on no other record, so that a
guarantee on features is one on records.
"""

import contextlib
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
from privet.data.files import Where
from privet.data.made_up import VERSION as MADE_UP
from privet.data.made_up import pictures
from privet.data.mirrored import FLOOR as MIRRORED_FLOOR
from privet.data.mirrored import VERSION as MIRRORED
from privet.data.mirrored import mirrored
from privet.data.scattering import GROUP, VERSION, Scattering, normalised
from privet.data.task import Task
from privet.data.whitened import DIRECTIONS, FLOOR, PICTURES, POWER, whitened, whitening
from privet.errors import InvalidValue, Unsupported

KINDS = ("pixels", "scattering", "mirrored", "whitened")
FOLDER = "features"
_PART = 4096  # images between two calls of what is computed
Made = Callable[[Tensor], Tensor]


def image_features(task: Task, kind: str, where: Where | None, *, directions: int | None = None) -> Task:
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
    folder = (Where() if where is None else where).kept() / FOLDER

    def scattered(images: Tensor) -> Tensor:
        return (mirrored(images, transform) if kind == "mirrored" else normalised(transform(images))).half()

    stages: list[tuple[str, Made]] = [(said, scattered)]
    if kind == "whitened":
        stages.append(
            _whitening(
                task.facts["shape"],
                scattered,
                DIRECTIONS if directions is None else directions,
                said=said,
                folder=folder,
            )
        )
    (train, labels), (held_out, judged) = task.train, task.held_out
    for named, made in stages:
        train, held_out = (kept(x, made, said=named, folder=folder, name=task.name) for x in (train, held_out))
    return replace(
        task, train=(train, labels), held_out=(held_out, judged), model="linear",
        facts={**task.facts, "shape": tuple(train.shape[1:])}, source=f"{task.source}; {kind} ({stages[-1][0]})",
    )  # fmt: skip


def _whitening(
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
        return whitening(scattered(pictures(PICTURES, side=shape[-1])).float().flatten(1), directions=directions)

    matrix = _remembered(mapped, key=sha256(said.encode()).hexdigest(), folder=folder, name="whitening")
    return f"{said}, {digest(matrix)}", lambda found: whitened(found.flatten(1), matrix).half()


def kept(inputs: Tensor, made: Made, *, said: str, folder: Path, name: str) -> Tensor:
    """`made(inputs)` as float32, read from `folder` if it was made there before and is whole; else made and kept.

    Args:
        made: gives float16, which the disk holds; each row must depend on one row of `inputs` alone.
        said: all that decides what `made` gives but `inputs`: a part of the key.
        name: how the file's name begins.
    """

    def whole() -> Tensor:
        return torch.cat([made(part) for part in torch.split(inputs, _PART)])

    key = sha256(said.encode() + digest(inputs).encode()).hexdigest()
    return _remembered(whole, key=key, folder=folder, name=name).float()


def _remembered(made: Callable[[], Tensor], *, key: str, folder: Path, name: str) -> Tensor:
    """What `made` gives, from `folder` if it is there under this key and whole."""
    file = folder / f"{name}-{key[:24]}.safetensors"
    found = _read(file, key)
    if found is None:
        found = made()
        _write(file, key, found)
    return found


def digest(tensor: Tensor) -> str:
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
        return found if about == {"key": key, "sha256": digest(found)} else None
    except Exception:  # a damaged file may fail in any way: by a type that has no bytes here, for one
        return None


def _write(file: Path, key: str, features: Tensor) -> None:
    """Keep features, whole or not at all; a disk that is full or read-only only costs the time to make them again."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        about = {"key": key, "sha256": digest(features)}
        safetensors.torch.save_file({"features": features.contiguous()}, beside, metadata=about)
        os.replace(beside, file)
    except (OSError, safetensors.SafetensorError):
        with contextlib.suppress(OSError):
            beside.unlink()
