"""A worker of the local backend: its process, the call it has, and whether it is still at it."""

from __future__ import annotations

import contextlib
import math
import signal
from dataclasses import dataclass

from cerebro.backend.arena import Slot
from cerebro.backend.base import Job
from cerebro.backend.killer import Killer
from cerebro.backend.limits import Limits
from cerebro.backend.process import WorkerProcess, cause_of
from cerebro.backend.watch import Watch
from cerebro.backend.wire import Free
from cerebro.train.visit import VisitCall


@dataclass(slots=True, eq=False)
class LocalWorker:
    """One process, and the call it has."""

    process: WorkerProcess
    watch: Watch
    #: When it must be ready.
    ready_by: float
    #: Processes that had been killed for want of memory when it began.
    kills: int
    call: VisitCall | Job | None = None
    #: Slots given to the visit for its result; the last one holds it.
    given: list[Slot] | None = None
    is_ready: bool = False
    #: The kind of device it has, once it is ready.
    device: str = ""
    #: It shall give back memory once it has no call.
    must_free: bool = False
    #: It ends by itself, for its GPU has failed.
    is_spent: bool = False
    #: Why it is being ended, and when it will be killed for it.
    ending: str = ""
    #: Why it ends by itself, as it has said.
    own_cause: str = ""
    _kill_at: float = math.inf

    def look(self, now: float, limits: Limits) -> float:
        """End it if it hangs; when to look again."""
        if self.ending:
            if now >= self._kill_at:
                self._kill_at = math.inf
                self.process.kill()
            return self._kill_at
        if self.is_ready and self.call is None:
            return math.inf
        if self.is_ready:
            cause = self.watch.look(now) or ""
        else:
            cause = "" if now < self.ready_by else f"hung: not ready after {limits.start_s:g} s"
        if not cause:
            return self.watch.due if self.is_ready else self.ready_by
        self.ending, self._kill_at = cause, now + limits.stop_s
        self.process.terminate()
        return self._kill_at

    def free_memory(self) -> None:
        """Ask it to give back what it keeps for later visits, once it has no call."""
        self.must_free = self.call is not None
        if not self.must_free:
            with contextlib.suppress(OSError):
                self.process.connection.send(Free())

    def reap(self, killer: Killer) -> tuple[str, bool]:
        """See it off: what became of it, and whether it died for want of memory."""
        code = self.process.reap()
        if self.ending:
            return self.ending, False
        if code == -signal.SIGKILL and killer.has_struck(self.kills):
            return "was killed: out of memory", True
        return self.own_cause or cause_of(code), False
