"""Street View House Numbers, as MATLAB files of pictures of 32 x 32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cerebro.data.columns import Array
from cerebro.data.named.kinds import Form, Found, Loaded, Options, Rows, Scratch
from cerebro.data.named.mat import read_mat
from cerebro.errors import DataError
from cerebro.types import Json

#: Pictures that are read at a time.
_BLOCK = 4096
_PICTURE = (32, 32, 3)

FORMS = (
    Form("mat", {name: (f"{name}_32x32.mat",) for name in ("train", "extra", "test")}),
    Form("mat", {name: (f"{name}_32x32.mat",) for name in ("train", "test")}),
)
OPTIONS: Mapping[str, Json] = {"extra": True}


def load(found: Found, options: Options, scratch: Scratch) -> Loaded:
    """Train and, unless `extra` is false, extra for training; test for validation."""
    if not options.own["extra"]:
        names = ["train"]
    elif "extra" in found.files:
        names = ["train", "extra"]
    else:
        raise DataError(
            f"svhn needs extra_32x32.mat, but {found.folder} has none. Get it with "
            "`cerebro data get svhn`, or train without it: extra=false."
        )
    return Loaded(
        _read([found.files[name] for name in names], scratch),
        _read([found.files["test"]], scratch),
    )


def _read(paths: list[str], scratch: Scratch) -> Rows:
    """The rows of files, one after the other."""
    counts = [_count(path) for path in paths]
    x = scratch((sum(counts), *_PICTURE[::-1]))
    labels: list[Array] = []
    start = 0
    for path, count in zip(paths, counts, strict=True):
        labels.append(_fill(x[start : start + count], path))
        start += count
    return Rows(x, np.concatenate(labels))


def _count(path: str) -> int:
    for array in read_mat(path):
        if array.name == "X" and len(array.shape) == 4 and array.shape[:3] == _PICTURE:
            return array.shape[-1]
    raise _unlike(path)


def _fill(x: Array, path: str) -> Array:
    """Put the pictures of a file into an array; their labels."""
    y: Array | None = None
    for array in read_mat(path):
        if array.name == "X":
            for number, block in enumerate(array.blocks(_BLOCK)):
                start = number * _BLOCK
                # By columns: (rows, channels, width, height).
                x[start : start + len(block)] = block.transpose(0, 1, 3, 2)
        elif array.name == "y":
            y = array.whole()
    if y is None or len(x) != len(y):
        raise _unlike(path)
    if len(y) and not (y.min() >= 1 and y.max() <= 10):
        raise DataError(f"labels must be 1 to 10, but {path} has {y.min()} to {y.max()}.")
    # The digit 0 has the label 10 there.
    return y.astype(np.int64) % 10


def _unlike(path: str) -> DataError:
    return DataError(
        f"{path} must hold X, pictures of 32 x 32 x 3, and y, a label for each. Get it again."
    )
