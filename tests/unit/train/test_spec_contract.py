from __future__ import annotations

from types import MappingProxyType

import numpy as np
import torch
from torch import nn

from cerebro import MiniBatchSpec
from cerebro.train.spec.framework import SpecFramework
from cerebro.train.spec.task import SpecTask
from tests.unit.train.test_framework_contract import PointsContract


class Pair(MiniBatchSpec):
    """Two modules, with all that makes exact hops hard."""

    def create_model_components(self, hyperparams):
        encoder = nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU())
        head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 3))
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], hyperparams["lr"])
        return {
            "encoder": encoder,
            "head": head,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999),
            "seen": 0,
        }

    def scores(self, model_object, x):
        return model_object["head"](model_object["encoder"](x))

    def train(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        loss = nn.functional.cross_entropy(self.scores(model_object, x), y)
        model_object["optimizer"].zero_grad()
        loss.backward()
        model_object["optimizer"].step()
        model_object["scheduler"].step()
        model_object["seen"] += len(x)
        return {"loss": loss}

    def val_test(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        scores = self.scores(model_object, x)
        return {
            "loss": nn.functional.cross_entropy(scores, y),
            "accuracy": (scores.argmax(1) == y).float().mean(),
        }


class TestSpecFramework(PointsContract):
    params = MappingProxyType({"lr": 0.01, "batch_size": 8})

    def make(self):
        return SpecFramework(SpecTask(Pair()), device="cpu")

    def means(self, model, shard):
        x, y = (torch.from_numpy(np.array(shard.columns[name])) for name in ("x", "y"))
        with torch.no_grad():
            scores = model["head"](model["encoder"](x))
        return {
            "loss": nn.functional.cross_entropy(scores.double(), y).item(),
            "accuracy": (scores.argmax(1) == y).double().mean().item(),
        }
