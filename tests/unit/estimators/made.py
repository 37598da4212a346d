"""Tables, and functions that make estimators for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from cerebro.torch import TorchEstimator


def points(rows: int = 96, seed: int = 0) -> dict[str, Any]:
    """Points of the plane, and on which side of a line they are."""
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    return {"features": x, "label": (x.sum(1) > 0).astype(np.int64)}


def classifier(params: Any) -> TorchEstimator:
    model = nn.Linear(2, 2)
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=params["lr"]),
        loss="cross_entropy",
        metrics=["acc"],
        batch_size=params.get("batch_size", 8),
    )


def without_metrics(params: Any) -> TorchEstimator:
    model = nn.Linear(2, 1)
    return TorchEstimator(model=model, optimizer="sgd", loss="mse", batch_size=8)


def fragile(params: Any) -> TorchEstimator:
    if params["lr"] == 0:
        raise RuntimeError("no such learning rate")
    return classifier(params)


class OneColumn(nn.Module):
    """Its forward names the column that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(a.reshape(-1, 1))
        return found


def of_columns(params: Any) -> TorchEstimator:
    model = OneColumn()
    optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"])
    return TorchEstimator(
        model=model, optimizer=optimizer, loss="cross_entropy", metrics=["accuracy"]
    )
