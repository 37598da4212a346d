"""Gangs on a CUDA device: ranks that share one, and that have one each; skipped without any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task

pytestmark = pytest.mark.gpu


class Digits(Task):
    """No batch norm and no dropout: what is left must not depend on who has which rows."""

    def model(self, params):
        width = params["width"]
        return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))

    def optimizer(self, model, params):
        if params["optimizer"] == "adamw":
            # It counts its steps on the CPU. At ten times this rate the wide model is unstable:
            # one worker on a CPU and one on a GPU would differ as much.
            return torch.optim.AdamW(model.parameters(), lr=params["lr"] / 100)
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits")
    cerebro.data.from_arrays(path, train=cerebro.data.digits(), shards=2, validation=0.2, seed=0)
    return path


def run(data, store, name, *, workers, optimizer="sgd", width=32, **given):
    experiment = Experiment(name=name, data=data, store=store, workers=workers, seed=0)
    settings = {"num_epochs": 2, "global_batch_size": 50, "metric": "val_loss", "mode": "min"}
    space = {"lr": [0.05], "optimizer": optimizer, "width": width}
    return experiment.run_fit(
        Digits(), space, **settings, device="cuda", stack=False, progress=False, **given
    )


def weights_of(result):
    model = result.load(0)
    return torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()])


# The gradient of 5 MB travels by itself, from where it is.
@pytest.mark.parametrize("width", [32, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ranks_on_a_gpu_train_what_one_worker_trains(data, tmp_path, optimizer, width):
    given = {"optimizer": optimizer, "width": width}
    alone = run(data, tmp_path, "alone", workers=1, **given)
    gang = run(data, tmp_path, "gang", workers=2, parallel="ddp", **given)
    assert gang.document.environment["device"] == "cuda"
    assert torch.allclose(weights_of(alone), weights_of(gang), rtol=1e-4, atol=1e-5)
    found, expected = gang.best.metrics["val_loss"], alone.best.metrics["val_loss"]
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_gang_gives_the_same_bits_again(data, tmp_path):
    first = run(data, tmp_path, "first", workers=2, parallel="ddp")
    assert first.best.status == "finished"
    second = run(data, tmp_path, "second", workers=2, parallel="ddp")
    assert first.digest() == second.digest()
