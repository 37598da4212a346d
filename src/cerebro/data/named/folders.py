"""ImageNet and its kind: two folders with one folder of pictures a class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cerebro.data.ahead import ahead
from cerebro.data.archive import ImageFolder
from cerebro.data.archive.folder import FileEntry
from cerebro.data.archive.images import decode_cropped
from cerebro.data.named.kinds import Form, Found, Loaded, Options, Rows, Scratch, draw
from cerebro.errors import DataError, UsageError
from cerebro.types import Json, Split

OPTIONS: Mapping[str, Json] = {
    "input_shape": [224, 224, 3],
    "train_dir": None,
    "valid_dir": None,
}
FORM = Form("folders", {"train": ("train",), "valid": ("val", "valid", "validation")})
#: Options that name folders, by what is in them.
GIVEN_BY = {"train": "train_dir", "valid": "valid_dir"}
#: Pictures that are decoded at a time; Pillow lets other threads run meanwhile.
_THREADS = 4


def load(found: Found, options: Options, scratch: Scratch) -> Loaded:
    """Pictures decoded, scaled and cropped once; a class is the place of its folder's name."""
    shape = options.shape("input_shape", 3)
    train, valid = (ImageFolder(found.files[role]) for role in ("train", "valid"))
    if train.classes != valid.classes:
        odd = sorted({*train.classes} ^ {*valid.classes})
        raise DataError(
            f"train and validation must have the same classes, but {odd[0]!r} is only in one of "
            f"{train.root} and {valid.root}."
        )
    return Loaded(
        _decoded(_chosen(train, options.n_train, options.seed, Split.TRAIN), shape, scratch),
        _decoded(_chosen(valid, options.n_valid, options.seed, Split.VAL), shape, scratch),
    )


def _chosen(folder: ImageFolder, count: int | None, seed: int, split: Split) -> list[FileEntry]:
    """All, or so many drawn at random: the first ones would be of one class."""
    if count is None:
        return folder.entries
    return [folder.entries[number] for number in draw(len(folder.entries), count, seed, split)]


def _decoded(entries: list[FileEntry], shape: tuple[int, ...], scratch: Scratch) -> Rows:
    height, width, channels = shape
    if channels not in (1, 3):
        raise UsageError(f"pictures have 1 or 3 channels, but input_shape says {channels}.")
    x = scratch((len(entries), channels, height, width))

    def put(item: tuple[int, FileEntry]) -> None:
        number, entry = item
        path = entry.paths[0][1]
        try:
            with open(path, "rb") as file:
                picture = decode_cropped(file.read(), height, width, is_gray=channels == 1)
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(
                f"{path} cannot be read as a picture: {error}. Remove it, or replace it."
            ) from error
        x[number] = picture.transpose(2, 0, 1)

    for _ in ahead(put, enumerate(entries), _THREADS):
        pass
    return Rows(x, np.array([entry.label for entry in entries], np.int64))
