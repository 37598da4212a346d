"""Pictures for cifar10.ipynb: files in folders, and tables that name them.

They come from where `source` says: Parquet files with the columns `image` (an encoded picture) and
`label` (a number), whose names contain "train" and "test"; or folders `train` and `test` with a
folder of pictures for each class. Without a source they are painted: ten colours with noise.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
SIZE = 32


def prepare(folder: str, *, source: str | None, rows: int) -> int:
    """Write train, val, test and predict pictures and tables into a folder.

    Of the training pictures `rows` are taken for train and a fourth of that for val; as many as for
    val are taken from the others for test, and a few of these again for predict. Returns how many
    there are for train.
    """
    few = max(CLASSES, rows // 4)
    training = _pictures(source, "train", seed=1)
    count = _write(folder, "train", islice(training, rows))
    _write(folder, "val", islice(training, few))
    _write(folder, "test", islice(_pictures(source, "test", seed=2), few))
    _write(folder, "predict", islice(_pictures(source, "test", seed=2), CLASSES))
    return count


def _write(folder: str, split: str, pictures: Iterator[tuple[Image.Image, int]]) -> int:
    place = Path(folder) / split
    place.mkdir(parents=True, exist_ok=True)
    header = ["id", "picture", *(["label"] if split != "predict" else [])]
    with open(f"{place}.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        count = 0
        for count, (picture, label) in enumerate(pictures, 1):
            name = f"{count - 1:05d}.png"
            picture.save(place / name)
            table.writerow([count - 1, name, label][: len(header)])
    return count


def _pictures(source: str | None, split: str, seed: int) -> Iterator[tuple[Image.Image, int]]:
    if not source:
        return _painted(seed)
    if tables := sorted(Path(source).glob(f"*{split}*.parquet")):
        return _from_tables(tables)
    if (Path(source) / split).is_dir():
        return _from_folders(Path(source) / split, seed)
    raise FileNotFoundError(f"{source} has neither *{split}*.parquet nor a folder {split}")


def _painted(seed: int) -> Iterator[tuple[Image.Image, int]]:
    draw = np.random.default_rng(seed)
    colours = np.random.default_rng(0).integers(40, 216, size=(CLASSES, 3))
    while True:
        label = int(draw.integers(CLASSES))
        noise = draw.normal(scale=20, size=(SIZE, SIZE, 3))
        pixels = np.clip(colours[label] + noise, 0, 255).astype(np.uint8)
        yield Image.fromarray(pixels), label


def _from_tables(tables: list[Path]) -> Iterator[tuple[Image.Image, int]]:
    import pyarrow.parquet as pq

    for table in tables:
        for batch in pq.ParquetFile(table).iter_batches(1000, columns=["image", "label"]):
            for row in batch.to_pylist():
                yield Image.open(io.BytesIO(row["image"])).convert("RGB"), row["label"]


def _from_folders(folder: Path, seed: int) -> Iterator[tuple[Image.Image, int]]:
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files = [
        (path, n) for n, name in enumerate(classes) for path in sorted((folder / name).iterdir())
    ]
    for number in np.random.default_rng(seed).permutation(len(files)):
        path, label = files[number]
        yield Image.open(path).convert("RGB"), label
