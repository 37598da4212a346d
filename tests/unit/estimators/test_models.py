"""Trained models: predictions, files, and what can be done with them; with PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from cerebro.errors import CerebroError, UsageError
from cerebro.torch import CerebroModel, TorchEstimator
from cerebro.tune import GridSearch
from tests.unit.estimators.made import classifier, points


def two_outputs(params):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(1, 1)

        def forward(self, features, size):
            return self.first(features), self.second(size.reshape(-1, 1))

    model = Net()
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=params["lr"]),
        loss=["cross_entropy", "mse"],
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return GridSearch("inline", folder, classifier, {"lr": [0.5, 0.0]}, 1).fit(points())


def test_predictions_are_those_of_the_plain_model(result):
    table = points(40, seed=9)
    found = result.transform(table)["label__output"]
    with torch.no_grad():
        expected = result.torch()(torch.from_numpy(table["features"])).numpy()
    assert np.array_equal(found, expected)
    assert found.shape == (40, 2)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_a_table_of_any_kind_is_predicted(result, kind):
    table = points(2000, seed=9)
    expected = result.transform(table)["label__output"]
    if kind == "pandas":
        frame = pd.DataFrame({"features": list(table["features"]), "id": range(2000)})
        found = np.stack(result.transform(frame)["label__output"].tolist())
    else:
        frame = pa.table({"features": table["features"].tolist(), "id": list(range(2000))})
        found = np.array(result.transform(frame)["label__output"].to_pylist())
    assert np.allclose(found, expected, atol=1e-6)


def test_output_columns_can_be_named(tmp_path):
    search = GridSearch("inline", tmp_path, classifier, {"lr": [0.5]}, 1)
    result = search.fit(points())
    assert "label_predicted" in result.set_output_columns(["label_predicted"]).transform(points())
    assert "label_predicted" in result.get_all_models()[0].transform(points())
    with pytest.raises(UsageError, match=r"1 outputs .* needs a column, but output_columns has 2"):
        result.set_output_columns(["a", "b"]).transform(points())
    with pytest.raises(UsageError, match=r"must be a list of different names"):
        result.set_output_columns([1])
    with pytest.raises(UsageError, match=r"the table has 'label' already, which would be lost"):
        result.set_output_columns(["label"]).transform(points())


def test_each_output_has_a_column(tmp_path):
    table = {**points(), "size": np.linspace(0, 1, 96), "price": np.linspace(0, 2, 96)}
    search = GridSearch(
        "inline",
        tmp_path,
        two_outputs,
        {"lr": [0.1]},
        1,
        label_columns=["label", "price"],
        feature_columns=["features", "size"],
    )
    found = search.fit(table).transform(table)
    assert found["label__output"].shape == (96, 2)
    assert found["price__output"].shape == (96,)


def test_a_saved_model_predicts_the_same(result, tmp_path):
    model = result.get_best_model()
    model.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "model.json",
        "weights.safetensors",
    ]
    loaded = CerebroModel.load(tmp_path / "model", estimator_gen_fn=classifier)
    assert loaded.get_history() == model.get_history()
    assert loaded.trial_params == model.trial_params
    table = points(seed=4)
    assert np.array_equal(
        loaded.transform(table)["label__output"], model.transform(table)["label__output"]
    )


def test_a_saved_torch_model_needs_the_function_that_made_it(result, tmp_path):
    result.get_best_model().save(tmp_path)
    with pytest.raises(UsageError, match=r"pass estimator_gen_fn="):
        CerebroModel.load(tmp_path)


def test_a_torch_model_is_no_keras_model(result):
    with pytest.raises(UsageError, match=r"is a torch model: call torch\(\)"):
        result.keras()


def test_a_model_of_ones_own_can_be_changed_without_harm(result):
    before = result.transform(points())["label__output"]
    with torch.no_grad():
        result.torch().weight.zero_()
    assert np.array_equal(result.transform(points())["label__output"], before)


def test_all_models_failed(tmp_path):
    def diverging(params):
        estimator = classifier({"lr": 0.1})
        with torch.no_grad():
            estimator.model.weight.fill_(float("nan"))
        return estimator

    result = GridSearch("inline", tmp_path, diverging, {"lr": [1, 2]}, 1).fit(points())
    assert result.get_all_models() == []
    with pytest.raises(UsageError, match=r"no trial of .* has finished an epoch"):
        result.get_best_model()


def test_models_have_the_names_of_spark_ml_as_well(result):
    model = result.get_all_models()[1]
    assert (model.getRunId(), model.getHistory()) == ("t0001", model.get_history())
    before = model.output_columns
    assert model.setOutputCols(["said"]).output_columns == ("said",)
    model.output_columns = before


def test_models_are_loaded_when_they_are_used_and_not_before(tmp_path):
    result = GridSearch("inline", tmp_path, classifier, {"lr": [0.5, 0.0]}, 1).fit(points())
    best = result.get_best_model()
    (other,) = (model for model in result.get_all_models() if model is not best)
    shutil.rmtree(Path(result.run.path, "trials", other.run_id, "checkpoints"))
    assert best.transform(points())["label__output"].shape == (96, 2)
    with pytest.raises(CerebroError):
        other.transform(points())
