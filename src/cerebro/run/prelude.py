"""From the first worker to the first visit: trials are put into stacks, if that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from cerebro.backend.base import Answered, Job, Source, WorkerInfo
from cerebro.run.recovery import OpenRun
from cerebro.run.surveyor import Surveyor
from cerebro.train.visit import Survey, SurveyCall


class Prelude:
    """Has the first worker look at the trials; others that join meanwhile wait.

    Args:
        submit: Hands a survey to a worker.
        begin: Called once it is decided, and durable, how all trials are trained.
    """

    def __init__(
        self,
        run: OpenRun,
        surveyor: Surveyor,
        submit: Callable[[int, SurveyCall, Source], None],
        begin: Callable[[], None],
    ) -> None:
        self._run = run
        self._surveyor = surveyor
        self._submit = submit
        self._begin = begin
        #: Those that wait for the run to begin.
        self._workers: dict[int, WorkerInfo] = {}

    def joined(self, info: WorkerInfo) -> None:
        """A worker is there."""
        self._workers[info.worker] = info
        if len(self._workers) == 1:
            self._ask(info.worker)

    def lost(self, worker: int) -> None:
        """A worker is gone."""
        self._workers.pop(worker, None)

    def answered(self, event: Answered) -> None:
        """A worker has looked at the trials."""
        call, survey = cast(SurveyCall, event.call), cast(Survey, event.answer)
        self._run.append(self._surveyor.place(call, survey))
        self._begin()

    def failed(self, call: Job, message: str, *, is_final: bool = False) -> None:
        """It could not, or is gone; ask again, or go on without stacks."""
        record = self._surveyor.fail(cast(SurveyCall, call), message, is_final=is_final)
        if record is not None:
            self._run.append(record)
            self._begin()
        elif self._workers:
            self._ask(next(iter(self._workers)))

    def _ask(self, worker: int) -> None:
        trials = self._surveyor.due()
        if trials:
            self._submit(worker, self._surveyor.call(trials), None)
        else:
            self._begin()
