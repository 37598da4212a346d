"""A worker that takes four times as long as another: it does not stretch the run."""

from __future__ import annotations

import pytest

from cerebro.mop import Costs, simulate
from cerebro.run.reporter import Reporter
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from tests.cluster.slowed import EVAL_SHARE, SLOW, VISIT_S, SlowedBackend
from tests.experiments import fast_folder, fit_toy, make_toy_data, outcome, toy_spec

SHARDS, EPOCHS = 4, 3
SPACE = {"lr": [0.1, 0.05, 0.02, 0.01]}
TRIALS = len(SPACE["lr"])


def test_a_worker_slowed_four_times_does_not_stretch_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = SlowedBackend()
    with fast_folder() as folder:
        make_toy_data(folder / "data", shards=SHARDS)
        spec = toy_spec(folder / "data", SPACE, epochs=EPOCHS, stack=False)
        with monkeypatch.context() as patch:
            patch.setattr(Reporter, "now", lambda reporter: backend.now_s)
            fit_toy(folder / "slowed", spec, backend=backend, workers=2, threaded=True)
        fit_toy(folder / "inline", spec)
        assert outcome(folder / "slowed").digest == outcome(folder / "inline").digest
        records = read(DirectoryStore(folder / "slowed")).records
    speeds = [1.0 / VISIT_S[worker] for worker in sorted(VISIT_S)]
    costs = Costs([1.0] * TRIALS, speeds, SHARDS, spec.val_shards, EPOCHS, EVAL_SHARE)
    # Whoever treats both alike needs 1.18 times as long.
    assert backend.now_s <= 1.10 * costs.lower_bound()
    assert backend.now_s == simulate(costs, durable=0.0).makespan
    # The slow one does its share, and leaves the last visit to the other.
    workers = [record["worker"] for record in records if record["type"] == "visit"]
    assert len(workers) == TRIALS * SHARDS * EPOCHS
    assert workers.count(SLOW) == round(len(workers) * speeds[SLOW] / sum(speeds))
    assert workers[-1] != SLOW
