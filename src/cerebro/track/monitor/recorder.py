"""Samples at an even pace, kept for a while and handed to sinks."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from cerebro.track.monitor.sampler import Sample, Sampler
from cerebro.track.monitor.sinks import Sink

logger = logging.getLogger("cerebro.track")

#: As many samples as are kept: an hour of seconds.
RING = 3600


class Recorder:
    """Takes a sample each `interval_s`, on the beat: being late once delays none that follow.

    A sink that fails is dropped; the others, and what is being measured, go on.

    >>> import os
    >>> recorder = Recorder(Sampler(os.getpid()), [], interval_s=0.01)
    >>> recorder.run(lambda timeout: len(recorder.recent) == 3 or time.sleep(timeout))
    >>> len(recorder.recent)
    4
    """

    def __init__(
        self,
        sampler: Sampler,
        sinks: Sequence[Sink],
        *,
        interval_s: float = 1.0,
        ring: int = RING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = sampler
        self._sinks = list(sinks)
        self._interval_s = interval_s
        self._clock = clock
        #: The last samples, oldest first.
        self.recent: deque[Sample] = deque(maxlen=ring)

    def run(self, wait: Callable[[float], object]) -> None:
        """Sample until `wait`, which is given so many seconds, says true; then once more."""
        due = self._clock()
        self.tick()
        while True:
            now = self._clock()
            due += self._interval_s
            if due < now:
                due += self._interval_s * ((now - due) // self._interval_s + 1)
            is_over = wait(max(0.0, due - now))
            self.tick()
            if is_over:
                break
        self.close()

    def tick(self) -> Sample:
        """Take one sample now."""
        sample = self._sampler.sample()
        self.recent.append(sample)
        for sink in list(self._sinks):
            try:
                sink.write(sample)
            except OSError as error:
                self._sinks.remove(sink)
                logger.warning("%s failed and was dropped: %s", type(sink).__name__, error)
        return sample

    def close(self) -> None:
        """Write what is held back."""
        for sink in self._sinks:
            sink.close()
        self._sampler.close()
