"""Columns of the data become what a Keras model takes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from cerebro.data import from_arrays
from cerebro.data.columns import SparseRows
from cerebro.errors import UsageError
from cerebro.task import ParamDict
from cerebro.testing.stack_contract import Memory
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.feed import Feed
from cerebro.train.score.calls import ScoreCall, ScoreMode
from cerebro.types import Split
from tests.unit.train.keras_visits import call_of, evaluate, line, make, train
from tests.unit.train.slow import CLOCK, computed, loaded, slow_shard


def two(inputs=("a", "b"), outputs=("p", "q"), form=list):
    """A model of two inputs and two outputs, made with lists or dicts."""
    given = [keras.Input((2,), name=inputs[0]), keras.Input((1,), name=inputs[1])]
    joined = layers.Concatenate()(given)
    found = [layers.Dense(1, name=outputs[0])(joined), layers.Dense(2, name=outputs[1])(joined)]
    if form is dict:
        names = zip(inputs, given, strict=True), zip(outputs, found, strict=True)
        return keras.Model(*map(dict, names))
    return keras.Model(given, found)


def feed(model, **options):
    return Feed(Compiled(model=model, optimizer="sgd", loss="mse", **options), model)


ROWS = {
    "b": np.arange(3.0),
    "a": np.arange(6.0).reshape(3, 2),
    "q": np.ones((3, 2)),
    "p": np.zeros(3),
}


@pytest.mark.parametrize("form", [list, dict])
def test_inputs_and_labels_go_by_their_names(form):
    fed = feed(two(form=form))(ROWS)
    x, y = (
        found if form is dict else dict(zip(names, found, strict=True))
        for found, names in ((fed.x, "ab"), (fed.y, "pq"))
    )
    assert x["a"].tolist() == ROWS["a"].tolist()
    assert x["b"].tolist() == [[0.0], [1.0], [2.0]]
    assert y["q"].tolist() == ROWS["q"].tolist()
    assert fed.rows == 3


def test_inputs_and_labels_without_such_names_go_by_order():
    model = two(inputs=("first", "second"), outputs=("third", "fourth"))
    fed = feed(model, feature_columns=["a", "b"], label_columns=["p", "q"])(ROWS)
    assert [each.shape for each in fed.x] == [(3, 2), (3, 1)]
    assert [each.shape for each in fed.y] == [(3,), (3, 2)]


def test_a_single_input_takes_what_is_neither_label_nor_weight_nor_id():
    model = keras.Sequential([keras.Input((2, 2)), layers.Flatten(), layers.Dense(1)])
    columns = {"id": np.arange(3), "w": np.ones(3), "z": np.ones((3, 4)), "y": np.ones(3)}
    fed = feed(model, sample_weight_col="w")({**columns, "note": ["a", "b", "c"]})
    assert fed.x.shape == (3, 2, 2)
    assert fed.x.dtype == np.float32
    assert fed.weight.tolist() == [1.0] * 3


def test_columns_that_only_the_transformation_needs_are_not_fed():
    def scale(batch):
        return {**batch, "a": batch["a"] * batch["factor"][:, None]}

    columns = {**ROWS, "factor": np.full(3, 10.0)}
    fed = feed(two(), feature_columns=["a", "b", "factor"], transformation_fn=scale)(columns)
    assert fed.x[0].tolist() == (10 * ROWS["a"]).tolist()


def test_sparse_rows_are_dense_when_the_model_sees_them():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    rows = SparseRows(np.array([0, 1, 1]), np.array([2]), np.array([5.0]), width=3)
    assert feed(model)({"x": rows, "y": np.ones(2)}).x.tolist() == [[0, 0, 5], [0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        ({"feature_columns": ["a"]}, ROWS, r"inputs are 'a', 'b' and the columns 'a'"),
        ({"feature_columns": ["a", "c"]}, ROWS, r"there must be a column 'c', but there are"),
        ({"label_columns": ["p"]}, ROWS, r"outputs are 'p', 'q' and the label columns 'p'"),
        ({"sample_weight_col": "w"}, ROWS, r"there must be a column 'w'"),
        (
            {},
            {**ROWS, "a": np.ones((3, 5))},
            r"'a' must fit the input 'a', .*\[2\], but have \[5\]",
        ),
        ({}, {**ROWS, "b": ["x", "y", "z"]}, r"'b' must hold numbers .* transformation_fn"),
        (
            {"transformation_fn": lambda d: d.shuffle(5)},
            ROWS,
            r"calls shuffle\(\) as of a tf\.data",
        ),
        ({"transformation_fn": lambda d: None}, ROWS, r"must give a dict .* gave a NoneType"),
    ],
    ids=["few", "absent", "labels", "weight", "shape", "text", "pipeline", "nothing"],
)
def test_what_does_not_fit_is_told(options, columns, told):
    with pytest.raises(UsageError, match=told):
        feed(two(), **options)(columns)


def make_pairs(rows, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, 2)), rng.normal(size=rows)
    return {"a": a, "b": b, "p": a.sum(1) + b, "q": a * 2, "w": rng.uniform(0, 2, rows)}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    return from_arrays(folder, make_pairs(130, 0), val=make_pairs(47, 1), shards=2)


@pytest.mark.parametrize("form", [list, dict])
def test_several_outputs_have_keras_names_and_exact_means(pairs, form):
    def build(params):
        return Compiled(
            model=two(form=form),
            optimizer="adam",
            loss={"p": "mse", "q": "mae"},
            loss_weights={"p": 1.0, "q": 0.5},
            metrics={"p": ["mae"], "q": ["mse"]},
        )

    framework = make(build)
    state, (report, *_) = train(framework, pairs, 2)
    found = evaluate(framework, pairs, state, batch_size=9)
    assert list(found) == ["loss", "p_loss", "p_mae", "q_loss", "q_mse"]
    assert report.members[0].sums.keys() == found.keys()
    shard = pairs.open_shard(Split.VAL, 0)
    model = framework.load(ParamDict(lr=0.01), state)
    inputs = {name: np.array(shard.columns[name]) for name in "ab"}
    given = model.predict(inputs if form is dict else list(inputs.values()), verbose=0)
    p, q = given.values() if form is dict else given
    errors = p[:, 0] - shard.columns["p"], q - shard.columns["q"]
    expected = {
        "p_loss": np.square(errors[0]).mean(),
        "q_loss": np.abs(errors[1]).mean(),
        "p_mae": np.abs(errors[0]).mean(),
        "q_mse": np.square(errors[1]).mean(),
    }
    expected["loss"] = expected["p_loss"] + 0.5 * expected["q_loss"]
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


def test_several_outputs_are_predicted_by_name(pairs):
    def build(params):
        return Compiled(model=two(), optimizer="adam", loss=["mse", "mse"])

    framework = make(build)
    model = framework.load(ParamDict(lr=0.01), train(framework, pairs, 1)[0])
    call = ScoreCall(mode=ScoreMode.PREDICT, params=(ParamDict(lr=0.01),), batch_size=9)
    (found,) = framework.score(call, pairs.open_shard(Split.VAL, 0), [model]).members
    assert {name: column.shape for name, column in found.columns.items()} == {
        "p": (47, 1),
        "q": (47, 2),
    }


def test_rows_count_with_their_weights_in_the_loss(pairs):
    def build(params):
        model = keras.Sequential([keras.Input((2,), name="a"), layers.Dense(1, name="p")])
        return Compiled(
            model=model, optimizer="sgd", loss="mse", metrics=["mae"], sample_weight_col="w"
        )

    framework = make(build)
    state, _ = train(framework, pairs, 1)
    found = evaluate(framework, pairs, state, batch_size=9)
    shard = pairs.open_shard(Split.VAL, 0)
    model = framework.load(ParamDict(lr=0.01), state)
    error = model.predict(np.array(shard.columns["a"]), verbose=0)[:, 0] - shard.columns["p"]
    assert found["loss"] == pytest.approx((error**2 * shard.columns["w"]).mean(), rel=1e-5)
    # As in Keras, metrics are of the rows as they are.
    assert found["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-5)


def test_rows_that_a_transformation_leaves_out_do_not_count(pairs):
    def positive(batch):
        kept = batch["b"] > 0
        return {name: column[kept] for name, column in batch.items()}

    def build(params):
        return Compiled(
            model=two(), optimizer="sgd", loss=["mse", "mse"], transformation_fn=positive
        )

    framework = make(build)
    _, (report,) = train(framework, pairs, 1)
    expected = (pairs.open_shard(Split.TRAIN, 0).columns["b"] > 0).sum()
    assert report.rows == expected
    assert report.members[0].sums["loss"][1] == expected


def test_a_transformation_that_leaves_no_row_is_told(pairs):
    nothing = line(
        transformation_fn=lambda _: lambda batch: {k: v[:0] for k, v in batch.items()},
        feature_columns=lambda _: ["a"],
        label_columns=lambda _: ["p"],
        model=lambda k: k.Sequential([k.Input((2,)), k.layers.Dense(1)]),
    )
    with pytest.raises(UsageError, match=r"must leave rows .* left none of the 65 in shard 0"):
        train(make(nothing), pairs, 1)


@pytest.mark.usefixtures("clock")
def test_slow_batches_are_told_apart_from_slow_steps(data):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            CLOCK.pass_by()

    shard = data.open_shard("train", 0)
    framework = make(line(callbacks=lambda keras: [Slow()]))
    assert computed(framework.train(call_of(0), shard, None, Memory())[1], 3)
    framework = make(line())
    state, report = framework.train(call_of(0), slow_shard(data), None, Memory())
    assert loaded(report, 3)
    assert loaded(framework.evaluate(call_of(0, split="val"), slow_shard(data), state), 3)
