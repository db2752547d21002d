"""Pictures (PNG, JPEG, WebP) as arrays of bytes, by Pillow, which is imported only here."""

import io
import warnings
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.errors import InvalidValue, MissingExtra

Box = tuple[int, int, int, int]  # left, upper, right, lower
MOST = 2**27  # pixels; a picture that unpacks to more is refused before it is unpacked
_COLOURS = {1: "L", 3: "RGB"}


def pillow() -> ModuleType:
    """The module PIL.Image."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow is not installed. Pictures need it. Run: pip install 'privet[images]'") from None
    return Image


def picture(
    content: bytes, *, name: str, colours: int = 3, side: int | None = None, box: Box | None = None
) -> NDArray[np.uint8]:
    """One picture as (colours, height, width): cut to `box`, then made `side` x `side`.

    Raises:
        InvalidValue: it is no picture, is damaged, or is larger than any dataset's.
    """
    image = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its size, which is checked here, and of odd metadata
            with image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP", "BMP", "GIF")) as opened:
                if opened.width * opened.height > MOST:
                    raise InvalidValue(f"{name}: has more than {MOST:,} pixels. Replace it by a smaller one.")
                pixels = _eight_bits(opened, name).convert(_COLOURS[colours])
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


def _eight_bits(opened: Any, name: str) -> Any:
    """The picture with a byte for each colour; Pillow would make 255 of all that is above, so nearly all white."""
    if opened.mode.startswith("I;16"):
        return pillow().fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    if opened.mode[0] in "IF":
        raise InvalidValue(f"{name}: has pixels of neither 8 nor 16 bits. Save it with 8 bits a colour.")
    return opened
