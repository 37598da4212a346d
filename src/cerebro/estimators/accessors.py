"""The names that arguments of an estimator have in Spark ML: getBatchSize, setBatchSize, …"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from cerebro.errors import UsageError
from cerebro.estimators.dropped import OF_ESTIMATORS

_ACCESSOR = re.compile(r"([gs]et)((?:[A-Z][a-z]+)+)")
#: Those of earlier versions that no argument of an estimator ever was.
_NEVER_GIVEN = {
    "hyper_params": "they are what estimator_gen_fn is called with",
    "run_name": "name= of the search class names the run",
}


def accessor(estimator: Any, name: str) -> Callable[..., Any]:
    """The method of this name: it gives an argument of the estimator, or sets it and gives itself.

    >>> from cerebro.keras import KerasEstimator
    >>> estimator = KerasEstimator(model=object(), optimizer="adam", loss="mse")
    >>> estimator.setBatchSize(64).getBatchSize()
    64
    >>> estimator.getStore()
    Traceback (most recent call last):
    cerebro.errors.UsageError: KerasEstimator has no store: it is an argument of the search class.
    """
    found = _ACCESSOR.fullmatch(name)
    if found is None:
        raise AttributeError(f"{type(estimator).__name__!r} object has no attribute {name!r}")
    argument = re.sub(r"(?<!^)(?=[A-Z])", "_", found[2]).lower()
    instead = {**OF_ESTIMATORS, **_NEVER_GIVEN}.get(argument)
    if instead is not None:
        raise UsageError(f"{type(estimator).__name__} has no {argument}: {instead}.")
    given = _arguments(estimator)
    if argument not in given:
        raise AttributeError(f"{type(estimator).__name__!r} object has no attribute {name!r}")
    if found[1] == "get":
        return lambda: given[argument]

    def assign(value: Any) -> Any:
        # Made anew, so that the value is checked as if it had been given at once.
        vars(estimator).update(vars(type(estimator)(**{**given, argument: value})))
        return estimator

    return assign


def _arguments(estimator: Any) -> dict[str, Any]:
    """What an estimator was made with, by argument."""
    names = inspect.signature(type(estimator)).parameters
    given = {name: vars(estimator)[name] for name in names if name in vars(estimator)}
    transformation = vars(estimator)["transformation"]
    given["transformation_fn"] = None if transformation is None else transformation.function
    return given
