"""Which states in the backend's memory are still needed, and by whom."""

from __future__ import annotations

import os
from collections.abc import Callable

from cerebro.backend.base import Source, StateRef
from cerebro.storage.checkpoint import CheckpointRef


class States:
    """Each trial's current state, counted references to it, and its release at the last one.

    A state is held as the trial's current one, by each visit that reads it, and by the commit that
    writes it out: memory is never reused while anyone reads it. When all states together exceed
    `limit_bytes`, those that are durable and idle are let go, the longest untouched first; their
    trials go on from their checkpoints.
    """

    def __init__(self, release: Callable[[StateRef], None], limit_bytes: int | None = None) -> None:
        self._release = release
        self._limit_bytes = half_of_memory() if limit_bytes is None else limit_bytes
        self._bytes = 0
        #: In the order in which they were made.
        self._current: dict[int, StateRef] = {}
        self._saved: dict[int, CheckpointRef] = {}
        #: Trials whose current state is the saved one.
        self._durable: set[int] = set()
        self._holds: dict[int, int] = {}

    def restore(self, trial: int, ref: CheckpointRef) -> None:
        """The trial starts from a checkpoint."""
        self._saved[trial] = ref

    def source(self, trial: int) -> Source:
        """Where the trial's next visit takes its state from; None for a new trial."""
        return self._current.get(trial) or self._saved.get(trial)

    def replace(self, trial: int, state: StateRef) -> None:
        """A visit made a new state."""
        self._bytes += state.bytes
        self.hold(state)
        self.forget(trial)
        self._current[trial] = state
        self._evict()

    def saved(self, trial: int, state: StateRef, ref: CheckpointRef) -> None:
        """A state is durable as this checkpoint."""
        self._saved[trial] = ref
        if self._current.get(trial) is state:
            self._durable.add(trial)
            self._evict()

    def hand_over(self, trial: int) -> bool:
        """Give up the trial's current state to a visit, if it is durable and nobody else's.

        Should the visit fail, the trial goes on from the checkpoint, which is the same.
        """
        state = self._current.get(trial)
        if state is None or trial not in self._durable or self._holds[state.key] > 1:
            return False
        del self._current[trial], self._holds[state.key]
        self._durable.discard(trial)
        self._bytes -= state.bytes
        return True

    def forget(self, trial: int) -> None:
        """The trial needs its current state in memory no more."""
        old = self._current.pop(trial, None)
        self._durable.discard(trial)
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
            self._bytes -= source.bytes
            self._release(source)

    def _evict(self) -> None:
        if self._bytes <= self._limit_bytes:
            return
        for trial, state in list(self._current.items()):
            if trial in self._durable and self._holds[state.key] == 1:
                self.forget(trial)
                if self._bytes <= self._limit_bytes:
                    return


def half_of_memory() -> int:
    """Half of the machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
