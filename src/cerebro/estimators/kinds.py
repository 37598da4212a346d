"""The kinds of estimators there are, each loaded when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from cerebro.errors import MissingDependencyError, UsageError
from cerebro.estimators.estimator import Estimator
from cerebro.estimators.generation import Generation
from cerebro.estimators.prediction import Portable
from cerebro.task import Task
from cerebro.types import Params

#: Kind -> what to install. The modules `<kind>_task` and `<kind>_model` beside this one know it.
KINDS: Mapping[str, str] = {
    "keras": "pip install 'cerebro[keras,torch]'",
    "torch": "pip install 'cerebro[torch]'",
}


def task_of(kind: str, generation: Generation) -> Task:
    """The task that trains estimators of a kind."""
    return cast(Task, _module(kind, "task").make_task(generation))


def check(estimator: Estimator) -> None:
    """Raise for what no trial could be trained with, such as a loss that has no such name."""
    _module(estimator.kind, "task").check(estimator)


def trained(kind: str, model: object, generation: Generation, params: Params) -> Portable:
    """A trained model, as the framework gives it, made ready to travel."""
    return cast(Portable, _module(kind, "model").trained(model, generation, params))


def portable_of(
    about: Mapping[str, Any],
    files: Mapping[str, bytes],
    custom_objects: Mapping[str, Any],
    estimator_gen_fn: Callable[[Any], object] | None,
) -> Portable:
    """A model from the files that it was kept in."""
    kind, version = str(about.get("kind")), about.get("format")
    if version != 1 or kind not in KINDS:
        raise UsageError(
            f"a saved model must have format 1 and be one of {', '.join(KINDS)}, but is of format "
            f"{version!r} and kind {kind!r}: a newer version of cerebro wrote it."
        )
    restored = _module(kind, "model").restored
    return cast(Portable, restored(about, files, custom_objects, estimator_gen_fn))


def _module(kind: str, part: str) -> Any:
    try:
        return importlib.import_module(f"cerebro.estimators.{kind}_{part}")
    except ImportError as error:
        raise MissingDependencyError(
            f"{kind} models cannot be used here ({error}). {KINDS[kind]}"
        ) from error
