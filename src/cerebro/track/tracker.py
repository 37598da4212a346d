"""The Tracker seam, and the fan-out that keeps trackers away from the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Protocol, runtime_checkable

from cerebro.track.records import Record

logger = logging.getLogger("cerebro.track")

QUEUE_RECORDS = 10_000
CLOSE_TIMEOUT_S = 5.0
#: Records of this long are handed over together: waking a thread for each costs the driver more
#: than all that is done with it.
PAUSE_S = 0.1
#: After so long without a record, a tracker that holds something back is asked to write it.
QUIET_S = 1.0


class Tracker(Protocol):
    """Receives every record of a run, in order, on one thread of its own.

    Whatever it does, the run goes on: raising ends the tracker, blocking loses it records.
    """

    def record(self, record: Record) -> None:
        """Take note of ``record``."""
        ...

    def close(self) -> None:
        """Write what is still held back. Called once, after the last record."""
        ...


@runtime_checkable
class Buffering(Tracker, Protocol):
    """A tracker that may hold back for a while what it was told."""

    def flush(self) -> None:
        """Write what is held back. Called on the tracker's thread when no records come."""
        ...


class FanOut:
    """Hands records to trackers without ever waiting for one.

    Each tracker has its own thread and queue, so a slow one holds up no other. When a queue holds
    ``limit`` entries, further ones for that tracker are dropped and counted. ``problems`` says, in
    one line each, what went wrong.

    >>> class Count:
    ...     seen = 0
    ...     def record(self, record): self.seen += 1
    ...     def close(self): pass
    >>> from cerebro.track.records import WorkerChanged
    >>> count = Count()
    >>> with FanOut([count]) as fan:
    ...     fan.record(WorkerChanged(worker=0, alive=True, cause=None, time_s=0.0))
    >>> count.seen, fan.problems
    (1, [])
    """

    def __init__(self, trackers: Sequence[Tracker], *, limit: int = QUEUE_RECORDS) -> None:
        self.problems: list[str] = []
        self._channels = [_Channel(tracker, limit, self.problems) for tracker in trackers]
        self._closed = False

    def record(self, record: Record) -> None:
        """Queue one record for every tracker."""
        for channel in self._channels:
            channel.put(record)

    def replay(self, records: Sequence[Record]) -> None:
        """Queue a whole history as one entry, so that its length cannot fill the queue."""
        batch = list(records)
        for channel in self._channels:
            channel.put(batch)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Let the trackers finish, for at most ``timeout`` seconds in all. May be called twice."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout
        for channel in self._channels:
            channel.end()
        for channel in self._channels:
            channel.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> FanOut:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Channel:
    """One tracker, its queue and its thread."""

    def __init__(self, tracker: Tracker, limit: int, problems: list[str]) -> None:
        self._tracker = tracker
        self._buffering = tracker if isinstance(tracker, Buffering) else None
        self._limit = limit
        self._problems = problems
        self._queue: SimpleQueue[Record | list[Record] | None] = SimpleQueue()
        self._ending = threading.Event()
        self._failed = False
        self._dropped = 0
        self.name = type(tracker).__name__
        # A daemon, so that a tracker stuck for good cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"track-{self.name}", daemon=True)
        self._thread.start()

    def put(self, entry: Record | list[Record]) -> None:
        if self._failed:
            return
        if self._queue.qsize() >= self._limit:
            self._dropped += 1
        else:
            self._queue.put(entry)

    def end(self) -> None:
        self._queue.put(None)
        self._ending.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._report(f"tracker {self.name} was still busy when the run ended; left behind.")
        if self._dropped:
            self._report(f"tracker {self.name} fell behind: {self._dropped} records were dropped.")

    def _work(self) -> None:
        # Not even SystemExit from a tracker may go unnoticed: it would end the thread silently.
        try:
            while self._drain(self._next()):
                self._ending.wait(PAUSE_S)
        except BaseException as error:
            self._fail(error)
        try:
            self._tracker.close()
        except BaseException as error:
            if not self._failed:
                self._fail(error)

    def _next(self) -> Record | list[Record] | None:
        if self._buffering is not None:
            try:
                return self._queue.get(timeout=QUIET_S)
            except Empty:
                self._buffering.flush()
        return self._queue.get()

    def _drain(self, entry: Record | list[Record] | None) -> bool:
        """Hand over all that is queued; whether there may be more."""
        while entry is not None:
            for record in entry if isinstance(entry, list) else (entry,):
                self._tracker.record(record)
            try:
                entry = self._queue.get_nowait()
            except Empty:
                return True
        return False

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        what = f"{type(error).__name__}: {error}"
        self._report(f"tracker {self.name} failed and was dropped; the run goes on. {what}")

    def _report(self, problem: str) -> None:
        self._problems.append(problem)
        logger.warning("%s", problem)
