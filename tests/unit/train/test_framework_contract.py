from __future__ import annotations

from types import MappingProxyType

import numpy as np
import torch
from safetensors import deserialize
from torch import nn

from cerebro.data import from_arrays
from cerebro.task import Task
from cerebro.testing.framework_contract import FrameworkContract
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.train.torch.framework import TorchFramework


class PointsContract(FrameworkContract):
    """Points in three classes."""

    def dataset(self, directory):
        def points(rows, seed):
            x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
            return {"x": x, "y": x[:, :3].argmax(1)}

        return from_arrays(directory, points(602, 0), val=points(270, 1), shards=2)

    def check_file(self, content):
        assert deserialize(content)


class TestToyFramework(PointsContract):
    def make(self):
        return ToyFramework(ToyTask())

    def means(self, model, shard):
        scores, y = model.scores(shard.columns["x"]), shard.columns["y"]
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return {
            "loss": float(-logs[np.arange(len(y)), y].mean()),
            "accuracy": float((scores.argmax(1) == y).mean()),
        }


class Classifier(Task):
    def model(self, params):
        # No bias before the norm, which takes it away again: Adam would make steps of its noise.
        return nn.Sequential(
            nn.Linear(4, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(16, 3),
        )

    def optimizer(self, model, params):
        optimizer = torch.optim.Adam(model.parameters(), lr=params["lr"])
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        right = model(batch["x"]).argmax(1) == batch["y"]
        return {"accuracy": right.float().mean()}


class TestTorchFramework(PointsContract):
    params = MappingProxyType({"lr": 0.01})

    def make(self):
        return TorchFramework(Classifier(), device="cpu")

    def means(self, model, shard):
        x, y = (torch.from_numpy(np.array(shard.columns[name])) for name in ("x", "y"))
        with torch.no_grad():
            scores = model(x)
        return {
            "loss": nn.functional.cross_entropy(scores.double(), y).item(),
            "accuracy": (scores.argmax(1) == y).double().mean().item(),
        }
