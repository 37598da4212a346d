"""A started backend under test, with data to train on, and what came out of it."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np

from cerebro.backend.base import (
    Backend,
    Done,
    Event,
    Failed,
    Joined,
    Lost,
    SaveRequest,
    Setup,
    Source,
    StateRef,
)
from cerebro.data import from_arrays
from cerebro.storage import DirectoryStore
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.task import Task
from cerebro.testing.toy import ToyTask
from cerebro.train.visit import VisitCall
from cerebro.types import Json, Split

DEADLINE_S = 60.0
_STEPS = 2


def make_call(visit: int = 0, *, split: Split = Split.TRAIN, **params: Json) -> VisitCall:
    """Training visit number `visit` of trial 0, or an evaluation after it."""
    epoch, step = divmod(visit, _STEPS)
    return VisitCall(
        unit=0,
        trials=(0,),
        params=({"lr": 0.1, **params},),
        seed=0,
        epoch=epoch,
        step=step,
        steps=_STEPS,
        split=split,
        shard=step if split is Split.TRAIN else 0,
        attempt=0,
        batch_size=8,
    )


def fault_at(visit: int, kind: str = "raise") -> dict[str, Json]:
    """A `fail` param that strikes in this visit."""
    epoch, step = divmod(visit, _STEPS)
    return {"kind": kind, "epoch": epoch, "step": step}


class Session:
    """A backend with a dataset and a store.

    Backends may hand over several events at once: those not yet asked for wait here.
    """

    def __init__(self, backend: Backend, directory: Path) -> None:
        self.backend = backend
        self.directory = directory
        self.store = DirectoryStore(directory / "run")
        self.pids: dict[int, int] = {}
        self._waiting: deque[Event] = deque()
        self._saved = 0
        x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
        columns = {"x": x, "y": x.argmax(1)}
        from_arrays(directory / "data", columns, shards=_STEPS, validation=1 / 3)

    def setup(self, task: Task | str | None = None, **changes: str) -> Setup:
        setup = Setup(
            task=task or ToyTask(),
            data=str(self.directory / "data"),
            store=str(self.directory / "run"),
        )
        return replace(setup, **changes)  # type: ignore[arg-type]

    def start(self, workers: int, task: Task | None = None) -> list[Joined]:
        """Start that many workers and wait for them."""
        self.backend.start(self.setup(task), workers)
        return [self.join() for _ in range(workers)]

    def join(self) -> Joined:
        joined = self.next(Joined)
        assert isinstance(joined, Joined)
        self.pids[joined.info.worker] = joined.info.pid
        return joined

    def next(self, *kinds: type) -> Event:
        """The next event, which must be of one of these kinds."""
        (event,) = self.take(1)
        assert isinstance(event, kinds), event
        return event

    def take(self, count: int) -> list[Event]:
        """The next events."""
        while len(self._waiting) < count:
            self._waiting += self.backend.events()
        return [self._waiting.popleft() for _ in range(count)]

    def run(
        self, worker: int, call: VisitCall, source: Source = None, *, consume: bool = False
    ) -> Event:
        """Submit a visit and wait for its answer."""
        self.backend.submit(worker, call, source, consume=consume)
        answer = self.next(Done, Failed, Lost)
        assert isinstance(answer, Done | Failed | Lost)
        assert (answer.worker, answer.call) == (worker, call)
        return answer

    def train(
        self, worker: int, call: VisitCall, source: Source = None, *, consume: bool = False
    ) -> StateRef:
        """The state that a training visit gives."""
        answer = self.run(worker, call, source, consume=consume)
        assert isinstance(answer, Done), answer
        assert answer.state is not None
        return answer.state

    def save(self, state: StateRef) -> CheckpointRef:
        self._saved += 1
        request = SaveRequest(store=self.store, unit=0, visits=self._saved, attempt=0, parent=None)
        return self.backend.save(state, request)

    def content(self, state: StateRef) -> bytes:
        """The bytes of a state."""
        return self.store.read(self.save(state).data_path)


def wait_until_gone(pid: int) -> None:
    """Return when a process has ended; fails after a while."""
    deadline = time.monotonic() + DEADLINE_S
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
