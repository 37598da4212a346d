"""Pictures as all sides of the ETL benchmark see them; NumPy and Pillow only."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.etl_side import Work


def decode(path: str) -> np.ndarray:
    """A picture as all sides decode it."""
    with Image.open(path) as image:
        return np.asarray(image)


def listed(work: Work) -> list[tuple[str, int]]:
    """Paths and labels of all pictures."""
    with open(work["csv"], newline="") as file:
        return [
            (os.path.join(work["folder"], row["path"]), int(row["label"]))
            for row in csv.DictReader(file)
        ]


def tally_pictures(batches: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Rows, and the sum of all pixels of each label, of batches of pictures and labels."""
    rows, sums = 0, np.zeros(10, np.int64)
    for pictures, labels in batches:
        pictures, labels = np.asarray(pictures), np.asarray(labels)
        rows += len(labels)
        np.add.at(sums, labels, pictures.reshape(len(labels), -1).sum(1, dtype=np.int64))
    return {"rows": rows, "sums": sums.tolist()}
