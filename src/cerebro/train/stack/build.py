"""Traced steps of a task, made once for each structure, size and batch, and kept."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cerebro.task import Task
from cerebro.train.stack.members import Members
from cerebro.train.stack.rewrite import suit_to_host
from cerebro.train.stack.structure import numeric
from cerebro.train.stack.trace import (
    CannotTrace,
    Example,
    Traced,
    trace_evaluation,
    trace_training,
)
from cerebro.train.torch.precision import amp_of, autocast
from cerebro.types import Params

#: Steps kept; the one unused for longest goes.
_STEPS = 64


_trace_unmetered = partial(trace_training, is_metered=False)
_TRACES = (trace_training, _trace_unmetered, trace_evaluation)


class Tracer:
    """Traces a task's steps, and remembers them."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self._device = device
        self._steps: OrderedDict[Hashable, Traced] = OrderedDict()
        #: By structure: the params that are given to the loss as tensors, and all that it reads.
        self._numbers: dict[Hashable, tuple[str, ...]] = {}
        self._reads: dict[Hashable, frozenset[str]] = {}
        #: Stacks whose task tells its meter what cannot be traced, or needs a plain number.
        self._unmetered: set[Hashable] = set()

    def training(
        self,
        members: Members,
        tensors: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
        *,
        is_shared: bool,
        every: Sequence[Params] = (),
    ) -> Traced:
        """A step on such a batch that gives losses and gradients.

        Args:
            every: Params of all whom the step must do for; MixedParams if it does not.
        """
        made = self._metered(members, tensors, batch, is_shared)
        if made is not None:
            with contextlib.suppress(MixedParams):
                _require_for(every, made)
                return made
        made = self._recall(_trace_unmetered, members, tensors, batch, is_shared)
        _require_for(every, made)
        return made

    def _metered(
        self,
        members: Members,
        tensors: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
        is_shared: bool,
    ) -> Traced | None:
        """The step that tells the meter, too; None if these members cannot have it.

        Whether they can depends on them alone, not on what was trained before: all workers agree.
        """
        if self._key(members, batch, is_shared) not in self._unmetered:
            try:
                return self._recall(trace_training, members, tensors, batch, is_shared)
            except CannotTrace:
                # What they read is known by now.
                self._unmetered.add(self._key(members, batch, is_shared))
        return None

    def evaluation(
        self, members: Members, tensors: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> Traced:
        """A step on a batch for all members that gives loss and metrics."""
        return self._recall(trace_evaluation, members, tensors, batch, True)

    def _recall(
        self,
        trace: Any,
        members: Members,
        tensors: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
        is_shared: bool,
    ) -> Traced:
        key = trace, self._key(members, batch, is_shared)
        if key in self._steps:
            self._steps.move_to_end(key)
            return self._steps[key]
        if len(self._steps) >= _STEPS:
            self._steps.popitem(last=False)
        made = self._make(trace, members, tensors, batch, is_shared)
        self._steps[trace, self._key(members, batch, is_shared)] = made
        return made

    def _key(self, members: Members, batch: Mapping[str, Tensor], is_shared: bool) -> Hashable:
        shapes = tuple((name, t.dtype, tuple(t.shape)) for name, t in batch.items())
        return self.key_of(members), len(members), shapes, is_shared

    def key_of(self, members: Members) -> Hashable:
        """Equal for stacks that can share steps, as far as is known before the first is traced."""
        kinds = numeric(members.params)
        tensors = set(kinds)
        for trace in _TRACES:
            tensors &= set(self._numbers.get((trace, members.key), kinds))
        return members.key, tuple(
            (name, kinds[name]) if name in tensors else (name, _values(members.params, name))
            for name in sorted(self._reads.get(members.key, frozenset()))
        )

    def _make(
        self,
        trace: Any,
        members: Members,
        tensors: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
        is_shared: bool,
    ) -> Traced:
        """Give the loss as many params as tensors as it can take."""
        kinds = numeric(members.params)
        floats = tuple(name for name, kind in kinds.items() if kind is float)
        known = self._numbers.get((trace, members.key), tuple(kinds))
        choices = dict.fromkeys([tuple(n for n in known if n in kinds), floats, ()])
        amp = amp_of(self._task, members.params[0])
        inside = autocast(amp, self._device.type, is_cached=False) or contextlib.nullcontext
        trained = {name: tensors[f"model.{name}"] for name in members.trained}
        rest = [name for name in members.model_names if name not in trained]
        others = {name: tensors[f"model.{name}"] for name in rest}
        failure: CannotTrace | None = None
        for names in choices:
            example = Example(
                trained=trained,
                others=others,
                batch=batch,
                numbers=members.vectors(names, self._device),
                is_shared=is_shared,
                params={k: v for k, v in members.params[0].items() if k not in names},
            )
            reads: set[str] = set()
            try:
                made: Traced = trace(self._task, members.model, example, inside, reads)
            except CannotTrace as error:
                failure = failure or error
                continue
            finally:
                known_reads = self._reads.get(members.key, frozenset())
                self._reads[members.key] = known_reads | reads
            require_equal(members.params, made.reads - set(names))
            self._numbers[trace, members.key] = names
            if self._device.type == "cpu":
                suit_to_host(made.module)
            return made
        raise failure or CannotTrace("nothing was tried")


class MixedParams(CannotTrace):
    """The loss reads params that differ, and cannot take them as tensors."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"loss() needs {', '.join(sorted(names))} as plain numbers")
        self.names = names


def _values(params: Sequence[Params], name: str) -> tuple[str, ...]:
    return tuple(sorted({repr(own.get(name)) for own in params}))


def _require_for(every: Sequence[Params], made: Traced) -> None:
    if every:
        require_equal(every, made.reads - (set(made.numbers) & numeric(every).keys()))


def require_equal(params: Sequence[Params], names: frozenset[str]) -> None:
    """Raise MixedParams if trials differ in these."""
    mixed = [n for n in names if len(_values(params, n)) > 1]
    if mixed:
        raise MixedParams(frozenset(mixed))
