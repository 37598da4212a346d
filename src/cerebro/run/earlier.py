"""Earlier runs in a store: what they tell about one that is to come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from cerebro.data import Dataset
from cerebro.errors import CerebroError
from cerebro.run.estimate import Measured, measure
from cerebro.run.spec import RunDocument, read_document
from cerebro.storage import Store
from cerebro.storage.journal import read as read_journal
from cerebro.task import Task
from cerebro.train.identity import describe_task
from cerebro.types import Split


class Place(NamedTuple):
    """Where a run is to be."""

    #: Holds all runs.
    store: Store
    #: Of the run.
    name: str
    task: Task | str

    @property
    def task_name(self) -> str:
        """As run.json has it."""
        return self.task if isinstance(self.task, str) else describe_task(self.task)[0]


def earlier_runs(place: Place, dataset: Dataset) -> Iterator[tuple[Store, RunDocument, str]]:
    """Runs of the store on the same data, the likest first, each with what to call it."""
    found: list[tuple[bool, bool, str, str, RunDocument]] = []
    task_name = place.task_name
    for name in place.store.list():
        # Whatever else is in the store is no concern of a plan.
        with contextlib.suppress(CerebroError):
            document = read_document(place.store.child(name))
            if document is not None and document.spec.get("data_digest") == dataset.digest:
                alike = (name == place.name, document.task == task_name, document.created)
                found.append((*alike, name, document))
    for is_same, is_same_task, _, name, document in sorted(
        found, key=lambda each: each[:4], reverse=True
    ):
        task = "" if is_same_task else ", which has another task"
        called = "the run of this name" if is_same else f"run {name}{task}"
        yield place.store.child(name), document, called


def find_measured(place: Place, dataset: Dataset) -> tuple[Measured | None, str]:
    """What visits cost: in the run of this name, or in the likest other one of the store."""
    for store, _, called in earlier_runs(place, dataset):
        with contextlib.suppress(CerebroError):
            measured = measure(read_journal(store).records, len(dataset.shards(Split.VAL)))
            if measured is not None:
                return measured, called
    return None, ""
