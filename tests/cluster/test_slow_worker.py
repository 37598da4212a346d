"""A worker with a quarter of a processor beside one with a whole: it does not stretch the run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from cerebro.backend import LocalBackend
from cerebro.backend.base import Event, Joined
from cerebro.data import from_arrays
from cerebro.mop import Costs
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from tests.cluster.quota import quota, why_not
from tests.experiments import fast_folder, fit_toy, outcome, toy_spec

SHARDS, EPOCHS = 4, 3
SPACE = {"lr": [0.1, 0.05, 0.02, 0.01]}
SLOW = 0

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


class SlowedBackend(LocalBackend):
    """Puts one of its workers into a control group as soon as it has joined."""

    def __init__(self, group: Path) -> None:
        super().__init__()
        self._procs = group / "cgroup.procs"

    def events(self) -> list[Event]:
        found = super().events()
        for event in found:
            if isinstance(event, Joined) and event.info.worker == SLOW:
                self._procs.write_text(str(event.info.pid))
        return found


def make_data(path: Path) -> None:
    """So many rows that a visit takes a few tenths of a second, one row a batch."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 24_000)
    x = rng.normal(size=(len(y), 4)).astype(np.float32)
    from_arrays(path, train={"x": x, "y": y}, shards=SHARDS, validation=0.01)


def visits_of(root: Path) -> list[dict[str, Any]]:
    records = read(DirectoryStore(root)).records
    return [dict(record) for record in records if record["type"] == "visit"]


def measured(visits: list[dict[str, Any]]) -> Costs:
    """What visits cost and how fast the workers were, as far as the journal tells."""
    by_worker: dict[int, list[float]] = defaultdict(list)
    for visit in visits:
        by_worker[visit["worker"]].append(visit["end_s"] - visit["start_s"])
    fast = fmean(by_worker[1 - SLOW])
    speeds = {SLOW: fast / fmean(by_worker[SLOW]), 1 - SLOW: 1.0}
    costs: dict[int, list[float]] = defaultdict(list)
    for visit in visits:
        seconds = visit["end_s"] - visit["start_s"]
        costs[visit["trial"]].append(seconds * speeds[visit["worker"]])
    return Costs(
        [fmean(found) for found in costs.values()], list(speeds.values()), SHARDS, 0, EPOCHS
    )


def test_a_worker_slowed_four_times_does_not_stretch_the_run(tmp_path: Path) -> None:
    with fast_folder() as folder:
        make_data(folder / "data")
        spec = toy_spec(folder / "data", SPACE, epochs=EPOCHS, batch_size=1, stack=False)
        with quota(0.25) as group:
            backend = SlowedBackend(group)
            fit_toy(folder / "slowed", spec, backend=backend, workers=2, threaded=True)
        fit_toy(folder / "inline", spec)
        assert outcome(folder / "slowed").digest == outcome(folder / "inline").digest
        visits = visits_of(folder / "slowed")
    costs = measured(visits)
    if min(costs.speeds) > 0.4:
        pytest.skip("others leave so little of the processors that the quota makes no difference")
    makespan_s = max(v["end_s"] for v in visits) - min(v["start_s"] for v in visits)
    assert makespan_s <= 1.10 * costs.lower_bound()
