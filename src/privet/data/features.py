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
from privet.data.scattering import GROUP, VERSION, Scattering, normalised
from privet.data.task import Task

KINDS = ("pixels", "scattering")
FOLDER = "features"
_PART = 4096  # images between two calls of what is computed


def image_features(task: Task, kind: str, where: Where | None) -> Task:
    """The task with its images as `kind`: `pixels` as they are, or `scattering`, normalised for each image alone.

    Scattering features are kept in `features/` of the folder for fetched files, under a name made of the SHA-256 of
    the images and of the transform; a file that is damaged is made again.
    """
    _check.one_of(KINDS, features=kind)
    if kind == "pixels":
        return task
    side = task.facts["shape"][-1]
    transform = Scattering(side=side)
    said = f"{VERSION}, side {side}, {transform.scales} scales, {transform.directions} directions, groups of {GROUP}"

    def made(images: Tensor) -> Tensor:
        return normalised(transform(images)).half()

    folder = (Where() if where is None else where).kept() / FOLDER
    train, held_out = (
        (kept(inputs, made, said=said, folder=folder, name=task.name), labels)
        for inputs, labels in (task.train, task.held_out)
    )
    return replace(
        task, train=train, held_out=held_out, model="linear",
        facts={**task.facts, "shape": tuple(train[0].shape[1:])}, source=f"{task.source}; scattering ({said})",
    )  # fmt: skip


def kept(inputs: Tensor, made: Callable[[Tensor], Tensor], *, said: str, folder: Path, name: str) -> Tensor:
    """`made(inputs)` as float32, read from `folder` if it was made there before and is whole; else made and kept.

    Args:
        made: gives float16, which the disk holds; each row must depend on one row of `inputs` alone.
        said: all that decides what `made` gives but `inputs`: a part of the key.
        name: how the file's name begins.
    """
    key = sha256(said.encode() + digest(inputs).encode()).hexdigest()
    file = folder / f"{name}-{key[:24]}.safetensors"
    found = _read(file, key, len(inputs))
    if found is None:
        found = torch.cat([made(part) for part in torch.split(inputs, _PART)])
        _write(file, key, found)
    return found.float()


def digest(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's bytes, its shape and its type."""
    whole = sha256(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    whole.update(tensor.contiguous().numpy().data)
    return whole.hexdigest()


def _read(file: Path, key: str, rows: int) -> Tensor | None:
    """The features in a file; None if there is none, or it is damaged or of other images."""
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            about = opened.metadata() or {}
            found: Tensor = opened.get_tensor("features")
    except (OSError, safetensors.SafetensorError):
        return None
    return found if len(found) == rows and about == {"key": key, "sha256": digest(found)} else None


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
