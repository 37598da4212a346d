"""Out of memory on a CUDA device: told from errors, survived, and avoided by micro batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task
from cerebro.backend.base import FailureKind
from cerebro.backend.failure import describe_failure
from cerebro.data import Dataset, from_arrays
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import OutOfMemory, Stacking
from cerebro.types import Split, TrialStatus
from tests.unit.train.bare import allocate, make_call

pytestmark = pytest.mark.gpu


class Hungry(Task):
    """Needs `gib` GiB of the device for each row of a batch."""

    def model(self, params):
        return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, model, batch, params):
        x = batch["x"]
        # Of training alone: evaluations have no micro batches.
        size = int(params.get("gib", 0) * 2**28) * len(x) * model.training
        waste = torch.zeros(size, device=x.device)
        return nn.functional.cross_entropy(model(x), batch["y"]) + waste.sum()

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


class Patient(Hungry):
    micro_batch = "auto"


class Scaled(Patient):
    amp = "fp16"


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 64)).astype(np.float32)
    y = x[:, :10].argmax(1)
    return from_arrays(tmp_path / "data", {"x": x, "y": y}, shards=2, validation=0.25)


def train(framework, data, **changes):
    call = replace(make_call(), batch_size=32, **changes)
    return framework.train(call, data.open_shard(Split.TRAIN, 0), None, allocate)


@pytest.mark.parametrize("stack", [None, Stacking()], ids=["plain", "captured"])
def test_a_visit_names_what_it_used_and_the_worker_trains_on(data, stack):
    framework = TorchFramework(Hungry(), device="cuda")
    before = torch.cuda.memory_reserved()
    with pytest.raises(OutOfMemory, match=r"GiB of the \d+\.\d GiB of cuda:0") as info:
        train(framework, data, params=({"gib": 100},), stack=stack)
    failure = describe_failure(info.value)
    assert failure.kind is FailureKind.MEMORY
    assert not failure.is_splittable
    del info
    framework.free()
    assert torch.cuda.memory_reserved() < before + (1 << 30)
    _, report = train(framework, data, params=({},), stack=stack)
    assert report.rows == 96
    framework.close()


def test_parts_make_the_step_of_the_whole_with_a_scaled_loss_too(data):
    found = []
    for size in (None, 5):
        framework = TorchFramework(Scaled(), device="cuda")
        _, report = train(framework, data, micro_batch=size)
        found.append(report.members[0].losses)
        framework.close()
    assert found[1] == pytest.approx(found[0], rel=1e-2)


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_trial_goes_on_in_parts_that_fit_and_another_ends(tmp_path, backend):
    cerebro.data.from_arrays(
        tmp_path / "digits", train=cerebro.data.digits(), shards=2, validation=0.2, seed=0
    )
    # 64 rows of 8 GiB each do not fit; a few do; of 1000 GiB none does.
    space = {"gib": [0, 8, 1000]}
    experiment = Experiment(
        name="hungry", data=tmp_path / "digits", store=tmp_path, backend=backend, workers=2, seed=0
    )
    result = experiment.run_fit(
        Patient(),
        space,
        num_epochs=1,
        batch_size=64,
        metric="val_accuracy",
        mode="max",
        device="cuda",
    )
    statuses = [trial.status for trial in result.trials]
    assert statuses == [TrialStatus.FINISHED, TrialStatus.FINISHED, TrialStatus.OUT_OF_MEMORY]
    assert "of cuda:0" in result.trials[2].error
    assert result.trials[1].metrics["val_accuracy"] > 0.5
