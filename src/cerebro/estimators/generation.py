"""A user's estimator_gen_fn: called with the params of a trial, and known by its code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cerebro.errors import UsageError
from cerebro.estimators.estimator import Estimator
from cerebro.search.wording import show
from cerebro.task import ParamDict
from cerebro.train.identity import digest_function
from cerebro.types import Params


class Generation:
    """Makes estimators, and knows which columns they are for. It travels to the workers.

    Args:
        function: The user's.
        features: Columns that the model is shown.
        labels: Columns that it shall predict.
    """

    def __init__(
        self, function: Callable[[Any], object], features: Sequence[str], labels: Sequence[str]
    ) -> None:
        if not callable(function):
            raise UsageError(
                "estimator_gen_fn must be a function that takes the params of a trial and returns "
                f"an estimator, but got {show(function)}."
            )
        self.function = function
        self.features = tuple(features)
        self.labels = tuple(labels)
        #: A digest of what the function does: two of them are equal if it does the same.
        self.code = digest_function(function)

    def __call__(self, params: Params) -> Estimator:
        """The estimator for these params, made anew."""
        found = self.function(ParamDict(params))
        if not isinstance(found, Estimator):
            raise UsageError(
                "estimator_gen_fn must return a SparkEstimator, KerasEstimator or TorchEstimator, "
                f"but returned {show(found)}."
            )
        return found
