"""A backend that loses states, as a cluster does when one of its machines is lost.

Run once without losses to learn how many operations there are, then once for each of them.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias

from cerebro.backend.base import (
    Backend,
    Done,
    Event,
    Failed,
    Job,
    Opening,
    SaveRequest,
    Source,
    StateRef,
)
from cerebro.backend.failure import describe_failure
from cerebro.errors import StateLostError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import VisitCall

#: Given "save" or "submit" and its number (the first is 1): whether its state is lost before it.
Rule: TypeAlias = Callable[[str, int], bool]


def nothing(operation: str, number: int) -> bool:
    """No loss: only count."""
    return False


def lose_at(operation: str, *numbers: int) -> Rule:
    """These saves, or submits, find their state lost.

    >>> lose_at("save", 2)("save", 2), lose_at("save", 2)("submit", 2)
    (True, False)
    """
    return lambda found, number: found == operation and number in numbers


def lose_always(operation: str, first: int = 1) -> Rule:
    """All saves, or submits, from this one on find their state lost."""
    return lambda found, number: found == operation and number >= first


def lose_randomly(seed: int, share: float) -> Rule:
    """So many find their state lost, the same ones for the same seed.

    >>> sum(lose_randomly(0, 0.25)("save", number) for number in range(1000)) in range(200, 300)
    True
    """
    return lambda found, number: random.Random(f"{seed} {found} {number}").random() < share  # noqa: S311


class LossyBackend:
    """Another backend, and states in it that are gone before their time.

    Args:
        loses: Tells at which operations a state is lost.
        nodes: Machines on which the workers are in turn; all states that a machine has made are
            lost together. None: the one state alone.
        can_save: States are lost to visits alone.
    """

    def __init__(
        self,
        inner: Backend,
        loses: Rule = nothing,
        *,
        nodes: int | None = None,
        can_save: bool = False,
    ) -> None:
        self._inner = inner
        self._loses = loses
        self._nodes = nodes
        self._can_save = can_save
        self._lock = threading.Lock()
        #: By key, which machine has it; None once it is gone.
        self._places: dict[int, int | None] = {}
        self._failed: deque[Event] = deque()
        #: Operations with a state in memory so far.
        self.counts: Counter[str] = Counter()
        #: Operations that found their state lost.
        self.losses = 0

    @property
    def ends_visits(self) -> bool:
        return self._inner.ends_visits

    def start(self, setup: Opening, workers: int) -> None:
        self._inner.start(setup, workers)

    def submit(
        self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool = False
    ) -> None:
        try:
            if isinstance(source, StateRef):
                self._look("submit", source)
        except StateLostError as error:
            if consume and isinstance(source, StateRef):
                self._inner.release(source)
            self._failed.append(Failed(worker, call, describe_failure(error)))
        else:
            self._inner.submit(worker, call, source, consume=consume)

    def events(self) -> list[Event]:
        if self._failed:
            return [self._failed.popleft()]
        events = self._inner.events()
        with self._lock:
            for event in events:
                if isinstance(event, Done) and event.state is not None:
                    self._places[event.state.key] = event.worker % (self._nodes or 1)
        return events

    def post(self, payload: object) -> None:
        self._inner.post(payload)

    def progress(self) -> int:
        return self._inner.progress()

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        self._look("save", state)
        return self._inner.save(state, request)

    def release(self, state: StateRef) -> None:
        self._inner.release(state)

    def stop(self) -> None:
        self._inner.stop()

    def _look(self, operation: str, state: StateRef) -> None:
        """Raise if the state is lost, now or before."""
        with self._lock:
            self.counts[operation] += 1
            if self._loses(operation, self.counts[operation]):
                self._lose(state)
            if self._places[state.key] is not None or (self._can_save and operation == "save"):
                return
            self.losses += 1
        raise StateLostError(f"state {state.key} was on a machine that is lost.")

    def _lose(self, state: StateRef) -> None:
        place = self._places[state.key]
        for key, other in list(self._places.items()):
            if key == state.key or (self._nodes is not None and other == place):
                self._places[key] = None
