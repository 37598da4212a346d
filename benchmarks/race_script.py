"""The plain script of the race, of the shape that the course assignment hands out.

    python -m benchmarks.race_script WORK.json -n 1 -np 2 -nr 0

Processes by `spawn`, gloo, `DistributedDataParallel`, a `DistributedSampler`, a `DataLoader`
without workers that makes numbers of one picture at a time, and validation of everything on every
rank after each epoch, as handed out; with `no_grad`, and shuffled anew in every epoch, which the
original forgets. It ends when it has the target. Needs torch, NumPy, and our zoo for the networks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from cerebro import zoo

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One training, from its beginning to the target."""

    #: An npz with x_train, y_train, x_val and y_val; pictures are bytes.
    data: str
    #: Where weights and times go.
    out: str
    #: Arguments of `zoo.build`.
    model: Mapping[str, Any]
    #: Name in torch.optim, and its options.
    optimizer: str
    options: Mapping[str, Any]
    #: Of each process.
    batch_size: int
    target: float
    #: (epochs, rate) one after the other, each with a new optimizer; or one with a cosine.
    phases: list[tuple[int, float]]
    #: What the cosine ends with, as a part of its rate, and when; None: no cosine.
    floor: float | None = None
    end_epoch: float = 1.0
    #: Pictures are shifted by up to this share, and mirrored.
    shift: float = 0.0
    flip: bool = False
    #: Of the colours; none: 0 and 1.
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    #: Whether model and loss run under autocast to bfloat16.
    is_short: bool = False
    #: No epoch is begun after so many seconds of training.
    limit_s: float = math.inf
    master: str = "127.0.0.1:29511"

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Work:
        return cls(**json.loads(file.read_text()))

    def numbers(self, x: Tensor) -> Tensor:
        """Of pictures as bytes, one or several."""
        x = x.float() / 255
        if not self.mean:
            return x
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (x - mean) / std


class Pictures(Dataset[tuple[Tensor, int]]):
    """One picture at a time, changed at random where that is asked for."""

    def __init__(self, work: Work, x: np.ndarray, y: np.ndarray, *, is_training: bool) -> None:
        self._work, self._x, self._y = work, torch.from_numpy(x), y.tolist()
        self._is_changed = is_training and bool(work.shift or work.flip)

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self._work.numbers(self._x[index])
        return self._change(x) if self._is_changed else x, self._y[index]

    def _change(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:]
        if self._work.shift:
            most = [int(self._work.shift * size + 0.5) for size in (height, width)]
            down, right = (int(torch.randint(-each, each + 1, ())) for each in most)
            around = nn.functional.pad(x[None], (most[1],) * 2 + (most[0],) * 2, mode="replicate")
            top, left = most[0] - down, most[1] - right
            x = around[0, :, top : top + height, left : left + width]
        return x.flip(2) if self._work.flip and torch.rand(()) < 0.5 else x


def train(index: int, work: Work, nodes: int, procs: int, node: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = node * procs + index, nodes * procs
    host, _, port = work.master.rpartition(":")
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": port}
    distributed.init_process_group(
        "gloo", rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_S)
    )
    with np.load(work.data, allow_pickle=False) as arrays:
        x, y, x_val, y_val = (arrays[name] for name in ("x_train", "y_train", "x_val", "y_val"))
    training = Pictures(work, x, y, is_training=True)
    sampler: DistributedSampler[Any] = DistributedSampler(training, world, rank, shuffle=True)
    loader = DataLoader(training, work.batch_size, sampler=sampler)
    judging = DataLoader(Pictures(work, x_val, y_val, is_training=False), 2 * work.batch_size)
    model = zoo.build(**work.model)
    trained = DistributedDataParallel(model)
    began, epoch, accuracies = time.perf_counter(), 0, [0.0]
    for epochs, lr in work.phases:
        optimizer = getattr(torch.optim, work.optimizer)(
            trained.parameters(), lr=lr, **work.options
        )
        for _ in range(epochs):
            if accuracies[-1] >= work.target or _is_over(began, work):
                break
            sampler.set_epoch(epoch)
            _train_epoch(trained, optimizer, loader, work, (epoch, lr))
            accuracies.append(judge(model, judging))
            epoch += 1
            if rank == 0:
                print(f"epoch {epoch}: val_acc {accuracies[-1]:.4f}", file=sys.stderr, flush=True)
    if rank == 0:
        _tell(work, model, time.perf_counter() - began, accuracies)
    distributed.barrier()
    # Ranks that take a gang apart at different times wait for each other.
    sys.stderr.flush()
    os._exit(0)


def _is_over(began: float, work: Work) -> bool:
    """Decided by all ranks together: clocks differ."""
    is_late = torch.tensor([float(time.perf_counter() - began > work.limit_s)])
    distributed.all_reduce(is_late, op=distributed.ReduceOp.MAX)
    return bool(is_late.item())


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    work: Work,
    now: tuple[int, float],
) -> None:
    epoch, lr = now
    model.train()
    for batch, (x, y) in enumerate(loader):
        if work.floor is not None:
            at = epoch + batch / len(loader)
            for group in optimizer.param_groups:
                group["lr"] = lr * cosine(at / work.end_epoch, work.floor)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=work.is_short):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def cosine(part: float, floor: float) -> float:
    """Half a cosine from 1 down to `floor`.

    >>> [round(cosine(part, 0.1), 2) for part in (0, 0.5, 1, 2)]
    [1.0, 0.55, 0.1, 0.1]
    """
    return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, part))) / 2


def judge(model: nn.Module, loader: DataLoader[Any]) -> float:
    """The share of pictures that a model knows."""
    model.eval()
    right = rows = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            rows += len(y)
    return right / rows


def _tell(work: Work, model: nn.Module, seconds: float, accuracies: list[float]) -> None:
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.savez(f"{work.out}.npz", allow_pickle=False, **weights)
    told = {"training_s": seconds, "accuracies": accuracies[1:]}
    Path(f"{work.out}.json").write_text(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(description="plain data-parallel training")
    parser.add_argument("work", type=Path)
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-np", "--num_proc", type=int, default=1)
    parser.add_argument("-nr", "--nr", type=int, default=0, help="which of the nodes this is")
    given = parser.parse_args()
    work = Work.load(given.work)
    spawn: Any = multiprocessing.spawn  # type: ignore[attr-defined]
    spawn(train, (work, given.nodes, given.num_proc, given.nr), given.num_proc)


if __name__ == "__main__":
    main()
