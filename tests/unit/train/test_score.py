"""Several models score a shard together."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.data import from_arrays
from cerebro.errors import UsageError
from cerebro.task import ParamDict, Task
from cerebro.testing.score_contract import ScoreContract
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.train.score.calls import FileWeights, Member, ScoreCall, ScoreMode
from cerebro.train.score.columns import Predictions
from cerebro.train.score.runner import LoadedModels, grouped
from cerebro.train.torch.framework import TorchFramework
from cerebro.types import Split


class PointsContract(ScoreContract):
    def dataset(self, directory):
        def points(rows, seed):
            x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
            return {"x": x, "y": x[:, :3].argmax(1)}

        return from_arrays(directory, points(90, 0), test=points(150, 1), shards=1)


class TestToyScores(PointsContract):
    def make(self):
        return ToyFramework(ToyTask())

    def means(self, model, shard):
        scores, y = model.scores(shard.columns["x"]), shard.columns["y"]
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        loss = -logs[np.arange(len(y)), y].mean()
        return {"loss": float(loss), "accuracy": float((scores.argmax(1) == y).mean())}

    def predicted(self, model, shard):
        scores = model.scores(shard.columns["x"])
        return {"class": scores.argmax(1), "score": scores}


class Classifier(Task):
    def model(self, params):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"])

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}

    def predict(self, model, batch, params):
        scores = model(batch["x"])
        # A task may change its batch: no other model sees that.
        batch["x"].zero_()
        del batch["x"]
        return {"class": scores.argmax(1), "score": scores}


class TestTorchScores(PointsContract):
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

    def predicted(self, model, shard):
        with torch.no_grad():
            scores = model(torch.from_numpy(np.array(shard.columns["x"])))
        return {"class": scores.argmax(1).numpy(), "score": scores.numpy()}


def score(task, data, mode=ScoreMode.PREDICT, size=4):
    framework = TorchFramework(task, device="cpu")
    call = ScoreCall(mode=mode, params=(ParamDict(),), batch_size=size)
    model = task.model({})
    (found,) = framework.score(call, data.open_shard(Split.TEST, 0), [model]).members
    framework.close()
    return found


class Echo(Task):
    """Gives its columns back."""

    def __init__(self, given=None):
        self.given = given

    def model(self, params):
        return nn.Identity()

    def loss(self, model, batch, params):
        return batch["x"].mean()

    def predict(self, model, batch, params):
        return batch["x"] if self.given is None else self.given(batch)


@pytest.fixture
def data(tmp_path):
    columns = {"x": np.arange(10, dtype=np.float32), "name": [f"row {n}" for n in range(10)]}
    return from_arrays(tmp_path, test=columns, shards=1)


def test_a_tensor_is_a_column_of_its_own(data):
    assert score(Echo(), data).columns["prediction"].tolist() == list(range(10))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_becomes_single(data, dtype):
    found = score(Echo(lambda batch: batch["x"].to(dtype)), data).columns["prediction"]
    assert found.dtype == np.float32
    assert found.tolist() == list(range(10))


def test_text_may_be_predicted(data):
    found = score(Echo(lambda batch: {"name": batch["name"]}), data)
    assert found.columns["name"] == [f"row {n}" for n in range(10)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda batch: batch["x"].sum(), "rows on its first axis"),
        (lambda batch: batch["x"][:1], "one entry for each row"),
        (lambda batch: {}, "at least one column"),
        (lambda batch: {"id": batch["x"]}, "must leave the name 'id'"),
        (lambda batch: {"a\n": batch["x"]}, "column's name"),
        (lambda batch: {str(len(batch["x"])): batch["x"]}, "the same columns"),
        (lambda batch: batch["x"].reshape(-1, 1).expand(-1, len(batch["x"])), "of one kind"),
    ],
)
def test_what_is_no_prediction_is_refused(data, given, told):
    with pytest.raises(UsageError, match=told):
        score(Echo(given), data)


def test_a_task_without_predict_says_what_to_write(data):
    class Mute(Task):
        def model(self, params):
            return nn.Identity()

    with pytest.raises(UsageError, match=r"Mute must define predict\(self, model, batch, params\)"):
        score(Mute(), data)
    with pytest.raises(NotImplementedError, match="one entry for each row"):
        Mute().predict(None, {}, {})


def test_a_loss_that_is_not_finite_is_told_as_it_is(data):
    class Broken(Echo):
        def loss(self, model, batch, params):
            return batch["x"].mean() * math.nan

    total, rows = score(Broken(), data, ScoreMode.TEST).sums["loss"]
    assert math.isnan(total)
    assert rows == 10


class Decoded(Echo):
    """Counts how often it decodes, and gives numbers for text."""

    def decode(self, batch):
        self.batches = getattr(self, "batches", 0) + 1
        return {"n": torch.tensor([int(text.split()[1]) for text in batch["name"]])}

    def predict(self, model, batch, params):
        return batch["n"]


def test_a_batch_is_decoded_once_for_all_models(data):
    task = Decoded()
    framework = TorchFramework(task, device="cpu")
    call = ScoreCall(mode=ScoreMode.PREDICT, params=(ParamDict(),) * 3, batch_size=4)
    report = framework.score(call, data.open_shard(Split.TEST, 0), [nn.Identity()] * 3)
    framework.close()
    assert task.batches == 3
    for member in report.members:
        assert member.columns["prediction"].tolist() == list(range(10))


def test_a_decode_that_gives_no_batch_is_refused(data):
    class Lost(Echo):
        def decode(self, batch):
            return None

    with pytest.raises(UsageError, match=r"Lost\.decode must return the batch"):
        score(Lost(), data)


def test_predictions_are_copies():
    memory = np.array([1.0])
    found = Predictions("it")
    found.add(memory, rows=1)
    memory[0] = 2.0
    assert found.columns()["prediction"].tolist() == [1.0]


def member(name, size):
    weights = FileWeights(path=f"{name}.safetensors", sha256=name)
    return Member(name=name, params={}, weights=weights, bytes=size)


def test_models_that_do_not_fit_together_take_turns():
    sizes = [40, 60, 70, 200, 10]
    groups = grouped([member(str(n), size) for n, size in enumerate(sizes)], 100)
    assert [[m.bytes for m in group] for group in groups] == [[40, 60], [70], [200], [10]]


def test_the_model_unused_for_longest_makes_room(tmp_path):
    class Counting(ToyFramework):
        loads = 0

        def load_file(self, params, path, content):
            type(self).loads += 1
            return path

    def file(name):
        import hashlib

        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
        path = str(tmp_path / f"{name}.safetensors")
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        weights = FileWeights(path=path, sha256=sha256)
        return Member(name=name, params={}, weights=weights, bytes=40)

    a, b, c = map(file, "abc")
    models = LoadedModels(Counting(ToyTask()), limit=100)
    models.take([a, b])
    models.take([a])
    models.take([c])  # b goes
    models.take([a, c])
    assert Counting.loads == 3
    models.take([b])
    assert Counting.loads == 4
