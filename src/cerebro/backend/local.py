"""Worker processes on this machine; states hop through shared memory."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, cast

from cerebro.backend.arena import Arena, Slot, create_arena
from cerebro.backend.base import (
    Answered,
    Done,
    Event,
    Failed,
    FailureKind,
    Job,
    Joined,
    Lost,
    Opening,
    Posted,
    SaveRequest,
    Source,
    StateRef,
)
from cerebro.backend.failure import describe_failure
from cerebro.backend.killer import Killer
from cerebro.backend.limits import Limits
from cerebro.backend.local_worker import LocalWorker
from cerebro.backend.opening import cannot_start, pack, save_state
from cerebro.backend.process import WorkerProcess
from cerebro.backend.watch import Pace, Watch
from cerebro.backend.wire import (
    CannotStart,
    Ending,
    Hello,
    JobDone,
    NeedSlot,
    RunJob,
    RunVisit,
    SlotState,
    Stop,
    VisitDone,
    VisitFailed,
)
from cerebro.errors import WorkerError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.store import explain
from cerebro.train.visit import VisitCall
from cerebro.types import Json

#: Workers that die in a row before they are ready, after which no other is started.
_START_ATTEMPTS = 3
#: Bytes of a worker's output that an error quotes.
_LAST_WORDS = 2000

logger = logging.getLogger("cerebro.backend")


class LocalBackend:
    """Spawned processes with their own threads, one pipe each; no polling.

    Args:
        log_dir: Where the output of workers goes; default to ours.
        limits: When a worker is taken for hung; default to those of the environment.
        first: The number of the first worker.
    """

    #: A worker may be a gang of several.
    has_gangs = True
    ends_visits = True

    def __init__(
        self, *, log_dir: str | None = None, limits: Limits | None = None, first: int = 0
    ) -> None:
        self._log_dir = log_dir
        self._first = first
        self._limits = limits or Limits.from_environment()
        self._pace = Pace()
        #: When to look whether a worker hangs.
        self._look_at = math.inf
        self._workers: dict[int, LocalWorker] = {}
        self._slots: dict[int, Slot] = {}
        self._next_key = 0
        self._posted: deque[object] = deque()
        self._events: deque[Event] = deque()
        self._setup = -1
        self._threads = 1
        self._failed_starts = 0
        #: What the last worker that could not start said, if it could.
        self._start_failure = ""
        self._has_joined = False
        self._is_running = False
        #: Nobody posts to a pipe that is being closed; handlers of signals post, too.
        self._stopping = threading.RLock()

    def start(self, setup: Opening, workers: int) -> None:
        pickled = pack(setup)
        self._setup = create_arena()
        with open(self._setup, "wb", closefd=False) as file:
            file.write(pickled)
        self._threads = setup.threads
        self._slots.clear()
        self._events.clear()
        self._failed_starts, self._has_joined = 0, False
        self._look_at = math.inf
        self._arena = Arena()
        self._killer = Killer()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._is_running = True
        if self._posted:
            self._wake()
        for index in range(self._first, self._first + workers):
            self._spawn(index)

    def submit(
        self,
        worker: int,
        call: VisitCall | Job,
        source: Source,
        *,
        consume: bool = False,
    ) -> None:
        target = self._workers.get(worker)
        given: list[Slot] = []
        state: SlotState | CheckpointRef | None = None
        if isinstance(source, StateRef):
            slot = self._slots.pop(source.key) if consume else self._slots[source.key]
            state = SlotState(slot, source.bytes, source.meta)
            if consume:
                given.append(slot)
            elif isinstance(call, VisitCall) and call.is_training:
                given.append(self._arena.allocate(source.bytes))
        else:
            state = source
        if target is None or not target.is_ready:
            # It died after the caller last looked; its successor has not joined yet.
            self._free(given)
            cause = "died before the visit reached it"
            self._events.append(Lost(worker, call, cause, is_machine=True))
            return
        target.call, target.given = call, given
        target.watch.begin(time.monotonic())
        self._look_at = min(self._look_at, target.watch.due)
        message: RunVisit | RunJob = (
            RunVisit(call, state, given[0] if given else None)
            if isinstance(call, VisitCall)
            else RunJob(call)
        )
        # A worker that just died answers with Lost instead.
        with contextlib.suppress(OSError):
            target.process.connection.send(message)

    def events(self) -> list[Event]:
        while not self._events:
            wait_s = max(0.0, self._look_at - time.monotonic())
            for key, _ in self._selector.select(None if wait_s == math.inf else wait_s):
                if key.data is None:
                    os.read(self._wake_read, 4096)
                else:
                    index, worker = cast("tuple[int, LocalWorker]", key.data)
                    # One that ended may be told of twice.
                    if self._workers.get(index) is worker:
                        self._hear(index, worker, has_ended=key.fd == worker.process.ended_fd)
            if time.monotonic() >= self._look_at:
                self._look()
            while self._posted:
                self._events.append(Posted(self._posted.popleft()))
        found = list(self._events)
        self._events.clear()
        return found

    def post(self, payload: object) -> None:
        self._posted.append(payload)
        with self._stopping:
            if self._is_running:
                self._wake()

    def progress(self) -> int:
        found = 0
        # Workers may end and join meanwhile: a copy of the list, and pages that may be gone.
        for worker in list(self._workers.values()):
            with contextlib.suppress(ValueError):
                found += worker.process.pulse.batches
        return found

    def put(self, data: memoryview, meta: Mapping[str, Json]) -> StateRef:
        """A copy of a state that was made elsewhere."""
        slot = self._arena.allocate(data.nbytes)
        self._arena.view(slot)[: data.nbytes] = data
        return self._remember(SlotState(slot, data.nbytes, meta))

    def view(self, state: StateRef) -> memoryview:
        """The bytes of a state."""
        return self._arena.view(self._slots[state.key])[: state.bytes]

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        return save_state(self.view(state), state, request)

    def release(self, state: StateRef) -> None:
        self._arena.free(self._slots.pop(state.key))

    def stop(self) -> None:
        if not self._is_running:
            return
        with self._stopping:
            self._is_running = False
        for worker in self._workers.values():
            with contextlib.suppress(OSError):
                if worker.call is None and worker.is_ready:
                    worker.process.connection.send(Stop())
                else:
                    worker.process.kill()
        for worker in self._workers.values():
            worker.process.reap()
        self._workers.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        os.close(self._setup)
        self._arena.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def _spawn(self, index: int) -> None:
        with self._log(index) as log:
            process = WorkerProcess(
                index,
                arena_fd=self._arena.fd,
                setup_fd=self._setup,
                threads=self._threads,
                beat_s=min(1.0, self._limits.heartbeat_s / 20),
                patience_s=self._limits.heartbeat_s,
                log=log,
            )
        watch = Watch(process.pulse, self._limits, self._pace)
        ready_by = time.monotonic() + self._limits.start_s
        worker = LocalWorker(process, watch, ready_by, self._killer.count())
        self._workers[index] = worker
        self._look_at = min(self._look_at, ready_by)
        self._selector.register(process.connection, selectors.EVENT_READ, (index, worker))
        if process.ended_fd is not None:
            self._selector.register(process.ended_fd, selectors.EVENT_READ, (index, worker))

    def _log(self, index: int) -> contextlib.AbstractContextManager[BinaryIO | None]:
        if self._log_dir is None:
            return contextlib.nullcontext()
        path = self._log_path(index)
        try:
            Path(self._log_dir).mkdir(parents=True, exist_ok=True)
            return open(path, "ab")
        except OSError as error:
            raise explain(error, "open", path, needed=1) from error

    def _log_path(self, index: int) -> str:
        return os.path.join(self._log_dir or "", f"worker-{index}.log")

    def _hear(self, index: int, worker: LocalWorker, *, has_ended: bool) -> None:
        if not has_ended:
            self._receive(index, worker)
            return
        # What it said before it ended counts.
        while self._workers.get(index) is worker and worker.process.connection.poll():
            self._receive(index, worker)
        if self._workers.get(index) is worker:
            self._bury(index)

    def _receive(self, index: int, worker: LocalWorker) -> None:
        try:
            message = worker.process.connection.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, BlockingIOError):
                worker.ending = "hung: in the middle of an answer"
            self._bury(index)
            return
        except Exception as error:
            # An answer may hold objects of the task's own that only its worker knows.
            message = VisitFailed(describe_failure(error))
        if worker.ending:
            # Too late: its visit is about to be moved.
            return
        if isinstance(message, NeedSlot):
            slot = self._arena.allocate(message.bytes)
            (worker.given if worker.given is not None else []).append(slot)
            with contextlib.suppress(OSError):
                worker.process.connection.send(slot)
        elif isinstance(message, Hello):
            worker.is_ready = self._has_joined = True
            worker.device = message.info.device
            self._failed_starts = 0
            self._events.append(Joined(message.info))
        elif isinstance(message, CannotStart):
            if not self._has_joined:
                raise cannot_start(message.failure)
            self._start_failure = message.failure.message
        elif isinstance(message, Ending):
            worker.own_cause = message.cause
        else:
            self._answer(index, worker, message)

    def _answer(self, index: int, worker: LocalWorker, message: object) -> None:
        call, given = worker.call, worker.given or []
        if call is None:
            raise WorkerError(f"worker {index} answered without having a visit: {message!r:.200}")
        worker.call, worker.given = None, None
        worker.watch.end(time.monotonic())
        if isinstance(message, VisitDone) and isinstance(call, VisitCall):
            state = None if message.state is None else self._keep(message.state, given)
            self._events.append(Done(index, call, message.report, state))
        elif isinstance(message, JobDone) and not isinstance(call, VisitCall):
            self._events.append(Answered(index, call, message.answer))
        elif isinstance(message, VisitFailed):
            self._free(given)
            self._events.append(Failed(index, call, message.failure))
            worker.is_spent = message.failure.is_spent
            if message.failure.kind is FailureKind.MEMORY and worker.device != "cpu":
                # Others may share the device: what they keep for later is what it lacks now.
                for other in self._workers.values():
                    if other is not worker and other.is_ready:
                        other.free_memory()
        if worker.must_free:
            worker.free_memory()

    def _keep(self, state: SlotState, given: list[Slot]) -> StateRef:
        self._free([slot for slot in given if slot != state.slot])
        return self._remember(state)

    def _remember(self, state: SlotState) -> StateRef:
        key, self._next_key = self._next_key, self._next_key + 1
        self._slots[key] = state.slot
        return StateRef(key, state.bytes, state.meta)

    def _free(self, slots: list[Slot]) -> None:
        for slot in slots:
            self._arena.free(slot)

    def _look(self) -> None:
        """End workers that hang; when to look again."""
        now = time.monotonic()
        self._look_at = math.inf
        for worker in self._workers.values():
            self._look_at = min(self._look_at, worker.look(now, self._limits))

    def _bury(self, index: int) -> None:
        """A worker has ended: report the loss and start another in its place."""
        worker = self._workers.pop(index)
        self._selector.unregister(worker.process.connection)
        if worker.process.ended_fd is not None:
            self._selector.unregister(worker.process.ended_fd)
        cause, is_memory = worker.reap(self._killer)
        self._free(worker.given or [])
        if worker.is_ready:
            # What it was given after its GPU had failed is not the reason.
            lost = Lost(index, worker.call, cause, is_memory, is_machine=worker.is_spent)
            self._events.append(lost)
        else:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                self._give_up(index, cause)
                return
        self._spawn(index)

    def _give_up(self, index: int, cause: str) -> None:
        """No other worker in this one's place; the run goes on while any is left."""
        text = (
            f"workers must be able to start, but {self._failed_starts} died before they were "
            f"ready; the last one {cause}. {self._start_failure or self._last_words(index)}"
        )
        if not any(worker.is_ready for worker in self._workers.values()):
            raise WorkerError(text)
        logger.warning("the run goes on with fewer workers: %s", text)

    def _last_words(self, index: int) -> str:
        if self._log_dir is None:
            return ""
        with open(self._log_path(index), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS))
            tail = file.read().decode(errors="replace")
        return f"Its output ends with:\n{tail}"
