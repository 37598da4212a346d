"""When work that costs much is due again."""

from __future__ import annotations

import time
from collections.abc import Callable

#: With more trials than this, files that each trial has are not written at every record.
MANY_TRIALS = 64
#: What is held back then is written after so long, or a little later where writing takes long.
HOLD_S = 1.0


class Pace:
    """Lets work be done at once, then no sooner than ``interval_s`` later.

    It waits longer when the work is slow: for ``rest`` times what it cost in processor time, so
    that it never takes more than a part in ``rest`` of a core.

    >>> now = 0.0
    >>> pace = Pace(1.0, clock=lambda: now)
    >>> pace.is_due, pace.run(lambda: None), pace.is_due
    (True, None, False)
    """

    def __init__(
        self, interval_s: float, *, rest: float = 50.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._rest = rest
        self._clock = clock
        self._due_s = float("-inf")

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._due_s

    def run(self, work: Callable[[], None]) -> None:
        """Do the work, whether due or not."""
        now, begin = self._clock(), time.thread_time()
        work()
        cost_s = time.thread_time() - begin
        self._due_s = now + max(self._interval_s, self._rest * cost_s)
