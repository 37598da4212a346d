"""Two workers of which one takes four times as long, by a clock that nothing but visits moves.

So what a plan takes is the same on a busy machine.
"""

from __future__ import annotations

from cerebro.backend import LocalBackend
from cerebro.backend.base import Done, Event, Job, Joined, Posted, Source
from cerebro.run.committer import Committed
from cerebro.train.visit import VisitCall

SLOW = 0
#: Seconds of a training visit on each worker.
VISIT_S = {SLOW: 4.0, 1 - SLOW: 1.0}
#: Of that, an evaluation.
EVAL_SHARE = 0.25


class SlowedBackend(LocalBackend):
    """The run begins when both have joined.

    Of the visits that workers have, the one that ends first by the clock is told first: once all
    are through, and whatever was told before is durable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._joined: dict[int, Joined] = {}
        #: When the visits that workers have end, and what came of those that are through.
        self._ends: dict[int, float] = {}
        self._given: dict[int, Done] = {}
        #: Visits that were told and are not durable.
        self._saving = 0

    def submit(
        self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool = False
    ) -> None:
        assert isinstance(call, VisitCall)
        share = 1.0 if call.is_training else EVAL_SHARE
        self._ends[worker] = self.now_s + share * VISIT_S[worker]
        super().submit(worker, call, source, consume=consume)

    def events(self) -> list[Event]:
        found: list[Event] = []
        while not found:
            if self._ends and len(self._given) == len(self._ends) and not self._saving:
                return [self._earliest()]
            for event in super().events():
                if isinstance(event, Joined):
                    self._joined[event.info.worker] = event
                    if len(self._joined) == len(VISIT_S):
                        found += [self._joined[worker] for worker in sorted(VISIT_S)]
                elif isinstance(event, Done):
                    self._given[event.worker] = event
                else:
                    found.append(event)
                    if isinstance(event, Posted) and isinstance(event.payload, Committed):
                        self._saving -= sum(c.state is not None for c in event.payload.commits)
        return found

    def _earliest(self) -> Done:
        self.now_s, worker = min((end, worker) for worker, end in self._ends.items())
        del self._ends[worker]
        done = self._given.pop(worker)
        self._saving += done.state is not None
        return done
