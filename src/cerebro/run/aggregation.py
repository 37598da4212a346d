"""An epoch's metrics from those of its batches, for a task that makes them itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cerebro.backend.base import Failure
from cerebro.backend.failure import describe_failure
from cerebro.task import Task
from cerebro.train.codec import decode
from cerebro.train.runner import import_task
from cerebro.train.spec.task import SpecTask, aggregate
from cerebro.train.visit import Batches
from cerebro.types import Json, Metrics, Params


class AggregationFailed(Exception):
    """A task could not make metrics of those of its batches."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Aggregator:
    """Asks the task; one that is given by name is imported when it is needed."""

    def __init__(self, task: Task | str | None) -> None:
        self._task = task

    def __call__(self, mode: str, params: Params, parts: Sequence[Batches]) -> Metrics:
        """Metrics by name, "<mode>_" in front; none without batches. `parts` are in order."""
        metrics = self.plain(mode, params, parts)
        return {f"{mode}_{name}": value for name, value in metrics.items()}

    def plain(self, mode: str, params: Params, parts: Sequence[Batches]) -> Metrics:
        """The same under the names that the task gives."""
        joined: Batches = {}
        for part in parts:
            for name, (values, rows) in part.items():
                all_values, all_rows = joined.setdefault(name, ([], []))
                all_values += values
                all_rows += rows
        if not joined:
            return {}
        try:
            if isinstance(self._task, str):
                self._task = import_task(self._task)
            return aggregate(cast(SpecTask, self._task).spec, mode, params, joined)
        except Exception as error:
            raise AggregationFailed(describe_failure(error)) from error


def batches_of(value: Json) -> Batches | None:
    """The metrics of batches that a journal record has, if any."""
    if value is None:
        return None
    found = cast("dict[str, tuple[list[float], list[int]]]", decode(value))
    return {name: (values, rows) for name, (values, rows) in found.items()}
