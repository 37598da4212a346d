"""Losses, metrics and optimizers by name, checked at once: Keras looks at the first batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras.src import losses, metrics, optimizers

from cerebro.errors import UsageError
from cerebro.search.wording import unknown
from cerebro.train.keras.compiled import Compiled

#: Names that stand for one of several, by the shape of the labels.
_BY_SHAPE: Mapping[str, tuple[str, ...]] = {
    "loss": ("ce", "crossentropy"),
    "metric": ("acc", "accuracy"),
}
#: Classes that nobody can train with as they are.
_BASES = frozenset(
    {"optimizer", "multioptimizer", "optimizermap", "lossscaleoptimizer", "loss", "metric", "mean"}
    | {"sum", "mean_metric_wrapper", "loss_function_wrapper"}
)
_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "loss": losses.ALL_OBJECTS_DICT,
    "metric": metrics.ALL_OBJECTS_DICT,
    "optimizer": optimizers.ALL_OBJECTS_DICT,
}


def check_names(given: Compiled) -> None:
    """Raise for a name that Keras does not know, with those that it does."""
    for name in _names(given.optimizer):
        if keras.saving.get_registered_object(name, dict(given.custom_objects)) is None:
            _check("optimizer", name, name.lower())
    for name in _names(given.loss):
        _check("loss", name, name)
    for name in _names(given.metrics):
        _check("metric", name, name)


def _names(given: Any) -> Iterator[str]:
    """All names among what was given, for any number of outputs."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        # With a class_name it is one object, written down.
        if "class_name" not in given:
            for each in given.values():
                yield from _names(each)
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _names(each)


def _check(what: str, name: str, key: str) -> None:
    by_shape = _BY_SHAPE.get(what, ())
    if name.lower() in by_shape:
        return
    found = _KNOWN[what].get(key)
    module = f"keras.{what}s" if what != "loss" else "keras.losses"
    if found is None:
        listed = {known for known in _KNOWN[what] if known.islower() and known not in _BASES}
        raise UsageError(
            f"{unknown(what, name, sorted({*listed, *by_shape}))} An object of {module}, or a "
            f"{'function' if what != 'optimizer' else 'class'} of your own, is taken as well."
        )
    needed = _required(found) if inspect.isclass(found) else []
    if needed:
        raise UsageError(
            f"the {what} {name!r} needs {', '.join(needed)}: give an object, "
            f"{module}.{found.__name__}(...), in place of its name."
        )


def _required(found: type) -> list[str]:
    """Arguments without which no object of a class can be made."""
    parameters = list(inspect.signature(found).parameters.values())
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
