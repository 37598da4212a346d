"""A plain PyTorch loop over the same batches as a chain of visits: what the chain must equal."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cerebro.data import Dataset, batch_order, from_arrays
from cerebro.storage.tensors import Layout
from cerebro.task import ParamDict, Task
from cerebro.train.seeds import derive_seed
from cerebro.train.torch.buffer import view_of
from cerebro.train.torch.build import seed_everything
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import State, VisitCall, VisitReport
from cerebro.types import Split

SHARDS = 2
BATCH_SIZE = 8


class LineTask(Task):
    """Regression with a small network; tests change one thing of it."""

    def model(self, params):
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, model, batch, params):
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()


def make_data(path: object, rows: int = 55) -> Dataset:
    """Two shards of 22 rows: batches of 8, 8 and 6; 11 rows for validation."""
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True) + 0.5
    return from_arrays(str(path), {"x": x, "y": y}, shards=SHARDS, validation=0.2)


def make_call(visit: int = 0, *, params: dict[str, Any] | None = None, **changes: Any) -> VisitCall:
    """Training visit number `visit` of a trial."""
    epoch, step = divmod(visit, SHARDS)
    call = VisitCall(
        unit=0,
        trials=(0,),
        params=(ParamDict(params or {}),),
        seed=0,
        epoch=epoch,
        step=step,
        steps=SHARDS,
        split=Split.TRAIN,
        shard=(epoch + step) % SHARDS,
        attempt=0,
        batch_size=BATCH_SIZE,
    )
    return replace(call, **changes)


def make_eval(**changes: Any) -> VisitCall:
    return make_call(split=Split.VAL, shard=0, **changes)


def allocate(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, max(1, size)))[:size]


class Chain:
    """A trial trained visit by visit, its model and optimizer built anew in each."""

    def __init__(self, task: Task, data: Dataset, params: dict[str, Any] | None = None) -> None:
        self.framework = TorchFramework(task, device="cpu")
        self.data = data
        self.params = params
        self.states: list[State] = []
        self.reports: list[VisitReport] = []

    def run(self, visits: int) -> Chain:
        for _ in range(visits):
            call = make_call(len(self.states), params=self.params)
            state = self.states[-1] if self.states else None
            shard = self.data.open_shard(Split.TRAIN, call.shard)
            after, report = self.framework.train(call, shard, state, allocate)
            self.states.append(after)
            self.reports.append(report)
        return self

    def evaluate(self, **changes: Any) -> VisitReport:
        call = make_eval(params=self.params, **changes)
        shard = self.data.open_shard(Split.VAL, 0)
        return self.framework.evaluate(call, shard, self.states[-1])

    @property
    def model(self) -> nn.Module:
        return self.framework.load(self.params or {}, self.states[-1])

    @property
    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.states[-1])


def run_visits(
    task: Task, data: Dataset, visits: int, params: dict[str, Any] | None = None
) -> Chain:
    return Chain(task, data, params).run(visits)


def tensors_of(state: State) -> dict[str, Tensor]:
    layout = Layout.parse(state.buffer)
    return {entry.name: view_of(layout, state.buffer, entry) for entry in layout.entries}


class Bare:
    """The same trial as one loop that keeps its model and optimizer."""

    def __init__(self, task: Task, data: Dataset, params: dict[str, Any] | None = None) -> None:
        self.task = task
        self.data = data
        self.params = ParamDict(params or {})
        seed_everything(derive_seed("model", 0, 0))
        self.model = task.model(self.params)
        made = task.optimizer(self.model, self.params)
        self.optimizer, self.scheduler = made if isinstance(made, tuple) else (made, None)

    def run(self, visits: int) -> Bare:
        for visit in range(visits):
            self._visit(make_call(visit))
        return self

    def _visit(self, call: VisitCall) -> None:
        task, params = self.task, self.params
        seed_everything(derive_seed("visit", 0, 0, call.epoch, call.shard))
        if call.step == 0:
            self.losses: list[tuple[float, int]] = []
            task.on_epoch_start(self.model, self.optimizer, params, call.epoch)
        self.model.train()
        rng = torch.Generator().manual_seed(derive_seed("augment", 0, 0, call.epoch, call.shard))
        shard = self.data.open_shard(Split.TRAIN, call.shard)
        order = batch_order(shard, BATCH_SIZE, seed=0, trial=0, epoch=call.epoch)
        for start in range(0, shard.rows, BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            batch = {name: torch.from_numpy(c[rows]) for name, c in shard.columns.items()}  # type: ignore[index]
            self._step(task.augment(batch, rng, params), len(rows))
        if call.step == call.steps - 1:
            self._end_epoch(call.epoch)

    def _step(self, batch: dict[str, Tensor], rows: int) -> None:
        loss = self.task.loss(self.model, batch, self.params)
        self.losses.append((loss.item(), rows))
        self.optimizer.zero_grad()
        loss.backward()
        if self.task.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_grad_norm)
        self.optimizer.step()
        if self.scheduler is not None and self.task.scheduler_step == "batch":
            self._step_scheduler(loss.item())

    def _end_epoch(self, epoch: int) -> None:
        if self.scheduler is not None and self.task.scheduler_step == "epoch":
            rows = sum(n for _, n in self.losses)
            self._step_scheduler(sum(value * n for value, n in self.losses) / rows)
        self.task.on_epoch_end(self.model, self.optimizer, self.params, epoch)

    def _step_scheduler(self, loss: float) -> None:
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss)
        else:
            self.scheduler.step()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What the state of a chain holds, under the same names."""
        found = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
        found |= {f"model.{name}": b for name, b in self.model.named_buffers()}
        names = {p: name for name, p in self.model.named_parameters()}
        for param, slots in self.optimizer.state.items():
            for key, value in slots.items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{names[param]}.{key}"] = value
        return found


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not equal bit for bit, or on one side alone."""
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if name not in ours
        or name not in theirs
        or ours[name].dtype != theirs[name].dtype
        or not torch.equal(ours[name], theirs[name])
    )


def assert_equals_bare_loop(
    task: Task, data: Dataset, visits: int = 6, params: dict[str, Any] | None = None
) -> None:
    """Three epochs by default, with a hop after every visit."""
    ours = run_visits(task, data, visits, params).tensors
    different = differing(ours, Bare(task, data, params).run(visits).tensors)
    assert not different, different
