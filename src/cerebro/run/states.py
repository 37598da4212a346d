"""Which states in the backend's memory are still needed, and by whom."""

from __future__ import annotations

import os
from collections.abc import Callable

from cerebro.backend.base import Source, StateRef
from cerebro.storage.checkpoint import CheckpointRef


class States:
    """Each unit's current state, counted references to it, and its release at the last one.

    A state is held as the unit's current one, by each visit that reads it, and by the commit that
    writes it out: memory is never reused while anyone reads it. When all states together exceed
    `limit_bytes`, those that are durable and idle are let go, the longest untouched first; their
    units go on from their checkpoints.
    """

    def __init__(self, release: Callable[[StateRef], None], limit_bytes: int | None = None) -> None:
        self._release = release
        self._limit_bytes = half_of_memory() if limit_bytes is None else limit_bytes
        self._bytes = 0
        #: In the order in which they were made.
        self._current: dict[int, StateRef] = {}
        self._saved: dict[int, CheckpointRef] = {}
        #: Units whose current state is the saved one.
        self._durable: set[int] = set()
        self._holds: dict[int, int] = {}

    def restore(self, unit: int, ref: CheckpointRef) -> None:
        """The unit starts from a checkpoint."""
        self._saved[unit] = ref

    def source(self, unit: int) -> Source:
        """Where the unit's next visit takes its state from; None for a new one."""
        return self._current.get(unit) or self._saved.get(unit)

    def replace(self, unit: int, state: StateRef) -> None:
        """A visit made a new state."""
        self._bytes += state.bytes
        self.hold(state)
        self.forget(unit)
        self._current[unit] = state
        self._evict()

    def saved(self, unit: int, state: StateRef, ref: CheckpointRef) -> None:
        """A state is durable as this checkpoint."""
        self._saved[unit] = ref
        if self._current.get(unit) is state:
            self._durable.add(unit)
            self._evict()

    def unsaved(self, unit: int) -> StateRef | None:
        """The unit's current state, unless it is durable."""
        return None if unit in self._durable else self._current.get(unit)

    def lose(self, unit: int) -> bool:
        """The unit's current state is gone; whether the unit goes on from its checkpoint, alike."""
        if self.unsaved(unit) is not None:
            return False
        self.forget(unit)
        return True

    def hand_over(self, unit: int) -> bool:
        """Give up the unit's current state to a visit, if it is durable and nobody else's.

        Should the visit fail, the unit goes on from the checkpoint, which is the same.
        """
        state = self._current.get(unit)
        if state is None or unit not in self._durable or self._holds[state.key] > 1:
            return False
        del self._current[unit], self._holds[state.key]
        self._durable.discard(unit)
        self._bytes -= state.bytes
        return True

    def forget(self, unit: int) -> None:
        """The unit needs its current state in memory no more."""
        old = self._current.pop(unit, None)
        self._durable.discard(unit)
        if old is not None:
            self.drop(old)

    def forget_unsaved(self, unit: int) -> None:
        """The unit goes on from its checkpoint, if its current state is another."""
        if unit not in self._durable:
            self.forget(unit)

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
        for unit, state in list(self._current.items()):
            if unit in self._durable and self._holds[state.key] == 1:
                self.forget(unit)
                if self._bytes <= self._limit_bytes:
                    return


def half_of_memory() -> int:
    """Half of the machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
