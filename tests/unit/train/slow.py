"""Code that seems to be slow, by a clock that it moves on itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cerebro.data import Dataset, Shard
from cerebro.train.visit import VisitReport
from cerebro.types import Split

#: What slow code seems to take for each batch, and what is nothing beside it.
SLOW_S, LITTLE_S = 1000.0, 100.0


class Clock(threading.local):
    """A clock that slow code moves on, in its own thread; all else takes as long as it takes."""

    ahead_s = 0.0

    def pass_by(self) -> None:
        self.ahead_s += SLOW_S


CLOCK = Clock()


class SlowColumn(np.ndarray):
    """Rows that are slow to gather."""

    def take(self, *arguments: Any) -> Any:  # type: ignore[override]
        CLOCK.pass_by()
        return np.asarray(self).take(*arguments)


def slow_shard(data: Dataset) -> Shard:
    shard = data.open_shard(Split.TRAIN, 0)
    column = np.asarray(shard.columns["x"]).view(SlowColumn)
    return replace(shard, columns={**shard.columns, "x": column})


def loaded(report: VisitReport, batches: int) -> bool:
    """Whether a visit spent its time in waiting for so many slow batches."""
    assert report.load_s == pytest.approx(batches * SLOW_S, abs=LITTLE_S)
    assert 0 <= report.compute_s - report.load_s < LITTLE_S
    return True


def computed(report: VisitReport, batches: int) -> bool:
    """Whether a visit spent its time in so many slow steps."""
    assert report.compute_s == pytest.approx(batches * SLOW_S, abs=LITTLE_S)
    assert 0 <= report.load_s < LITTLE_S
    return True
