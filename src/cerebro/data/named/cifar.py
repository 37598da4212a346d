"""CIFAR-10: the binary version, packed or not, and pictures of whole batches."""

from __future__ import annotations

import json
import os
from typing import cast

import numpy as np

from cerebro.data.archive import read_samples
from cerebro.data.archive.images import decode_image
from cerebro.data.columns import Array
from cerebro.data.named.kinds import Form, Found, Loaded, Options, Rows, Scratch
from cerebro.errors import DataError

BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
_SIDE, _CHANNELS, _CLASSES = 32, 3, 10
_RECORD = 1 + _CHANNELS * _SIDE * _SIDE

ARCHIVE = Form("archive", {"archive": ("cifar-10-binary.tar.gz",)})
BINARY = Form("binary", {name: (f"{name}.bin",) for name in (*BATCHES, TEST)})
PNG = Form(
    "png",
    {
        **{name: (f"{name}.png",) for name in (*BATCHES, TEST)},
        # The package that many have them from spells it so.
        "train_y": ("train_lables.json", "train_labels.json"),
        "test_y": ("test_lables.json", "test_labels.json"),
    },
)
_PICKLES = (
    "is made of pickles, which run code when they are read, and is refused. Use the binary "
    "version, cifar-10-binary.tar.gz: `cerebro data get cifar10` fetches it."
)
REFUSED = dict.fromkeys(("cifar-10-python.tar.gz", "cifar-10-batches-py"), _PICKLES)


def load(found: Found, options: Options, scratch: Scratch) -> Loaded:
    """The pictures as (rows, 3, 32, 32), and their labels."""
    if found.kind == PNG.kind:
        return _from_pictures(found)
    if found.kind == ARCHIVE.kind:
        batches = _unpacked(found.files["archive"])
    else:
        batches = {name: _records(_read(path), path) for name, path in found.files.items()}
    train = np.concatenate([batches[name] for name in BATCHES])
    return Loaded(_rows(train), _rows(batches[TEST]))


def _unpacked(path: str) -> dict[str, Array]:
    """The batches of an archive; nothing is extracted."""
    found: dict[str, Array] = {}
    for sample in read_samples(path):
        name = os.path.basename(str(sample["__key__"]))
        if name in (*BATCHES, TEST) and "bin" in sample:
            found[name] = _records(cast(bytes, sample["bin"]), f"{name}.bin in {path}")
    missing = sorted({*BATCHES, TEST} - found.keys())
    if missing:
        raise DataError(f"{path} must hold {missing[0]}.bin, but does not. Get it again.")
    return found


def _records(data: bytes, where: str) -> Array:
    if not data or len(data) % _RECORD:
        raise DataError(
            f"{where} must be records of {_RECORD} bytes, a label and a picture, but has "
            f"{len(data)} bytes. Get it again."
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    _check_labels(records[:, 0], where)
    return records


def _rows(records: Array) -> Rows:
    pictures = records[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE)
    return Rows(pictures, records[:, 0].astype(np.int64))


def _from_pictures(found: Found) -> Loaded:
    train = np.concatenate([_batch(found.files[name]) for name in BATCHES])
    return Loaded(
        _labelled(train, found.files["train_y"]),
        _labelled(_batch(found.files[TEST]), found.files["test_y"]),
    )


def _batch(path: str) -> Array:
    """A picture in which each line is a picture."""
    pixels = decode_image(_read(path), "rgb8")
    if pixels.shape[1] != _SIDE * _SIDE:
        raise DataError(
            f"{path} must be {_SIDE * _SIDE} pixels wide, a picture of {_SIDE} x {_SIDE} in each "
            f"line, but is {pixels.shape[1]}."
        )
    rows = pixels.reshape(-1, _SIDE, _SIDE, _CHANNELS)
    return np.ascontiguousarray(rows.transpose(0, 3, 1, 2))


def _labelled(pictures: Array, path: str) -> Rows:
    try:
        labels = np.asarray(json.loads(_read(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} must be a JSON list of labels, but: {error}.") from error
    if labels.shape != (len(pictures),) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path} must be a JSON list of {len(pictures)} whole numbers, one for each picture, "
            f"but is {labels.dtype} of shape {labels.shape}."
        )
    _check_labels(labels, path)
    return Rows(pictures, labels.astype(np.int64))


def _check_labels(labels: Array, where: str) -> None:
    if len(labels) and not (labels.min() >= 0 and labels.max() < _CLASSES):
        raise DataError(
            f"labels must be 0 to {_CLASSES - 1}, but {where} has {labels.min()} to {labels.max()}."
        )


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
