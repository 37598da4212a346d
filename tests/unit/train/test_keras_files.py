"""Keras models as files: weights alone are read, and nothing in them is run."""

from __future__ import annotations

import io
import json
import zipfile

import keras
import numpy as np
import pytest

from cerebro.data import from_arrays
from cerebro.errors import UsageError
from cerebro.task import ParamDict
from cerebro.train.model_file import ExportCall
from tests.unit.train.keras_visits import line, make, train
from tests.unit.train.test_keras_contract import classifier, points

PARAMS = ParamDict(lr=0.01)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A framework, a model that it trained, and rows to compare with."""
    data = from_arrays(tmp_path_factory.mktemp("files"), points(60, 0), shards=2)
    framework = make(classifier)
    model = framework.load(PARAMS, train(framework, data, 2)[0])
    return framework, model, points(20, 1)["x"]


def predictions(model, x):
    return model.predict(x, verbose=0)


@pytest.mark.parametrize(("to", "name"), [("safetensors", "m.safetensors"), ("keras", "m.keras")])
def test_an_exported_model_is_read_again(trained, to, name):
    framework, model, x = trained
    call = ExportCall(to=to, columns=("x",), about={"trial": "t0000"})
    content = framework.export(call, model, None)
    again = make(classifier).load_file(PARAMS, name, content)
    assert np.array_equal(predictions(again, x), predictions(model, x))


def test_an_exported_keras_file_is_one_for_keras_itself(trained, tmp_path):
    framework, model, x = trained
    path = tmp_path / "m.keras"
    path.write_bytes(framework.export(ExportCall(to="keras", columns=("x",)), model, None))
    assert np.array_equal(predictions(keras.models.load_model(path), x), predictions(model, x))


def test_saved_weights_are_read(trained, tmp_path):
    framework, model, x = trained
    model.save_weights(tmp_path / "m.weights.h5")
    content = (tmp_path / "m.weights.h5").read_bytes()
    again = framework.load_file(PARAMS, "m.weights.h5", content)
    assert np.array_equal(predictions(again, x), predictions(model, x))


def test_code_in_an_archive_is_not_looked_at(trained):
    framework, model, x = trained
    content = framework.export(ExportCall(to="keras", columns=("x",)), model, None)
    hostile = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(hostile, "w") as new:
        for name in old.namelist():
            config = {"module": "os", "class_name": "system", "config": "exit 1"}
            new.writestr(name, json.dumps(config) if name == "config.json" else old.read(name))
    again = framework.load_file(PARAMS, "m.keras", hostile.getvalue())
    assert np.array_equal(predictions(again, x), predictions(model, x))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("m.h5", b"", r"is read from \.safetensors, \.weights\.h5, \.keras files, but got m\.h5"),
        ("m.pkl", b"", r"Other files can run code"),
        ("m.keras", b"no zip", r"must be an archive of model\.save\(\)"),
        ("m.weights.h5", b"no hdf5", r"must hold the weights of the model"),
        ("m.safetensors", b"no", r"m\.safetensors: not a valid safetensors file"),
    ],
    ids=["legacy", "pickle", "zip", "hdf5", "safetensors"],
)
def test_other_files_are_refused(trained, name, content, told):
    with pytest.raises(UsageError, match=told):
        trained[0].load_file(PARAMS, name, content)


def test_weights_of_another_model_are_told(trained):
    _, model, _ = trained
    content = trained[0].export(ExportCall(to="keras", columns=("x",)), model, None)
    with pytest.raises(UsageError, match=r"m\.keras must hold the weights of the model"):
        make(line()).load_file(PARAMS, "m.keras", content)


def test_other_forms_are_refused(trained):
    framework, model, _ = trained
    with pytest.raises(UsageError, match=r"exported to safetensors or keras, but got 'onnx'"):
        framework.export(ExportCall(to="onnx", columns=("x",)), model, None)
