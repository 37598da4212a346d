"""The same promises on a CUDA device; skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task

pytestmark = pytest.mark.gpu


class Digits(Task):
    """Batch norm, dropout, Adam and a scheduler: everything that has state."""

    def model(self, params):
        return nn.Sequential(
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
        )

    def optimizer(self, model, params):
        optimizer = torch.optim.Adam(model.parameters(), lr=params["lr"])
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)

    def loss(self, model, batch, params):
        # There are ten classes.
        labels = batch["y"] + 100 if params.get("wrong") else batch["y"]
        loss = nn.functional.cross_entropy(model(batch["x"]), labels)
        return loss * float("nan") if params.get("nan") else loss

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits")
    cerebro.data.from_arrays(path, train=cerebro.data.digits(), shards=4, validation=0.2, seed=0)
    return path


def run(data: Path, store: Path, name: str, *, backend: str = "inline", **given):
    exp = Experiment(name=name, data=data, store=store, backend=backend, workers=2, seed=0)
    space = given.pop("space", {"lr": [1e-2, 1e-3]})
    settings = {"num_epochs": 2, "batch_size": 64, "metric": "val_accuracy", "mode": "max"}
    return exp.run_fit(Digits(), space, **{**settings, "device": "cuda", **given})


def test_inline_and_local_give_the_same_bits(data: Path, tmp_path: Path) -> None:
    inline = run(data, tmp_path, "inline")
    local = run(data, tmp_path, "local", backend="local")
    assert inline.document.environment["device"] == "cuda"
    assert inline.digest() == local.digest()


def test_the_device_learns_what_the_cpu_learns(data: Path, tmp_path: Path) -> None:
    there = run(data, tmp_path, "cuda")
    here = run(data, tmp_path, "cpu", device="cpu")
    ours, theirs = here.best.metrics["val_accuracy"], there.best.metrics["val_accuracy"]
    assert theirs > 0.9
    assert abs(ours - theirs) < 0.03


def test_a_trial_whose_labels_are_wrong_fails_alone(data: Path, tmp_path: Path) -> None:
    """After that the GPU is of no use to the same process."""
    space = {"lr": [1e-2, 1e-3], "wrong": [True, False]}
    result = run(data, tmp_path, "wrong", backend="local", space=space, stack=False)
    for trial in result.trials:
        assert str(trial.status) == ("failed" if trial.params["wrong"] else "finished")
        assert ("device-side assert" in (trial.error or "")) == trial.params["wrong"]


def test_a_trial_that_is_not_finite_diverges_alone(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path, "nan", space={"lr": [1e-2], "nan": [False, True]})
    assert [str(trial.status) for trial in result.trials] == ["finished", "diverged"]


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_trains_and_resumes_to_the_same_bits(
    data: Path, tmp_path: Path, amp: str
) -> None:
    space = {"lr": [1e-2], "amp": [amp]}
    once = run(data, tmp_path, "once", space=space)
    hopping = run(data, tmp_path, "hopping", space=space, backend="local")
    assert once.best.metrics["val_accuracy"] > 0.9
    assert once.digest() == hopping.digest()


def test_a_loaded_model_is_on_the_cpu_and_gives_the_recorded_accuracy(
    data: Path, tmp_path: Path
) -> None:
    result = run(data, tmp_path, "load")
    model = result.load(result.best.id)
    shards = cerebro.data.open_dataset(data)
    right = rows = 0
    for index in range(len(shards.shards("val"))):
        columns = shards.open_shard("val", index).columns
        guesses = model(torch.tensor(columns["x"])).argmax(1)
        right += int((guesses == torch.tensor(columns["y"])).sum())
        rows += len(guesses)
    assert abs(right / rows - result.best.metrics["val_accuracy"]) < 0.002
