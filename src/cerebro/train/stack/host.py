"""A stack's visit on the CPU: operations of a traced step, one after the other."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.train.loading import Loading
from cerebro.train.stack.batches import HostBatches, orders_of
from cerebro.train.stack.build import Tracer
from cerebro.train.stack.fused import HostUpdate
from cerebro.train.stack.members import Members
from cerebro.train.stack.ops import MASKS
from cerebro.train.stack.program import Program, Slots
from cerebro.train.stack.state import Outcome, Start, Visit, eval_seeds, sound
from cerebro.train.torch.batches import TorchBatches, counted
from cerebro.train.torch.device import recall
from cerebro.train.visit import Allocate, VisitCall

_CPU = torch.device("cpu")


class HostLoop:
    """Trains and scores stacks where their state lies."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._batches: OrderedDict[Any, HostBatches] = OrderedDict()
        self._plain = TorchBatches(_CPU)

    def close(self) -> None:
        """Nothing to end."""

    def forget(self, unit: int) -> None:
        """Nothing is kept."""

    def free(self) -> None:
        """Give back the memory of batches."""
        self._batches.clear()
        self._plain.free()

    def train(self, visit: Visit, allocate: Allocate) -> Outcome:
        """One training visit."""
        call, shard, members, start = visit.call, visit.shard, visit.members, visit.start
        buffer, tensors = start.bind(allocate)
        rates = members.rates(-(-shard.rows // call.batch_size))
        slots = Slots(tensors, [], [], [_vectors(group) for group in members.numbers()])
        if visit.clip is not None:
            slots.clip = torch.tensor(visit.clip)
        MASKS.seed(visit.seeds)
        taken, sizes = [], []
        update, program = HostUpdate(), None
        began = time.perf_counter()
        batches = self._in_order(call, shard, members)
        started, loading = time.perf_counter(), Loading()
        for step, (batch, rows) in enumerate(loading.of(batches)):
            if program is None or rows < call.batch_size:
                program = self._program(call, members, batch, slots, update)
            if rates is not None:
                for group, row in zip(slots.groups, rates[step], strict=True):
                    group["lr"].copy_(torch.tensor(row))
            values = program.step(slots, list(batch.values()))
            taken.append((program.traced.values[1:], values))
            sizes.append(rows)
        losses, told = _apart(taken)
        is_sound = sound(tensors, members.trained)
        compute_s = time.perf_counter() - started
        return Outcome(
            buffer=buffer,
            losses=losses,
            told=told,
            sizes=sizes,
            sound=is_sound,
            compute_s=compute_s,
            load_s=loading.within(compute_s),
            data_s=started - began,
        )

    def _in_order(self, call: VisitCall, shard: Shard, members: Members) -> Any:
        if call.same_order:
            return self._plain.shuffled(shard, call)
        size, count = call.batch_size, len(members)
        key = size, count
        batches = recall(self._batches, key, lambda: HostBatches(shard, size, count))
        return counted(batches.fill(shard, orders_of(shard, call)))

    def _program(
        self,
        call: VisitCall,
        members: Members,
        batch: dict[str, Tensor],
        slots: Slots,
        update: HostUpdate,
    ) -> Program:
        traced = self._tracer.training(members, slots.tensors, batch, is_shared=call.same_order)
        slots.take(members, traced, _CPU)
        return Program(traced, members.rule, members.features, members.trained, update)

    def evaluate(
        self,
        call: VisitCall,
        shard: Shard,
        size: int,
        members: Members,
        start: Start,
        loading: Loading,
    ) -> dict[str, Tensor]:
        """Sums over rows by name, one for each member."""
        tensors = start.tensors()
        MASKS.seed(eval_seeds(call))
        totals: dict[str, Tensor] = {}
        slots = Slots(tensors, [], [], [])
        for batch, rows in loading.of(self._plain.in_order(shard, size)):
            traced = self._tracer.evaluation(members, tensors, batch)
            if traced.mutates and not totals:
                # The state itself is not this evaluation's to change.
                tensors = slots.tensors = {n: t.clone() for n, t in tensors.items()}
            slots.take(members, traced, _CPU)
            values = traced.module(*slots.model, *batch.values(), *slots.numbers)
            for name, value in zip(traced.values, values, strict=True):
                totals[name] = totals.get(name, 0.0) + value.double() * rows
        return totals


def _apart(
    taken: Sequence[tuple[tuple[str, ...], Tensor]],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of all steps, and sums of what else all of them gave."""
    names = taken[0][0]
    if not names or any(own != names for own, _ in taken):
        return torch.stack([values[0] if own else values for own, values in taken]), {}
    values = torch.stack([values for _, values in taken])
    return values[:, 0], dict(zip(names, values[:, 1:].double().sum(0), strict=True))


def _vectors(group: dict[str, list[float]]) -> dict[str, Tensor]:
    return {name: torch.tensor(values) for name, values in group.items()}
