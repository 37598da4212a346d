"""Files with a task, of every key and of few, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.config.schema import ExperimentConfig, load_experiment
from cerebro.errors import ConfigError

FULL = """\
name: digits
task: tasks.py:Digits
data: data/digits
store: runs
backend: local
workers: 2
threads_per_worker: 1
seed: 0
epochs: 5
batch_size: 32
search: random
num_trials: 20
metric: val_accuracy
mode: max
checkpoint: off
device: cpu
space:
  lr: [0.1, 0.01]
  width: {choice: [32, 64]}
  wd: {loguniform: [1e-6, 1e-2]}
  dropout: 0.1
keep_top: 3
stack: 4
same_order: true
stopper: {name: patience, patience: 2}
goal: {target: 0.97}
budget: 30m
concurrent: 8
seeds: 3
constraints: {val_seconds: 2.5}
warm_start: [{lr: 0.1, width: 32, wd: 1e-3, dropout: 0.1}]
learn_from: runs/earlier
launch: {nodes: 8}
"""
SHORT = """\
name: digits
task: package.tasks:Digits
data: data/digits
epochs: 5
metric: val_loss
mode: min
space: {lr: [0.1, 0.01], batch_size: [32]}
"""


def make_project() -> None:
    """What the files name, in the working directory."""
    Path("data/digits").mkdir(parents=True)
    Path("runs/earlier").mkdir(parents=True)
    Path("runs/earlier/run.json").write_text("{}")
    Path("tasks.py").write_text("raise SystemExit('the task must not be imported')\n")


def load(text: str, *overrides: str) -> ExperimentConfig:
    Path("experiment.yaml").write_text(text)
    return load_experiment("experiment.yaml", overrides)


def failure(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
