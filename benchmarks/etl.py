"""From raw files to shards and predictions, against other ways to do the same.

    python -m benchmarks.etl [--json] [--data FILE.npz] [--quick] [--rows N] [--spark]

images   60,000 pictures of 28 x 28, PNG and JPEG by turns, and a CSV with their labels, to 8
         shuffled shards with `run_etl`, an ETLSpec and two workers. `bare` is the bound: two
         processes that decode half of the files each into an array, and do nothing else; they know
         the names of the files before their time counts, as ours does, whose workers start while
         the table is read. The others also write shards with digests: `pandas` is a loop in one
         process, `dataloader` torch's with two workers, `ray` is Ray Data, `spark` Spark local[2].
csv      200 MB of numbers (ids, 20 columns, a label) to 8 shuffled shards with their SHA-256:
         `from_csv`, and `run_etl` without a spec, against pandas, pyarrow by hand, Polars, Ray
         Data, Spark. The others write what suits them, uncompressed.
predict  eight models over 20,000 JPEGs of 128 x 128, which the task's `decode` makes 32 x 32
         tensors: all in one call of `run_predict`, or eight calls.

Every side is a process of its own and takes its turn in every round; its time counts from the
moment when it has imported what it needs and its workers are there, and once more from its start.
What is written is read back: pixel sums by label, column sums and ids must be the same on all
sides, and digests those of the files. All but Ray and Spark sync them to the disk. `work s` is a
median of rounds; gates take the worse of the ratio of medians and that of the fastest rounds. Files
are made once, in build/benchmarks, as are the environments of Polars, Ray and Spark (with
`--spark`). `--rows` is the number of pictures; the other cases get rows in proportion, and bounds
are for all 60,000. 3 rounds (of `predict` 2), about 8 minutes; `--case` takes one case alone.

Predicted before the first measurement, on two cores:
- images: 0.85 of the bare loops, as a row of ours takes 10 us of bookkeeping on top of 60 us of
  decoding, and 0.3 s pass before and after; pandas 1.8 times as long as ours, the DataLoader 1.3.
- csv: Polars and pyarrow with two threads are the fastest; `from_csv`, which digests and writes
  with one thread, takes 1.3 times as long, `run_etl`, which writes all rows twice, 2 times.
- predict: 6.5, since decoding a row takes 100 us and a model 3 us.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks import etl_images, etl_predict, etl_table
from benchmarks.environment import FOLDER
from benchmarks.report import Report

ROWS, QUICK_ROWS = 60_000, 1_500
#: Rows of the other cases for each picture of the first: 200 MB of CSV, and 20,000 JPEGs.
TABLE_ROWS, PREDICTED = 1_000_000 / ROWS, 1 / 3
ROUNDS = 3
CASES = ("images", "csv", "predict")
#: Of the speed of two loops that decode; of the fastest other; of eight passes.
IMAGES_FLOOR, CSV_FLOOR, PREDICT_FLOOR = 0.9, 1.0, 5.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="raw files to shards and predictions")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz like MNIST's; default: the digits")
    parser.add_argument("--rows", type=int, help=f"pictures (default {ROWS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} pictures, one round")
    parser.add_argument("--spark", action="store_true", help="with Spark, which is 800 MB")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    return parser.parse_args()


def main() -> int:
    given = options()
    torch.set_num_threads(1)
    report = Report()
    report.add("load", os.getloadavg()[0])
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    rounds = 1 if given.quick else ROUNDS
    # With few rows it is the fixed costs that are compared.
    floors = [IMAGES_FLOOR, CSV_FLOOR, PREDICT_FLOOR] if rows >= ROWS else [None] * 3
    cases = given.case or CASES
    kept = FOLDER / "data" / f"{given.data.stem if given.data else 'digits'}-{rows}"
    kept.mkdir(parents=True, exist_ok=True)
    pictures = etl_images.load_pictures(given.data)
    with tempfile.TemporaryDirectory(prefix="cerebro-etl-", dir=FOLDER) as name:
        folder = Path(name)
        if "images" in cases:
            work = etl_images.prepare(pictures, rows, kept)
            sides = etl_images.sides_with(has_spark=given.spark)
            ratio = etl_images.run(work, sides, rounds, folder, report)
            report.gate("images_of_bare", ratio, at_least=floors[0])
        if "csv" in cases:
            work = etl_table.prepare(round(rows * TABLE_ROWS), kept)
            sides = etl_table.sides_with(has_spark=given.spark)
            for name, ratio in etl_table.run(work, sides, rounds, folder, report).items():
                report.gate(f"csv_{name}_vs_fastest", ratio, at_least=floors[1])
        if "predict" in cases:
            experiment = etl_predict.prepare(pictures, round(rows * PREDICTED), folder)
            ratio = etl_predict.run(experiment, min(rounds, 2), report)
            report.gate("predict_speedup", ratio, at_least=floors[2])
    return report.finish(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
