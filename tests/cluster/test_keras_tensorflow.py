"""Keras on TensorFlow does what it does on PyTorch: the contracts, and runs from end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.downloads import CACHE, DOWNLOAD_S, ROOT

REQUIREMENT = "tensorflow-cpu==2.21.0"
RUN_S = 1500.0
SUITES = ("tests/unit/train/test_keras_contract.py", "tests/integration/test_keras.py")
#: Of estimators on Spark: trained, equal to an inline run, predictions and files.
ON_SPARK = (
    "test_the_documented_flow_gives_models_and_histories",
    "test_the_weights_are_those_of_an_inline_run_on_the_same_shards",
    "test_predictions_on_executors_are_those_of_the_plain_model",
    "test_a_softmax_comes_back_as_a_vector",
    "test_models_are_kept_as_spark_ml_objects_and_in_pipelines",
)


def install() -> Path:
    """A directory with TensorFlow and what it needs, beside the environment of the tests."""
    target = CACHE / REQUIREMENT.replace("==", "-")
    if target.is_dir():
        return target
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["-c", str(ROOT / "constraints.txt"), "--target", str(partial), REQUIREMENT]
    subprocess.run([*command, *options], check=True, timeout=DOWNLOAD_S)
    partial.rename(target)
    return target


@pytest.mark.timeout(DOWNLOAD_S + RUN_S)
def test_the_suites_of_keras_pass_on_tensorflow():
    """All of what is tested on PyTorch: a minute, most of it TensorFlow's tracing of functions.

    By hand, with TensorFlow installed: `KERAS_BACKEND=tensorflow pytest -W ignore` and the suites.
    """
    passes_on_tensorflow(*SUITES)


@pytest.mark.spark
@pytest.mark.timeout(DOWNLOAD_S + RUN_S)
def test_estimators_are_trained_and_predict_on_spark_with_tensorflow():
    told = passes_on_tensorflow(*(f"tests/cluster/test_estimators.py::{name}" for name in ON_SPARK))
    assert f"{len(ON_SPARK)} passed" in told


def passes_on_tensorflow(*suites: str) -> str:
    """Run tests with TensorFlow behind Keras; what they print."""
    # Warnings of TensorFlow's own are none of ours.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["--timeout", str(RUN_S)]
    done = subprocess.run(
        [*command, *suites],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(install()),
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
