"""Ray Tune's side of the Ray benchmark, run in an environment of its own.

    python -m benchmarks.ray_tune WORK.json [reuse]

Ends with one line of JSON, a `Took`. The clock starts with Ray; `setup_s` is what that takes. The
data goes into the object store once (`tune.with_parameters`), where trials read it without a copy.
Each trial reports after every epoch and leaves its final weights in a file; it writes no
checkpoints. With `reuse` trials share processes (`reuse_actors`), unlike what Tune does unasked.
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

from benchmarks.ray_work import Loop, Took, Work


def select(work: Work, folder: str, *, is_reusing: bool) -> Took:
    """Train all trials of the work."""
    ray, tune = import_module("ray"), import_module("ray.tune")
    arrays = work.load_arrays()
    began = time.perf_counter()
    ray.init(
        address="local",
        num_cpus=work.workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    setup_s = time.perf_counter() - began

    def train(config: dict[str, Any], arrays: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        loop = Loop(arrays, work, config["number"])
        for epoch in range(work.epochs):
            loss = loop.train_epoch(epoch)
            if epoch == work.epochs - 1:
                loop.save(work.weights_file(config["number"]))
            tune.report({"loss": loss, "train_s": loop.seconds})

    try:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(train, arrays=arrays), {"cpu": 1}),
            param_space={"number": tune.grid_search(list(range(len(work.params))))},
            tune_config=tune.TuneConfig(reuse_actors=is_reusing),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        results = tuner.fit()
        call_s = time.perf_counter() - began
    finally:
        ray.shutdown()
    if results.errors:
        raise SystemExit(f"Ray Tune failed: {results.errors[0]}")
    train_s = sum(result.metrics["train_s"] for result in results)
    return Took(call_s=call_s, setup_s=setup_s, train_s=train_s)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cerebro-tune-") as place:
        took = select(Work.load(Path(sys.argv[1])), place, is_reusing="reuse" in sys.argv)
        print(json.dumps(asdict(took)))
