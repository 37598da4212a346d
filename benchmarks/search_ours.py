"""Our side of the search benchmark: an experiment as a user writes it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.search_work import (
    SCORED,
    Epoch,
    Found,
    Work,
    accuracy_of,
    loss_of,
    make_model,
    make_optimizer,
)
from cerebro import Experiment, Task, tune
from cerebro import data as cdata
from cerebro.search import parse_space

SPACE = parse_space(
    {
        "lr": tune.loguniform(1e-4, 0.3),
        "momentum": tune.uniform(0.0, 0.95),
        "width": tune.choice([32, 64, 128]),
    }
)
SHARDS = 4


class Mlp(Task):
    """The network of all sides."""

    eval_batch_size = SCORED

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def model(self, params):
        return make_model(params, self.inputs)

    def optimizer(self, model, params):
        return make_optimizer(model, params)

    def loss(self, model, batch, params):
        return loss_of(model, batch["x"], batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": accuracy_of(model, batch["x"], batch["y"])}


def prepare(parts: Mapping[str, np.ndarray], folder: Path) -> None:
    """Cut the data into shards."""
    train, val = ({"x": parts[f"x_{name}"], "y": parts[f"y_{name}"]} for name in ("train", "val"))
    cdata.from_arrays(folder / "data", train, val, shards=SHARDS, seed=0)


def search(work: Work, folder: Path, seed: int, *, stack: bool | str) -> Found:
    """Until the target is reached, or one epoch where that is all."""
    inputs = work.arrays()["x_train"].shape[1]
    is_single = len(work.params) == 1
    space = parse_space(dict(work.params[0])) if is_single else SPACE
    stopper = {"name": "asha", "eta": work.eta, "grace": work.grace}
    began = time.perf_counter()
    experiment = Experiment(
        name="run", data=folder / "data", store=folder / "runs", workers=work.workers, seed=seed
    )
    result = experiment.run_fit(
        Mlp(inputs),
        space,
        search="random",
        num_trials=len(work.params),
        stopper=None if is_single else stopper,
        goal={"metric": "val_accuracy", "target": work.target, "max_epochs": work.epochs},
        batch_size=work.batch_size,
        metric="val_accuracy",
        mode="max",
        checkpoint="epoch",
        stack=stack,
        progress=False,
    )
    call_s = time.perf_counter() - began
    told = [
        Epoch(trial.number, trial.params, epoch["val_accuracy"], call_s)
        for trial in result.trials
        for epoch in result.history(trial.id)
    ]
    shutil.rmtree(folder / "runs")
    return Found.of(told, work, call_s=call_s, setup_s=float(result.summary["startup_s"]))
