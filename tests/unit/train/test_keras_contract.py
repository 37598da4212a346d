"""Keras does what every framework must do, and what PyTorch did before it was interrupted."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from safetensors import deserialize

from cerebro.data import from_arrays
from cerebro.testing.framework_contract import FrameworkContract
from cerebro.testing.score_contract import ScoreContract
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.framework import KerasFramework
from cerebro.train.keras.task import KerasTask


def points(rows, seed):
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1)}


def classifier(params):
    """Statistics, random layers and moments: all that makes exact hops hard."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(16, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.1),
            layers.Dense(3, activation="softmax"),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(params["lr"], 20, 0.9)
    return Compiled(
        model=model,
        optimizer=keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["acc"],
    )


def means_of(model, shard):
    x, y = np.array(shard.columns["x"]), shard.columns["y"]
    scores = np.asarray(model.predict(x, verbose=0), np.float64)
    return {
        "loss": float(-np.log(scores[np.arange(len(y)), y]).mean()),
        "acc": float((scores.argmax(1) == y).mean()),
    }


class TestKerasFramework(FrameworkContract):
    params = MappingProxyType({"lr": 0.01})

    def make(self):
        return KerasFramework(KerasTask(classifier), device="cpu")

    def dataset(self, directory):
        return from_arrays(directory, points(602, 0), val=points(270, 1), shards=2)

    def means(self, model, shard):
        return means_of(model, shard)

    def check_file(self, content):
        assert deserialize(content)


class TestKerasScores(ScoreContract):
    params = MappingProxyType({"lr": 0.01})

    def make(self):
        return KerasFramework(KerasTask(classifier), device="cpu")

    def dataset(self, directory):
        return from_arrays(directory, points(90, 0), test=points(150, 1), shards=1)

    def means(self, model, shard):
        return means_of(model, shard)

    def predicted(self, model, shard):
        return {"prediction": model.predict(np.array(shard.columns["x"]), verbose=0)}
