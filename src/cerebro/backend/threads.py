"""Threads of this process: for jobs that spend their time outside of Python, and hold no state."""

from __future__ import annotations

import concurrent.futures

from cerebro.backend.base import Event, Job, Opening, Source
from cerebro.backend.inline import InlineBackend
from cerebro.train.visit import VisitCall


class ThreadBackend(InlineBackend):
    """Runs several jobs at once, all with the one runner that was opened here."""

    _pool: concurrent.futures.ThreadPoolExecutor | None = None

    def start(self, setup: Opening, workers: int) -> None:
        super().start(setup, workers)
        self._pool = concurrent.futures.ThreadPoolExecutor(workers)

    def submit(
        self,
        worker: int,
        call: VisitCall | Job,
        source: Source,
        *,
        consume: bool = False,
    ) -> None:
        assert self._pool is not None, "start() comes first"  # noqa: S101
        self._pool.submit(lambda: self._events.put(self._run(worker, call, None)))

    def events(self) -> list[Event]:
        return [self._events.get()]

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        super().stop()
