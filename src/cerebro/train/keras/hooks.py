"""Callbacks of a visit: when they are called, and which cannot be."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from cerebro.errors import UsageError
from cerebro.train.visit import VisitCall

#: Name in `keras.callbacks` -> what to use instead.
_REFUSED = {
    "BackupAndRestore": "a run saves its trials itself, and resumes",
    "CSVLogger": "a run writes progress.csv for each trial",
    "EarlyStopping": 'use stopper="patience" of the search',
    "ModelCheckpoint": "a run saves its trials itself; export them with Result.export",
    "ReduceLROnPlateau": "use keras.callbacks.LearningRateScheduler or a schedule of the optimizer",
    "SwapEMAWeights": "load the trial and swap its weights",
    "TensorBoard": "a run writes files for TensorBoard itself",
}


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise `UsageError` for a callback that a trial which hops cannot have.

    Those that stop training, or change it by what they remember of earlier epochs, would remember
    another past on every worker; those that save or log have their counterpart in a run.
    """
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError(
                f"callbacks must be keras.callbacks.Callback objects, but one is a "
                f"{type(callback).__name__}."
            )
        for name, instead in _REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, name, ())):
                raise UsageError(f"a trial cannot have the callback {name}: {instead}.")


class Hooks:
    """The callbacks of one training visit.

    Each visit begins with copies as `build` made them, so that nothing depends on the worker: what
    a callback remembers does not hop. The order is `on_train_begin`; `on_epoch_begin` in the first
    visit of an epoch; the batches, numbered through the epoch; `on_epoch_end` in the last visit,
    with the means of the epoch's training so far as they hop with the trial; `on_train_end`.
    So what depends on the number of the epoch alone, such as `LearningRateScheduler`, is exact.
    """

    def __init__(self, callbacks: Sequence[Any], model: Any, call: VisitCall) -> None:
        self._callbacks = copy.deepcopy(list(callbacks))
        self._model = model
        self._call = call
        for callback in self._callbacks:
            callback.set_model(model)
            callback.set_params({"epochs": None, "steps": None, "verbose": 0})

    def begin(self) -> None:
        """Before the first batch of the visit."""
        self._model.stop_training = False
        self._tell("on_train_begin", {})
        if self._call.step == 0:
            self._tell("on_epoch_begin", self._call.epoch, {})

    def batch_begins(self, number: int) -> None:
        self._tell("on_train_batch_begin", number, {})

    def batch_ended(self, number: int, logs: Mapping[str, float]) -> None:
        self._tell("on_train_batch_end", number, dict(logs))

    def end(self, means: Mapping[str, float]) -> None:
        """After the last batch of the visit; `means` are of the epoch so far."""
        if self._call.step == self._call.steps - 1:
            self._tell("on_epoch_end", self._call.epoch, dict(means))
        self._tell("on_train_end", dict(means))

    def _tell(self, event: str, *args: object) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(*args)
            if self._model.stop_training:
                raise UsageError(
                    f"a callback must leave it to the search to stop a trial, but "
                    f'{type(callback).__name__} has set stop_training: use stopper="patience" or '
                    "another stopper."
                )
