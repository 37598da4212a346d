"""The work that all sides of the Ray benchmark do; needs NumPy and torch only.

It is imported in the environment of every side, where nothing else of ours may be installed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained: the same for everyone."""

    #: A folder with x.npy, y.npy and orders.npy: for each trial the rows in the order it sees them.
    arrays: str
    #: The same rows as a dataset of ours.
    data: str
    #: What our search proposes them from.
    space: Mapping[str, Any]
    #: Of each trial, by number.
    params: Sequence[Params]
    #: What each trial's initial weights are drawn with.
    seeds: Sequence[int]
    epochs: int
    batch_size: int
    workers: int
    #: Where final weights are left, a file for each trial.
    weights: str

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Work:
        return cls(**json.loads(file.read_text()))

    def load_arrays(self) -> dict[str, np.ndarray]:
        folder = Path(self.arrays)
        return {name: np.load(folder / f"{name}.npy") for name in ("x", "y", "orders")}

    def weights_file(self, trial: int) -> str:
        return str(Path(self.weights) / f"{trial}.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What a side took."""

    #: From the call, with nothing running yet, to its return.
    call_s: float
    #: Of these, until there was anybody to train.
    setup_s: float
    #: In training loops, of all workers together.
    train_s: float
    #: Of our own account: from the first visit to the last, and how much of that was training.
    makespan_s: float | None = None
    efficiency: float | None = None
    visit_s: float | None = None

    def share(self, workers: int) -> float:
        """How much of the workers' time was training, from the call on.

        >>> Took(call_s=10.0, setup_s=1.0, train_s=15.0).share(2)
        0.75
        """
        return self.train_s / (workers * self.call_s)


class Loop:
    """The plain loop that people write: one trial, epoch by epoch, on arrays in memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray], work: Work, trial: int) -> None:
        params = work.params[trial]
        torch.manual_seed(work.seeds[trial])
        self._model = nn.Sequential(
            nn.Linear(arrays["x"].shape[1], params["hidden"]),
            nn.ReLU(),
            nn.Linear(params["hidden"], 10),
        )
        self._optimizer = torch.optim.SGD(
            self._model.parameters(),
            lr=params["lr"],
            momentum=0.9,
            weight_decay=params["weight_decay"],
        )
        self._arrays = arrays
        self._batches = arrays["orders"][trial].reshape(work.epochs, -1, work.batch_size)
        self.seconds = 0.0

    def train_epoch(self, epoch: int) -> float:
        """Every row once; the loss of the last batch."""
        began = time.perf_counter()
        loss = torch.tensor(0.0)
        for x, y in self._gather(self._batches[epoch]):
            loss = nn.functional.cross_entropy(self._model(x.float() / 255), y)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        self.seconds += time.perf_counter() - began
        return float(loss.detach())

    def save(self, file: str) -> None:
        """Leave the weights in a file."""
        weights = {name: tensor.numpy() for name, tensor in self._model.state_dict().items()}
        np.savez(file, allow_pickle=False, **weights)

    def _gather(self, batches: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches, in buffers that are used again: the fastest way there is."""
        x, y = self._arrays["x"], self._arrays["y"]
        size = batches.shape[1]
        row, label = np.empty((size, x.shape[1]), x.dtype), np.empty(size, y.dtype)
        views = torch.from_numpy(row), torch.from_numpy(label)
        for rows in batches:
            x.take(rows, 0, row, "clip")
            y.take(rows, 0, label, "clip")
            yield views
