"""Stacks: trials of one structure trained as one, each with its own numbers, seed and batches."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.storage.stacked import take_member
from cerebro.storage.tensors import Layout
from cerebro.task import Task
from cerebro.train.seeds import derive_seed
from cerebro.train.stack.batches import dtype_of, first_rows, tensor_columns
from cerebro.train.stack.build import Tracer
from cerebro.train.stack.cuda import CudaLoop
from cerebro.train.stack.host import HostLoop
from cerebro.train.stack.members import Members
from cerebro.train.stack.state import Start, Visit, make_finite
from cerebro.train.stack.trace import CannotTrace, Traced
from cerebro.train.torch.build import Builder, seed_everything
from cerebro.train.torch.device import DeviceBatches
from cerebro.train.torch.loading import loading_on
from cerebro.train.visit import (
    Allocate,
    Diverged,
    MemberReport,
    State,
    Sums,
    VisitCall,
    VisitReport,
)
from cerebro.types import Json, Params

logger = logging.getLogger("cerebro.train")
#: Members whose optimizers are kept for their next visit.
_KEPT_MEMBERS = 4096


class StackTrainer:
    """Trains and evaluates the stacks of one worker.

    Args:
        alone: Evaluates a single trial.
        batches: Shards on the device, where it is not the CPU.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        builder: Builder,
        alone: Callable[[VisitCall, Shard, State], VisitReport],
        batches: DeviceBatches | None = None,
    ) -> None:
        self._task = task
        self._alone = alone
        #: Structures whose evaluation cannot be traced.
        self._one_by_one: set[Hashable] = set()
        self._device = device
        #: Members of stacks that were here, by unit.
        self._kept: OrderedDict[int, Members] = OrderedDict()
        self._builder = builder
        self._tracer = Tracer(task, device)
        self._loop: HostLoop | CudaLoop = HostLoop(self._tracer)
        if device.type == "cuda":
            self._loop = CudaLoop(self._tracer, device, batches or DeviceBatches(device))

    def free(self) -> None:
        """Give back memory that is kept for later visits."""
        self._kept.clear()
        self._loop.free()

    def close(self) -> None:
        """End what runs beside it."""
        self._loop.close()

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        """One visit of a stack."""
        began = time.perf_counter()
        if call.limit is not None:
            shard = first_rows(shard, call.limit)
        members = self._members(call, is_new=state is None)
        # Should the visit fail, its schedulers are ahead.
        self._kept.pop(call.unit, None)
        start = self._start(call, members, state)
        if members.steps != start.steps:
            members.restore(start.metas)
        steps = [cast(int, meta["steps"]) for meta in start.metas] or [0] * len(members)
        totals = [(0.0, 0)] * len(members)
        if call.step > 0:
            totals = [cast("tuple[float, int]", meta["epoch_loss"]) for meta in start.metas]
        seeds = [
            derive_seed("visit", call.seed, trial, call.epoch, call.shard) for trial in call.trials
        ]
        seed_everything(seeds[0])
        visit = Visit(call, shard, members, start, self._clips(call), seeds)
        done = self._loop.train(visit, allocate)
        sizes, losses = done.sizes, done.losses.t().double().tolist()
        rows = sum(sizes)
        sums = [math.fsum(v * n for v, n in zip(own, sizes, strict=True)) for own in losses]
        totals = [(t + s, n + rows) for (t, n), s in zip(totals, sums, strict=True)]
        if call.step == call.steps - 1:
            members.end_epoch([total / count for total, count in totals])
        told = [
            {name: (value, rows) for name, value in zip(done.told, own, strict=True)}
            for own in zip(*(total.tolist() for total in done.told.values()), strict=True)
        ] or [{}] * len(members)
        reasons = _diverged(losses, done.sound.tolist(), told)
        if all(reasons):
            raise Diverged(reasons[0])
        if any(reasons):
            bad = [place for place, reason in enumerate(reasons) if reason]
            make_finite(done.buffer, bad)
            self._loop.forget(call.unit)
            totals = [
                (0.0, rows) if reason else t for t, reason in zip(totals, reasons, strict=True)
            ]
        meta = {
            "trials": list(call.trials),
            "members": [
                {
                    **own,
                    "steps": step + len(sizes),
                    "epoch_loss": list(total),
                    "seed": call.seed,
                    "trial": trial,
                }
                for own, step, total, trial in zip(
                    members.metas(), steps, totals, call.trials, strict=True
                )
            ],
        }
        members.steps = steps[0] + len(sizes)
        self._keep(call, members)
        finished = time.perf_counter()
        report = VisitReport(
            rows=rows,
            members=tuple(
                MemberReport(
                    sums={} if reason else {"loss": (total, rows), **more},
                    losses=tuple(own),
                    first_step=step,
                    diverged=reason,
                )
                for own, total, more, step, reason in zip(
                    losses, sums, told, steps, reasons, strict=True
                )
            ),
            compute_s=done.compute_s,
            load_s=done.load_s,
            data_s=done.data_s,
            hop_s=finished - began - done.compute_s - done.data_s,
        )
        return State(done.buffer, cast("dict[str, Json]", meta)), report

    def evaluate(self, call: VisitCall, shard: Shard, state: State, size: int) -> VisitReport:
        """The loss and the metrics of each member."""
        began = time.perf_counter()
        members = self._members(call)
        start = self._start(call, members, state)
        seed_everything(derive_seed("eval", call.seed, call.trials[0], call.epoch, call.shard))
        started, loading = time.perf_counter(), loading_on(self._device)
        if members.key in self._one_by_one:
            return self._evaluate_each(call, shard, state)
        try:
            sums = self._loop.evaluate(call, shard, size, members, start, loading)
        except CannotTrace as error:
            self._one_by_one.add(members.key)
            logger.warning("members of stacks are evaluated one by one: %s.", error)
            return self._evaluate_each(call, shard, state)
        ended = time.perf_counter()
        columns = {name: total.tolist() for name, total in sums.items()}
        reports = []
        for index in range(len(members)):
            own = {name: (column[index], shard.rows) for name, column in columns.items()}
            bad = [name for name, (total, _) in own.items() if not math.isfinite(total)]
            reason = f"val_{bad[0]} is {own[bad[0]][0] / shard.rows}" if bad else None
            reports.append(MemberReport(sums={} if bad else own, diverged=reason))
        if all(report.diverged for report in reports):
            raise Diverged(reports[0].diverged)
        return VisitReport(
            rows=shard.rows,
            members=tuple(reports),
            compute_s=ended - started,
            load_s=loading.within(ended - started),
            hop_s=started - began,
        )

    def _evaluate_each(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        """One member after the other, in the plain loop."""
        reports = []
        for trial, params in zip(call.trials, call.params, strict=True):
            data, meta = take_member(state.buffer, state.meta, trial)
            alone = replace(call, trials=(trial,), params=(params,), stack=None)
            try:
                reports.append(self._alone(alone, shard, State(memoryview(data), meta)))
            except Diverged as error:
                report = MemberReport(sums={}, diverged=str(error))
                reports.append(VisitReport(rows=shard.rows, members=(report,)))
        members = tuple(report.members[0] for report in reports)
        if all(member.diverged for member in members):
            raise Diverged(members[0].diverged)
        return VisitReport(
            rows=shard.rows,
            members=members,
            compute_s=sum(report.compute_s for report in reports),
            load_s=sum(report.load_s for report in reports),
            hop_s=sum(report.hop_s for report in reports),
        )

    def trace(
        self, call: VisitCall, shard: Shard, every: Sequence[Params] = ()
    ) -> tuple[Members, Traced]:
        """A training step of such a stack, fit for all these params; or CannotTrace."""
        members = self._members(call)
        lead = () if call.same_order else (len(members),)
        batch = {
            name: torch.zeros(
                (*lead, call.batch_size, *column.shape[1:]),
                dtype=dtype_of(column),
                device=self._device,
            )
            for name, column in (tensor_columns(shard) or {}).items()
        }
        tensors = {
            name: torch.zeros((len(members), *shape), dtype=dtype, device=self._device)
            for name, (dtype, shape) in members.shapes().items()
        }
        traced = self._tracer.training(
            members, tensors, batch, is_shared=call.same_order, every=every
        )
        return members, traced

    def _members(self, call: VisitCall, *, is_new: bool = False) -> Members:
        """The stack's members, made anew unless they were here just before."""
        found = self._kept.get(call.unit)
        if found is None or found.trials != call.trials or is_new:
            found = Members(self._builder, self._task, call.seed, call.trials, call.params)
        return found

    def _start(self, call: VisitCall, members: Members, state: State | None) -> Start:
        if state is not None:
            members.adopt(entry.name for entry in Layout.parse(state.buffer).entries)

        def make() -> Iterator[dict[str, Tensor]]:
            for index, (trial, params) in enumerate(zip(call.trials, call.params, strict=True)):
                yield members.initial(
                    index, self._builder.model(call.seed, trial, params, on_host=True)
                )

        return Start(state, call.trials, members.shapes(), make)

    def forget(self, unit: int) -> None:
        """Nothing of it is to be used again."""
        self._kept.pop(unit, None)
        self._loop.forget(unit)

    def _keep(self, call: VisitCall, members: Members) -> None:
        self._kept[call.unit] = members
        while sum(map(len, self._kept.values())) > _KEPT_MEMBERS and len(self._kept) > 1:
            self._kept.popitem(last=False)

    def _clips(self, call: VisitCall) -> list[float] | None:
        limits = [p.get("clip_grad_norm", self._task.clip_grad_norm) for p in call.params]
        if all(limit is None for limit in limits):
            return None
        return [math.inf if limit is None else float(cast(float, limit)) for limit in limits]


def _diverged(
    losses: Sequence[Sequence[float]], sound: Sequence[bool], told: Sequence[Sums]
) -> list[str | None]:
    """Why each member is not worth training any more, if it is not."""
    found: list[str | None] = []
    for own, is_sound, sums in zip(losses, sound, told, strict=True):
        bad = next((step for step, value in enumerate(own) if not math.isfinite(value)), None)
        name = next((name for name, (total, _) in sums.items() if not math.isfinite(total)), None)
        if bad is not None:
            found.append(f"loss is {own[bad]} at step {bad} of the visit")
        elif name is not None:
            found.append(f"train_{name} is {sums[name][0] / sums[name][1]}")
        else:
            found.append(None if is_sound else "a parameter is not finite after the visit")
    return found
