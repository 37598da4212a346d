"""PyTorch models for the search classes of `cerebro.tune`.

>>> from torch import nn
>>> from cerebro.torch import TorchEstimator
>>> TorchEstimator(model=nn.Linear(1, 1), optimizer="adam", loss="mse", batch_size=16)
TorchEstimator(model=Linear, loss='mse', batch_size=16)
"""

from __future__ import annotations

from cerebro.estimators.models import CerebroModel
from cerebro.estimators.torch_estimator import TorchEstimator

__all__ = ["CerebroModel", "TorchEstimator"]
