"""Callbacks of Keras trials: called with real epochs, the same on every worker, or refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from cerebro.data import from_arrays
from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.testing.stack_contract import Memory
from cerebro.train.keras.variables import unpack
from cerebro.types import Split
from tests.unit.train.keras_visits import call_of, line, make, train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return from_arrays(tmp_path_factory.mktemp("line"), {"x": x, "y": x.sum(1)}, shards=2)


class Diary(keras.callbacks.Callback):
    """Writes down what it hears in a list that all its copies share."""

    told: list

    def __init__(self, told):
        super().__init__()
        self.told = told

    def __deepcopy__(self, memo):
        return Diary(self.told)

    def on_train_begin(self, logs=None):
        self.told.append("train")

    def on_epoch_begin(self, epoch, logs=None):
        self.told.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.told.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.told.append(f"{epoch} over")
        self.logs = logs
        self.told.append(sorted(logs))

    def on_train_end(self, logs=None):
        self.told.append("pause")


def test_epochs_have_their_numbers_and_batches_count_through_them(data):
    told = []
    train(make(line(callbacks=lambda _: [Diary(told)])), data, 4, batch_size=10)
    assert told[:9] == ["train", "epoch 0", 0, 1, "pause", "train", 2, 3, "0 over"]
    assert told[9:11] == [["loss"], "pause"]
    assert told[11:13] == ["train", "epoch 1"]


def test_a_learning_rate_that_depends_on_the_epoch_hops_with_the_trial(data):
    def callbacks(keras):
        return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / (1 + epoch))]

    workers = [make(line(callbacks=callbacks)) for _ in range(2)]
    state, rates = None, []
    for visit in range(4):
        call = call_of(visit)
        shard = data.open_shard(Split.TRAIN, call.shard)
        state, _ = workers[visit % 2].train(call, shard, state, Memory())
        arrays = unpack(Layout.parse(state.buffer), state.buffer)
        rates.append(float(arrays["optimizer.learning_rate"]))
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05])


class Counting(keras.callbacks.Callback):
    """Changes what is learnt by what it remembers."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_begin(self, logs=None):
        self.seen += 1
        self.model.optimizer.learning_rate = 0.01 * self.seen


def test_what_a_callback_remembers_never_depends_on_the_worker(data):
    builds = line(callbacks=lambda _: [Counting()])
    alone, _ = train(make(builds), data, 4)
    state = None
    for visit in range(4):
        call = call_of(visit)
        shard = data.open_shard(Split.TRAIN, call.shard)
        state, _ = make(builds).train(call, shard, state, Memory())
    assert bytes(state.buffer) == bytes(alone.buffer)


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (lambda k: k.callbacks.EarlyStopping(), r'EarlyStopping: use stopper="patience"'),
        (lambda k: k.callbacks.ReduceLROnPlateau(), r"ReduceLROnPlateau: use .*LearningRateSched"),
        (lambda k: k.callbacks.ModelCheckpoint("x.keras"), r"ModelCheckpoint: a run saves"),
        (lambda k: k.callbacks.CSVLogger("x.csv"), r"CSVLogger: a run writes progress\.csv"),
        (lambda k: print, r"must be keras\.callbacks\.Callback objects, but one is a builtin"),
    ],
    ids=["early", "plateau", "checkpoint", "csv", "function"],
)
def test_a_callback_that_cannot_hop_is_refused_with_what_to_use(data, callback, told):
    with pytest.raises(UsageError, match=told):
        train(make(line(callbacks=lambda k: [callback(k)])), data, 1)


def test_a_callback_must_leave_stopping_to_the_search(data):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    with pytest.raises(UsageError, match=r"Stop has set stop_training: use stopper"):
        train(make(line(callbacks=lambda _: [Stop()])), data, 1)
