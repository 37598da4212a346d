"""Fixed memory on a CUDA device for stacks of one structure, and the steps captured on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.train.stack.batches import dtype_of
from cerebro.train.stack.build import Tracer
from cerebro.train.stack.feed import Feed, capacity_of
from cerebro.train.stack.members import Members
from cerebro.train.stack.ops import MASKS
from cerebro.train.stack.optim import UpdateAll, update_all
from cerebro.train.stack.program import Captured, Program, Slots
from cerebro.train.stack.state import Tensors
from cerebro.train.stack.trace import Traced

#: What a captured step reads and writes, and how to do it again.
Ready = tuple[Tensors, Callable[[], None]]


class Machine:
    """Runs stacks of up to `width` members; those that are missing idle as copies of the first."""

    def __init__(
        self,
        tracer: Tracer,
        members: Members,
        device: torch.device,
        *,
        width: int,
        steps: int,
        has_rates: bool,
        has_clip: bool,
        is_compiled: bool,
    ) -> None:
        self.width = width
        self._tracer = tracer
        self._device = device
        self._is_compiled = is_compiled
        tensors = {
            name: torch.zeros((width, *shape), dtype=dtype, device=device)
            for name, (dtype, shape) in members.shapes().items()
        }
        groups = [
            {name: self._vector(values[:1]) for name, values in group.items()}
            for group in members.numbers()
        ]
        self._slots = Slots(tensors, [], [], groups)
        if has_clip:
            self._slots.clip = torch.ones(width, device=device)
        self._rates = torch.zeros(steps, len(groups), width, device=device) if has_rates else None
        self.losses = torch.zeros(steps, width, device=device)
        #: Sums over rows by name of what else training steps give, one for each member.
        self.told: dict[str, Tensor] = {}
        #: Which of them a step on batches of this size gives.
        self.tells: dict[int, tuple[str, ...]] = {}
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(width, dtype=torch.int64, device=device)
        self._totals: dict[str, Tensor] = {}
        self._numbers: dict[str, Tensor] = {}
        self._ready: dict[Hashable, Ready] = {}
        self._feeds: dict[Hashable, Feed] = {}

    def load(self, tensors: Tensors) -> None:
        """Take over a state."""
        for name, target in self._slots.tensors.items():
            source = tensors[name]
            target[: len(source)].copy_(source, non_blocking=True)
            if len(source) < self.width:
                target[len(source) :].copy_(
                    target[:1].expand(self.width - len(source), *target.shape[1:])
                )

    def state(self, members: int) -> Tensors:
        """The state of so many members."""
        return {name: tensor[:members] for name, tensor in self._slots.tensors.items()}

    def set_numbers(
        self,
        members: Members,
        clip: Sequence[float] | None,
        rates: Sequence[Sequence[Sequence[float]]] | None,
        seeds: Sequence[int],
    ) -> None:
        """What a visit begins with, beside state and batches."""
        for group, values in zip(self._slots.groups, members.numbers(), strict=True):
            for name, target in group.items():
                target.copy_(self._vector(values[name]))
        if clip is not None and self._slots.clip is not None:
            self._slots.clip.copy_(self._vector(clip))
        if rates is not None and self._rates is not None:
            table = torch.tensor(rates)
            self._rates[: len(table), :, : len(members)].copy_(table)
        self._set_params(members)
        self._seeds.copy_(self._vector(seeds, torch.int64))
        self._at.zero_()
        for total in self.told.values():
            total.zero_()

    def _set_params(self, members: Members) -> None:
        for name, target in self._numbers.items():
            values = [params[name] for params in members.params]
            target.copy_(self._vector(values, target.dtype))

    def feed(self, shard: Shard, size: int, *, is_shared: bool) -> Feed:
        """Memory from which steps gather their batches."""
        key = capacity_of(shard.rows), size, is_shared
        if key not in self._feeds:
            lead = 1 if is_shared else self.width
            self._feeds[key] = Feed(shard, size, lead, is_shared=is_shared, device=self._device)
        return self._feeds[key]

    def training(
        self, members: Members, shard: Shard, size: int, feed: Feed | None, *, is_shared: bool
    ) -> Ready:
        """The step on batches of this size, and the batch to fill if it has no feed."""
        key = "train", size, is_shared, id(feed)
        if key in self._ready:
            return self._ready[key]
        lead = () if is_shared else (self.width,)
        batch = {
            name: torch.zeros(
                (*lead, size, *array.shape[1:]), dtype=dtype_of(array), device=self._device
            )
            for name, array in shard.columns.items()
            if isinstance(array, np.ndarray)
        }
        wide = members.padded(self.width)
        traced = self._tracer.training(wide, self._slots.tensors, batch, is_shared=is_shared)
        self._prepare(wide, traced)
        update = update_all if self._is_compiled else _fused_update()
        program = Program(traced, members.rule, members.features, members.trained, update)
        sources = list(batch.values()) if feed is None else list(feed.columns.values())

        def gather(sources: Sequence[Tensor], rows: Tensor) -> Sequence[Tensor]:
            return sources if feed is None else feed.gather(sources, rows, size)

        step = program.on(gather, self._slots, is_compiled=self._is_compiled)
        self.tells[size] = traced.values[1:]
        told = [self._total(self.told, name) for name in self.tells[size]]
        MASKS.on_device = self._seeds, self._at

        def work() -> None:
            if self._rates is not None:
                rates = self._rates.index_select(0, self._at)[0]
                for group, row in zip(self._slots.groups, rates.unbind(0), strict=True):
                    group["lr"].copy_(row)
            rows = self._at if feed is None else feed.rows(self._at, size)
            values = step(self._slots, sources, rows).view(-1, self.width)
            self.losses.index_copy_(0, self._at, values[:1])
            for total, value in zip(told, values[1:], strict=True):
                total.add_(value)
            self._at.add_(1)

        changed = [*self._slots.tensors.values(), self.losses, *told, self._at]
        self._ready[key] = batch if feed is None else {}, Captured(work, changed)
        return self._ready[key]

    def begin_evaluation(self, seeds: Sequence[int]) -> None:
        """Forget the last one's sums."""
        self._seeds.copy_(self._vector(seeds, torch.int64))
        self._at.zero_()
        for total in self._totals.values():
            total.zero_()

    def totals(self) -> dict[str, Tensor]:
        """Sums over rows by name, one for each member."""
        return self._totals

    def evaluation(
        self, members: Members, key: Hashable, make: Callable[[], Tensors], rows: int
    ) -> Ready:
        """A batch to fill, and the scoring to do on it."""
        if key not in self._ready:
            batch = make()
            wide = members.padded(self.width)
            traced = self._tracer.evaluation(wide, self._slots.tensors, batch)
            self._prepare(wide, traced)
            given = list(batch.values())
            for name in traced.values:
                self._total(self._totals, name)
            MASKS.on_device = self._seeds, self._at

            def work() -> None:
                values = traced.module(*self._slots.model, *given, *self._slots.numbers)
                for name, value in zip(traced.values, values, strict=True):
                    self._totals[name].add_(value.double(), alpha=rows)
                self._at.add_(1)

            changed = [*self._slots.tensors.values(), *self._totals.values(), self._at]
            self._ready[key] = batch, Captured(work, changed)
        self._set_params(members)
        return self._ready[key]

    def _total(self, totals: dict[str, Tensor], name: str) -> Tensor:
        if name not in totals:
            totals[name] = torch.zeros(self.width, dtype=torch.float64, device=self._device)
        return totals[name]

    def _prepare(self, wide: Members, traced: Traced) -> None:
        self._slots.take(wide, traced, self._device)
        for index, name in enumerate(traced.numbers):
            known = self._numbers.setdefault(name, self._slots.numbers[index])
            self._slots.numbers[index] = known

    def _vector(self, values: Sequence[object], dtype: torch.dtype = torch.float32) -> Tensor:
        padded = [*values, *[values[0]] * (self.width - len(values))]
        return torch.tensor(padded, dtype=dtype, device=self._device)


def _fused_update() -> UpdateAll:
    """One pass over memory, where Triton is installed."""
    try:
        from cerebro.train.stack.kernels import update_on_cuda
    except ImportError:
        return update_all
    return update_on_cuda
