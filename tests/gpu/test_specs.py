"""MiniBatchSpecs, tests, predictions and files of models on a CUDA device."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import cerebro
from cerebro import Experiment, Task
from cerebro.data import from_arrays
from tests.specs import Digits

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def data(tmp_path):
    digits = {name: values[:600] for name, values in cerebro.data.digits().items()}
    texts = [json.dumps(row.tolist()) for row in digits["x"]]
    parts = {
        name: {"x": digits["x"][rows], "y": digits["y"][rows], "text": [texts[n] for n in rows]}
        for name, rows in {
            "train": range(400),
            "val": range(400, 500),
            "test": range(500, 600),
        }.items()
    }
    predict = {name: parts["test"][name] for name in ("x", "text")}
    from_arrays(tmp_path / "data", **parts, predict=predict, shards=4)
    return tmp_path / "data"


class Net(Task):
    """Reads its input from text, so that batches are decoded before they are on the device."""

    def decode(self, batch):
        batch["z"] = torch.tensor([json.loads(text) for text in batch["text"]])
        return batch

    def model(self, params):
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def optimizer(self, model, params):
        return torch.optim.Adam(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        assert batch["z"].is_cuda == next(model.parameters()).is_cuda
        return nn.functional.cross_entropy(model(batch["z"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["z"]).argmax(1) == batch["y"]).float().mean()}

    def predict(self, model, batch, params):
        return model(batch["z"]).softmax(1)


class Predicting(Digits):
    def predict(self, model_object, minibatch, hyperparams, device):
        x, _ = minibatch
        probabilities = self.scores(model_object, x).softmax(1)
        return probabilities.argmax(1), probabilities


def experiment(data, tmp_path, **changes):
    return Experiment(name="run", data=data, store=tmp_path / "runs", workers=1, **changes)


def test_a_spec_trains_tests_and_predicts_on_the_device_as_on_the_cpu(data, tmp_path):
    spec = Predicting()
    spec.input_columns = "x"
    exp = experiment(data, tmp_path)
    grid = {"lr": [0.01, 0.003], "batch_size": [32]}
    result = exp.run_fit(spec, grid, 6, metric="val_accuracy", mode="max", device="cuda")
    assert result.best.metrics["val_accuracy"] > 0.8
    tags = ["t0000", "t0001"]
    by_device = [exp.run_test(spec, tags, 16, device=device) for device in ("cuda", "cpu")]
    for tag in tags:
        one, other = (found.metrics[tag] for found in by_device)
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.011)
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    predicted = [exp.run_predict(spec, "best", 16, device=d).columns() for d in ("cuda", "cpu")]
    one, other = (np.stack(columns["probability"]) for columns in predicted)
    assert np.abs(one - other).max() < 1e-3


def test_a_spec_gives_the_same_bits_again(data, tmp_path):
    spec = Digits()
    spec.input_columns = "x"
    grid = {"lr": [0.01], "batch_size": [32]}
    one, other = (
        experiment(data, tmp_path / name).run_fit(spec, grid, 3, device="cuda").digest()
        for name in ("one", "other")
    )
    assert one == other


def test_decoded_batches_are_on_the_device_and_models_go_through_files(data, tmp_path):
    exp = experiment(data, tmp_path)
    grid = {"lr": [0.01, 0.003]}
    result = exp.run_fit(
        Net(), grid, 5, batch_size=32, metric="val_accuracy", mode="max", device="cuda"
    )
    assert result.best.metrics["val_accuracy"] > 0.8
    file = tmp_path / "net.safetensors"
    result.export(result.best.id, to="safetensors", path=file, task=Net())
    named = {"params": dict(result.best.params), "device": "cuda"}
    from_file = exp.run_predict(Net(), str(file), 16, **named).columns()
    from_run = exp.run_predict(Net(), "best", 16, device="cuda").columns()
    for column in from_run:
        assert np.array_equal(np.asarray(from_run[column]), np.asarray(from_file[column]))
