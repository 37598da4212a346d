"""Our sides of the ETL benchmark: experiments as users write them."""

from __future__ import annotations

import os
import statistics
import time
from typing import ClassVar

import numpy as np

from benchmarks.etl_pictures import decode, tally_pictures
from benchmarks.etl_side import Told, Work
from benchmarks.etl_tally import tally_columns
from cerebro import ETLSpec, Experiment
from cerebro import data as cdata
from cerebro.backend.base import Event, Joined, Opening
from cerebro.backend.local import LocalBackend


class Watched(LocalBackend):
    """Notes how long workers were waited for: what is done while they start is our own time."""

    joined_s: ClassVar[list[float]] = []

    def start(self, setup: Opening, workers: int) -> None:
        self._waited_since: float | None = None
        super().start(setup, workers)

    def events(self) -> list[Event]:
        if self._waited_since is None:
            self._waited_since = time.perf_counter()
        found = super().events()
        seconds = time.perf_counter() - self._waited_since
        self.joined_s.extend(seconds for event in found if isinstance(event, Joined))
        return found

    @classmethod
    def take_start_s(cls) -> float:
        """What a worker lost on average since this was last asked: the first begins at once."""
        seconds = statistics.mean(cls.joined_s) if cls.joined_s else 0.0
        cls.joined_s.clear()
        return seconds


class Decoded(ETLSpec):
    """Pictures as uint8 (1, height, width)."""

    def set_features(self):
        return [False, True, False]

    def row_prep(self, row, mode, object_dir):
        return decode(f"{object_dir}/{row['path']}")[None], row["label"]


def pictures(work: Work) -> Told:
    yield {}
    locators = {"train_main": work["csv"], "train_dir": work["folder"], "output_dir": work["out"]}
    yield prepared(locators, Decoded(), work)
    dataset = cdata.open_dataset(os.path.join(work["out"], "etl.data", "etl"))
    shards = [dataset.open_shard("train", n) for n in range(len(dataset.shards("train")))]
    yield tally_pictures((shard.columns["x"], shard.columns["y"]) for shard in shards)


def table(work: Work) -> Told:
    """`run_etl` without a spec."""
    yield {}
    yield prepared({"train_main": work["csv"], "output_dir": work["out"]}, None, work)
    yield columns_of(os.path.join(work["out"], "etl.data", "etl"))


def prepared(
    locators: dict[str, str], spec: ETLSpec | None, work: Work
) -> dict[str, dict[str, str] | float]:
    """Run it; digests, and how long workers took to start."""
    experiment = Experiment(locators, name="etl", backend=Watched(), workers=2)
    report = experiment.run_etl(spec, shards=work["shards"], progress=False)
    return {"digests": digests_of(report.path), "workers_s": Watched.take_start_s()}


def table_from_csv(work: Work) -> Told:
    """`from_csv`, in this process alone."""
    yield {}
    path = os.path.join(work["out"], "data")
    cdata.from_csv(path, work["csv"], shards=work["shards"], seed=1)
    yield {"digests": digests_of(path)}
    yield columns_of(path)


def digests_of(path: str) -> dict[str, str]:
    shards = cdata.open_dataset(path).shards("train")
    return {os.path.join(path, info.file): info.sha256 for info in shards}


def columns_of(path: str) -> dict[str, object]:
    dataset = cdata.open_dataset(path)
    shards = [dataset.open_shard("train", n) for n in range(len(dataset.shards("train")))]
    return tally_columns(
        {name: np.asarray(values) for name, values in shard.columns.items()} for shard in shards
    )
