"""Worker processes on this machine; states hop through shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, cast

import cloudpickle

from cerebro.backend.arena import Arena, Slot, create_arena
from cerebro.backend.base import (
    Done,
    Event,
    Failed,
    FailureKind,
    Joined,
    Lost,
    Posted,
    SaveRequest,
    Setup,
    Source,
    StateRef,
)
from cerebro.backend.wire import (
    CannotStart,
    Hello,
    NeedSlot,
    RunVisit,
    SlotState,
    Stop,
    VisitDone,
    VisitFailed,
)
from cerebro.errors import DataError, UsageError, WorkerError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import save as save_checkpoint
from cerebro.storage.store import explain
from cerebro.train.visit import VisitCall

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from cerebro.backend.worker import main; main(*map(int, sys.argv[2:]))"
)
_STOP_S = 2.0
#: Deaths in a row before a first visit is done, after which no worker is started any more.
_START_ATTEMPTS = 3


@dataclass(slots=True)
class _Worker:
    """One process, and the visit it has."""

    process: subprocess.Popen[bytes]
    connection: Connection
    #: Our end of a pipe that closes when we die; never written to.
    lifeline: int
    call: VisitCall | None = None
    #: Slots given to the visit for its result; the last one holds it.
    given: list[Slot] | None = None
    is_ready: bool = False


class LocalBackend:
    """Spawned processes with their own threads, one pipe each; no polling."""

    def __init__(self, *, log_dir: str | None = None) -> None:
        self._log_dir = log_dir
        self._workers: dict[int, _Worker] = {}
        self._slots: dict[int, Slot] = {}
        self._next_key = 0
        self._posted: deque[object] = deque()
        self._events: deque[Event] = deque()
        self._setup = -1
        self._threads = 1
        self._failed_starts = 0
        self._is_running = False

    def start(self, setup: Setup, workers: int) -> None:
        pickled = _pickle_setup(setup)
        self._setup = create_arena()
        with open(self._setup, "wb", closefd=False) as file:
            file.write(pickled)
        self._threads = setup.threads
        self._arena = Arena()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._is_running = True
        for index in range(workers):
            self._spawn(index)

    def submit(self, worker: int, call: VisitCall, source: Source) -> None:
        target = self._workers[worker]
        if not target.is_ready:
            # It died after the caller last looked; its successor has not joined yet.
            self._events.append(Lost(worker, call, "died before the visit reached it"))
            return
        given: list[Slot] = []
        state: SlotState | CheckpointRef | None = None
        if isinstance(source, StateRef):
            state = SlotState(self._slots[source.key], source.bytes, source.meta)
            if call.is_training:
                given.append(self._arena.allocate(source.bytes))
        else:
            state = source
        target.call, target.given = call, given
        # A worker that just died answers with Lost instead.
        with contextlib.suppress(OSError):
            target.connection.send(RunVisit(call, state, given[0] if given else None))

    def events(self) -> list[Event]:
        while not self._events:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, 4096)
                else:
                    self._receive(key.data)
            while self._posted:
                self._events.append(Posted(self._posted.popleft()))
        found = list(self._events)
        self._events.clear()
        return found

    def post(self, payload: object) -> None:
        self._posted.append(payload)
        if not self._is_running:
            return
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"!")

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        view = self._arena.view(self._slots[state.key])[: state.bytes]
        return save_checkpoint(
            request.store,
            request.trial,
            visits=request.visits,
            attempt=request.attempt,
            data=view,
            meta=state.meta,
            parent=request.parent,
        )

    def release(self, state: StateRef) -> None:
        self._arena.free(self._slots.pop(state.key))

    def stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        for worker in self._workers.values():
            with contextlib.suppress(OSError):
                worker.connection.send(Stop()) if worker.call is None else _kill(worker.process)
        for worker in self._workers.values():
            _reap(worker)
        self._workers.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        os.close(self._setup)
        self._arena.close()

    def _spawn(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        lifeline_read, lifeline_write = os.pipe()
        passed = [theirs.fileno(), self._arena.fd, self._setup, lifeline_read]
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        arguments = [str(value) for value in (index, *passed, os.getpid())]
        with self._log(index) as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, paths, *arguments],
                pass_fds=passed,
                env=_environment(self._threads),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        theirs.close()
        os.close(lifeline_read)
        connection = Connection(ours.detach())
        self._workers[index] = _Worker(process, connection, lifeline_write)
        self._selector.register(connection, selectors.EVENT_READ, index)

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

    def _receive(self, index: int) -> None:
        worker = self._workers[index]
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(index)
            return
        if isinstance(message, NeedSlot):
            slot = self._arena.allocate(message.bytes)
            (worker.given if worker.given is not None else []).append(slot)
            with contextlib.suppress(OSError):
                worker.connection.send(slot)
        elif isinstance(message, Hello):
            worker.is_ready = True
            self._events.append(Joined(message.info))
        elif isinstance(message, CannotStart):
            raise self._cannot_start(message)
        else:
            self._answer(index, worker, message)

    def _answer(self, index: int, worker: _Worker, message: object) -> None:
        call, given = worker.call, worker.given or []
        if call is None:
            raise WorkerError(f"worker {index} answered without having a visit: {message!r:.200}")
        worker.call, worker.given = None, None
        self._failed_starts = 0
        if isinstance(message, VisitDone):
            state = None if message.state is None else self._keep(message.state, given)
            self._events.append(Done(index, call, message.report, state))
        elif isinstance(message, VisitFailed):
            for slot in given:
                self._arena.free(slot)
            self._events.append(Failed(index, call, message.failure))

    def _keep(self, state: SlotState, given: list[Slot]) -> StateRef:
        for slot in given:
            if slot != state.slot:
                self._arena.free(slot)
        key, self._next_key = self._next_key, self._next_key + 1
        self._slots[key] = state.slot
        return StateRef(key, state.bytes, state.meta)

    def _bury(self, index: int) -> None:
        """A worker's pipe closed: report the loss and start another in its place."""
        worker = self._workers.pop(index)
        self._selector.unregister(worker.connection)
        code = _reap(worker)
        for slot in worker.given or []:
            self._arena.free(slot)
        cause = _cause_of(code)
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                raise WorkerError(
                    f"workers must be able to start, but {self._failed_starts} died before they "
                    f"were ready; the last one {cause}. {self._last_words(index)}"
                )
        else:
            self._events.append(Lost(index, worker.call, cause))
        self._spawn(index)

    def _cannot_start(self, message: CannotStart) -> Exception:
        failure = message.failure
        if failure.kind is FailureKind.USAGE:
            return UsageError(failure.message)
        if failure.kind is FailureKind.FATAL:
            return DataError(failure.message)
        return WorkerError(f"a worker cannot start: {failure.message}\n{failure.traceback}")

    def _last_words(self, index: int) -> str:
        if self._log_dir is None:
            return ""
        with open(self._log_path(index), "rb") as file:
            tail = file.read()[-2000:].decode(errors="replace")
        return f"Its output ends with:\n{tail}"


def _pickle_setup(setup: Setup) -> bytes:
    try:
        return cast(bytes, cloudpickle.dumps(setup))
    except Exception as error:
        raise UsageError(
            f"the task must be able to travel to a worker process, but {setup.task!r} cannot be "
            f"pickled: {type(error).__name__}: {error}. Open files, locks and the like in model() "
            "instead of keeping them in the task."
        ) from error


def _environment(threads: int) -> dict[str, str]:
    """OpenMP threads that spin for each other across processes cost 10-30x: fix their number."""
    count = str(threads)
    return {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}


def _reap(worker: _Worker) -> int:
    """End a worker's whole process group and collect its exit status."""
    with contextlib.suppress(OSError):
        worker.connection.close()
    with contextlib.suppress(OSError):
        os.close(worker.lifeline)
    _wait_for_end(worker.process)
    _kill(worker.process)
    return worker.process.wait()


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait a little; where possible without reaping, so that its group's number stays its own."""
    if sys.platform != "linux":
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        return
    fd = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.select(_STOP_S)
    os.close(fd)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _cause_of(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
