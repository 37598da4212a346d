"""Estimators: a model with all that is needed to train it, made for one set of params."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from cerebro.errors import UsageError
from cerebro.estimators.accessors import accessor
from cerebro.estimators.dropped import OF_ESTIMATORS, refuse
from cerebro.estimators.rows import Transformation
from cerebro.search.wording import show

DEFAULT_BATCH_SIZE = 32


class Estimator:
    """What an estimator_gen_fn returns. It holds values; a search class trains it.

    Its arguments have names of Spark ML as well: `getLoss()`, `setBatchSize(64)`.
    """

    #: The name of what trains it: a key of `cerebro.estimators.kinds.KINDS`.
    kind: ClassVar[str]

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loss: Any,
        metrics: Any,
        batch_size: int | None,
        sample_weight_col: str | None,
        transformation_fn: Callable[[Any], object] | None,
    ) -> None:
        name = type(self).__name__
        for argument, value in (("model", model), ("optimizer", optimizer), ("loss", loss)):
            if value is None:
                raise UsageError(f"{name} needs {_NEEDS[argument]}: pass {argument}=.")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int | None):
            # A search may draw floats where its bounds are floats; NumPy has integers of its own.
            batch_size = _whole(batch_size)
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"`batch_size >= 1` must hold, but got batch_size={batch_size}.")
        if isinstance(metrics, str):
            raise UsageError(f"metrics must be a list, but got {metrics!r}: pass [{metrics!r}].")
        if sample_weight_col is not None and not isinstance(sample_weight_col, str):
            raise UsageError(
                f"sample_weight_col must name a column, but got {show(sample_weight_col)}."
            )
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.metrics = [] if metrics is None else metrics
        self.batch_size: int = batch_size or DEFAULT_BATCH_SIZE
        self.sample_weight_col = sample_weight_col
        self.transformation = (
            None if transformation_fn is None else Transformation(transformation_fn)
        )

    def __getattr__(self, name: str) -> Any:
        return accessor(self, name)

    def __repr__(self) -> str:
        loss = self.loss if isinstance(self.loss, str) else type(self.loss).__name__
        return (
            f"{type(self).__name__}(model={type(self.model).__name__}, loss={loss!r}, "
            f"batch_size={self.batch_size})"
        )


_NEEDS = {
    "model": "a model",
    "optimizer": "an optimizer, an object or its name such as 'adam'",
    "loss": "a loss, such as 'binary_crossentropy'",
}


class KerasEstimator(Estimator):
    """A Keras model with its optimizer and loss, for one set of params.

    Args:
        model: A Keras 3 model. Its inputs are fed by name where they are called like feature
            columns, else in the order of the columns; labels likewise, by outputs.
        custom_objects: Layers, activations and functions of your own by name, for models that are
            saved and loaded.
        optimizer: An optimizer of Keras, or its name.
        loss: As for `model.compile`: a name, function or object; for several outputs a list or a
            dict of them.
        batch_size: Rows in a batch; 32 if left out.
        loss_weights: As for `model.compile`.
        metrics: As for `model.compile`.
        callbacks: Callbacks of Keras; those that know the epoch are called with its number.
        transformation_fn: A function of a batch, arrays by column name, that returns the batch to
            train or evaluate on. One written for a dataset (`dataset.map(...)`, `.shuffle(...)`)
            works too, see `Rows`.
        sample_weight_col: A column that weighs the rows in the loss.

    >>> KerasEstimator(model=None, optimizer="adam", loss="mse")
    Traceback (most recent call last):
    cerebro.errors.UsageError: KerasEstimator needs a model: pass model=.
    """

    kind = "keras"

    def __init__(
        self,
        *,
        model: Any = None,
        custom_objects: Mapping[str, Any] | None = None,
        optimizer: Any = None,
        loss: Any = None,
        batch_size: int | None = None,
        loss_weights: Any = None,
        metrics: Any = None,
        callbacks: Sequence[Any] | None = None,
        transformation_fn: Callable[[Any], object] | None = None,
        sample_weight_col: str | None = None,
        **unknown: object,
    ) -> None:
        refuse(type(self).__name__, unknown, instead=OF_ESTIMATORS, known=_KERAS_ARGUMENTS)
        super().__init__(
            model, optimizer, loss, metrics, batch_size, sample_weight_col, transformation_fn
        )
        self.loss_weights = loss_weights
        self.callbacks = [] if callbacks is None else list(callbacks)
        self.custom_objects = dict(custom_objects or {})


_KERAS_ARGUMENTS = tuple(
    name for name in KerasEstimator.__init__.__annotations__ if name not in ("unknown", "return")
)


class SparkEstimator(KerasEstimator):
    """A Keras model to be trained on the rows of a Spark DataFrame.

    The arguments are those of `KerasEstimator`; so is everything else: where it is trained is the
    backend's business.
    """


def _whole(value: object) -> int:
    try:
        number = float(value)  # type: ignore[arg-type]  # what is no number is told
    except (TypeError, ValueError):
        number = 0.5
    if isinstance(value, bool) or not number.is_integer():
        raise UsageError(f"batch_size must be a whole number, but got {show(value)}.")
    return int(number)
