"""Ray Tune's side of the search benchmark, run in an environment of its own.

    python -m benchmarks.search_ray WORK.json [reuse]

Ends with one line of JSON, a `Found`. The clock starts with Ray, as ours starts with the workers;
`setup_s` is what that takes. With `reuse` trials share processes (`reuse_actors`), unlike what Ray
does unasked.
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


def search(work: Work, folder: str, *, is_reusing: bool) -> Found:
    """ASHA over the params of the work, in order, until the target is reached."""
    ray, tune = import_module("ray"), import_module("ray.tune")
    arrays = work.arrays()
    called, began = time.time(), time.perf_counter()
    ray.init(
        num_cpus=work.workers, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    setup_s = time.perf_counter() - began

    def train(config: dict[str, Any], arrays: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        loop = Loop(arrays, config["params"], work.batch_size, config["number"])
        for _ in range(work.epochs):
            tune.report({"accuracy": loop.train_epoch(), "time": time.time()})

    class Target(tune.Stopper):  # type: ignore[name-defined]
        """Ends the run, and keeps what was reported until then."""

        def __init__(self) -> None:
            self.told: list[Epoch] = []

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            config, time_s = result["config"], result["time"] - called
            epoch = Epoch(config["number"], config["params"], result["accuracy"], time_s)
            self.told.append(epoch)
            return False

        def stop_all(self) -> bool:
            return any(epoch.accuracy >= work.target for epoch in self.told)

    target = Target()
    scheduler = tune.schedulers.ASHAScheduler(
        time_attr="training_iteration",
        metric="accuracy",
        mode="max",
        max_t=work.epochs,
        grace_period=work.grace,
        reduction_factor=work.eta,
    )
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(train, arrays=arrays), {"cpu": 1}),
        param_space={
            "number": tune.grid_search(list(range(len(work.params)))),
            "params": tune.sample_from(lambda spec: dict(work.params[spec.config.number])),
        },
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=is_reusing),
        run_config=tune.RunConfig(storage_path=folder, verbose=0, stop=target),
    )
    errors = tuner.fit().errors
    call_s = time.perf_counter() - began
    ray.shutdown()
    if errors:
        raise SystemExit(f"Ray Tune failed: {errors[0]}")
    return Found.of(target.told, work, call_s=call_s, setup_s=setup_s)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cerebro-ray-") as place:
        found = search(Work.load(Path(sys.argv[1])), place, is_reusing="reuse" in sys.argv)
        print(json.dumps(asdict(found)))
