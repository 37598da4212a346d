"""How long a loop waits for its batches where a GPU computes beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import torch

from cerebro.task import Task
from cerebro.train.loading import Loading
from cerebro.train.torch.device import Rows
from cerebro.types import Params


def loading_on(device: torch.device) -> Loading:
    """For one loop on this device."""
    return CudaLoading() if device.type == "cuda" else Loading()


def augmented(
    batches: Iterator[Rows], task: Task, params: Params, rng: torch.Generator, loading: Loading
) -> Iterator[Rows]:
    """The batches as the task changes them; a rank may have no rows of one."""
    for batch, rows in batches:
        yield (loading.call(task.augment, batch, rng, params) if batch else batch), rows


class CudaLoading(Loading):
    """Counts the time from a step's end to the next one's begin on the GPU.

    The host runs ahead of it: what it loads while the GPU still computes, nobody waits for, and
    where it waits for the GPU, no batch is late. Nothing is waited for here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waits: deque[tuple[Any, Any]] = deque()
        self._unused: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        pair = self._unused.pop() if self._unused else (_event(), _event())
        pair[0].record()
        self._waits.append(pair)

    def end(self) -> None:
        self._waits[-1][1].record()
        self._count()

    def within(self, loop_s: float) -> float:
        self._count()
        return super().within(loop_s)

    def _count(self) -> None:
        """As far as the GPU has come."""
        while self._waits and self._waits[0][1].query():
            pair = self._waits.popleft()
            self._seconds += pair[0].elapsed_time(pair[1]) / 1e3
            self._unused.append(pair)


def _event() -> Any:
    return cast(Any, torch.cuda.Event)(enable_timing=True)
