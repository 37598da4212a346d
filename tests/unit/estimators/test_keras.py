"""Estimators of Keras models, in this process."""

from __future__ import annotations

import numpy as np
import pytest

from cerebro.errors import UsageError
from cerebro.keras import CerebroModel, KerasEstimator
from cerebro.tune import GridSearch, hp_choice
from tests.unit.estimators.made import points

import keras  # isort: skip  # after cerebro.keras, which chooses its backend


def scaled(x):
    return keras.ops.sigmoid(x) * 2


def softmax(params):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="softmax")])
    return KerasEstimator(
        model=model,
        optimizer=keras.optimizers.Adam(learning_rate=params["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["acc"],
        batch_size=16,
    )


def with_functions_of_its_own(params):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation=scaled)])
    return KerasEstimator(
        model=model, optimizer="sgd", loss="mse", custom_objects={"scaled": scaled}
    )


def two_by_two(params):
    first = keras.Input((2,), name="features")
    second = keras.Input((1,), name="size")
    both = keras.layers.Concatenate()([first, second])
    outputs = [
        keras.layers.Dense(2, activation="softmax", name="label")(both),
        keras.layers.Dense(1, name="price")(both),
    ]
    return KerasEstimator(
        model=keras.Model([first, second], outputs),
        optimizer="adam",
        loss={"label": "sparse_categorical_crossentropy", "price": "mse"},
        loss_weights={"label": 1.0, "price": 0.1},
        metrics={"label": ["acc"], "price": ["mae"]},
        batch_size=16,
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    space = {"lr": hp_choice([0.1, 0.0])}
    return GridSearch("inline", tmp_path_factory.mktemp("store"), softmax, space, 2).fit(points())


def test_histories_have_the_metrics_of_training_and_validation(result):
    assert list(result.get_history()) == ["train_loss", "train_acc", "val_loss", "val_acc"]
    assert {len(values) for values in result.get_history().values()} == {2}


def test_all_outputs_are_predicted_as_the_plain_model_does(result):
    table = points(70, seed=3)
    found = result.transform(table)["label__output"]
    assert found.shape == (70, 3)
    expected = result.keras().predict(table["features"], verbose=0, batch_size=1024)
    assert np.array_equal(found, expected)


def test_the_best_model_is_the_one_that_learnt(result):
    assert result.get_best_model().trial_params == {"lr": 0.1}
    first, last = (result.get_all_models()[n].keras().get_weights()[0] for n in (0, 1))
    assert not np.array_equal(first, last)


def test_a_saved_model_predicts_the_same_and_holds_no_code(result, tmp_path):
    model = result.get_best_model()
    model.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["architecture.json", "model.json", "weights.safetensors"]
    loaded = CerebroModel.load(tmp_path)
    table = points(30, seed=8)
    expected = model.transform(table)["label__output"]
    assert np.array_equal(loaded.transform(table)["label__output"], expected)
    assert isinstance(loaded.keras(), keras.Model)


def test_functions_of_ones_own_are_given_when_a_model_is_loaded(tmp_path):
    search = GridSearch("inline", tmp_path / "s", with_functions_of_its_own, {"unused": [1]}, 1)
    result = search.fit(points())
    result.get_best_model().save(tmp_path / "model")
    with pytest.raises(UsageError, match=r"as custom_objects="):
        CerebroModel.load(tmp_path / "model")
    loaded = CerebroModel.load(tmp_path / "model", custom_objects={"scaled": scaled})
    found = loaded.transform(points())["label__output"]
    assert np.array_equal(found, result.transform(points())["label__output"])


def test_estimators_without_metrics_are_ranked_by_their_loss(tmp_path):
    def bare(params):
        made = softmax({"lr": 0.1})
        return KerasEstimator(model=made.model, optimizer="adam", loss=made.loss)

    result = GridSearch("inline", tmp_path, bare, {"unused": [1, 2]}, 1).fit(points())
    assert list(result.get_history()) == ["train_loss", "val_loss"]


def test_metrics_without_a_name_are_called_the_same_in_every_trial(tmp_path):
    def generate(params):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation="sigmoid")])
        optimizer = keras.optimizers.SGD(params["lr"])
        metrics = [keras.metrics.AUC(), keras.metrics.BinaryAccuracy()]
        return KerasEstimator(
            model=model, optimizer=optimizer, loss="binary_crossentropy", metrics=metrics
        )

    before = keras.layers.Dense(1).name
    search = GridSearch("inline", tmp_path, generate, {"lr": [0.1, 0.01]}, 1, "auc")
    histories = search.fit(points()).get_all_model_history()
    names = ["loss", "auc", "binary_accuracy"]
    expected = [f"{split}_{name}" for split in ("train", "val") for name in names]
    assert [list(history) for history in histories.values()] == [expected, expected]
    assert keras.layers.Dense(1).name != before


@pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`")
def test_a_model_written_as_in_the_original_documentation_is_trained_and_kept(tmp_path):
    def generate(params):
        model = keras.models.Sequential()
        model.add(keras.layers.Dense(100, input_dim=2))
        model.add(keras.layers.Dense(1, input_dim=100))
        model.add(keras.layers.Activation("sigmoid"))
        optimizer = keras.optimizers.Adam(learning_rate=params["lr"])
        return KerasEstimator(
            model=model, optimizer=optimizer, loss="binary_crossentropy", metrics=["acc"]
        )

    result = GridSearch("inline", tmp_path / "store", generate, {"lr": [0.1]}, 1).fit(points())
    result.get_best_model().save(tmp_path / "model")
    found = CerebroModel.load(tmp_path / "model").transform(points())["label__output"]
    assert np.array_equal(found, result.transform(points())["label__output"])
    assert found.shape == (96,)


def test_several_inputs_and_outputs_are_fed_by_name(tmp_path):
    table = {**points(), "size": np.linspace(0, 1, 96), "price": np.linspace(0, 2, 96)}
    search = GridSearch(
        "inline",
        tmp_path,
        two_by_two,
        {"unused": [1]},
        1,
        evaluation_metric="label_acc",
        label_columns=["price", "label"],
        feature_columns=["size", "features"],
    )
    result = search.fit(table)
    assert {"val_label_acc", "val_price_mae"} <= set(result.get_history())
    found = result.transform(table)
    assert found["label__output"].shape == (96, 2)
    assert found["price__output"].shape == (96,)


def test_a_dataset_style_transformation_is_applied(tmp_path):
    def doubled(params):
        estimator = softmax({"lr": 0.1})
        return KerasEstimator(
            model=estimator.model,
            optimizer="sgd",
            loss="sparse_categorical_crossentropy",
            transformation_fn=lambda dataset: dataset.shuffle(1000).map(
                lambda row: {"features": row.features * 2, "label": row.label}
            ),
        )

    plain = GridSearch("inline", tmp_path, softmax, {"lr": [0.0]}, 1).fit(points())
    other = GridSearch("inline", tmp_path, doubled, {"lr": [0.0]}, 1).fit(points())
    assert plain.get_history()["val_loss"] != other.get_history()["val_loss"]


def test_the_same_seed_gives_the_same_weights(tmp_path):
    runs = [
        GridSearch("inline", tmp_path / name, softmax, {"lr": [0.1]}, 1, seed=4).fit(points())
        for name in "ab"
    ]
    assert runs[0].run.digest() == runs[1].run.digest()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": "binary_crosentropy"}, r"unknown loss .*Did you mean 'binary_crossentropy'\?"),
        ({"optimizer": "adm"}, r"unknown optimizer 'adm'\. Known: .*adamw.*Did you mean 'adam'\?"),
        ({"metrics": ["acc", "mea"]}, r"unknown metric 'mea'\. Known: acc, accuracy, auc, .* mae"),
    ],
    ids=["loss", "optimizer", "metric"],
)
def test_a_misspelt_name_is_told_before_anything_is_prepared(tmp_path, wrong, message):
    def generate(params):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return KerasEstimator(**{"model": model, "optimizer": "sgd", "loss": "mse", **wrong})

    with pytest.raises(UsageError, match=message):
        GridSearch("inline", tmp_path / "store", generate, {"unused": [1, 2]}, 1).fit(points())
    assert not (tmp_path / "store").exists()


LAYERS = [{"activation": hp_choice(["relu", "tanh"]), "units": 2}, {"activation": "linear"}]
NAMES = {
    "optimizer": ["sgd", "adam", "rmsprop"],
    "layer": LAYERS,
    "metrics": [["mae"], ["mse", "mae"]],
}


def of_names(params):
    units, activation = params["layer"].get("units", 1), params["layer"]["activation"]
    layers = [keras.layers.Dense(units, activation=activation), keras.layers.Dense(1)]
    return KerasEstimator(
        model=keras.Sequential([keras.Input((2,)), *layers]),
        optimizer=params["optimizer"],
        loss="mse",
        metrics=params["metrics"],
    )


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"optimizer": ["adm", "sgd", "adam"]}, "unknown optimizer 'adm'"),
        ({"optimizer": ["sgd", "adm", "adam"]}, "unknown optimizer 'adm'"),
        ({"optimizer": ["sgd", "adam", "adm"]}, "unknown optimizer 'adm'"),
        ({"metrics": [["mse"], ["mse", "mea"]]}, "unknown metric 'mea'"),
        (
            {"layer": [{"activation": hp_choice(["relu", "rellu", "tanh"])}, *LAYERS]},
            r"'rellu' for 'layer\[0\]\.activation' .*identifier: rellu\. Correct the name",
        ),
        (
            {"layer": [*LAYERS, {"activation": "tanhh", "units": hp_choice([1, 2])}]},
            r"for 'layer' .*identifier: tanhh",
        ),
    ],
    ids=["first", "second", "third", "in-a-list", "in-a-subspace", "constant-of-a-subspace"],
)
def test_a_misspelt_option_is_told_before_anything_is_prepared(tmp_path, space, message):
    search = GridSearch("inline", tmp_path / "store", of_names, {**NAMES, **space}, 1)
    with pytest.raises(UsageError, match=message):
        search.fit(points())
    assert not (tmp_path / "store").exists()


def test_an_option_that_no_model_can_be_made_of_is_a_matter_of_its_trial(tmp_path):
    def generate(params):
        if params["width"] == "wide":
            raise ValueError("too wide")
        return softmax({"lr": 0.1})

    space = {"width": hp_choice(["narrow", "wide"])}
    found = GridSearch("inline", tmp_path, generate, space, 1).fit(points())
    assert sorted(str(trial.status) for trial in found.run.trials) == ["failed", "finished"]


def test_arguments_have_the_names_of_spark_ml_as_well():
    estimator = softmax({"lr": 0.1})
    assert estimator.getLoss() == "sparse_categorical_crossentropy"
    assert estimator.getMetrics() == ["acc"]
    assert estimator.getModel() is estimator.model
    assert estimator.setBatchSize(64).batch_size == estimator.getBatchSize() == 64
    assert estimator.setTransformationFn(dict).getTransformationFn() is dict
    assert estimator.setSampleWeightCol("w").getSampleWeightCol() == "w"
    with pytest.raises(UsageError, match="`batch_size >= 1` must hold"):
        estimator.setBatchSize(0)
    assert estimator.batch_size == 64


@pytest.mark.parametrize(
    "name",
    [
        *("Store", "FeatureCols", "LabelCols", "Validation", "Epochs", "Verbose", "RunId"),
        *("RunName", "HyperParams", "ShufflingBufferSize"),
    ],
)
def test_what_belongs_to_the_search_is_said_by_its_earlier_accessors(name):
    estimator = softmax({"lr": 0.1})
    for accessor in (f"get{name}", f"set{name}"):
        with pytest.raises(UsageError, match=r"KerasEstimator has no \w+: "):
            getattr(estimator, accessor)
    assert not hasattr(estimator, "getNothing")
