"""MNIST and its kind: the idx format, plain or with gzip."""

from __future__ import annotations

import gzip
import math
import struct
import zlib

import numpy as np

from cerebro.data.columns import Array
from cerebro.data.named.kinds import Form, Found, Loaded, Options, Rows, Scratch
from cerebro.errors import DataError

_BYTES = 0x08  # the type of a number, as idx files name it
_MAX_BYTES = 1 << 32


def _names(stem: str, dimensions: int) -> tuple[str, ...]:
    names = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte")
    return tuple(f"{name}{ending}" for ending in (".gz", "") for name in names)


FORM = Form(
    "idx",
    {
        "train_x": _names("train-images", 3),
        "train_y": _names("train-labels", 1),
        "valid_x": _names("t10k-images", 3),
        "valid_y": _names("t10k-labels", 1),
    },
)


def load(found: Found, options: Options, scratch: Scratch) -> Loaded:
    """The pictures as (rows, 1, height, width), and their labels."""
    return Loaded(
        train=_rows(found.files["train_x"], found.files["train_y"]),
        valid=_rows(found.files["valid_x"], found.files["valid_y"]),
    )


def _rows(pictures: str, labels: str) -> Rows:
    x, y = read_idx(pictures, dimensions=3), read_idx(labels, dimensions=1)
    if len(x) != len(y):
        raise DataError(
            f"every picture needs a label, but {pictures} has {len(x)} pictures and {labels} "
            f"{len(y)} labels."
        )
    return Rows(x[:, np.newaxis], y.astype(np.int64))


def read_idx(path: str, *, dimensions: int) -> Array:
    """The bytes of an idx file as an array with so many dimensions."""
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            return _read(file.read(_MAX_BYTES), path, dimensions)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}. Get it again.") from error


def _read(data: bytes, path: str, dimensions: int) -> Array:
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise DataError(
            f"{path} must be an idx file of bytes with {dimensions} dimensions, but begins with "
            f"{data[:4].hex(' ') or 'nothing'}. Get it again."
        )
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"{path} must hold {' x '.join(map(str, shape))} bytes, as it says, but holds "
            f"{len(data) - start}. Get it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
