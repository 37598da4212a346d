"""A worker that takes four times as long as another: it does not stretch the run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from cerebro.backend import LocalBackend
from cerebro.backend.base import Event, Joined
from cerebro.mop import Costs
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from tests.cluster.slowed import SLOW, SlowedTask
from tests.experiments import fast_folder, fit_toy, make_toy_data, outcome, toy_spec

SHARDS, EPOCHS = 4, 3
SPACE = {"lr": [0.1, 0.05, 0.02, 0.01]}
#: Of a visit on the fast worker.
VISIT_S = 0.4


class PairedBackend(LocalBackend):
    """The run begins when both workers have joined."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited = {SLOW, 1 - SLOW}

    def events(self) -> list[Event]:
        found: list[Event] = []
        while not found or self._awaited:
            for event in super().events():
                found.append(event)
                if isinstance(event, Joined):
                    self._awaited.discard(event.info.worker)
        return found


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


def test_a_worker_slowed_four_times_does_not_stretch_the_run() -> None:
    with fast_folder() as folder:
        make_toy_data(folder / "data", shards=SHARDS)
        spec = toy_spec(folder / "data", SPACE, epochs=EPOCHS, stack=False)
        backend = PairedBackend()
        how: dict[str, Any] = {"workers": 2, "threaded": True, "task": SlowedTask(visit_s=VISIT_S)}
        fit_toy(folder / "slowed", spec, backend=backend, **how)
        fit_toy(folder / "inline", spec)
        assert outcome(folder / "slowed").digest == outcome(folder / "inline").digest
        visits = visits_of(folder / "slowed")
    costs = measured(visits)
    assert min(costs.speeds) < 0.4
    makespan_s = max(v["end_s"] for v in visits) - min(v["start_s"] for v in visits)
    assert makespan_s <= 1.10 * costs.lower_bound()
