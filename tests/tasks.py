"""PyTorch tasks that tests train; importable by workers as `tests.tasks:Net`."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

from cerebro import Task

#: Training visits that a held `Net` goes through.
FREE = 8


class Net(Task):
    """A classifier with all that makes exact resumption hard: dropout, BatchNorm, Adam, a schedule.

    Args:
        log: A file that gets one line when a training visit starts.
        hold: A path: while it is there, training visits after the first `FREE` do not go on.
    """

    def __init__(self, log=None, hold=None):
        self.log = log
        self.hold = hold

    def model(self, params):
        width = params["width"]
        return nn.Sequential(
            nn.Linear(64, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, 10),
        )

    def optimizer(self, model, params):
        optimizer = torch.optim.Adam(model.parameters(), lr=params["lr"])
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)

    def loss(self, model, batch, params):
        # The model is built anew for every visit, so its first loss in training is the start.
        if self.log is not None and model.training and not hasattr(model, "is_logged"):
            model.is_logged = True
            with open(self.log, "ab", buffering=0) as file:
                file.write(b"visit\n")
                started = file.tell() // len(b"visit\n")
            while self.hold is not None and started > FREE and os.path.exists(self.hold):
                time.sleep(0.01)
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


class FragileNet(Net):
    """A `Net` in which `params["fail"]` puts a NaN: into "loss", "gradient" or "metric"."""

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        if not model.training or params["fail"] is None:
            return loss
        model.batches = getattr(model, "batches", 0) + 1
        if model.batches - 1 != params["fail"].get("batch", 0):
            return loss
        if params["fail"]["kind"] == "loss":
            return loss * float("nan")
        if params["fail"]["kind"] == "gradient":
            # The value is finite, the slope of a square root at zero is not.
            return loss + (model[0].weight * 0.0).sum().abs().sqrt()
        return loss

    def metrics(self, model, batch, params):
        found = super().metrics(model, batch, params)
        if params["fail"] is not None and params["fail"]["kind"] == "metric":
            found["accuracy"] = found["accuracy"] * float("nan")
        return found


class Perceptron(Task):
    """A small network that can be trained in a stack."""

    def model(self, params):
        return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

    def optimizer(self, model, params):
        return torch.optim.Adam(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}
