"""Experiment files of either kind: with a task of the user's, or a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cerebro.config.overrides import apply_overrides
from cerebro.config.recipe import RecipeExperiment, is_recipe, load_recipe
from cerebro.config.recipe_data import training_params
from cerebro.config.recipe_overrides import apply_recipe_overrides
from cerebro.config.schema import ExperimentConfig, load_experiment
from cerebro.config.yaml import Document, load_yaml, write_yaml
from cerebro.types import Json


def load_file(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read and check an experiment file or a recipe with its overrides; changes nothing on disk.

    Raises ConfigError, one paragraph: file and line, what must hold, what was got.
    """
    document = load_yaml(path)
    if is_recipe(document.tree):
        return load_recipe(document, Path(path), overrides)
    return load_experiment(path, overrides)


def is_recipe_file(path: str | Path) -> bool:
    """Whether a file is a recipe."""
    return is_recipe(load_yaml(path).tree)


def load_document(path: str | Path, overrides: Sequence[str]) -> Document:
    """What the file says, with the overrides in it."""
    document = load_yaml(path)
    if is_recipe(document.tree):
        return apply_recipe_overrides(document, overrides)
    return apply_overrides(document, overrides, ExperimentConfig.model_fields)


def show_file(config: ExperimentConfig, path: str | Path, overrides: Sequence[str]) -> str:
    """The file as it is carried out, as YAML: with overrides and, in a recipe, with defaults."""
    if not isinstance(config, RecipeExperiment):
        return write_yaml(load_document(path, overrides).tree)
    return show_recipe(config)


def show_recipe(config: RecipeExperiment) -> str:
    """A recipe as it is carried out, as YAML that can be run again."""
    sections = config.recipe.model_dump(exclude_none=True)
    sections["search"] = config.recipe.search.model_dump(exclude_defaults=True)
    shown: dict[str, Json] = {"output_dir": f"{config.store.rstrip('/')}/{config.name}"}
    shown |= {key: value for key, value in sections.items() if key not in shown}
    pictures = training_params(config.recipe.data)
    own = {key.removeprefix("data."): value for key, value in pictures.items()}
    shown["data"] = {**sections["data"], **config.source.shown(), **own}
    return write_yaml({key: value for key, value in shown.items() if value not in ({}, [], "")})
