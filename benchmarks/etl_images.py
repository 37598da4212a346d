"""Pictures and a table of labels to shards: the first case of the ETL benchmark."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.environment import python_with
from benchmarks.etl_pictures import listed, tally_pictures
from benchmarks.etl_rounds import Side, compete, gain, tell
from benchmarks.etl_side import Work
from benchmarks.report import Report
from cerebro import data as cdata

SHARDS = 8
RAY = ("ray_data", "numpy", "pillow", "ray[data]==2.60.0")
SPARK = ("spark", "numpy", "pillow", "pandas", "pyarrow", "pyspark==4.3.0")
_SCRIPTS = "benchmarks.etl_scripts"

#: Ours, the bound, and what people write.
PLAIN = [
    Side("ours", "benchmarks.etl_ours:pictures"),
    Side("bare", f"{_SCRIPTS}:bare", works=[{"first": 0}, {"first": 1}]),
    Side("pandas", f"{_SCRIPTS}:pandas_pictures"),
    Side("dataloader", f"{_SCRIPTS}:loader_pictures"),
]


def load_pictures(file: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Real pictures as uint8 (rows, 28, 28), and labels; digits are drawn larger."""
    if file is not None:
        with np.load(file, allow_pickle=False) as arrays:
            return arrays["x_train"], arrays["y_train"].astype(np.int64)
    digits = cdata.digits()
    small = np.round(digits["x"] * 255).astype(np.uint8).reshape(-1, 8, 8)
    drawn = [
        Image.fromarray(picture).resize((28, 28), Image.Resampling.BICUBIC) for picture in small
    ]
    return np.stack([np.asarray(picture) for picture in drawn]), digits["y"]


def prepare(pictures: tuple[np.ndarray, np.ndarray], rows: int, folder: Path) -> Work:
    """Files that stay for the next time: PNG and, every other one, JPEG; and a table."""
    x, y = pictures
    place, table = folder / "pictures", folder / "pictures.csv"
    if not table.exists():
        shutil.rmtree(place, ignore_errors=True)
        lines = []
        for number in range(rows):
            kind = "jpg" if number % 2 else "png"
            path = place / f"{number // 1000:03d}" / f"{number:06d}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[number % len(x)]).save(path, quality=90)
            lines.append([number, str(path.relative_to(place)), int(y[number % len(x)])])
        with open(folder / "unfinished", "w", newline="") as file:
            csv.writer(file).writerows([["id", "path", "label"], *lines])
        (folder / "unfinished").rename(table)
    return {"csv": str(table), "folder": str(place), "shape": [1, *x.shape[1:]], "shards": SHARDS}


def sides_with(*, has_spark: bool) -> list[Side]:
    """Who takes part."""
    found = list(PLAIN)
    wanted = {"ray": RAY, **({"spark": SPARK} if has_spark else {})}
    for name, packages in wanted.items():
        python = python_with(*packages)
        if python is None:
            print(f"{name} is left out")
        else:
            found.append(Side(name, f"benchmarks.etl_{name}:pictures", python))
    return found


def run(work: Work, sides: Sequence[Side], rounds: int, folder: Path, report: Report) -> float:
    """All sides, checked and told; our speed, as a fraction of that of the bare loops."""
    files = listed(work)
    found = compete(sides, work, rounds, folder, expected(files))
    size = sum(Path(path).stat().st_size for path, _ in files)
    tell("images", found, ours="ours", rows=len(files), size_bytes=size, report=report)
    return gain(found, "bare", "ours")


def expected(files: Sequence[tuple[str, int]]) -> dict[str, object]:
    """What the files hold, decoded here."""
    return tally_pictures((np.asarray(Image.open(path))[None], [label]) for path, label in files)
