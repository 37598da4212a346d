"""Metrics of Keras: means over rows are exact; others are those of whole shards."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

from cerebro.data import from_arrays
from cerebro.errors import TrialError
from cerebro.task import ParamDict
from cerebro.train.keras.compiled import Compiled
from cerebro.train.score.calls import ScoreCall, ScoreMode
from cerebro.train.visit import Diverged
from cerebro.types import Split
from tests.unit.train.keras_visits import call_of, evaluate, make, train


def binary(rows, seed):
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "y": (x.sum(1) > 0.3).astype(np.float32)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("binary")
    return from_arrays(folder, binary(202, 0), val=binary(171, 1), test=binary(53, 2), shards=2)


def judge(metrics):
    def build(params):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
        return Compiled(
            model=model,
            optimizer=keras.optimizers.SGD(params["lr"]),
            loss="binary_crossentropy",
            metrics=metrics(),
        )

    return build


def mixed():
    return ["acc", keras.metrics.AUC(name="auc"), keras.metrics.RootMeanSquaredError(name="rmse")]


def by_keras(framework, state, shard):
    """What Keras itself says of all rows of a shard."""
    model = framework.load(ParamDict(lr=0.01), state)
    model.compile(loss="binary_crossentropy", metrics=mixed())
    x, y = (np.array(shard.columns[name]) for name in ("x", "y"))
    return model.evaluate(x, y, batch_size=len(x), return_dict=True, verbose=0)


@pytest.mark.parametrize("size", [7, 64, 1000])
def test_all_metrics_of_a_shard_are_those_of_its_rows(data, size):
    framework = make(judge(mixed))
    state, _ = train(framework, data, 1)
    for number in range(2):
        found = evaluate(framework, data, state, shard=number, batch_size=size)
        expected = by_keras(framework, state, data.open_shard(Split.VAL, number))
        assert list(found) == ["loss", "acc", "auc", "rmse"]
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5), name


def test_a_metric_that_is_no_mean_begins_anew_with_every_shard(data):
    framework = make(judge(mixed))
    state, reports = train(framework, data, 4)
    first, again = (evaluate(framework, data, state, shard=0) for _ in range(2))
    assert first == again
    for report in reports:
        total, rows = report.members[0].sums["auc"]
        assert 0 <= total / rows <= 1


def test_a_metric_that_is_no_mean_is_told_once_when_names_are_asked_for(data, caplog):
    framework, shard = make(judge(mixed)), data.open_shard(Split.TRAIN, 0)
    with caplog.at_level(logging.WARNING, "cerebro.train"):
        names = framework.metric_names(call_of(0), shard)
    assert names == ("loss", "acc", "auc", "rmse")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["auc, rmse"]


def test_models_that_are_tested_together_keep_their_metrics_apart(data):
    framework = make(judge(mixed))
    states = [train(framework, data, 1, trials=(trial,))[0] for trial in range(2)]
    models = [framework.load(ParamDict(lr=0.01), state) for state in states]
    shard = data.open_shard(Split.TEST, 0)
    call = ScoreCall(mode=ScoreMode.TEST, params=(ParamDict(lr=0.01),) * 2, batch_size=5)
    for state, found in zip(states, framework.score(call, shard, models).members, strict=True):
        for name, value in by_keras(framework, state, shard).items():
            total, rows = found.sums[name]
            assert total / rows == pytest.approx(value, rel=1e-5), name


def test_a_function_is_a_metric_under_its_name(data):
    def half(y_true, y_pred):
        return keras.ops.abs(y_true - y_pred[:, 0]) / 2

    framework = make(judge(lambda: ["mae", half]))
    state, _ = train(framework, data, 1)
    found = evaluate(framework, data, state, batch_size=7)
    assert found["half"] == pytest.approx(found["mae"] / 2, rel=1e-5)


def test_no_metrics_at_all_leave_the_loss(data):
    framework = make(judge(lambda: None))
    state, _ = train(framework, data, 1)
    assert list(evaluate(framework, data, state)) == ["loss"]


def test_a_metric_that_is_no_number_ends_the_trial(data):
    def odd(y_true, y_pred):
        return keras.ops.log(-keras.ops.ones_like(y_pred[:, 0]))

    framework = make(judge(lambda: [odd]))
    with pytest.raises(Diverged, match="train_odd is nan"):
        train(framework, data, 1)


def test_a_model_whose_step_gives_no_loss_is_told(data):
    class Silent(keras.Model):
        def train_step(self, *args, **kwargs):
            return {"acc": 1.0}

    def build(params):
        inputs = keras.Input((4,))
        return Compiled(
            model=Silent(inputs, keras.layers.Dense(1)(inputs)), optimizer="sgd", loss="mse"
        )

    with pytest.raises(TrialError, match=r"must give a loss, but Silent gives acc"):
        train(make(build), data, 1)
