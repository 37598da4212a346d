"""The networks that stacks are measured with, and both sides' way to train one visit of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.workload import SEED, load_pictures
from cerebro import Task
from cerebro import data as cdata
from cerebro.data.schema import Column, Kind
from cerebro.task import ParamDict
from cerebro.train.seeds import derive_seed
from cerebro.train.torch.buffer import allocate_pages
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Stacking, State, VisitCall
from cerebro.types import Split

MOMENTUM = 0.9


def mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def cnn() -> nn.Module:
    """Three convolutions with GroupNorm on pictures of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if after < 128 else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def small_cnn() -> nn.Module:
    """Two convolutions on pictures of 28 x 28, for a CPU."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(784, 10),
    )


@dataclass(frozen=True, slots=True)
class Net:
    """A network, and the work of one visit of it: so many steps on so many rows each."""

    make: Callable[[], nn.Module]
    batch: int
    steps: int
    is_mlp: bool = True
    is_image: bool = False

    @property
    def rows(self) -> int:
        return self.batch * self.steps


NETS: Mapping[str, Net] = {
    "mlp32_b32": Net(partial(mlp, 32), 32, 60),
    "mlp128_b32": Net(partial(mlp, 128), 32, 60),
    "mlp128_b128": Net(partial(mlp, 128), 128, 60),
    "mlp512_b128": Net(partial(mlp, 512), 128, 10),
    "mlp1024_b128": Net(partial(mlp, 1024), 128, 60),
    "cnn_b128": Net(cnn, 128, 20, is_mlp=False, is_image=True),
    "small_cnn_b32": Net(small_cnn, 32, 10, is_mlp=False),
}


def rate_of(trial: int) -> float:
    """Every member has its own."""
    return 0.004 * (1 + trial % 5)


class Pictures(Task):
    """What a user writes."""

    def __init__(self, net: str, precision: str) -> None:
        self.net = net
        self.amp = None if precision == "fp32" else precision

    def model(self, params):
        return NETS[self.net].make()

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=MOMENTUM)

    def loss(self, model, batch, params):
        return nn.functional.cross_entropy(model(batch["x"].float() / 255), batch["y"])


def make_shard(net: str, file: Path | None, *, steps: int | None = None) -> cdata.Shard:
    """Pictures as bytes in memory, and their labels: something that can be learned."""
    rows = NETS[net].batch * (steps or NETS[net].steps)
    if NETS[net].is_image:
        rng = np.random.default_rng(SEED)
        y = rng.integers(0, 10, rows)
        shapes = rng.uniform(0, 100, (10, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
        x = (shapes[y] + rng.uniform(0, 155, (rows, 3, 32, 32))).astype(np.uint8)
    else:
        pictures, labels = load_pictures(file)
        index = np.random.default_rng(SEED).permutation(max(rows, len(pictures)))[:rows]
        x, y = pictures[index % len(pictures)], labels[index % len(pictures)]
    columns: dict[str, Any] = {"x": np.ascontiguousarray(x), "y": y.astype(np.int64)}
    return cdata.Shard(
        split=Split.TRAIN,
        number=0,
        rows=rows,
        schema={
            name: Column(kind=Kind.TENSOR, dtype=str(array.dtype), shape=array.shape[1:])
            for name, array in columns.items()
        },
        columns=columns,
    )


def order_of(shard: cdata.Shard, batch: int, trial: int, visit: int) -> np.ndarray:
    """The rows of a visit in the trial's order, as ours takes them."""
    return cdata.batch_order(shard, batch, seed=SEED, trial=trial, epoch=visit)


def initial(net: str, trial: int) -> nn.Module:
    """The trial's model, as ours begins it."""
    torch.manual_seed(derive_seed("model", SEED, trial))
    return NETS[net].make()


@contextmanager
def tf32(is_allowed: bool) -> Iterator[None]:
    """Products of float32 in TF32, or in float32 proper, whoever computes them."""
    backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = is_allowed
        yield
    finally:
        for backend, was_allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = was_allowed


class Side(Protocol):
    """One way to train so many models; a visit gives seconds for all of them."""

    members: int

    @property
    def losses(self) -> Sequence[float]:
        """Of the first model, in the last visit."""
        ...

    def visit(self) -> float: ...


class Eager:
    """The loop that people write: tensors on the device, a batch by `index_select`."""

    members = 1

    def __init__(
        self, net: str, shard: cdata.Shard, device: str, *, precision: str = "fp32", trial: int = 0
    ) -> None:
        self._shard, self._batch, self._trial, self._visits = shard, NETS[net].batch, trial, 0
        self._device, self._precision = device, precision
        self._x, self._y = (torch.from_numpy(shard.columns[n]).to(device) for n in ("x", "y"))
        self.model = initial(net, trial).to(device)
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rate_of(trial), momentum=MOMENTUM
        )
        self.losses: Sequence[float] = ()

    def visit(self) -> float:
        order = order_of(self._shard, self._batch, self._trial, self._visits)
        rows = torch.from_numpy(order).to(self._device)
        self._visits += 1
        with tf32(self._precision != "fp32"):
            return self._train(rows)

    def _train(self, order: Tensor) -> float:
        losses: list[Tensor] = []
        synchronize(self._device)
        clock = clock_of(self._device)
        began = clock()
        for rows in order.split(self._batch):
            x, y = self._x.index_select(0, rows), self._y.index_select(0, rows)
            if self._precision == "bf16":
                with torch.autocast(self._device, dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(self.model(x.float() / 255), y)
            else:
                loss = nn.functional.cross_entropy(self.model(x.float() / 255), y)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
            losses.append(loss.detach())
        self.losses = torch.stack(losses).float().tolist()
        return clock() - began


class Ours:
    """Visits of our framework: of a stack, or of one trial in its plain loop."""

    def __init__(
        self,
        net: str,
        shard: cdata.Shard,
        device: str,
        members: int,
        *,
        precision: str = "fp32",
        stack: Stacking | None = None,
        first: int = 0,
    ) -> None:
        self._framework = TorchFramework(Pictures(net, precision), device=device, threads=1)
        self._shard, self._batch, self._stack = shard, NETS[net].batch, stack
        self._precision, self._trials = precision, tuple(range(first, first + members))
        self._params = tuple(ParamDict(lr=rate_of(trial)) for trial in self._trials)
        self._visits = 0
        self._buffers: list[memoryview] = []
        self.members = members
        self.state: State | None = None
        self.all_losses: list[tuple[float, ...]] = []
        #: Of the last visit, with all that is done around its steps.
        self.all_s = 0.0

    @property
    def losses(self) -> Sequence[float]:
        return self.all_losses[0]

    def visit(self) -> float:
        call = VisitCall(
            unit=0,
            trials=self._trials,
            params=self._params,
            seed=SEED,
            epoch=self._visits,
            step=0,
            steps=1,
            split=Split.TRAIN,
            shard=0,
            attempt=0,
            batch_size=self._batch,
            stack=self._stack,
        )
        self._visits += 1
        clock = clock_of(self._framework.device)
        began, began_all = time.perf_counter(), clock()
        with tf32(self._precision != "fp32"):
            self.state, report = self._framework.train(
                call, self._shard, self.state, self._allocate
            )
        self.all_s = clock() - began_all
        self.all_losses = [member.losses for member in report.members]
        # The report's is wall time: neighbours had their share of it.
        return report.compute_s * self.all_s / (time.perf_counter() - began)

    def _allocate(self, size: int) -> memoryview:
        """Two buffers in turn, as a run's slots are."""
        if not self._buffers or len(self._buffers[0]) != size:
            self._buffers = [allocate_pages(size) for _ in range(2)]
        self._buffers.reverse()
        return self._buffers[0]


def clock_of(device: str) -> Callable[[], float]:
    """CPU time where one thread does all the work: neighbours disturb it little."""
    return time.process_time if device == "cpu" else time.perf_counter


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
