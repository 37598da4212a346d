"""Inside a Python process of a Spark executor: open once, then do what each task asks for.

Spark keeps these processes from task to task (`spark.python.worker.reuse`), and with them what
this module has opened.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
from collections.abc import Iterable
from typing import Any, cast

from cerebro.backend.base import Failure, FailureKind, Opening, Runner
from cerebro.backend.failure import describe_failure, own_failure
from cerebro.backend.opening import introduce
from cerebro.backend.spark.context import this_task
from cerebro.backend.spark.devices import gpu_number
from cerebro.backend.spark.hops import Hop, new_buffer, read_hop, write_hop
from cerebro.backend.spark.orders import Answer, Charter, Message, Order, Stuck, Visited
from cerebro.backend.spark.trouble import check_version
from cerebro.backend.spark.watchdog import Watchdog
from cerebro.backend.spark.wire import decode, encode
from cerebro.backend.watch import Pace
from cerebro.backend.wire import CannotStart, Hello, JobDone, VisitFailed
from cerebro.data import cache
from cerebro.data.manifest import FILE
from cerebro.errors import CerebroError, DataError, UsageError
from cerebro.storage import Store, open_store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.progress import PROGRESS
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import State, VisitCall


def perform(charter: Any, order: bytes, rows: Iterable[object]) -> list[bytes]:
    """Carry out an order; the function of every job.

    Args:
        charter: A broadcast variable with a pickled `Charter`.
        rows: What the partition holds. A process that leaves some of it unread is not kept.
    """
    before = PROGRESS.batches
    message = _obey(charter, decode(order))
    # One whose GPU has failed is of no use any more.
    if not (isinstance(message, VisitFailed) and message.failure.is_spent):
        for _ in rows:
            pass
    batches = PROGRESS.batches - before
    try:
        return [_packed(message, batches)]
    except Exception as error:
        return [_packed(VisitFailed(describe_failure(error)), batches)]


def _packed(message: Message, batches: int) -> bytes:
    answer = Answer(
        message=message, host=socket.gethostname(), executor=os.getppid(), batches=batches
    )
    return encode(answer)


def _obey(charter: Any, order: Order) -> Message:
    try:
        _BENCH.take_up(order.token, charter)
        stuck = _BENCH.verdict(order)
        if stuck is not None:
            return stuck
        runner = _BENCH.runner(order.worker)
        if order.call is None:
            _BENCH.report_back(order.worker)
            return Hello(introduce(order.worker, runner))
    except Exception as error:
        return CannotStart(describe_failure(error))
    with _BENCH.watchdog(order).watching():
        return _carry_out(order, runner)


def _carry_out(order: Order, runner: Runner) -> Message:
    try:
        if isinstance(order.call, VisitCall):
            return _visit(order, order.call, cast(VisitRunner, runner))
        return JobDone(order.call.run(runner) if order.call else None)
    except (Exception, SystemExit) as error:
        failure = own_failure(error)
    return _failed(failure)


def _failed(failure: Failure) -> VisitFailed:
    """The answer; by now the error has gone, and with it what its frames held."""
    if failure.kind is FailureKind.MEMORY:
        _BENCH.free()
    return VisitFailed(failure)


def _visit(order: Order, call: VisitCall, runner: VisitRunner) -> Visited:
    store = _BENCH.store
    state = _open_source(order.source, runner, store)
    # What was read from a file is nobody else's: the visit may train in it.
    own = [state.buffer] if state is not None and isinstance(order.source, Hop) else []

    def allocate(size: int) -> memoryview:
        if own and own[0].nbytes >= size:
            return own.pop()[:size]
        return new_buffer(size)

    after, report = runner.run(call, state, allocate)
    if after is None:
        return Visited(report, None)
    # No two attempts at one order share a name.
    name = f"{order.token}-{order.number}-{this_task().taskAttemptId()}.safetensors"
    return Visited(report, write_hop(store, name, after))


def _open_source(
    source: Hop | CheckpointRef | None, runner: VisitRunner, store: Store
) -> State | None:
    if isinstance(source, CheckpointRef):
        return runner.load(source)
    return None if source is None else read_hop(store, source)


class Bench:
    """What this process has opened, for one start of one backend at a time."""

    def __init__(self) -> None:
        self._charter: Charter | None = None
        #: By the number of the device they are for.
        self._runners: dict[int, Runner] = {}
        self._pace = Pace()

    @property
    def charter(self) -> Charter:
        assert self._charter is not None, "take_up() comes first"  # noqa: S101
        return self._charter

    @property
    def store(self) -> Store:
        if self.charter.store is None:
            raise UsageError("visits need a store for their states, but there is none.")
        return self.charter.store

    def take_up(self, token: str, charter: Any) -> None:
        """Have the charter of this token; what belongs to another is given up."""
        if self._charter is not None and self._charter.token == token:
            return
        self._charter = None
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
        self._pace = Pace()
        found: Charter = decode(charter.value)
        check_version(found.version)
        for name, value in found.environment.items():
            # What executors were set up with counts more.
            os.environ.setdefault(name, value)
        _see_probe(found)
        cache.limit(found.cache_bytes)
        self._charter = found

    def runner(self, worker: int) -> Runner:
        """The runner for this task's device, opened at first use."""
        device = _device_number(worker)
        for number, runner in self._runners.items():
            # Processors are the same for all.
            if number == device or runner.device == "cpu":
                return runner
        opening: Opening = decode(self.charter.opening)
        try:
            opened = opening.open(device)
        except DataError as error:
            raise _unseen_data(opening) or error from error
        self._runners[device] = opened
        return opened

    def report_back(self, worker: int) -> None:
        """Let the driver see that what is written here arrives."""
        if self.charter.store is not None:
            try:
                self.charter.store.write(self.charter.seen(worker), self.charter.token.encode())
            except CerebroError as error:
                raise _unseen_store(self.charter, f"cannot write there: {error}") from error

    def verdict(self, order: Order) -> Stuck | None:
        """Why an earlier attempt at an order has ended its process, if it has done so itself."""
        charter = self.charter
        if this_task().attemptNumber() == 0 or charter.store is None:
            return None
        path = charter.verdict(order.number)
        return Stuck(charter.store.read(path).decode()) if charter.store.exists(path) else None

    def watchdog(self, order: Order) -> Watchdog:
        """Whoever looks after this order."""
        charter = self.charter

        def end(cause: str) -> None:
            with contextlib.suppress(Exception):
                if charter.store is not None:
                    charter.store.write(charter.verdict(order.number), cause.encode())
            # Where it hung goes to the log of the executor.
            faulthandler.dump_traceback(all_threads=True)
            os._exit(1)

        return Watchdog(charter.limits, self._pace, end)

    def free(self) -> None:
        """Give back memory that is kept for later calls."""
        for runner in self._runners.values():
            runner.free()


_BENCH = Bench()


def _device_number(worker: int) -> int:
    """The GPU that Spark has given to this task; where it deals out none, by the worker."""
    gpu = this_task().resources().get("gpu")
    return gpu_number(gpu.addresses[0]) if gpu is not None else worker


def _see_probe(charter: Charter) -> None:
    if charter.store is None:
        return
    try:
        found = charter.store.read(charter.probe)
    except CerebroError as error:
        raise _unseen_store(charter, "does not find what the driver wrote there") from error
    if found != charter.token.encode():
        raise _unseen_store(charter, "finds something else than the driver wrote there")


def _unseen_store(charter: Charter, what: str) -> UsageError:
    url = charter.store.url if charter.store is not None else ""
    return UsageError(
        f"the store must be seen by Spark's executors as by the driver, but an executor on "
        f"{socket.gethostname()} {what} ({url}). Use a directory that all machines share (NFS, for "
        "example, mounted at the same path), or a URL such as hdfs:// or s3://."
    )


def _unseen_data(opening: object) -> UsageError | None:
    path = getattr(opening, "data", None)
    # The driver has seen it.
    if not isinstance(path, str) or open_store(path).exists(FILE):
        return None
    return UsageError(
        "the dataset must be seen by Spark's executors as by the driver, but there is none at "
        f"{path} on {socket.gethostname()}. Prepare it in a directory that all machines share, "
        "mounted at the same path, or at a URL such as hdfs:// or s3://."
    )
