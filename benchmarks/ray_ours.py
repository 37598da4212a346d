"""Our side of the Ray benchmark, in a process of its own.

    python -m benchmarks.ray_ours WORK.json ray|local

Ends with one line of JSON, a `Took`. The clock starts with `run_fit`, which starts Ray and the
workers, and ends when it returns: workers are gone then, Ray is down, every visit is durable.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch

from benchmarks.ray_work import Took, Work
from benchmarks.workload import SEED, Mlp, save_weights, weights_of
from cerebro import Experiment
from cerebro.results import Result


def fit(work: Work, folder: str, backend: Any) -> Result:
    """The run as a user starts it."""
    experiment = Experiment(
        name="run", data=work.data, store=folder, backend=backend, workers=work.workers, seed=SEED
    )
    result = experiment.run_fit(
        Mlp(),
        dict(work.space),
        stack=False,
        num_epochs=work.epochs,
        batch_size=work.batch_size,
        metric="train_loss",
        mode="min",
        checkpoint="visit",
        progress=False,
    )
    assert isinstance(result, Result)
    return result


def select(work: Work, folder: str, backend: str) -> Took:
    """Train all trials of the work."""
    if backend == "ray":
        # Tune is imported before its clock starts, too.
        import ray  # noqa: F401
    began = time.perf_counter()
    result = fit(work, folder, backend)
    call_s = time.perf_counter() - began
    for trial in result.trials:
        assert {**trial.params, "batch_size": work.batch_size} == work.params[trial.number]
        weights = weights_of(result.load(trial.number, which="final"))
        save_weights(work.weights_file(trial.number), weights)
    summary = result.summary
    train_s = summary["compute_s"] + summary["load_s"]
    return Took(
        call_s=call_s,
        setup_s=summary["startup_s"],
        train_s=train_s,
        makespan_s=summary["makespan_s"],
        efficiency=summary["efficiency"],
        visit_s=train_s / summary["visits"],
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cerebro-ours-") as place:
        took = select(Work.load(Path(sys.argv[1])), place, sys.argv[2])
        print(json.dumps(asdict(took)))
