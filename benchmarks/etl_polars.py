"""Polars' side of the ETL benchmark, in an environment of its own."""

from __future__ import annotations

from importlib import import_module

from benchmarks.etl_side import Told, Work, digests_in, written
from benchmarks.etl_tally import tally_columns


def table(work: Work) -> Told:
    """Read and shuffled with all cores; two threads write and digest."""
    polars = import_module("polars")
    yield {}
    frame = polars.read_csv(work["csv"]).sample(fraction=1.0, shuffle=True, seed=1)

    def write(rows: slice, path: str) -> None:
        frame[rows].write_ipc(path, compression="uncompressed")

    yield {"digests": written(work, len(frame), ".arrow", write, threads=2)}
    found = [polars.read_ipc(path) for path in digests_in(work["out"], ".arrow")]
    yield tally_columns({name: part[name].to_numpy() for name in part.columns} for part in found)
