"""KerasTask: what the user writes to train Keras models."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from cerebro.task import Task
from cerebro.train.identity import digest_function
from cerebro.train.keras.compiled import Compiled
from cerebro.types import Params


class KerasTask(Task):
    """A family of Keras models, given by a function from params to a `Compiled`.

    Give it the function, or subclass it and write `build`. It runs on workers, once for each trial
    that a worker meets, and must make model, optimizer and metrics anew each time. What hops with
    a trial are the variables of model and optimizer: weights, statistics, seeds of random layers,
    moments, counters, the learning rate. Python attributes stay behind. Random layers without a
    seed draw from generators that are seeded for each visit. `cerebro.train.keras.hooks.Hooks` says
    when callbacks are called: what depends on the number of the epoch alone is exact.

    Rows come in the seeded order of the run; the means of loss and metrics are weighted by rows. A
    metric that is no mean over rows (`AUC`, `RootMeanSquaredError`, one with a `result` of its own)
    is computed over all rows of a shard as Keras does, and the values of several shards are
    averaged, weighted by their rows: with one validation shard it is exact.

    Keras runs on PyTorch where it is installed, unless KERAS_BACKEND or `~/.keras/keras.json` names
    another backend.

    Args:
        build: Gives the model of a trial, and all that training it takes.

    >>> def build(params):
    ...     import keras
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    ...     adam = keras.optimizers.Adam(params["lr"])
    ...     return Compiled(model=model, optimizer=adam, loss="mse", label_columns=["y"])
    >>> KerasTask(build).framework
    'keras'
    """

    framework: ClassVar[str] = "keras"

    def __init__(self, build: Callable[[Params], Compiled] | None = None) -> None:
        if build is not None:
            self.builder = build
            #: What the function does: a run is known by it.
            self.code = digest_function(build)

    def build(self, params: Params) -> Compiled:
        """The model of a trial, and all that training it takes."""
        if "builder" in vars(self):
            return self.builder(params)
        raise NotImplementedError(
            f"{type(self).__name__} must define build(self, params), or be made with a function: "
            "KerasTask(build)."
        )
