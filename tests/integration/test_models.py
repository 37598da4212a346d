"""Which models a test or a prediction uses, and what it says where it cannot."""

from __future__ import annotations

import csv

import fsspec
import numpy as np
import pytest
import torch
from torch import nn

from cerebro import Experiment, MiniBatchSpec
from cerebro.data import from_arrays
from cerebro.errors import DataError, TrialError, UsageError
from cerebro.results import Result
from tests.experiments import fast_folder

PARAMS = {"batch_size": 8}


class Net(MiniBatchSpec):
    def __init__(self, names=None):
        self.names = names

    def create_model_components(self, hyperparams):
        net = nn.Linear(2, 2)
        rate = hyperparams.get("lr", 0.1)
        return {"net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=rate)}

    def loss(self, model_object, minibatch):
        return nn.functional.cross_entropy(model_object["net"](minibatch[0]), minibatch[1])

    def train(self, model_object, minibatch, hyperparams, device):
        loss = self.loss(model_object, minibatch)
        model_object["optimizer"].zero_grad()
        loss.backward()
        model_object["optimizer"].step()
        return {"loss": loss}

    def val_test(self, model_object, minibatch, hyperparams, device):
        known = 0.0 if self.names is None else float(self.names.sum())
        return {"loss": self.loss(model_object, minibatch), "known": known}

    def predict(self, model_object, minibatch, hyperparams, device):
        shares = model_object["net"](minibatch[0]).softmax(1)
        return [b"\xff\x00"] * len(shares), shares


class Unlucky(Net):
    def metrics_agg(self, mode, hyperparams, metrics):
        if mode == "test":
            raise RuntimeError("no luck")
        return super().metrics_agg(mode, hyperparams, metrics)


@pytest.fixture(scope="module")
def folder():
    with fast_folder() as place:
        x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
        labelled = {"x": x, "y": (x.sum(1) > 0).astype(np.int64)}
        from_arrays(
            place / "data", train=labelled, val=labelled, test=labelled, predict={"x": x}, shards=2
        )
        for name, rates in (("a", [0.5, 0.0]), ("b", [0.0, 0.1])):
            space = {"lr": rates, "batch_size": [8]}
            experiment(place, name).run_fit(Net(), space, num_epochs=1, progress=False)
        net = nn.Linear(2, 2)
        (place / "models").mkdir()
        torch.save({f"net.{k}": v for k, v in net.state_dict().items()}, place / "models" / "m.pt")
        yield place


def experiment(folder, name="a"):
    return Experiment(
        name=name, data=folder / "data", store=folder / "runs", backend="inline", workers=1
    )


def test_a_spec_that_holds_other_arrays_is_tested_again(folder):
    exp = experiment(folder)
    first = exp.run_test(Net(np.ones(2)), "best", 8)
    assert exp.run_test(Net(np.ones(2)), "best", 8).is_repeated
    other = exp.run_test(Net(np.full(2, 5.0)), "best", 8)
    assert [next(iter(found.metrics.values()))["known"] for found in (first, other)] == [2.0, 10.0]


def test_a_trial_of_another_run_is_not_taken_for_one_of_this(folder):
    other = Result.open(folder / "runs" / "b").trials[1]
    with pytest.raises(UsageError, match=r"must be one of the run .*a, but its t0001 has"):
        experiment(folder).run_test(Net(), other, 8)
    own = Result.open(folder / "runs" / "a").trials[1]
    assert list(experiment(folder).run_test(Net(), own, 8).metrics) == ["t0001"]


def test_several_trials_are_found_by_opening_the_run_once(folder, monkeypatch):
    opened = []
    monkeypatch.setattr(Result, "open", lambda path, o=Result.open: opened.append(path) or o(path))
    experiment(folder).run_test(Net(), [0, "t0001", "best"], 8)
    assert len(opened) == 1


@pytest.mark.parametrize("kind", ["local", "file", "memory"])
def test_models_are_found_wherever_models_dir_is(folder, tmp_path, kind):
    content = (folder / "models" / "m.pt").read_bytes()
    fsspec.filesystem("memory").pipe("/wherever/m.pt", content)
    fsspec.filesystem("memory").pipe("/wherever/m.json", b'{"params": {"batch_size": 8}}')
    (folder / "models" / "m.json").write_text('{"params": {"batch_size": 8}}')
    models = folder / "models"
    where = {"local": models, "file": f"file://{models}", "memory": "memory://wherever"}[kind]
    exp = Experiment(
        {"models_dir": str(where), "output_dir": str(tmp_path), "etl_dir": str(folder / "data")},
        name="alone",
        backend="inline",
        workers=1,
    )
    assert exp.run_predict(Net(), "m.pt", 8).rows == 40
    with pytest.raises(UsageError, match=r"there is no .*other\.pt"):
        exp.run_predict(Net(), "other.pt", 8)


def test_a_model_may_be_a_url(folder):
    fsspec.filesystem("memory").pipe("/far/n.pt", (folder / "models" / "m.pt").read_bytes())
    found = experiment(folder).run_predict(Net(), "memory://far/n.pt", 8, params=PARAMS)
    assert found.models == ("n",)


def test_bytes_are_hexadecimal_in_csv_and_bytes_in_parquet(folder):
    found = experiment(folder).run_predict(Net(), "best", 8)
    with open(found.csv, newline="") as file:
        assert {row["class"] for row in csv.DictReader(file)} == {"ff00"}
    assert found.columns()["class"] == [b"\xff\x00"] * 40


def test_params_may_be_numbers_of_numpy(folder):
    path = folder / "models" / "m.pt"
    given = {"batch_size": np.int64(8), "lr": np.float32(0.5)}
    found = experiment(folder).run_test(Net(), path, np.int64(8), params=given)
    assert found.rows == 40


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"params": [1]}, "params must be a mapping"),
        ({"params": {"lr": object()}}, "'lr' is a object"),
        ({"params": PARAMS, "which": "zz"}, "`which` must be 'best' or 'final'"),
    ],
    ids=["list", "object", "which"],
)
def test_options_that_make_no_sense_are_refused(folder, options, error):
    with pytest.raises(UsageError, match=error):
        experiment(folder).run_test(Net(), folder / "models" / "m.pt", 8, **options)


def test_a_test_on_rows_without_labels_says_so(folder):
    with pytest.raises(DataError, match=r"the predict split has no 'y'.*run_predict"):
        experiment(folder).run_test(Net(), "best", 8, split="predict")


def test_an_error_in_metrics_agg_is_explained(folder):
    with pytest.raises(TrialError, match=r"metrics_agg .* t0000: RuntimeError: no luck\nTraceback"):
        experiment(folder).run_test(Unlucky(), 0, 8)
