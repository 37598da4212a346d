"""One step of a stack: gradients of all members, clipped where asked for, and the update."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cerebro.train.stack.members import Members
from cerebro.train.stack.optim import Features, Rule, UpdateAll, Vectors, update_all
from cerebro.train.stack.trace import Traced

logger = logging.getLogger("cerebro.train")

#: A batch from what it is taken from, and the rows to take.
Gather = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]


@dataclass(slots=True)
class Slots:
    """What steps work on. Tensors have the stack's members on their first axis."""

    #: The stack's state by name; changed by a step.
    tensors: dict[str, Tensor]
    #: The part of it that traced steps take, in their order.
    model: list[Tensor]
    #: Params that the loss uses as numbers.
    numbers: list[Tensor]
    #: Of each param group: number -> one for each member.
    groups: list[dict[str, Tensor]]
    #: The norm to which gradients are clipped; None if they are not.
    clip: Tensor | None = None

    def take(self, members: Members, traced: Traced, device: torch.device) -> None:
        """Put together what a traced step takes beside its batch."""
        trained = members.trained
        names = [*trained, *(name for name in members.model_names if name not in trained)]
        self.model = [self.tensors[f"model.{name}"] for name in names]
        self.numbers = list(members.vectors(traced.numbers, device).values())


#: Trains on a batch taken from these sources at these rows; the loss of each member.
Step = Callable[[Slots, Sequence[Tensor], Tensor], Tensor]


class Program:
    """A training step for stacks of one structure, number of members and batch size."""

    def __init__(
        self,
        traced: Traced,
        rule: Rule,
        features: Features,
        group_of: Mapping[str, int],
        update: UpdateAll = update_all,
    ) -> None:
        self.traced = traced
        self._rule = rule
        self._features = features
        #: Parameters to update, and the group of each; others get no gradient.
        self._group_of = [(name, group_of[name]) for name in traced.grads]
        self._update = update

    def step(self, slots: Slots, batch: Sequence[Tensor]) -> Tensor:
        """Train on one batch; the loss of each member."""
        loss, *found = self.traced.module(*slots.model, *batch, *slots.numbers)
        grads = dict(zip(self.traced.grads, found, strict=True))
        if slots.clip is not None:
            grads = _clipped(grads, slots.clip)
        numbers: dict[str, Vectors] = {n: slots.groups[g] for n, g in self._group_of}
        self._update(self._rule, self._features, slots.tensors, grads, numbers)
        return loss  # type: ignore[no-any-return]

    def on(self, gather: Gather, slots: Slots, *, is_compiled: bool) -> Step:
        """The step with its own gathering of batches; the compiler fuses both."""

        def step(slots: Slots, sources: Sequence[Tensor], rows: Tensor) -> Tensor:
            return self.step(slots, gather(sources, rows))

        return _compiled(step, slots) if is_compiled else step


def _compiled(step: Step, slots: Slots) -> Step:
    names = list(slots.tensors)
    places = [next(i for i, n in enumerate(names) if slots.tensors[n] is t) for t in slots.model]

    @torch.compile(fullgraph=True, dynamic=False)
    def fused(
        state: list[Tensor],
        sources: list[Tensor],
        rows: Tensor,
        numbers: list[Tensor],
        groups: list[dict[str, Tensor]],
        clip: Tensor | None,
    ) -> Tensor:
        tensors = dict(zip(names, state, strict=True))
        model = [state[place] for place in places]
        return step(Slots(tensors, model, numbers, groups, clip), sources, rows)

    has_failed = False

    def run(slots: Slots, sources: Sequence[Tensor], rows: Tensor) -> Tensor:
        nonlocal has_failed
        if has_failed:
            return step(slots, sources, rows)
        state = [slots.tensors[name] for name in names]
        try:
            with warnings.catch_warnings():
                # The compiler warns of its own parts.
                warnings.simplefilter("ignore")
                return fused(state, list(sources), rows, slots.numbers, slots.groups, slots.clip)
        except Exception as error:
            has_failed = True
            text = f"{type(error).__name__}: {error}".split("\n")[0]
            logger.warning("a stack's step is not compiled: %.200s", text)
            return step(slots, sources, rows)

    return run


def _clipped(grads: Mapping[str, Tensor], limit: Tensor) -> dict[str, Tensor]:
    """Gradients scaled so that no member's total norm exceeds its limit, as PyTorch does it."""
    norms = torch.stack(
        [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in grads.values()]
    )
    scale = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return {name: grad * scale.view(-1, *[1] * (grad.dim() - 1)) for name, grad in grads.items()}


class Captured:
    """Work on fixed memory as a CUDA graph: to do it again costs the host one call.

    Args:
        work: What to do; it is done a few times before it is captured.
        changed: The tensors that it changes: they are given back their values.
    """

    def __init__(self, work: Callable[[], None], changed: Sequence[Tensor]) -> None:
        # What it refers to must live as long as the graph.
        self._work = work
        saved = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
                for tensor, old in zip(changed, saved, strict=True):
                    tensor.copy_(old)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            work()

    def __call__(self) -> None:
        self._graph.replay()
