"""How long training steps took, and how long they waited for other ranks."""

from __future__ import annotations

from cerebro.track.records import Record, VisitFinished


class StepTimes:
    """Adds up the training steps of a run, as a tracker.

    >>> StepTimes().step_s
    0.0
    """

    def __init__(self) -> None:
        self._seconds = self._waited = 0.0
        self._steps = 0

    @property
    def step_s(self) -> float:
        """Of a step and of loading its batch, the mean."""
        return self._seconds / self._steps if self._steps else 0.0

    @property
    def comm_s(self) -> float:
        """Of that, what was communication."""
        return self._waited / self._steps if self._steps else 0.0

    def record(self, record: Record) -> None:
        if isinstance(record, VisitFinished) and record.phase == "train":
            self._seconds += record.compute_s + record.load_s + record.comm_s
            self._waited += record.comm_s
            self._steps += max((len(member.losses) for member in record.members), default=0)

    def close(self) -> None:
        """Nothing is held back."""
