"""Models of trials: built, compiled, and kept for later visits."""

from __future__ import annotations

import contextlib
import json
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.feed import Feed
from cerebro.train.keras.hooks import check_callbacks
from cerebro.train.keras.names import check_names
from cerebro.train.keras.task import KerasTask
from cerebro.train.keras.variables import (
    MODEL,
    OPTIMIZER,
    Array,
    Variables,
    count_bytes,
    model_variables,
    optimizer_variables,
    restore,
    to_arrays,
    unpack,
)
from cerebro.train.seeds import derive_seed, seed_host
from cerebro.train.visit import State
from cerebro.types import Json, Params

#: How many models are kept, and how many bytes their variables may take together.
_KEPT, _KEPT_BYTES = 64, 1 << 30

#: Gives inputs of a few rows for a model that declares none: it is made for what it sees first.
Sample = Callable[[Compiled], Any]


class Parts:
    """One model with what belongs to it. It has all its weights."""

    def __init__(self, compiled: Compiled, shapes: Json) -> None:
        self.compiled = compiled
        self.model = compiled.model
        self.feed = Feed(compiled, compiled.model)
        #: What inputs it was made for, where it declares none itself; else None.
        self.shapes = shapes
        # Not what the model says: the user may have compiled it otherwise.
        self._is_ready = False

    def compile(self) -> None:
        """Make it ready to be trained and tested, unless it is."""
        if self._is_ready:
            return
        given = self.compiled
        try:
            with keras.saving.custom_object_scope(dict(given.custom_objects)):
                self.model.compile(
                    optimizer=given.optimizer,
                    loss=given.loss,
                    loss_weights=given.loss_weights,
                    metrics=given.metrics,
                )
        except (TypeError, ValueError) as error:
            raise UsageError(f"Keras cannot compile what build() gave: {error}") from error
        self.model.optimizer.build(self.model.trainable_variables)
        self._is_ready = True

    @cached_property
    def model_variables(self) -> Variables:
        return model_variables(self.model)

    @cached_property
    def optimizer_variables(self) -> Variables:
        return optimizer_variables(self.model.optimizer, self.model_variables)

    @property
    def learning_rate(self) -> float | None:
        """None where a schedule of the optimizer makes it."""
        found = self.optimizer_variables.get("learning_rate")
        return None if found is None else float(keras.ops.convert_to_numpy(found.value))

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer_variables["learning_rate"].assign(value)

    def arrays(self) -> dict[str, Array]:
        """All that hops, by name."""
        return {
            **to_arrays(self.model_variables, MODEL),
            **to_arrays(self.optimizer_variables, OPTIMIZER),
        }

    def restore(self, state: State, *, with_optimizer: bool) -> None:
        """Take over a state."""
        arrays = unpack(Layout.parse(state.buffer), state.buffer)
        what = "the trial's state"
        restore(self.model_variables, arrays, MODEL, what)
        if with_optimizer:
            restore(self.optimizer_variables, arrays, OPTIMIZER, what)


class Builder:
    """Builds the models of trials, the same each time it is asked."""

    def __init__(self, task: KerasTask) -> None:
        self._task = task
        self._name = type(task).__name__
        self._kept: OrderedDict[str, Parts] = OrderedDict()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def new(self, seed: int, trial: int, params: Params, sample: Sample) -> Parts:
        """A model with the weights that the trial begins with; kept for its later visits."""
        seed_everything(derive_seed("model", seed, trial))
        parts = self.build(params, sample)
        parts.compile()
        self._keep(_key(params), parts)
        return parts

    def known(self, seed: int, trial: int, params: Params, sample: Sample) -> Parts:
        """A model of these params with any weights."""
        parts = self._kept.get(_key(params))
        if parts is None:
            return self.new(seed, trial, params, sample)
        self._kept.move_to_end(_key(params))
        return parts

    def build(self, params: Params, sample: Sample | None) -> Parts:
        """A model that nobody else has, not yet compiled."""
        with _fresh_names():
            compiled = self._task.build(params)
        self._check(compiled)
        self._seen.add(compiled.model)
        if compiled.model.built:
            return Parts(compiled, None)
        if sample is None:
            raise UsageError(
                f"the model of {self._name}.build must have its weights to be loaded from a file, "
                "but makes them when it sees its first rows: begin it with a keras.Input."
            )
        inputs = sample(compiled)
        compiled.model(inputs)
        return Parts(compiled, shapes_of(inputs))

    def free(self) -> None:
        """Forget the models that are kept."""
        self._kept.clear()

    def _keep(self, key: str, parts: Parts) -> None:
        self._kept[key] = parts
        self._kept.move_to_end(key)
        sizes = [
            count_bytes(kept.model_variables, kept.optimizer_variables)
            for kept in self._kept.values()
        ]
        while len(sizes) > 1 and (len(sizes) > _KEPT or sum(sizes) > _KEPT_BYTES):
            self._kept.popitem(last=False)
            sizes.pop(0)

    def _check(self, compiled: object) -> None:
        if not isinstance(compiled, Compiled):
            raise UsageError(
                f"{self._name}.build must give a Compiled, but gave a {type(compiled).__name__}."
            )
        if not isinstance(compiled.model, keras.Model):
            raise UsageError(
                f"the model of a Compiled must be a keras.Model, but {self._name}.build gave a "
                f"{type(compiled.model).__name__}."
            )
        if compiled.model in self._seen:
            raise UsageError(
                f"{self._name}.build must make a new model each time it is called, but gave one "
                "that it had given before: trials would share their weights."
            )
        if compiled.loss is None or compiled.optimizer is None:
            missing = "loss" if compiled.loss is None else "optimizer"
            raise UsageError(
                f"a Compiled must have a loss and an optimizer, but {self._name}.build gave no "
                f"{missing}."
            )
        size = compiled.batch_size
        if size is not None and (not isinstance(size, int) or size < 1):
            raise UsageError(
                f"batch_size must be an integer of at least 1 or None, but {self._name}.build gave "
                f"{size!r}."
            )
        check_names(compiled)
        check_callbacks(compiled.callbacks)


def shapes_of(inputs: Any) -> Json:
    """Shapes and types of inputs, as JSON that travels with the trial."""
    if isinstance(inputs, dict):
        return {name: [list(value.shape[1:]), str(value.dtype)] for name, value in inputs.items()}
    return [list(inputs.shape[1:]), str(inputs.dtype)]


def zeros_like(shapes: Any) -> Any:
    """One row of such inputs."""
    if isinstance(shapes, dict):
        return {name: zeros_like(value) for name, value in shapes.items()}
    return np.zeros((1, *shapes[0]), shapes[1])


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and the backend."""
    keras.utils.set_random_seed(seed & 0xFFFF_FFFF)


@contextlib.contextmanager
def as_guest(seed: int) -> Iterator[None]:
    """Build in a program of the user without a trace in its generators."""
    before = random.getstate(), np.random.get_state()
    seed_host(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


@contextlib.contextmanager
def _fresh_names() -> Iterator[None]:
    """Number what has no name as a new process would: its metrics are called the same each time."""
    counters = "object_name_uids"
    before = global_state.get_global_attribute(counters)
    global_state.set_global_attribute(counters, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(counters, before)


def _key(params: Params) -> str:
    return json.dumps(params, sort_keys=True)
