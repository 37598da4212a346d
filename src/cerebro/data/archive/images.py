"""Pictures to arrays and back, by Pillow."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from cerebro.errors import MissingDependencyError

#: What becomes of a picture: three channels, one, floats from 0 to 1, or nothing.
IMAGES = ("rgb8", "gray8", "float", "bytes")
EXTENSIONS = ("jpeg", "jpg", "pbm", "pgm", "png", "ppm")

# What no other decoder of Pillow's is let near: some start programs.
_FORMATS = ("JPEG", "PNG", "PPM")
_MAX_PIXELS = 1 << 26
#: The share of each side that is kept in the middle.
_MIDDLE = 0.875
_EIGHT_BITS = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}

Picture = npt.NDArray[np.uint8] | npt.NDArray[np.float32]


def decode_image(data: bytes, images: str) -> Picture:
    """A PNG, JPEG or PPM as an array [height, width, channels].

    Transparency is dropped, and orientation marks of cameras are not followed.
    """
    with _open(data) as picture:
        if "transparency" in picture.info:
            picture = picture.convert("RGBA")
        array = np.array(picture.convert("L" if images == "gray8" else "RGB"))
    if images == "gray8":
        return array[:, :, np.newaxis]
    return array.astype(np.float32) / np.float32(255) if images == "float" else array


def decode_cropped(
    data: bytes, height: int, width: int, *, is_gray: bool = False
) -> npt.NDArray[np.uint8]:
    """The middle of a PNG, JPEG or PPM, 7/8 of what fits, as an array [height, width, channels].

    So a picture is scaled to 256 for its shorter side, and 224 of that are taken.
    """
    with _open(data) as picture:
        # A JPEG is decoded at a half, a quarter or an eighth where that is still large enough.
        picture.draft("L" if is_gray else "RGB", (width * 8 // 7 + 1, height * 8 // 7 + 1))
        if "transparency" in picture.info:
            picture = picture.convert("RGBA")
        pixels = picture.convert("L" if is_gray else "RGB")
        scale = min(pixels.width / width, pixels.height / height) * _MIDDLE
        left = (pixels.width - width * scale) / 2
        top = (pixels.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
        array = np.array(pixels.resize((width, height), _pillow().Resampling.BILINEAR, box))
    return array.reshape(height, width, -1)


def _open(data: bytes) -> Any:
    """A picture that may be decoded; closed by who takes it."""
    picture = _pillow().open(io.BytesIO(data), formats=_FORMATS)
    width, height = picture.size
    if width * height > _MAX_PIXELS:
        picture.close()
        raise ValueError(
            f"a picture may have at most {_MAX_PIXELS} pixels, but has {width} x {height}"
        )
    if picture.mode not in _EIGHT_BITS:
        picture.close()
        raise ValueError(
            f"a picture must have 8 bits a channel, but has mode {picture.mode}: "
            'take its bytes with images="bytes" and decode them yourself'
        )
    return picture


def encode_image(array: object, extension: str) -> bytes:
    """An array of bytes [height, width] or [height, width, 1 or 3] as a file; JPEG loses a bit."""
    pixels = np.asarray(array)
    is_gray = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 1)
    if pixels.dtype != np.uint8 or 0 in pixels.shape or not (is_gray or pixels.shape[2:] == (3,)):
        raise ValueError(
            "a picture must be uint8 of shape [height, width, 1 or 3], but is "
            f"{pixels.dtype} of shape {list(pixels.shape)}"
        )
    module = _pillow()
    picture = module.fromarray(pixels.reshape(pixels.shape[:2]) if is_gray else pixels)
    target = io.BytesIO()
    if extension in ("jpg", "jpeg"):
        picture.save(target, "JPEG", quality=95, subsampling=0)
    elif extension == "png":
        picture.save(target, "PNG")
    else:
        mode = {"ppm": "RGB", "pgm": "L", "pbm": "1"}[extension]
        picture.convert(mode).save(target, "PPM")
    return target.getvalue()


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise MissingDependencyError(
            "pictures need Pillow. Install it with `pip install 'cerebro[images]'`, or take their "
            'bytes with images="bytes".'
        ) from error
    return Image
