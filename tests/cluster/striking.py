"""A task and a backend that have something killed when a run is in a certain phase.

The strike comes from inside: by the process that is in that phase, at once, and only the first one
that gets there.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cerebro.backend import RayBackend
from cerebro.backend.base import Done, Event, Job, Opening, SaveRequest, Source, StateRef
from cerebro.data import Shard
from cerebro.storage import layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.task import Task
from cerebro.testing.toy import Array, ToyFramework, ToyTask
from cerebro.train.visit import State, VisitCall, VisitReport

_COMMAND = Path("/proc/self/cmdline")


class Phase(enum.StrEnum):
    """Where a run is; and at which visit it is struck: (epoch, step)."""

    JOINING = "joining"
    #: A visit is submitted, and has had no batch.
    BEGINNING = "beginning"
    #: In the middle of its batches.
    TRAINING = "training"
    #: It has answered, and its checkpoint is not begun.
    SAVING = "saving"
    #: A part of its checkpoint is written.
    WRITING = "writing"
    #: A visit was submitted to another worker than the one that made its state.
    HOPPING = "hopping"
    VALIDATING = "validating"
    #: All visits are done.
    ENDING = "ending"


#: Visits of their own: one that loses three workers would be given up.
_SPOTS = {
    Phase.BEGINNING: (0, 1),
    Phase.TRAINING: (0, 2),
    Phase.VALIDATING: (0, 0),
    Phase.SAVING: (1, 0),
}
#: Parts of a checkpoint are looked for from this epoch on.
_LATE = 1
#: From this epoch on, visits wait for a second worker until there was a hop to strike in: they are
#: short, a node takes seconds to come, and one worker alone would finish the run without one.
_IN_COMPANY = 3
_COMPANY_S = 120.0


class Victim(enum.StrEnum):
    """What is struck."""

    #: The process in which tasks run.
    WORKER = "worker"
    #: The actor that looks after it.
    AGENT = "agent"
    #: The process that all others of a Ray node depend on.
    NODE = "node"
    DRIVER = "driver"


@dataclass(frozen=True)
class Plan:
    """Who is struck in which phases, and how; where that is noted."""

    folder: str
    victim: str = ""
    phases: tuple[str, ...] = ()
    number: int = signal.SIGKILL

    def enter(self, worker: int) -> None:
        """This process is that of a worker."""
        agent = os.getppid()
        processes = {Victim.WORKER: os.getpid(), Victim.AGENT: agent, Victim.NODE: _parent(agent)}
        self._note(f"worker-{worker}", processes)

    def drive(self) -> None:
        """This process is the driver."""
        self._note("driver", {Victim.DRIVER: os.getpid()})

    def is_open(self, phase: Phase, call: VisitCall | None = None) -> bool:
        """Whether this phase, at this visit, is one to strike in and nobody has done so."""
        is_there = call is None or (call.epoch, call.step) == _SPOTS[phase]
        return is_there and phase in self.phases and not self._path(phase).exists()

    def has_company(self) -> bool:
        """Whether two workers or more are running."""
        notes = [json.loads(path.read_text()) for path in Path(self.folder).glob("worker-?")]
        return sum(_is_running(note[Victim.WORKER]) for note in notes) > 1

    def strike(self, phase: Phase, worker: int) -> None:
        """Strike whoever is meant, if nobody has in this phase."""
        name = "driver" if self.victim == Victim.DRIVER else f"worker-{worker}"
        struck: int = json.loads(self._path(name).read_text())[self.victim]
        try:
            with self._path(phase).open("x") as file:
                file.write(str(struck))
        except FileExistsError:
            return
        try:
            os.kill(struck, self.number)
        except ProcessLookupError:
            # It has gone meanwhile: the next one that gets here is struck.
            self._path(phase).unlink()

    def struck(self) -> dict[str, int]:
        """The phases in which it was done so far, and the process each time."""
        found = {phase: self._path(phase) for phase in self.phases}
        return {phase: int(path.read_text()) for phase, path in found.items() if path.exists()}

    def _path(self, name: str) -> Path:
        return Path(self.folder, name)

    def _note(self, name: str, processes: dict[Victim, int]) -> None:
        temp = self._path(f"{name}.{os.getpid()}")
        temp.write_text(json.dumps(processes))
        temp.rename(self._path(name))


class StruckTask(ToyTask):
    """A toy task whose workers strike."""

    framework: ClassVar[str] = "tests.cluster.striking:StruckFramework"

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(**options)
        self.plan = plan


class StruckFramework(ToyFramework):
    """Trains a `StruckTask`."""

    task: StruckTask

    def __init__(
        self, task: Task, *, device: str = "auto", threads: int = 1, worker: int = 0
    ) -> None:
        super().__init__(task, device=device, threads=threads, worker=worker)
        self._plan = self.task.plan
        self._worker = worker
        # Others make one, too: the inline backend, and whoever opens a result.
        if self._plan.victim and b"cerebro.backend.worker" in _COMMAND.read_bytes():
            self._plan.enter(worker)
            self._reach(Phase.JOINING)

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        self._reach(Phase.VALIDATING, call)
        return super().evaluate(call, shard, state)

    def _log(self, call: VisitCall) -> None:
        super()._log(call)
        self._reach(Phase.BEGINNING, call)
        if call.epoch >= _IN_COMPANY:
            until = time.monotonic() + _COMPANY_S
            while self._plan.is_open(Phase.HOPPING) and not self._plan.has_company():
                assert time.monotonic() < until, "no second worker has come"
                time.sleep(0.05)

    def _loop(
        self, call: VisitCall, index: int, shard: Shard, tensors: dict[str, Array]
    ) -> tuple[list[float], list[int]]:
        touched = _Touched(tensors, lambda: self._reach(Phase.TRAINING, call))
        return super()._loop(call, index, shard, touched)

    def _reach(self, phase: Phase, call: VisitCall | None = None) -> None:
        if self._plan.is_open(phase, call):
            self._plan.strike(phase, self._worker)


class _Touched(dict[str, Array]):
    """Tensors that are looked up for every batch: something happens when weights have changed."""

    def __init__(self, tensors: dict[str, Array], happen: Any) -> None:
        super().__init__(tensors)
        self._happen = happen
        self._changes = 0

    def __setitem__(self, name: str, tensor: Array) -> None:
        super().__setitem__(name, tensor)
        self._changes += 1
        if self._changes == 3:
            self._happen()


class StruckBackend(RayBackend):
    """Ray whose driver strikes."""

    def __init__(self, plan: Plan, address: str, workers: int) -> None:
        super().__init__(address, workers)
        self._plan = plan
        #: Key of a state -> the worker that made it.
        self._makers: dict[int, int] = {}

    def start(self, setup: Opening, workers: int) -> None:
        self._plan.drive()
        super().start(setup, workers)

    def submit(
        self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool = False
    ) -> None:
        super().submit(worker, call, source, consume=consume)
        if not isinstance(call, VisitCall) or not isinstance(source, StateRef):
            return
        maker = self._makers[source.key]
        if maker != worker and self._plan.is_open(Phase.HOPPING):
            # The state is on one node, whoever needs it on another.
            is_source = self._plan.victim == Victim.NODE
            self._plan.strike(Phase.HOPPING, maker if is_source else worker)

    def events(self) -> list[Event]:
        found = super().events()
        for event in found:
            if isinstance(event, Done) and event.state is not None:
                self._makers[event.state.key] = event.worker
        return found

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        maker = self._makers[state.key]
        epoch, step = _SPOTS[Phase.SAVING]
        is_there = request.visits == epoch * 3 + step + 1
        if is_there and self._plan.is_open(Phase.SAVING):
            self._plan.strike(Phase.SAVING, maker)
        is_late = request.visits > 3 * _LATE + 1
        with self._watched(request, maker) if is_late else contextlib.nullcontext():
            return super().save(state, request)

    def stop(self) -> None:
        if self._makers and self._plan.is_open(Phase.ENDING):
            self._plan.strike(Phase.ENDING, next(reversed(self._makers.values())))
        super().stop()

    @contextlib.contextmanager
    def _watched(self, request: SaveRequest, maker: int) -> Iterator[None]:
        """Strike whoever writes a checkpoint once a part of it is there."""
        folder = Path(request.store.where(layout.checkpoints(request.unit)))
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(0.0005):
                if any(folder.glob(".tmp-*")) and self._plan.is_open(Phase.WRITING):
                    self._plan.strike(Phase.WRITING, maker)
                    return

        watch = threading.Thread(target=look)
        watch.start()
        try:
            yield
        finally:
            is_over.set()
            watch.join()


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _is_running(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """State, parent and more."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
