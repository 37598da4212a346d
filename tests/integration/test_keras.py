"""Keras trials from end to end: the same on every backend, resumed, tested and exported."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from cerebro import Experiment, Result, tune
from cerebro.data import digits, from_arrays
from cerebro.errors import RunInterrupted
from cerebro.testing.history import check
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.task import KerasTask
from tests.experiments import outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPACE = {"lr": tune.choice([0.01, 0.001]), "batch_size": tune.choice([32, 64])}


#: Batches until somebody presses Ctrl-C.
LEFT = {"batches": -1}


def interrupted(batch):
    LEFT["batches"] -= 1
    if LEFT["batches"] == 0:
        signal.raise_signal(signal.SIGINT)
    return batch


def build(params):
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )
    return Compiled(
        model=model,
        optimizer=keras.optimizers.Adam(params["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["acc"],
        transformation_fn=interrupted,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    data = {name: column[:600] for name, column in digits().items()}
    test = {name: column[600:700] for name, column in digits().items()}
    from_arrays(folder / "data", train=data, test=test, shards=3, validation=0.2)
    return folder


def experiment(home, name, backend, workers):
    return Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, workers=workers, seed=5
    )


def fit(home, name, backend="inline", workers=1, **options):
    given = {"num_epochs": 2, "metric": "val_acc", "mode": "max", "progress": False, **options}
    return experiment(home, name, backend, workers).run_fit(KerasTask(build), SPACE, **given)


@pytest.fixture(scope="module")
def oracle(home):
    fit(home, "oracle")
    check(home / "runs" / "oracle")
    return home / "runs" / "oracle"


def test_worker_processes_give_the_digest_of_the_inline_backend(home, oracle):
    fit(home, "local", "local", 2)
    check(home / "runs" / "local")
    assert outcome(home / "runs" / "local") == outcome(oracle)


def test_a_run_that_is_stopped_and_resumed_ends_the_same(home, oracle, monkeypatch):
    monkeypatch.setitem(LEFT, "batches", 25)
    with pytest.raises(RunInterrupted):
        fit(home, "resumed")
    result = fit(home, "resumed")
    assert result.is_resumed
    assert outcome(home / "runs" / "resumed") == outcome(oracle)


def test_training_and_validation_metrics_are_told_under_keras_names(oracle):
    best = Result.open(oracle).best
    assert {"train_loss", "train_acc", "val_loss", "val_acc"} <= best.metrics.keys()
    assert best.metrics["val_acc"] > 0.5


def test_a_loaded_model_says_what_tests_and_predictions_say(home, oracle):
    result = Result.open(oracle, KerasTask(build))
    best = result.best.id
    x, y = (np.array(column[600:700]) for column in digits().values())
    expected = result.load("best").predict(np.reshape(x, (-1, 8, 8, 1)), verbose=0)
    exp = experiment(home, "oracle", "inline", 1)
    tested = exp.run_test(KerasTask(build), batch_size=32)
    assert tested[best]["acc"] == pytest.approx((expected.argmax(1) == y).mean())
    predicted = exp.run_predict(KerasTask(build), batch_size=32, split="test").columns()
    assert np.allclose(predicted["prediction"], expected, rtol=1e-5, atol=1e-6)


def test_a_trial_is_exported_as_a_keras_file_and_tested_from_it(home, oracle, tmp_path):
    result = Result.open(oracle, KerasTask(build))
    path = result.export("best", to="keras", path=tmp_path / "best.keras")
    exp = experiment(home, "oracle", "inline", 1)
    params = dict(result.best.params)
    found = exp.run_test(KerasTask(build), path, 32, params=params)["best"]
    assert found == exp.run_test(KerasTask(build), "best", 32)[result.best.id]
