"""A large CSV file to shards: the second case of the ETL benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.environment import python_with
from benchmarks.etl_images import RAY, SHARDS, SPARK
from benchmarks.etl_rounds import Side, compete, gain, tell
from benchmarks.etl_side import Work
from benchmarks.etl_tally import COLUMNS, DECIMALS, tally_columns
from benchmarks.report import Report

POLARS = ("polars", "numpy", "polars==2.1.0")
OURS = ("from_csv", "run_etl")
#: Readers use as many as the machine has cores.
THREADS = 2
_BLOCK = 100_000

PLAIN = [
    Side("from_csv", "benchmarks.etl_ours:table_from_csv", threads=THREADS),
    Side("run_etl", "benchmarks.etl_ours:table", threads=THREADS),
    Side("pyarrow", "benchmarks.etl_scripts:pyarrow_table", threads=THREADS),
    Side("pandas", "benchmarks.etl_scripts:pandas_table", threads=THREADS),
]


def prepare(rows: int, folder: Path) -> Work:
    """A file that stays for the next time: ids, 20 columns of numbers, a label."""
    path = folder / "table.csv"
    if not path.exists():
        unfinished = folder / "unfinished.csv"
        with open(unfinished, "wb") as file:
            for first in range(0, rows, _BLOCK):
                options = pa.csv.WriteOptions(include_header=first == 0, quoting_style="none")
                pa.csv.write_csv(block(first, min(_BLOCK, rows - first)), file, options)
        unfinished.rename(path)
    return {"csv": str(path), "rows": rows, "shards": SHARDS}


def block(first: int, rows: int) -> pa.Table:
    """Rows of the table, the same every time."""
    rng = np.random.default_rng([0, first])
    numbers = {name: rng.normal(size=rows).round(DECIMALS) for name in COLUMNS}
    return pa.table(
        {"id": np.arange(first, first + rows), **numbers, "label": rng.integers(0, 10, rows)}
    )


def sides_with(*, has_spark: bool) -> list[Side]:
    """Who takes part."""
    found = list(PLAIN)
    wanted = {"polars": POLARS, "ray": RAY, **({"spark": SPARK} if has_spark else {})}
    for name, packages in wanted.items():
        python = python_with(*packages)
        if python is None:
            print(f"{name} is left out")
        else:
            found.append(Side(name, f"benchmarks.etl_{name}:table", python, threads=THREADS))
    return found


def run(
    work: Work, sides: Sequence[Side], rounds: int, folder: Path, report: Report
) -> dict[str, float]:
    """All sides, checked and told; how many times as fast as the fastest other each of ours is."""
    firsts = range(0, work["rows"], _BLOCK)
    blocks = (block(first, min(_BLOCK, work["rows"] - first)) for first in firsts)
    expected = tally_columns({n: t[n].to_numpy() for n in t.column_names} for t in blocks)
    found = compete(sides, work, rounds, folder, {**expected, "is_shuffled": True})
    size = Path(work["csv"]).stat().st_size
    tell("csv", found, ours=OURS[0], rows=work["rows"], size_bytes=size, report=report)
    fastest_of: dict[str, float] = {}
    for ours in OURS:
        gains = {name: gain(found, name, ours) for name in found if name not in OURS}
        fastest = min(gains, key=lambda name: gains[name])
        print(f"{ours}: {gains[fastest]:.2f} times as fast as {fastest}", flush=True)
        fastest_of[ours] = gains[fastest]
    return fastest_of
