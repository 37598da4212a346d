"""Estimators in processes of their own, and searches that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.keras import KerasEstimator
from cerebro.tune import GridSearch
from tests.unit.estimators.made import classifier, points

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

ROOT = Path(__file__).parents[3]
SPACE = {"lr": [0.5, 0.1, 0.0]}


def keras_classifier(params):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation="softmax")])
    return KerasEstimator(
        model=model,
        optimizer=keras.optimizers.SGD(learning_rate=params["lr"]),
        loss="sparse_categorical_crossentropy",
        metrics=["acc"],
        batch_size=8,
    )


@pytest.mark.slow
@pytest.mark.parametrize("generate", [classifier, keras_classifier])
def test_processes_give_the_weights_of_an_inline_run(generate, tmp_path):
    runs = [
        GridSearch(backend, tmp_path / backend, generate, SPACE, 2, workers=2, verbose=0).fit(
            points()
        )
        for backend in ("inline", "local")
    ]
    assert runs[0].run.digest() == runs[1].run.digest()
    assert len(runs[1].get_all_models()) == 3


SCRIPT = """
import sys
from pathlib import Path
from cerebro.tune import GridSearch
from tests.unit.estimators.made import classifier, points

def generate(params):
    # Not by variables of its own: it must be the same function in the next process.
    folder, mode = sys.argv[1:]
    if mode == "held" and list(Path(folder).glob("runs/*/trials/*/checkpoints/*.json")):
        print("held", flush=True)
        sys.stdin.read()
    return classifier(params)

space = {"lr": [0.5, 0.1, 0.0]}
result = GridSearch("inline", sys.argv[1], generate, space, 5, verbose=0).fit(points())
print(result.run.digest(), result.run.is_resumed)
"""


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_stood(tmp_path):
    def start(folder: Path, mode: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT, str(folder), mode]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    # Once a checkpoint is there it goes no further.
    killed = start(tmp_path / "a", "held")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "held\n"
    killed.kill()
    killed.communicate()
    told = []
    for folder in ("a", "b"):
        process = start(tmp_path / folder, "free")
        told.append(process.communicate(timeout=100)[0].split())
        assert process.returncode == 0
    assert told[0] == [told[1][0], "True"]


@pytest.mark.slow
def test_the_example_without_spark_finds_a_good_network(tmp_path):
    command = [sys.executable, "-m", "examples.estimator_digits"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("right on all rows: ")[1]) > 0.9
