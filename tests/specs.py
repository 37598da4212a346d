"""MiniBatchSpecs that tests train; importable by workers as `tests.specs:Digits`."""

from __future__ import annotations

import os

import torch
from torch import nn

from cerebro import MiniBatchSpec


class Digits(MiniBatchSpec):
    """A classifier of two modules, with all that makes exact resumption hard."""

    def create_model_components(self, hyperparams):
        width = 16
        encoder = nn.Sequential(
            nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)
        )
        head = nn.Linear(width, 10)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], hyperparams["lr"])
        return {
            "encoder": encoder,
            "head": head,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
            "steps": 0,
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
        model_object["steps"] += 1
        return {"loss": loss}

    def val_test(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        scores = self.scores(model_object, x)
        return {
            "loss": nn.functional.cross_entropy(scores, y),
            "accuracy": (scores.argmax(1) == y).float().mean(),
        }


class Sick(Digits):
    """Its loss is not a number from step `params["sick"]` on."""

    def train(self, model_object, minibatch, hyperparams, device):
        found = super().train(model_object, minibatch, hyperparams, device)
        if hyperparams["sick"] and model_object["steps"] >= hyperparams["sick"]:
            found["loss"] = found["loss"] * float("nan")
        return found


class Listing(Digits):
    """Makes its metrics of those of its batches; `params["broken"]` says how that goes wrong."""

    def metrics_agg(self, mode, hyperparams, metrics):
        broken = hyperparams.get("broken")
        # One batch alone is asked about for the names.
        if broken and len(metrics["loss"]) > 2:
            if broken == "raise":
                raise LookupError(f"cannot aggregate {mode}")
            return {"loss": float("nan"), "worst": 0.0, "batches": 0}
        return {
            "loss": metrics["loss"].mean(),
            "worst": max(metrics["loss"]),
            "batches": len(metrics["loss"]),
        }


class Initialized(Digits):
    """Notes every process in which it is initialized, and needs that."""

    def __init__(self, log: str) -> None:
        self.log = log

    def initialize_worker(self):
        global READY
        READY = True
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()}\n")

    def train(self, model_object, minibatch, hyperparams, device):
        assert READY
        return super().train(model_object, minibatch, hyperparams, device)


READY = False


class Uninitialized(Digits):
    def initialize_worker(self):
        raise LookupError("there is no such licence")


class Counted(MiniBatchSpec):
    """Trains nothing; its metric is the label of each row, so that every mean is known."""

    def create_model_components(self, hyperparams):
        net = nn.Linear(1, 1)
        return {"net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.0)}

    def train(self, model_object, minibatch, hyperparams, device):
        _, y, row_id = minibatch
        return {"label": y.mean(), "id": row_id.double().mean()}

    val_test = train
