"""Which line of an experiment file an error is about."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cerebro.config.files import load_document
from cerebro.config.recipe import RecipeExperiment
from cerebro.config.schema import ExperimentConfig
from cerebro.config.yaml import KeyPath
from cerebro.errors import ConfigError, DataError, ShardCorruptError, UsageError


@contextlib.contextmanager
def located(config: ExperimentConfig, path: Path, overrides: Sequence[str]) -> Iterator[None]:
    """Errors that only a run can find, such as a task without its class, get a file and a line."""
    try:
        yield
    except (ConfigError, ShardCorruptError):
        raise
    except (UsageError, DataError) as error:
        if isinstance(config, RecipeExperiment):
            key = _find_recipe_key(str(error), config)
        else:
            key = _find_key(str(error), config)
        if key is None:
            raise
        document = load_document(path, overrides)
        raise ConfigError(f"{document.place(key).text}: {error}") from error


def _find_recipe_key(message: str, config: RecipeExperiment) -> KeyPath | None:
    """The key of a recipe that the message is about."""
    recipe = config.recipe
    # Trials are ranked, and trained, by what the goal says where nothing else does.
    metric = ("search" if recipe.goal is None or recipe.search.metric else "goal", "metric")
    is_by_goal = recipe.goal is not None and recipe.device.gpu is None
    device = ("goal", "devices") if is_by_goal else ("device", "gpu")
    signs: Sequence[tuple[str, KeyPath]] = (
        (
            r"unknown augmentation|`(shift|crop) >=|shift is a share|`0 <= zoom <|flip must be|"
            r"unknown fill",
            ("data", "augment"),
        ),
        (r"preprocess must", ("data", "preprocess")),
        (r"input_shape|pictures must be at least", ("model", "input_shape")),
        (r"model\.n_classes", ("model", "n_classes")),
        (r"`0 <= (dropout) < 1`", ("model",)),
        (r"model\.l2_reg", ("optimizer", "name")),
        (r"goal\.max_nodes", ("goal", "max_nodes")),
        (r"the goal allows", ("goal", "devices")),
        (r"the metric of the goal", ("goal", "metric")),
        (r"the metric of stopper", ("search", "stopper", "metric")),
        (r"got '(val|train)_\w+'|metric '", metric),
        (r"device must name a device of this machine", device),
        (r"data set|`cerebro data get|must be a folder", ("data",)),
    )
    for pattern, path in signs:
        found = re.search(pattern, message)
        if found is not None:
            inner = [each for each in found.groups() if each] if path == ("model",) else []
            return (*path, *inner)
    return None


def _find_key(message: str, config: ExperimentConfig) -> KeyPath | None:
    """The key whose value the message repeats."""
    signs: Sequence[tuple[str, KeyPath]] = (
        (repr(config.task), ("task",)),
        ("the metric of the goal", ("goal", "metric")),
        ("the metric of stopper", ("stopper", "metric")),
        ("the metric of a constraint", ("constraints",)),
        *((f"got {metric!r}", ("metric",)) for metric in config.metric),
        *((f"metric {metric!r}", ("metric",)) for metric in config.metric),
        ("goal.max_nodes", ("goal", "max_nodes")),
        ("the goal allows", ("goal", "devices")),
        ("folds are cut by shard", ("folds",)),
        ("`repeats == 1` must hold", ("folds",) if config.folds else ("seeds",)),
        ("stopper 'pbt' copies states from checkpoints", ("checkpoint",)),
        ("the task asks for params[", ("space",)),
        ("batch_size must be an integer", ("space", "batch_size")),
        (f"device must name a device of this machine, but {config.device!r}", ("device",)),
        (f"there is no dataset at {config.data}", ("data",)),
    )
    return next((key for sign, key in signs if sign in message), None)
