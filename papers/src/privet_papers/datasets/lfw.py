"""Labelled Faces in the Wild as a task: people with enough pictures, as Wei and Liu use them."""

from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np

from privet import _check
from privet.data.files import DataFolders, File, candidate_paths, find, read, read_content
from privet.data.images import decode_picture
from privet.data.task import Task, register, tensors
from privet.errors import InvalidValue
from privet_papers.datasets.archives import untar

ARCHIVE = File(
    dataset="lfw",
    name="lfw.tgz",
    sha256="055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
    size=180566744,
    url="https://ndownloader.figshare.com/files/5976018",
)
FACE = (78, 70, 172, 195)  # of 250 x 250 pixels, the box that holds the face


@register("lfw")
def lfw(*, where: DataFolders, least: int = 20, side: int = 32) -> Task:
    """Faces to be named: everyone with at least `least` pictures, cut to the face, `side` x `side`, in colour.

    With 20 these are 3,023 pictures of 62 people, of which every fourth judges: 2,267 and 756, the sizes in Table II of
    Wei and Liu 2021. Their text says 4:1, and which pictures judge it does not say. The files are `lfw.tgz`, or the
    folder `lfw` that is in it: `lfw/<person>/<person>_0001.jpg`.
    """
    _check.whole(least=least, side=side)
    kept, source = _read_pictures(where, least)
    people = sorted({person for person, _, _ in kept})
    pixels = np.stack([decode_picture(content, name=name, side=side, box=FACE) for _, name, content in kept])
    labels = np.array([people.index(person) for person, _, _ in kept])
    judging = np.arange(len(kept)) % 4 == 0
    return Task(
        name="lfw",
        train=tensors(pixels[~judging], labels[~judging]),
        held_out=tensors(pixels[judging], labels[judging]),
        evaluation=f"every fourth picture, {judging.sum():,} of {len(kept):,}, never trained on",
        model="cnn",
        facts={"shape": (3, side, side), "classes": len(people)},
        source=f"Labelled Faces in the Wild (Huang et al. 2007), {len(people)} people with at least {least} pictures, "
        f"cut to the box {FACE} and made {side} x {side}, divided by 255; {source}",
    )


def _read_pictures(where: DataFolders, least: int) -> tuple[list[tuple[str, str, bytes]], str]:
    """(person, name, content), in the order of names, of those with enough pictures; and what they were read from."""
    folder = None if find(where, "lfw", ARCHIVE.name) else _find_folder(where)
    files: dict[str, Path | bytes] = {}
    if folder is None:
        files |= _read_archive(where)
        source = f"lfw.tgz SHA-256 {ARCHIVE.sha256}"
    else:
        files |= {path.relative_to(folder).as_posix(): path for path in folder.glob("*/*.jpg")}
        source = "a folder of its pictures, whose content was not checked"
    people = Counter(PurePosixPath(name).parent.name for name in files)
    names = sorted(name for name in files if people[PurePosixPath(name).parent.name] >= least)
    if len({PurePosixPath(name).parent for name in names}) < 2:
        raise InvalidValue(f"least={least} leaves fewer than two people to tell apart. Lower it.")
    held = {name: files[name] for name in names}
    return [
        (PurePosixPath(name).parent.name, name, read_content(found) if isinstance(found, Path) else found)
        for name, found in held.items()
    ], source


def _read_archive(where: DataFolders) -> dict[str, bytes]:
    members = untar(read(where, ARCHIVE), limit=2**29, name=str(ARCHIVE))
    return {name: held for name, held in members if name.endswith(".jpg")}


def _find_folder(where: DataFolders) -> Path | None:
    """The folder that has a folder for each person."""
    return next((path for path in candidate_paths(where, "lfw", "lfw") if next(path.glob("*/*_0001.jpg"), None)), None)
