"""The examples of searches run, and say what they are there to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEARCHES = ("search_tpe", "search_asha", "search_pbt")

pytestmark = pytest.mark.timeout(300)


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rank  trial  val_accuracy")
    return done.stdout


@pytest.mark.slow
def test_tpe_tells_what_it_and_random_search_found(tmp_path):
    told = run("search_tpe", tmp_path)
    medians = dict(re.findall(r"^(\w+): best .* median of the last 24: ([\d.]+)$", told, re.M))
    # Out of ranges this wide most of what is drawn blindly learns nothing.
    assert float(medians["tpe"]) > float(medians["random"])


@pytest.mark.slow
def test_asha_tells_how_few_epochs_it_took(tmp_path):
    told = run("search_asha", tmp_path)
    rungs = [int(count) for count in re.findall(r"^ *(\d+) networks were trained", told, re.M)]
    assert rungs[0] == 54
    assert rungs == sorted(rungs, reverse=True)
    assert rungs[-1] >= 1
    spent, full = map(int, re.findall(r"(\d+) epochs in all; without ASHA (\d+)", told)[0])
    assert spent < full / 4


@pytest.mark.slow
def test_pbt_tells_whom_the_winner_descends_from(tmp_path):
    told = run("search_pbt", tmp_path)
    winner = re.findall(r"^1 +(t\d{4})", told, re.M)[0]
    line = re.findall(r"^  (t\d{4}) from epoch (\d+):", told, re.M)
    assert line[0][0] == winner
    epochs = [int(epoch) for _, epoch in line]
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[-1] == 1


@pytest.mark.parametrize("name", [*SEARCHES, "keras_digits"])
def test_an_example_is_short(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.slow
def test_keras_networks_learn_digits(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "examples.keras_digits"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"^best: t\d{4} .* val_acc ([\d.]+)$", done.stdout, re.M)[0]) > 0.95
