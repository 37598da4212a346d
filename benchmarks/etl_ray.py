"""Ray Data's sides of the ETL benchmark, in an environment of its own."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.etl_pictures import listed, tally_pictures
from benchmarks.etl_side import Told, Work, digests_in
from benchmarks.etl_tally import tally_columns

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def started() -> Any:
    """Ray on two cores."""
    ray = import_module("ray")
    import_module("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def pictures(work: Work) -> Told:
    """Files in random order, read and decoded by Ray, labels looked up by path."""
    ray = started()
    yield {}
    labels = {os.path.realpath(path): label for path, label in listed(work)}

    def label(batch: dict[str, Any]) -> dict[str, Any]:
        found = [labels[os.path.realpath(path)] for path in batch.pop("path")]
        return {"x": batch["image"], "y": np.array(found)}

    read = ray.data.read_images(work["folder"], mode="L", include_paths=True, shuffle="files")
    done = read.map_batches(label, batch_format="numpy").repartition(work["shards"])
    done.write_parquet(work["out"], compression="none")
    yield {"digests": digests_in(work["out"], ".parquet")}
    written = ray.data.read_parquet(work["out"]).iter_batches(batch_format="numpy")
    yield tally_pictures((batch["x"], batch["y"]) for batch in written)
    ray.shutdown()


def table(work: Work) -> Told:
    """Every row in a random place."""
    ray = started()
    yield {}
    done = ray.data.read_csv(work["csv"]).random_shuffle(seed=1).repartition(work["shards"])
    done.write_parquet(work["out"], compression="none")
    yield {"digests": digests_in(work["out"], ".parquet")}
    written = ray.data.read_parquet(work["out"]).iter_batches(batch_format="numpy")
    yield tally_columns(written)
    ray.shutdown()
