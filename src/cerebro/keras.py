"""Keras models for the search classes of `cerebro.tune`, on Spark or on this machine.

`KerasTask` and `Compiled` are for `cerebro.Experiment`, as a `Task` is for PyTorch.

Importing this module chooses the backend of Keras, unless somebody has: PyTorch where that is
installed, while Keras itself would look for TensorFlow. KERAS_BACKEND names another.

>>> from cerebro.keras import SparkEstimator
>>> SparkEstimator(model=None)
Traceback (most recent call last):
cerebro.errors.UsageError: SparkEstimator needs a model: pass model=.
"""

from __future__ import annotations

from cerebro.estimators.estimator import KerasEstimator, SparkEstimator
from cerebro.estimators.models import CerebroModel
from cerebro.train.keras.backend import choose_backend
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.task import KerasTask

__all__ = ["CerebroModel", "Compiled", "KerasEstimator", "KerasTask", "SparkEstimator"]

choose_backend()
