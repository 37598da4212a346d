"""The work that all sides of the search benchmark do; needs NumPy and torch only.

It is imported in the environment of every side, where nothing else of ours is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

Params = Mapping[str, Any]
#: Rows are scored in batches of this.
SCORED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A search: the same for everyone."""

    #: An npz with x_train, y_train, x_val and y_val.
    data: str
    #: Of each trial, in the order in which they are tried.
    params: Sequence[Params]
    target: float
    epochs: int
    eta: int
    grace: int
    batch_size: int
    workers: int

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Work:
        return cls(**json.loads(file.read_text()))

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.data, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


class Epoch(NamedTuple):
    """What a trial reported, and when."""

    trial: int
    params: Params
    accuracy: float
    #: Since the call.
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a side found, and what it took."""

    #: From the call to the moment a trial had the target; None: nobody had it.
    to_target_s: float | None
    #: From the call to its return.
    call_s: float
    #: Of these, until there was anybody to train.
    setup_s: float
    #: Of all trials.
    epochs: int
    best: float
    #: Who had the target first, or else the best.
    winner: int
    #: What was trained, by trial.
    tried: Mapping[str, Params]

    @classmethod
    def of(cls, told: Sequence[Epoch], work: Work, *, call_s: float, setup_s: float = 0.0) -> Found:
        """From all that was reported."""
        reached = [epoch for epoch in told if epoch.accuracy >= work.target]
        first = min(reached, key=lambda epoch: epoch.time_s, default=None)
        best = max(told, key=lambda epoch: epoch.accuracy)
        return cls(
            to_target_s=None if first is None else first.time_s,
            call_s=call_s,
            setup_s=setup_s,
            epochs=len(told),
            best=best.accuracy,
            winner=(first or best).trial,
            tried={str(epoch.trial): dict(epoch.params) for epoch in told},
        )


def make_model(params: Params, inputs: int) -> nn.Module:
    """A network with one hidden layer."""
    width = params["width"]
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 10))


def make_optimizer(model: nn.Module, params: Params) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=params["momentum"])


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x.float() / 255), y)


def accuracy_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x.float() / 255).argmax(1) == y).float().mean()


class Loop:
    """The plain loop that people write: one trial, epoch by epoch."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], params: Params, batch_size: int, seed: int
    ) -> None:
        torch.manual_seed(seed)
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        self._train = tensors["x_train"], tensors["y_train"]
        self._val = tensors["x_val"], tensors["y_val"]
        self._batch_size = batch_size
        self._model = make_model(params, self._train[0].shape[1])
        self._optimizer = make_optimizer(self._model, params)

    def train_epoch(self) -> float:
        """Every row once, in random batches; the accuracy of validation."""
        x, y = self._train
        for rows in torch.randperm(len(x)).split(self._batch_size):
            loss = loss_of(self._model, x.index_select(0, rows), y.index_select(0, rows))
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        scored = zip(*(part.split(SCORED) for part in self._val), strict=True)
        with torch.no_grad():
            right = sum(float(accuracy_of(self._model, *part)) * len(part[1]) for part in scored)
        return right / len(self._val[1])
