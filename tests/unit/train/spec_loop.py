"""A MiniBatchSpec trained visit by visit, and by one loop that keeps everything."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cerebro.data import Dataset, batch_order
from cerebro.spec import MiniBatchSpec
from cerebro.task import ParamDict
from cerebro.train.seeds import derive_seed
from cerebro.train.spec.framework import SpecFramework
from cerebro.train.spec.task import SpecTask
from cerebro.train.torch.build import seed_everything
from cerebro.train.visit import State, VisitReport
from cerebro.types import Split
from tests.unit.train.bare import BATCH_SIZE, allocate, make_call

PARAMS: dict[str, Any] = {"lr": 0.05, "batch_size": BATCH_SIZE}


class LineSpec(MiniBatchSpec):
    """Regression with a small network; tests change one thing of it."""

    def create_model_components(self, hyperparams):
        net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=hyperparams["lr"], momentum=0.9)
        return {"net": net, "optimizer": optimizer}

    def step(self, model_object, minibatch):
        x, y, _ = minibatch
        loss = ((model_object["net"](x) - y) ** 2).mean()
        model_object["optimizer"].zero_grad()
        loss.backward()
        model_object["optimizer"].step()
        return loss

    def train(self, model_object, minibatch, hyperparams, device):
        return {"loss": self.step(model_object, minibatch)}

    def val_test(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        return {"loss": ((model_object["net"](x) - y) ** 2).mean()}


class Hops:
    """A trial trained visit by visit, its components made anew in each."""

    def __init__(self, spec: MiniBatchSpec, data: Dataset, **params: Any) -> None:
        self.framework = SpecFramework(SpecTask(spec), device="cpu")
        self.data = data
        self.params = {**PARAMS, **params}
        self.states: list[State] = []
        self.reports: list[VisitReport] = []

    def run(self, visits: int, **changes: Any) -> Hops:
        for _ in range(visits):
            call = make_call(len(self.states), params=self.params, **changes)
            state = self.states[-1] if self.states else None
            shard = self.data.open_shard(Split.TRAIN, call.shard)
            after, report = self.framework.train(call, shard, state, allocate)
            self.states.append(after)
            self.reports.append(report)
        return self

    def evaluate(self, **changes: Any) -> VisitReport:
        call = make_call(params=self.params, split=Split.VAL, shard=0, **changes)
        shard = self.data.open_shard(Split.VAL, 0)
        return self.framework.evaluate(call, shard, self.states[-1])

    @property
    def model_object(self) -> dict[str, Any]:
        return self.framework.load(self.params, self.states[-1]).model_object


def run_bare(spec: MiniBatchSpec, data: Dataset, visits: int, **params: Any) -> dict[str, Any]:
    """The same trial as one loop: its model_object, made once."""
    hyperparams = ParamDict({**PARAMS, **params})
    seed_everything(derive_seed("model", 0, 0))
    model_object = spec.create_model_components(hyperparams)
    for visit in range(visits):
        call = make_call(visit)
        seed_everything(derive_seed("visit", 0, 0, call.epoch, call.shard))
        for value in model_object.values():
            if isinstance(value, nn.Module):
                value.train()
        shard = data.open_shard(Split.TRAIN, call.shard)
        order = batch_order(shard, BATCH_SIZE, seed=0, trial=0, epoch=call.epoch)
        for start in range(0, shard.rows, BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            x, y = (torch.from_numpy(shard.columns[name][rows]) for name in ("x", "y"))  # type: ignore[index]
            batch = (x, y, torch.from_numpy(rows))
            made = spec.train(model_object, batch, hyperparams, torch.device("cpu"))
            if isinstance(made, tuple):
                model_object = made[0]
    return model_object
