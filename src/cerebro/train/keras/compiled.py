"""Compiled: a Keras model with all that training it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: Arrays (text and bytes: lists) by the name of the column, one entry a row in each.
Columns: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What `KerasTask.build` gives for the params of a trial.

    Model, optimizer, loss, loss weights, metrics and callbacks are what `keras.Model.compile` and
    `fit` take, and must be made anew by each call of `build`: trials share nothing.

    >>> found = Compiled(model="a keras.Model", optimizer="adam", loss="mse", metrics=["mae"])
    >>> found.batch_size is None
    True
    """

    #: A `keras.Model`: functional, sequential or a subclass.
    model: Any
    #: An optimizer, or the name of one.
    optimizer: Any
    #: A name, a function or a `keras.losses.Loss`; for several outputs a list, or a dict by output.
    loss: Any
    #: For several outputs: a list, or a dict by output.
    loss_weights: Any = None
    #: Names, functions or `keras.metrics.Metric`s; for several outputs lists, or a dict by output.
    metrics: Any = None
    #: Rows in a training batch; None for those of the experiment.
    batch_size: int | None = None
    #: They see each visit with the number of its epoch, and begin anew in each: see `hooks`.
    callbacks: Sequence[Any] = ()
    #: What names in the model, the loss and the metrics stand for.
    custom_objects: Mapping[str, Any] = field(default_factory=dict)
    #: The column with the weight of each row in the loss.
    sample_weight_col: str | None = None
    #: Changes the columns of a batch before the model sees them, in training, evaluation and
    #: prediction: from arrays by name to arrays by name. It may leave out rows, and add columns.
    transformation_fn: Callable[[Columns], Columns] | None = None
    #: The model's inputs, by their names where all inputs are named like one, else in order. None
    #: for the columns named like inputs, or else for all that are neither label nor weight.
    feature_columns: Sequence[str] | None = None
    #: The labels of the outputs, by name or in order likewise. None for the columns named like
    #: outputs, or else for "y" or "label".
    label_columns: Sequence[str] | None = None
