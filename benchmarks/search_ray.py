"""Ray Tune's side of the search benchmark, run in an environment of its own.

    python -m benchmarks.search_ray WORK.json

Ends with one line of JSON, a `Found`. Ray is up and has the data before the clock starts, and
trials share its processes (`reuse_actors`), which is faster than what it does unasked.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch

from benchmarks.search_work import Epoch, Found, Loop, Work


def search(work: Work, folder: str) -> Found:
    """ASHA over the params of the work, in order, until the target is reached."""
    ray, tune = import_module("ray"), import_module("ray.tune")
    began = time.perf_counter()
    ray.init(
        num_cpus=work.workers, include_dashboard=False, log_to_driver=False, logging_level="error"
    )

    def train(config: dict[str, Any], arrays: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        loop = Loop(arrays, work.params[config["number"]], work.batch_size, config["number"])
        for _ in range(work.epochs):
            tune.report({"accuracy": loop.train_epoch(), "time": time.time()})

    class Target(tune.Stopper):  # type: ignore[name-defined,misc]
        """Ends the run; counts what was trained until then."""

        def __init__(self) -> None:
            self.told: list[dict[str, Any]] = []

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.told.append(result)
            return False

        def stop_all(self) -> bool:
            return any(result["accuracy"] >= work.target for result in self.told)

    scheduler = tune.schedulers.ASHAScheduler(
        time_attr="training_iteration",
        metric="accuracy",
        mode="max",
        max_t=work.epochs,
        grace_period=work.grace,
        reduction_factor=work.eta,
    )
    target = Target()
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(train, arrays=work.arrays()), {"cpu": 1}),
        param_space={"number": tune.grid_search(list(range(len(work.params))))},
        tune_config=tune.TuneConfig(
            scheduler=scheduler, reuse_actors=os.environ.get("REUSE", "1") == "1"
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0, stop=target),
    )
    setup_s = time.perf_counter() - began
    called, began = time.time(), time.perf_counter()
    errors = tuner.fit().errors
    call_s = time.perf_counter() - began
    ray.shutdown()
    if errors:
        raise SystemExit(f"Ray Tune failed: {errors[0]}")
    print(len(target.told), [(t["config"]["number"], t["training_iteration"], round(t["time"]-called,1)) for t in target.told])
    return Found.of(
        [Epoch(t["config"]["number"], t["accuracy"], t["time"] - called) for t in target.told],
        work,
        call_s=call_s,
        setup_s=setup_s,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cerebro-ray-") as folder:
        print(json.dumps(asdict(search(Work.load(Path(sys.argv[1])), folder))))
