"""A backend in this process whose workers join and leave during a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from cerebro.backend import InlineBackend
from cerebro.backend.base import Answered, Done, Event, Failed, Joined, Lost, Opening
from cerebro.backend.opening import introduce
from cerebro.errors import WorkerError


class ElasticBackend(InlineBackend):
    """The inline backend, with workers that come and go after so many answers.

    Args:
        joins: By worker, answers after which it joins.
        leaves: By worker, answers after which it is lost for good, with what it has to do.
        hosts: By worker, the name of its machine.
    """

    def __init__(
        self,
        *,
        joins: Mapping[int, int] | None = None,
        leaves: Mapping[int, int] | None = None,
        hosts: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__()
        self._joins = dict(joins or {})
        self._leaves = dict(leaves or {})
        self._hosts = dict(hosts or {})
        self._answers = 0
        self._present: set[int] = set()

    def start(self, setup: Opening, workers: int) -> None:
        self._runner = setup.open(0)
        for worker in range(workers):
            self._join(worker)

    def events(self) -> list[Event]:
        for worker in _due(self._joins, self._answers):
            self._join(worker)
        gone = _due(self._leaves, self._answers)
        if gone:
            return [self._leave(worker) for worker in gone]
        if not self._present and self._events.empty():
            raise WorkerError("a worker must be left or come, but all have left.")
        found = super().events()
        self._answers += sum(isinstance(event, Done | Failed | Answered) for event in found)
        return found

    def _join(self, worker: int) -> None:
        assert self._runner is not None, "start() comes first"
        info = introduce(worker, self._runner)
        self._present.add(worker)
        self._events.put(Joined(replace(info, host=self._hosts.get(worker, info.host))))

    def _leave(self, worker: int) -> Lost:
        self._present.discard(worker)
        mine = [each for each in self._queue if each[0] == worker]
        self._queue = deque(each for each in self._queue if each[0] != worker)
        call = mine[0][1] if mine else None
        return Lost(worker, call, "has left")


def _due(at: dict[int, int], answers: int) -> list[int]:
    """The workers whose time has come, once each."""
    found = [worker for worker, after in at.items() if after <= answers]
    for worker in found:
        del at[worker]
    return found
