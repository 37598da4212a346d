"""The work that both sides of a benchmark do: pictures, an MLP, and its plain training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cerebro import Task
from cerebro import data as cdata
from cerebro.mop.order import shard_at
from cerebro.search import make_sampler, parse_space
from cerebro.train.seeds import derive_seed

WIDTH = 784
SEED = 0

Weights = dict[str, np.ndarray]


class Mlp(Task):
    """784-hidden-10 on bytes, SGD with momentum: results that do not depend on summation order."""

    def model(self, params):
        return nn.Sequential(
            nn.Linear(WIDTH, params["hidden"]), nn.ReLU(), nn.Linear(params["hidden"], 10)
        )

    def optimizer(self, model, params):
        return torch.optim.SGD(
            model.parameters(),
            lr=params["lr"],
            momentum=0.9,
            weight_decay=params["weight_decay"],
        )

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"].float() / 255), batch["y"])


def space(hidden: int, trials: int = 16) -> dict[str, object]:
    """A grid of 16 trials (or fewer) of the same cost."""
    rates = [0.002, 0.005, 0.01, 0.02]
    decays = [0.0, 1e-5, 1e-4, 1e-3]
    return {
        "lr": rates[: min(4, trials)],
        "weight_decay": decays[: max(1, trials // 4)],
        "hidden": hidden,
    }


def trials_of(grid: Mapping[str, object]) -> list[dict[str, Any]]:
    """The params of each trial, by number."""
    sampler = make_sampler("grid", parse_space(dict(grid)), seed=SEED, num_trials=None)
    found: list[dict[str, Any]] = []
    while (params := sampler.ask(len(found))) is not None:
        found.append(dict(params))
    return found


def load_pictures(file: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Real pictures as uint8 rows of `WIDTH` values, and their labels."""
    if file is not None:
        with np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x_train"], arrays["y_train"]
        x = x.reshape(len(x), -1)
    else:
        digits = cdata.digits()
        x, y = np.round(digits["x"] * 255), digits["y"]
    repeats = -(-WIDTH // x.shape[1])
    return np.tile(x, repeats)[:, :WIDTH].astype(np.uint8), y.astype(np.int64)


def prepare(
    folder: str, pictures: tuple[np.ndarray, np.ndarray], *, shards: int, rows: int
) -> cdata.Dataset:
    """A dataset of so many shards with so many rows each; rows repeat where there are too few."""
    x, y = pictures
    index = np.arange(shards * rows) % len(x)
    return cdata.from_arrays(folder, {"x": x[index], "y": y[index]}, shards=shards, seed=SEED)


def build(trial: int, params: Mapping[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A new trial, as ours begins it."""
    torch.manual_seed(derive_seed("model", SEED, trial))
    model = Mlp().model(params)
    return model, Mlp().optimizer(model, params)


class BareLoop:
    """The plain loop over in-memory shards: the same visits in the same order, and nothing else.

    `gather` picks how a batch comes out of a shard: "take" (NumPy, into a reused buffer, as fast as
    we know), "index_select" (what careful people write) or "loader" (torch's DataLoader).
    """

    def __init__(self, path: str, *, gather: str = "take") -> None:
        dataset = cdata.open_dataset(path)
        count = len(dataset.shards("train"))
        self.opened = [dataset.open_shard("train", index) for index in range(count)]
        self.shards = [
            {name: np.array(shard.columns[name]) for name in ("x", "y")} for shard in self.opened
        ]
        self.tensors = [
            {name: torch.from_numpy(array) for name, array in shard.items()}
            for shard in self.shards
        ]
        self.rows = [len(shard["y"]) for shard in self.shards]
        ways = {"take": self._take, "index_select": self._index_select, "loader": self._loader}
        self._gather = ways[gather]

    def visit(
        self, model: Any, optimizer: Any, params: Mapping[str, Any], key: tuple[int, int, int]
    ) -> None:
        """Train one visit; `key` is (trial, epoch, step)."""
        trial, epoch, step = key
        shard = shard_at(trial % len(self.shards), epoch, step, len(self.shards))
        order = self.order(shard, params["batch_size"], trial, epoch)
        self.train_rows(model, optimizer, params, shard, order)

    def order(self, shard: int, batch_size: int, trial: int, epoch: int) -> np.ndarray:
        """The order of a shard's rows, as ours."""
        opened = self.opened[shard]
        return cdata.batch_order(opened, batch_size, seed=SEED, trial=trial, epoch=epoch)

    def train_rows(
        self, model: Any, optimizer: Any, params: Mapping[str, Any], shard: int, order: np.ndarray
    ) -> None:
        """Train on rows of a shard in this order."""
        loss_of = Mlp().loss
        for batch in self._gather(shard, order, params["batch_size"]):
            loss = loss_of(model, batch, params)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    def train(
        self, trial: int, params: Mapping[str, Any], *, epochs: int
    ) -> tuple[list[Weights], list[float]]:
        """Train a trial from its beginning; weights after each epoch, CPU time of each visit."""
        model, optimizer = build(trial, params)
        model.train()
        weights, seconds = [], []
        for epoch in range(epochs):
            for step in range(len(self.shards)):
                began = time.process_time()
                self.visit(model, optimizer, params, (trial, epoch, step))
                seconds.append(time.process_time() - began)
            weights.append(weights_of(model))
        return weights, seconds

    def _take(self, shard: int, order: np.ndarray, size: int) -> Iterator[dict[str, torch.Tensor]]:
        arrays = self.shards[shard]
        x, y = np.empty((size, WIDTH), np.uint8), np.empty(size, np.int64)
        views = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            count = len(rows)
            arrays["x"].take(rows, 0, x[:count], "clip")
            arrays["y"].take(rows, 0, y[:count], "clip")
            yield views if count == size else {n: view[:count] for n, view in views.items()}

    def _index_select(
        self, shard: int, order: np.ndarray, size: int
    ) -> Iterator[dict[str, torch.Tensor]]:
        tensors, index = self.tensors[shard], torch.from_numpy(order)
        for start in range(0, len(order), size):
            rows = index[start : start + size]
            yield {name: tensor.index_select(0, rows) for name, tensor in tensors.items()}

    def _loader(
        self, shard: int, order: np.ndarray, size: int
    ) -> Iterator[dict[str, torch.Tensor]]:
        dataset = TensorDataset(self.tensors[shard]["x"], self.tensors[shard]["y"])
        for x, y in DataLoader(dataset, size, sampler=order.tolist()):
            yield {"x": x, "y": y}


def weights_of(model: nn.Module) -> Weights:
    """A copy of a model's weights by name."""
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def save_weights(file: str | Path, weights: Weights) -> None:
    """Keep weights in a file, for another process."""
    np.savez(file, allow_pickle=False, **weights)


def load_weights(file: str | Path) -> Weights:
    """What `save_weights` has kept."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def difference(ours: Weights, theirs: Weights) -> float:
    """The largest difference of any weight, relative to the largest weight of its tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()) for name in ours
    )
