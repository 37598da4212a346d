"""Experiment files of either kind: with a task of the user's, or a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cerebro.config.overrides import apply_overrides
from cerebro.config.recipe import RecipeExperiment, is_recipe, load_recipe
from cerebro.config.recipe_data import training_params
from cerebro.config.recipe_overrides import apply_recipe_overrides
from cerebro.config.recipe_paths import split_output
from cerebro.config.resolve import check_run_name
from cerebro.config.schema import ExperimentConfig, load_experiment
from cerebro.config.yaml import Document, load_yaml, write_yaml
from cerebro.errors import UsageError
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


def find_name(path: str | Path, overrides: Sequence[str]) -> str | None:
    """The name of the run that a file describes, whatever else is wrong there; None: it has none.

    It is the `name` that `load_file` gives, which looks at the data, too.
    """
    try:
        tree = load_document(path, overrides).tree
        if not isinstance(tree, dict):
            return None
        found = tree.get("output_dir" if is_recipe(tree) else "name")
        if is_recipe(tree) and isinstance(found, str | None):
            return split_output(found, Path(path))[1]
        return check_run_name(found) if isinstance(found, str) else None
    except UsageError:
        return None


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
