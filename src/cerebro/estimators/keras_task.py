"""Estimators of Keras models as the task of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from cerebro.errors import UsageError
from cerebro.estimators.estimator import KerasEstimator
from cerebro.estimators.generation import Generation
from cerebro.search.wording import show
from cerebro.task import Task
from cerebro.train.keras.backend import VARIABLE, choose_backend
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.task import KerasTask
from cerebro.types import Params


class KerasBackend:
    """The backend that Keras must run on. Where it arrives, it is chosen before Keras is loaded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Callable[[str], KerasBackend], tuple[str]]:
        return use_backend, (self.name,)


def use_backend(name: str) -> KerasBackend:
    """Let Keras run on this backend in this process; UsageError if it runs on another."""
    if "keras" not in sys.modules:
        os.environ[VARIABLE] = name
    elif running_backend() != name:
        raise UsageError(
            f"Keras must run on one backend everywhere, which is {name} where the search was "
            f"started, but this worker runs on {running_backend()}: set {VARIABLE} for both."
        )
    return KerasBackend(name)


def running_backend() -> str:
    """The backend of this process; Keras is loaded for it."""
    choose_backend()
    import keras

    return str(keras.backend.backend())


class KerasEstimatorTask(KerasTask):
    """Trains what an estimator_gen_fn makes."""

    def __init__(self, backend: KerasBackend, generation: Generation) -> None:
        super().__init__()
        self.backend = backend
        self.generation = generation
        self.code = generation.code
        self.features = generation.features
        self.labels = generation.labels

    def __reduce__(self) -> tuple[type, tuple[KerasBackend, Generation]]:
        # In this order: the user's function may bring Keras with it.
        return type(self), (self.backend, self.generation)

    def build(self, params: Params) -> Compiled:
        made = self.generation(params)
        if not isinstance(made, KerasEstimator):
            raise UsageError(
                "estimator_gen_fn must return estimators of one kind, but returned one of Keras "
                f"before, and now {show(made)}."
            )
        return compiled_of(made, self.features, self.labels)


def compiled_of(
    estimator: KerasEstimator, features: Sequence[str] = (), labels: Sequence[str] = ()
) -> Compiled:
    """What an estimator holds, in the form that is trained."""
    return Compiled(
        model=estimator.model,
        optimizer=estimator.optimizer,
        loss=estimator.loss,
        loss_weights=estimator.loss_weights,
        metrics=estimator.metrics,
        batch_size=estimator.batch_size,
        callbacks=estimator.callbacks,
        custom_objects=estimator.custom_objects,
        sample_weight_col=estimator.sample_weight_col,
        transformation_fn=estimator.transformation,
        feature_columns=features,
        label_columns=labels,
    )


def check(estimator: KerasEstimator) -> None:
    """Raise for a loss, metric or optimizer whose name Keras does not know."""
    choose_backend()
    from cerebro.train.keras.names import check_names

    check_names(compiled_of(estimator))


def make_task(generation: Generation) -> Task:
    """What a run trains."""
    return KerasEstimatorTask(KerasBackend(running_backend()), generation)
