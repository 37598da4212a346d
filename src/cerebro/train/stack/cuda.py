"""A stack's visit on a CUDA device: captured steps on fixed memory, fed from resident shards."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.train.loading import Loading
from cerebro.train.progress import PROGRESS
from cerebro.train.stack.batches import HostBatches
from cerebro.train.stack.build import Tracer
from cerebro.train.stack.download import Downloads
from cerebro.train.stack.feed import fits
from cerebro.train.stack.live import LiveStates
from cerebro.train.stack.machine import Machine
from cerebro.train.stack.members import Members
from cerebro.train.stack.orders import OrdersAhead
from cerebro.train.stack.state import (
    Outcome,
    Start,
    Tensors,
    Visit,
    eval_seeds,
    lay_out,
    make_buffer,
    sound,
)
from cerebro.train.torch.batches import counted
from cerebro.train.torch.build import seed_everything
from cerebro.train.torch.device import DeviceBatches, recall
from cerebro.train.torch.loading import loading_on
from cerebro.train.visit import Allocate, VisitCall

#: A captured step is made for so many members at least as there are: few sizes are captured.
_WIDTHS = tuple(sorted({size for power in range(12) for size in (2**power, 3 << power)}))
#: Kept; the one unused for longest goes.
_MACHINES = 8


def width_of(members: int) -> int:
    """How many members a step is captured for: as many, or a few more that idle.

    >>> width_of(250), width_of(190), width_of(3)
    (256, 192, 3)
    """
    return next((width for width in _WIDTHS if width >= members), members)


class CudaLoop:
    """Trains and scores stacks on one device, where their states stay between visits."""

    def __init__(self, tracer: Tracer, device: torch.device, batches: DeviceBatches) -> None:
        self._tracer = tracer
        self._device = device
        self._resident = batches.resident
        self._machines: OrderedDict[Hashable, Machine] = OrderedDict()
        self._host: OrderedDict[Hashable, HostBatches] = OrderedDict()
        self._live = LiveStates(device)
        self._orders = OrdersAhead()
        self._downloads = Downloads()

    def forget(self, unit: int) -> None:
        """Its state here is not to be used again."""
        self._live.forget(unit)

    def close(self) -> None:
        """End its threads."""
        self._orders.close()
        self._downloads.close()

    def free(self) -> None:
        """Give back all that is kept on the device."""
        self._machines.clear()
        self._host.clear()
        self._live.clear()
        self._resident.clear()

    def train(self, visit: Visit, allocate: Allocate) -> Outcome:
        """One training visit."""
        call, shard, members, start = visit.call, visit.shard, visit.members, visit.start
        began = time.perf_counter()
        size, rows, count = call.batch_size, shard.rows, len(members)
        full, rest = divmod(rows, size)
        steps = full + bool(rest)
        rates = members.rates(steps)
        parts = [(at, n) for at, n in ((0, full), (full * size, bool(rest))) if n]

        columns = self._resident.columns(shard) if fits(shard) else None

        def ready(machine: Machine, at: int) -> tuple[Tensors, Callable[[], None]]:
            shared = call.same_order
            feed = None if columns is None else machine.feed(shard, size, is_shared=shared)
            width = min(size, rows - at)
            return machine.training(members, shard, width, feed, is_shared=shared)

        def capture(machine: Machine) -> None:
            for at, _ in parts:
                ready(machine, at)

        machine = self._machine(
            call, members, steps, capture, has_rates=rates is not None, has_clip=bool(visit.clip)
        )
        orders = self._orders.take(call, shard)
        if columns is not None:
            feed = machine.feed(shard, size, is_shared=call.same_order)
            feed.load(columns, self._index(orders, machine.width))
        ordered = time.perf_counter()
        machine.load(self._live.take(call, start) or start.tensors())
        machine.set_numbers(members, visit.clip, rates, visit.seeds)
        # Ready before the clock starts: to capture a step is no part of its work.
        capture(machine)
        # What a capture has drawn from the generators is no part of the visit either.
        seed_everything(visit.seeds[0])
        torch.cuda.synchronize(self._device)
        # What a captured step gathers by itself is a part of the step.
        started, loading = time.perf_counter(), loading_on(self._device)
        for at, number in parts:
            batch, replay = ready(machine, at)
            if columns is None:
                width = min(size, rows - at)
                some = [order[at : at + number * width] for order in orders.numpy()]
                for _ in loading.of(self._moved(shard, some, width, batch)):
                    replay()
            else:
                for _ in range(number):
                    PROGRESS.tick()
                    replay()
        self._orders.foretell(call, shard)
        losses = machine.losses[:steps, :count].cpu()
        tells = [machine.tells[min(size, rows - at)] for at, _ in parts]
        names = tells[0] if tells.count(tells[0]) == len(tells) else ()
        told = {name: machine.told[name][:count].cpu() for name in names}
        ended = time.perf_counter()
        found = machine.state(count)
        layout = lay_out(members.shapes(), count)
        buffer, _ = make_buffer(layout, allocate)
        self._downloads.fetch(found, layout, buffer)
        self._live.keep(call, start.steps + steps, found)
        return Outcome(
            buffer=buffer,
            losses=losses,
            told=told,
            sizes=[size] * full + [rest] * bool(rest),
            sound=sound(found, members.trained).cpu(),
            compute_s=ended - started,
            load_s=loading.within(ended - started),
            data_s=ordered - began,
        )

    def _index(self, orders: Tensor, width: int) -> Tensor:
        """The members' orders on the device; those that are missing see what the first sees."""
        index = orders.to(self._device)
        if 1 < len(orders) < width:
            index = torch.cat([index, index[:1].expand(width - len(orders), -1)])
        return index

    def _moved(self, shard: Shard, orders: list[Any], size: int, batch: Tensors) -> Iterator[None]:
        """The shard does not fit on the device: one batch after another, gathered on the host."""
        key = size, len(orders)
        host = recall(self._host, key, lambda: HostBatches(shard, size, len(orders)))
        for found, _ in counted(host.fill(shard, orders)):
            for name, tensor in found.items():
                target = batch[name]
                # Of a batch for all members there is one.
                is_shared = target.dim() < tensor.dim()
                (target[None] if is_shared else target[: len(tensor)]).copy_(tensor)
            yield

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
        columns: Mapping[str, Tensor] = self._resident.columns(shard) or {
            name: torch.from_numpy(np.array(array)) for name, array in shard.columns.items()
        }

        def ready(machine: Machine, rows: int) -> tuple[Tensors, Callable[[], None]]:
            def make() -> Tensors:
                return {n: c[:rows].to(self._device, copy=True) for n, c in columns.items()}

            return machine.evaluation(members, ("eval", rows), make, rows)

        first = min(size, shard.rows)
        machine = self._machine(call, members, 1, lambda machine: ready(machine, first))
        machine.load(self._live.take(call, start) or start.tensors())
        machine.begin_evaluation(eval_seeds(call))
        for at in range(0, shard.rows, size):
            PROGRESS.tick()
            batch, replay = ready(machine, min(size, shard.rows - at))
            loading.begin()
            for name, column in columns.items():
                batch[name].copy_(column[at : at + size])
            loading.end()
            replay()
        return {name: total[: len(members)].cpu() for name, total in machine.totals().items()}

    def _machine(
        self,
        call: VisitCall,
        members: Members,
        steps: int,
        prepare: Callable[[Machine], object],
        *,
        has_rates: bool = False,
        has_clip: bool = False,
    ) -> Machine:
        width = width_of(len(members))
        most = 1 << max(10, (steps - 1).bit_length())
        is_compiled = bool(call.stack and call.stack.compiled)
        settings = width, most, has_rates, has_clip, is_compiled

        def key() -> Hashable:
            return self._tracer.key_of(members), settings

        if key() in self._machines:
            self._machines.move_to_end(key())
            return self._machines[key()]
        machine = Machine(
            self._tracer,
            members,
            self._device,
            width=width,
            steps=most,
            has_rates=has_rates,
            has_clip=has_clip,
            is_compiled=is_compiled,
        )
        prepare(machine)
        # What it is known by may only be known now.
        self._machines[key()] = machine
        while len(self._machines) > _MACHINES:
            self._machines.popitem(last=False)
        return machine
