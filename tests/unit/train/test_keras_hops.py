"""A Keras trial that hops learns, bit by bit, what it would learn in one place."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest

from cerebro.data import batch_order, from_arrays
from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.task import ParamDict
from cerebro.testing.stack_contract import Memory
from cerebro.train.keras.build import Builder, seed_everything
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.task import KerasTask
from cerebro.train.keras.variables import unpack
from cerebro.train.seeds import derive_seed
from cerebro.train.visit import Diverged, OutOfMemory, State
from cerebro.types import Split
from tests.unit.train.keras_visits import call_of, evaluate, line, make, train
from tests.unit.train.test_keras_contract import classifier, points


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    return from_arrays(folder, points(202, 0), val=points(90, 1), shards=2)


def arrays_of(state):
    return unpack(Layout.parse(state.buffer), state.buffer)


def in_one_place(data, build, visits, lr=0.01):
    """A loop as in Keras' own guide, on the rows that the visits see."""
    seed_everything(derive_seed("model", 0, 0))
    made = build(ParamDict(lr=lr))
    model = made.model
    model.compile(optimizer=made.optimizer, loss=made.loss, metrics=made.metrics)
    for visit in range(visits):
        call = call_of(visit)
        shard = data.open_shard(Split.TRAIN, call.shard)
        # Random layers without a seed of their own draw from generators seeded for each visit.
        seed_everything(derive_seed("visit", 0, 0, call.epoch, call.shard))
        order = batch_order(shard, 8, seed=0, trial=0, epoch=call.epoch)
        for start in range(0, len(order), 8):
            rows = order[start : start + 8]
            model.train_on_batch(*(np.array(shard.columns[name][rows]) for name in ("x", "y")))
    return model


@pytest.mark.parametrize("workers", [1, 2])
def test_hops_do_not_change_a_bit(data, workers):
    frameworks = [make(classifier) for _ in range(workers)]
    state = None
    for visit in range(6):
        call = call_of(visit)
        shard = data.open_shard(Split.TRAIN, call.shard)
        state, _ = frameworks[visit % workers].train(call, shard, state, Memory())
    model = in_one_place(data, classifier, 6)
    found = arrays_of(state)
    own = [array for name, array in found.items() if name.startswith("model.")]
    assert len(own) == len(model.variables)
    loaded = frameworks[0].load(ParamDict(lr=0.01), state)
    for variable, expected in zip(loaded.variables, model.variables, strict=True):
        assert np.array_equal(
            keras.ops.convert_to_numpy(variable), keras.ops.convert_to_numpy(expected)
        ), variable.path
    # Moments and counters, too.
    assert len(found) == len(model.variables) + len(model.optimizer.variables)
    assert found["optimizer.iteration"] == 6 * 13


def test_names_of_the_state_do_not_depend_on_what_the_process_has_built(data):
    one, _ = train(make(classifier), data, 1)
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    other, _ = train(make(classifier), data, 1)
    names = {entry.name for entry in Layout.parse(one.buffer).entries}
    assert bytes(one.buffer) == bytes(other.buffer)
    assert {
        "model.sequential/dense/kernel",
        "model.sequential/dense_1/bias",
        "model.sequential/batch_normalization/moving_mean",
        "optimizer.sequential/dense/kernel/momentum",
        "optimizer.iteration",
    } <= names
    assert any("seed_generator" in name for name in names)


def test_a_model_is_built_once_for_all_visits_of_its_trial(data):
    built = []

    def build(params):
        built.append(params["lr"])
        return classifier(params)

    framework = make(build)
    states = {lr: train(framework, data, 3, params=(ParamDict(lr=lr),))[0] for lr in (0.1, 0.01)}
    for lr, state in states.items():
        evaluate(framework, data, state, params=(ParamDict(lr=lr),))
    assert built == [0.1, 0.01]


def test_models_are_kept_up_to_a_limit(data, monkeypatch):
    monkeypatch.setattr("cerebro.train.keras.build._KEPT", 2)
    builder = Builder(KerasTask(classifier))
    kept = [builder.new(0, 0, ParamDict(lr=lr), None) for lr in (1.0, 2.0, 3.0)]
    assert builder.known(0, 0, ParamDict(lr=3.0), None) is kept[2]
    assert builder.known(0, 0, ParamDict(lr=2.0), None) is kept[1]
    assert builder.known(0, 0, ParamDict(lr=1.0), None) is not kept[0]


def test_a_subclass_without_inputs_hops_and_is_loaded(data):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(8, activation="relu")
            self.out = keras.layers.Dense(3, activation="softmax")

        def call(self, inputs):
            return self.out(self.hidden(inputs))

    def build(params):
        return Compiled(model=Net(), optimizer="adam", loss="sparse_categorical_crossentropy")

    framework = make(build)
    state, _ = train(framework, data, 3)
    again, _ = train(make(build), data, 3)
    assert bytes(state.buffer) == bytes(again.buffer)
    x = np.array(data.open_shard(Split.VAL, 0).columns["x"])
    model = make(build).load(ParamDict(lr=0.01), state)
    assert model.predict(x, verbose=0).shape == (len(x), 3)


def test_loading_leaves_the_generators_of_the_program_alone(data):
    framework = make(classifier)
    state, _ = train(framework, data, 1)
    random.seed(1)
    np.random.seed(1)
    framework.load(ParamDict(lr=0.01), state)
    found = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    assert found == (random.random(), np.random.random())


def test_a_copy_goes_on_with_its_own_learning_rate(data):
    framework = make(line())
    state, _ = train(framework, data, 1, params=(ParamDict(lr=0.01),))
    shard = data.open_shard(Split.TRAIN, 1)
    call = call_of(1, trials=(7,), params=(ParamDict(lr=0.002),), origin=ParamDict(lr=0.01))
    after, _ = framework.train(call, shard, state, Memory())
    assert arrays_of(after)["optimizer.learning_rate"] == np.float32(0.002)


def test_the_rows_of_a_compiled_batch_size_win(data):
    _, (report,) = train(make(line(batch_size=lambda _: 50)), data, 1)
    assert len(report.members[0].losses) == 3
    assert report.rows == 101


def test_a_loss_that_is_no_number_ends_the_trial(data):
    with pytest.raises(Diverged, match=r"loss is (nan|inf) at step \d+ of the visit"):
        train(make(line()), data, 4, params=(ParamDict(lr=1e30),))


def test_a_weight_that_is_no_number_ends_the_trial(data):
    def build(params):
        made = line()(params)

        class Spoil(keras.callbacks.Callback):
            def on_train_end(self, logs=None):
                weights = self.model.get_weights()
                self.model.set_weights([weights[0] * np.nan, *weights[1:]])

        return Compiled(model=made.model, optimizer="sgd", loss="mse", callbacks=[Spoil()])

    with pytest.raises(Diverged, match=r"model\.sequential/dense/kernel is not finite"):
        train(make(build), data, 1)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
    ],
    ids=["host", "torch", "jax"],
)
def test_too_little_memory_is_told_with_a_remedy(data, error):
    def fail(batch):
        raise error

    with pytest.raises(OutOfMemory, match=r"out of memory: .* Use a smaller batch_size"):
        train(make(line(transformation_fn=lambda _: fail)), data, 1)


def test_a_state_of_another_model_is_refused(data):
    state, _ = train(make(line()), data, 1)
    framework = make(classifier)
    with pytest.raises(
        UsageError, match=r"state must have the variables .* sequential/dense/kernel is of"
    ):
        framework.load(ParamDict(lr=0.01), State(state.buffer, state.meta))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda params: "model", r"must give a Compiled, but gave a str"),
        (line(model=lambda _: "model"), r"must be a keras\.Model, but .* gave a str"),
        (line(loss=lambda _: None), r"gave no loss"),
        (line(batch_size=lambda _: 0), r"batch_size must be an integer of at least 1"),
        (line(optimizer=lambda _: "nadamax"), r"unknown optimizer .nadamax.\. Known: "),
    ],
    ids=["what", "model", "loss", "batch_size", "optimizer"],
)
def test_what_cannot_be_trained_is_told(data, build, told):
    with pytest.raises(UsageError, match=told):
        train(make(build), data, 1)


def test_a_model_that_is_given_twice_is_told(data):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    framework = make(line(model=lambda _: model))
    train(framework, data, 1)
    with pytest.raises(UsageError, match=r"must make a new model each time"):
        train(framework, data, 1)


def test_stacks_are_refused_by_a_survey_and_by_training(data):
    from cerebro.train.visit import Stacking, SurveyCall

    framework, shard = make(line()), data.open_shard(Split.TRAIN, 0)
    call = SurveyCall(trials=(0, 1), params=({}, {}), batch_sizes=(8, 8), seed=0)
    found = framework.survey(call, shard)
    assert {group.obstacle for group in found.groups} == {"Keras trains one model at a time"}
    with pytest.raises(UsageError, match="must be trained alone"):
        framework.train(call_of(0, stack=Stacking()), shard, None, Memory())


def test_what_a_model_was_compiled_with_before_does_not_count(data):
    def build(params):
        found = line()(params)
        found.model.compile(optimizer="adam", loss="mae")
        return found

    (ours, reports), (plain, expected) = (train(make(b), data, 2) for b in (build, line()))
    assert bytes(ours.buffer) == bytes(plain.buffer)
    assert [r.members for r in reports] == [r.members for r in expected]
