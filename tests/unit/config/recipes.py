"""A recipe, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.config.files import load_file
from cerebro.config.recipe import RecipeExperiment
from cerebro.errors import ConfigError

RECIPE = """\
description: a test
output_dir: out/run-1
data:
  name: dummy
  n_train: 64
  n_valid: 32
model:
  name: cnn
  input_shape: [16, 16, 3]
  n_classes: 1
optimizer:
  name: Adam
  lr: 0.001
training:
  batch_size: 16
  n_epochs: 3
  loss: binary_crossentropy
  metrics: [accuracy]
"""


def load(text: str = RECIPE, *overrides: str) -> RecipeExperiment:
    Path("recipe.yaml").write_text(text)
    found = load_file("recipe.yaml", overrides)
    assert isinstance(found, RecipeExperiment)
    return found


def refused(text: str = RECIPE, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value)


def changed(old: str, new: str) -> str:
    assert old in RECIPE
    return RECIPE.replace(old, new)
