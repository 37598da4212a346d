"""A worker process of the local backend: receive a visit, run it, answer; nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import NoReturn, cast

from cerebro.backend.arena import Mapping, Slot
from cerebro.backend.base import Failure, FailureKind, Opening, Runner
from cerebro.backend.failure import describe_failure, own_failure
from cerebro.backend.gang.ends import RankLost
from cerebro.backend.opening import introduce
from cerebro.backend.pulse import Heart
from cerebro.backend.wire import (
    CannotStart,
    Ending,
    Free,
    Hello,
    JobDone,
    NeedSlot,
    RunJob,
    RunVisit,
    SlotState,
    VisitDone,
    VisitFailed,
)
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import State

_PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def main(
    index: int,
    connection_fd: int,
    arena_fd: int,
    setup_fd: int,
    pulse_fd: int,
    lifeline_fd: int,
    parent: int,
    beat_ms: int,
) -> None:
    """Serve visits until told to stop, or until the driver is gone."""
    for fd in (connection_fd, arena_fd, setup_fd, pulse_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    die_with_parent(lifeline_fd, parent)
    heart = Heart(pulse_fd, beat_ms / 1000)
    _leave_stopping_to_the_driver(connection_fd, heart)
    faulthandler.enable()
    heart.start()
    connection = Connection(connection_fd)
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(index, connection, Mapping(arena_fd), setup_fd)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads and finalisers of user code must not keep a stopped worker alive.
    os._exit(0)


def _serve(index: int, connection: Connection, mapping: Mapping, setup_fd: int) -> None:
    try:
        pickled = os.pread(setup_fd, os.fstat(setup_fd).st_size, 0)
        setup: Opening = pickle.loads(pickled)  # noqa: S301
        runner = setup.open(index)
    except RankLost as lost:
        # Nothing is wrong with what it was to open: another may have more luck.
        _end_with(lost, connection)
    except Exception as error:
        connection.send(CannotStart(describe_failure(error)))
        return
    # What is there now stays: the collector need not look at it again.
    gc.freeze()
    connection.send(Hello(introduce(index, runner)))
    while isinstance(message := connection.recv(), RunVisit | RunJob | Free):
        if isinstance(message, Free):
            runner.free()
        elif isinstance(message, RunVisit):
            visits = cast(VisitRunner, runner)
            answer = _run(message, visits, connection, mapping)
            connection.send(answer)
            _require_gpu(answer)
        else:
            _require_gpu(_answer(message, runner, connection))
        sys.stdout.flush()
        sys.stderr.flush()
    runner.close()


def _run(
    message: RunVisit, runner: VisitRunner, connection: Connection, mapping: Mapping
) -> VisitDone | VisitFailed:
    given: list[Slot] = []

    def allocate(size: int) -> memoryview:
        slot = message.out
        if slot is None or given or slot.capacity < size:
            connection.send(NeedSlot(size))
            slot = connection.recv()
        given.append(slot)
        return mapping.view(slot)[:size]

    try:
        source = _open_source(message, runner, mapping)
        state, report = runner.run(message.call, source, allocate)
        if state is None:
            return VisitDone(report, None)
        return VisitDone(report, SlotState(given[-1], state.buffer.nbytes, state.meta))
    except RankLost as lost:
        _end_with(lost, connection)
    except Exception as error:
        failure = own_failure(error)
    return _failed(failure, runner)


def _answer(message: RunJob, runner: Runner, connection: Connection) -> VisitFailed | None:
    """Send the answer; that of a job that failed."""
    try:
        # Nothing is sent of an answer that cannot be pickled.
        connection.send(JobDone(message.job.run(runner)))
    except ConnectionError:
        raise
    except Exception as error:
        failure = own_failure(error)
    else:
        return None
    failed = _failed(failure, runner)
    connection.send(failed)
    return failed


def _failed(failure: Failure, runner: Runner) -> VisitFailed:
    """The answer; by now the error has gone, and with it what its frames held."""
    if failure.kind is FailureKind.MEMORY:
        runner.free()
    return VisitFailed(failure)


def _end_with(lost: RankLost, connection: Connection) -> NoReturn:
    with contextlib.suppress(OSError):
        connection.send(Ending(str(lost)))
    lost.end_process()


def _require_gpu(answer: object) -> None:
    """End this process after an error of its GPU: all that it would do there later fails, too."""
    if isinstance(answer, VisitFailed) and answer.failure.is_spent:
        print("cerebro: this worker ends, as its GPU fails it from now on", file=sys.stderr)
        # What the visit has printed may be what its author looks for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _open_source(message: RunVisit, runner: VisitRunner, mapping: Mapping) -> State | None:
    source = message.source
    if source is None:
        return None
    if isinstance(source, CheckpointRef):
        return runner.load(source)
    return State(mapping.view(source.slot)[: source.bytes], source.meta)


def die_with_parent(lifeline_fd: int, parent: int) -> None:
    """End with the driver, whatever this process is doing when the driver dies.

    A process of its own watches: it ends what the task has started, too. It and all of those are
    in one process group, which the driver ends when the worker has ended before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    if os.fork() == 0:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        os.closerange(3, lifeline_fd)
        os.closerange(lifeline_fd + 1, os.sysconf("SC_OPEN_MAX"))
        os.read(lifeline_fd, 1)
        os.killpg(0, signal.SIGKILL)
    os.close(lifeline_fd)


def _leave_stopping_to_the_driver(connection_fd: int, heart: Heart) -> None:
    """Batch systems and terminals signal every process; what the task forks is spared this."""

    def stop(number: int, frame: object) -> None:
        if heart.is_ending:
            # Where it hung goes to its log.
            faulthandler.dump_traceback()
            os._exit(1)

    def undo() -> None:
        os.close(connection_fd)
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    os.register_at_fork(after_in_child=undo)
