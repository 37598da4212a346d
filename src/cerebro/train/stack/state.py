"""A stack's state in one buffer: the tensors of its members, one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.storage.tensors import Layout
from cerebro.train.seeds import derive_seed
from cerebro.train.stack.members import Members
from cerebro.train.torch.buffer import CODES, allocate_pages, copy_state, view_of
from cerebro.train.visit import Allocate, State, VisitCall
from cerebro.types import Json

Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
Tensors = dict[str, Tensor]


def lay_out(shapes: Shapes, members: int) -> Layout:
    """Where the tensors of so many members lie."""
    return Layout.plan(
        (name, CODES[dtype], (members, *shape)) for name, (dtype, shape) in shapes.items()
    )


def make_buffer(layout: Layout, allocate: Allocate) -> tuple[memoryview, Tensors]:
    """Memory for a stack, and its tensors in it."""
    buffer = allocate(layout.total_bytes)
    header = layout.header_bytes()
    buffer[: len(header)] = header
    return buffer, views(layout, buffer)


def views(layout: Layout, buffer: memoryview) -> Tensors:
    """The stack's tensors, without a copy."""
    return {entry.name: view_of(layout, buffer, entry) for entry in layout.entries}


def fill(tensors: Tensors, members: Iterable[Mapping[str, Tensor]]) -> None:
    """Give every member its first values; zeros where it has none."""
    for index, member in enumerate(members):
        for name, tensor in tensors.items():
            value = member.get(name)
            if value is None:
                tensor[index].zero_()
            else:
                tensor[index].copy_(value)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a training visit made of a stack."""

    buffer: memoryview
    #: [step, member]
    losses: Tensor
    #: What the task told its meter: sums over all rows by name, one for each member.
    told: Tensors
    #: Rows of each step.
    sizes: list[int]
    #: Which members have finite weights.
    sound: Tensor
    compute_s: float
    #: Of that, waiting for batches.
    load_s: float
    data_s: float


class Start:
    """What a visit begins with: a state, or members that are made anew.

    Args:
        make: The first tensors of each member of a new stack.
    """

    def __init__(
        self,
        state: State | None,
        trials: Sequence[int],
        shapes: Shapes,
        make: Callable[[], Iterable[Mapping[str, Tensor]]],
    ) -> None:
        self.state = state
        self._trials = trials
        self._shapes = shapes
        self._make = make
        self.metas = [] if state is None else metas_of(state, trials)
        #: Training steps behind the state.
        self.steps = cast(int, self.metas[0]["steps"]) if self.metas else 0

    def bind(self, allocate: Allocate) -> tuple[memoryview, Tensors]:
        """The tensors in memory to train in: a copy, unless the state was handed over."""
        state = self.state
        if state is None or places_of(state, self._trials) is not None:
            made = self.tensors()
            buffer, tensors = make_buffer(lay_out(self._shapes, len(self._trials)), allocate)
            for name, tensor in tensors.items():
                tensor.copy_(made[name])
            return buffer, tensors
        layout, buffer = copy_state(state, allocate)
        _check(layout, self._shapes, len(self._trials))
        return buffer, views(layout, buffer)

    def tensors(self) -> Tensors:
        """The tensors to read from."""
        state = self.state
        if state is None:
            _, tensors = make_buffer(lay_out(self._shapes, len(self._trials)), allocate_pages)
            fill(tensors, self._make())
            return tensors
        layout = Layout.parse(state.buffer)
        _check(layout, self._shapes, len(cast("list[int]", state.meta["trials"])))
        places, found = places_of(state, self._trials), views(layout, state.buffer)
        if places is None:
            return found
        return {name: tensor[places] for name, tensor in found.items()}


@dataclass(frozen=True, slots=True)
class Visit:
    """A training visit of a stack, all that it needs put together."""

    call: VisitCall
    shard: Shard
    members: Members
    start: Start
    #: The norm to which each member's gradients are clipped; None if none are.
    clip: list[float] | None
    #: Of what each member draws.
    seeds: list[int]


def sound(tensors: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Which members have finite weights; `names` are those of the parameters."""
    found = []
    for name in names:
        flat = tensors[f"model.{name}"].flatten().view(len(tensors[f"model.{name}"]), -1)
        is_finite = torch.isfinite(flat.sum(1))
        # A sum is cheaper, and finite unless something is wrong or about to be.
        found.append(is_finite if is_finite.all() else torch.isfinite(flat).all(1))
    return torch.stack(found).all(0)


def eval_seeds(call: VisitCall) -> list[int]:
    """Of what members draw in an evaluation."""
    return [derive_seed("eval", call.seed, t, call.epoch, call.shard) for t in call.trials]


def make_finite(buffer: memoryview, places: Sequence[int]) -> None:
    """Zeros for what is not finite of these members, which nobody will train any more."""
    for tensor in views(Layout.parse(buffer), buffer).values():
        if tensor.is_floating_point():
            for place in places:
                tensor[place].nan_to_num_(0.0, 0.0, 0.0)


def places_of(state: State, trials: Sequence[int]) -> list[int] | None:
    """Where the trials are among the state's members; None if they are just these."""
    known = cast("list[int]", state.meta["trials"])
    if list(trials) == known:
        return None
    return [known.index(trial) for trial in trials]


def metas_of(state: State, trials: Sequence[int]) -> list[Mapping[str, Json]]:
    """What else the state has of each of these trials."""
    metas = cast("list[Mapping[str, Json]]", state.meta["members"])
    places = places_of(state, trials)
    return metas if places is None else [metas[place] for place in places]


def _check(layout: Layout, shapes: Shapes, members: int) -> None:
    found = {entry.name: (entry.dtype, entry.shape) for entry in layout.entries}
    expected = {name: (CODES[d], (members, *shape)) for name, (d, shape) in shapes.items()}
    if found != expected:
        odd = sorted(found.items() ^ expected.items())[0][0]
        raise UsageError(
            f"the task must build the model that was trained, but {odd} is not what the state has. "
            "model() and optimizer() must give the same for the same params."
        )
