"""Runs whose trials are trained by several workers at once, from the experiment to the files."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

from cerebro import Experiment, Task
from cerebro.errors import ReplicaError
from tests.unit.backend.ganging import GangTask, make_home


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path)


def run(home, name, task, fault="", **changes):
    """The bytes of the last checkpoint of a run's trial."""
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", workers=2, **changes
    )
    space = {"lr": [0.1], "fault": [fault]}
    experiment.run_fit(task, space, 2, global_batch_size=8, parallel="ddp", progress=False)
    (path,) = (home / "runs" / name / "trials" / "t0000" / "checkpoints").glob("*.safetensors")
    return path.read_bytes()


def test_a_run_in_which_a_rank_is_killed_gives_the_digest_of_one_in_which_none_is(home):
    task = GangTask(str(home / "faults"), os.getpid(), is_parent=True)
    calm = run(home, "calm", task, backend="inline")
    assert run(home, "killed", task, "kill", backend="local") == calm
    assert (home / "faults" / "kill").exists()


class DriftingTask(GangTask):
    """Forgets that its gradients have to be averaged: it makes its own steps."""

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        if model.training:
            own = torch.optim.SGD(model.parameters(), lr=0.01)
            loss.backward()
            own.step()
            own.zero_grad()
            loss = super().loss(model, batch, params)
        return loss


class ForgetfulTask(Task):
    """Draws its initial weights from something that no seed controls."""

    def model(self, params):
        model = nn.Linear(3, 3)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(3, 3))))
        return model

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (DriftingTask, r"t0000 to shard 0, model\.0\.weight of rank 1 differs"),
        (ForgetfulTask, r"before the first step of t0000 model\.weight of rank 1 differs"),
    ],
    ids=["drifting", "forgetful"],
)
def test_a_run_whose_replicas_drift_ends_with_what_is_wrong(home, task, message):
    with pytest.raises(ReplicaError, match=message):
        run(home, "drift", task(), backend="inline")
