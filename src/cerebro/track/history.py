"""Curves and visits of a run, kept compactly for the trace and the report."""

from __future__ import annotations

import math
from array import array

from cerebro.track.records import EpochFinished, Record, TrialAdded, VisitFinished

#: Visits beyond this are counted, not kept: at 75 bytes each, memory stays below 80 MB.
VISITS_LIMIT = 1_000_000


class Timeline:
    """Visits as columns; a visit's trials are ``stacks[stack]``."""

    def __init__(self, limit: int = VISITS_LIMIT) -> None:
        self.stacks: list[tuple[int, ...]] = []
        self.stack = array("i")
        self.epoch = array("q")
        self.shard = array("q")
        self.worker = array("q")
        self.is_eval = array("b")
        self.start_s = array("d")
        self.end_s = array("d")
        self.compute_s = array("d")
        #: Before the loop and in it.
        self.data_s = array("f")
        self.hop_s = array("f")
        self.comm_s = array("f")
        self.rows = array("q")
        self.left_out = 0
        self._limit = limit
        self._places: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self.stack)

    def add(self, visit: VisitFinished) -> None:
        """Keep one visit, or count it when there are too many."""
        if len(self.stack) >= self._limit:
            self.left_out += 1
            return
        place = self._places.setdefault(visit.trials, len(self.stacks))
        if place == len(self.stacks):
            self.stacks.append(visit.trials)
        self.stack.append(place)
        self.epoch.append(visit.epoch)
        self.shard.append(visit.shard)
        self.worker.append(visit.worker)
        self.is_eval.append(visit.phase != "train")
        self.start_s.append(visit.start_s)
        self.end_s.append(visit.end_s)
        self.compute_s.append(visit.compute_s)
        self.data_s.append(visit.data_s + visit.load_s)
        self.hop_s.append(visit.hop_s)
        self.comm_s.append(visit.comm_s)
        self.rows.append(visit.rows)


class History:
    """Learning curves by trial and metric, and the timeline of this process.

    >>> history = History()
    >>> history.record(EpochFinished(trial=0, epoch=1, metrics={"loss": 0.5}, seconds=1.0))
    >>> history.curves[0]["loss"]
    array('d', [nan, 0.5])
    """

    def __init__(self) -> None:
        self.curves: dict[int, dict[str, array[float]]] = {}
        self.timeline = Timeline()

    def record(self, record: Record) -> None:
        """Keep what a picture will need."""
        match record:
            case VisitFinished():
                self.timeline.add(record)
            case TrialAdded():
                self.curves[record.trial] = self._copied(record)
            case EpochFinished():
                curves = self.curves.setdefault(record.trial, {})
                for name, value in record.metrics.items():
                    curve = curves.setdefault(name, array("d"))
                    curve.extend([math.nan] * (record.epoch + 1 - len(curve)))
                    curve[record.epoch] = value

    def _copied(self, record: TrialAdded) -> dict[str, array[float]]:
        """A copy's curves begin where it left those of its parent."""
        last = record.parent_epochs - 1
        if record.parent is None or last < 0:
            return {}
        return {
            name: array("d", [math.nan] * last + [curve[last]])
            for name, curve in self.curves.get(record.parent, {}).items()
            if last < len(curve)
        }
