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
    # Warnings of TensorFlow's own are none of ours.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*command, *SUITES],
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
