"""Which states in the backend's memory are still needed, and by whom."""

from __future__ import annotations

from collections.abc import Callable

from cerebro.backend.base import Source, StateRef
from cerebro.storage.checkpoint import CheckpointRef


class States:
    """Each trial's current state, counted references to it, and its release at the last one.

    A state is held as the trial's current one, by each visit that reads it, and by the commit that
    writes it out: a slot of shared memory is never reused while anyone reads it.
    """

    def __init__(self, release: Callable[[StateRef], None]) -> None:
        self._release = release
        self._current: dict[int, StateRef] = {}
        self._saved: dict[int, CheckpointRef] = {}
        self._holds: dict[int, int] = {}

    def restore(self, trial: int, ref: CheckpointRef) -> None:
        """The trial starts from a checkpoint."""
        self._saved[trial] = ref

    def source(self, trial: int) -> Source:
        """Where the trial's next visit takes its state from; None for a new trial."""
        return self._current.get(trial) or self._saved.get(trial)

    def replace(self, trial: int, state: StateRef) -> None:
        """A visit made a new state."""
        self.hold(state)
        self.forget(trial)
        self._current[trial] = state

    def forget(self, trial: int) -> None:
        """The trial needs its current state no more."""
        old = self._current.pop(trial, None)
        if old is not None:
            self.drop(old)

    def hold(self, source: Source) -> None:
        """Keep a state until `drop`."""
        if isinstance(source, StateRef):
            self._holds[source.key] = self._holds.get(source.key, 0) + 1

    def drop(self, source: Source) -> None:
        """Undo one `hold`."""
        if not isinstance(source, StateRef):
            return
        left = self._holds[source.key] - 1
        if left:
            self._holds[source.key] = left
        else:
            del self._holds[source.key]
            self._release(source)
