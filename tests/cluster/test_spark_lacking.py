"""Executors without Cerebro, or with another version of it: told in a line, wherever it shows."""

from __future__ import annotations

import shutil

import pytest

from cerebro.backend import SparkBackend
from cerebro.errors import CerebroError
from cerebro.keras import CerebroModel, KerasEstimator
from cerebro.testing.backend_session import Session
from cerebro.tune import GridSearch
from tests.cluster.sparks import ROOT, session
from tests.unit.estimators.made import points

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

pytestmark = pytest.mark.spark

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cerebro":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def line(params):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return KerasEstimator(model=model, optimizer="sgd", loss="mse")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model that was trained elsewhere."""
    folder = tmp_path_factory.mktemp("saved")
    result = GridSearch("inline", folder / "store", line, {"unused": [1]}, 1).fit(points())
    result.get_best_model().save(folder / "model")
    return folder / "model"


@pytest.fixture
def other_python(tmp_path):
    """Changes what Python finds on executors."""

    def change(kind):
        folder = tmp_path / "python"
        folder.mkdir()
        if kind == "absent":
            (folder / "sitecustomize.py").write_text(ABSENT)
        else:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "src/cerebro", folder / "cerebro", ignore=ignored)
            (folder / "cerebro/version.py").write_text('__version__ = "0.0.1"\n')
        return {"spark.executorEnv.PYTHONPATH": f"{folder}:{ROOT}"}

    return change


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("absent", r"ModuleNotFoundError: No module named 'cerebro.*set PYSPARK_PYTHON"),
        ("other", r"version of Cerebro that the driver has, which is .* has 0\.0\.1\. Install"),
    ],
    ids=["absent", "other"],
)
def test_executors_that_lack_cerebro_are_told_in_a_line(
    saved, other_python, tmp_path, kind, message
):
    with session("local[1]", **other_python(kind)) as spark:
        backend = SparkBackend(spark)
        frame = spark.createDataFrame([([1.0, 2.0], 1)], ["features", "label"])
        with pytest.raises(CerebroError, match=message) as caught:
            backend.prepare_data(tmp_path / "frame", frame)
        assert_plain(caught)
        with pytest.raises(CerebroError, match=message) as caught:
            CerebroModel.load(saved).transform(frame)
        assert_plain(caught)
        try:
            backend.start(Session(backend, tmp_path).setup(), 1)
            with pytest.raises(CerebroError, match=message) as caught:
                backend.events()
        finally:
            backend.stop()
        assert_plain(caught)
    assert not list((tmp_path / "frame").glob("*.arrow"))


def assert_plain(caught):
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_other_errors_of_spark_stay_as_they_are(tmp_path):
    with session("local[1]") as spark:
        frame = spark.range(4).selectExpr("cast(raise_error('mine') as double) as x")
        with pytest.raises(Exception, match="mine") as caught:
            SparkBackend(spark).prepare_data(tmp_path / "frame", frame)
    assert not isinstance(caught.value, CerebroError)
