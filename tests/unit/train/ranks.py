"""The ranks of a gang as threads of this process, each with a framework of its own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from cerebro.data import Dataset
from cerebro.task import Task
from cerebro.train.gang.group import Gang
from cerebro.train.gang.meeting import Meeting, Visitor
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Diverged, State, VisitReport
from cerebro.types import Split
from tests.unit.train.bare import allocate, make_call, make_eval

HOST = "127.0.0.1"
DEADLINE_S = 60.0


@contextlib.contextmanager
def connected(size: int, check_every: int = 100, gradients: str = "gloo") -> Iterator[list[Gang]]:
    """The ends of a gang's connections, by rank."""
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    meeting = Meeting(listener, HOST, HOST, size)

    def lead() -> Gang:
        meeting.assemble({}, DEADLINE_S, lambda: None)
        return meeting.open(check_every, gradients, lambda: None)

    def follow(rank: int) -> Gang:
        visitor = Visitor(HOST, port, rank, DEADLINE_S)
        road = visitor.come({})
        return visitor.connect(size, own_host=HOST, check_every=check_every, gradients=road)

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        calls = [pool.submit(lead), *(pool.submit(follow, rank) for rank in range(1, size))]
        gangs = [call.result(DEADLINE_S) for call in calls]
    try:
        yield gangs
    finally:
        for gang in gangs:
            gang.close()


class Ranks:
    """Trains a trial visit by visit with several ranks.

    Generators are the process's: a model must draw nothing while it trains, and begins with a
    `state` where that matters. `task` makes a task for each rank.
    """

    def __init__(
        self,
        task: Callable[[], Task],
        data: Dataset,
        gangs: list[Gang],
        params: dict[str, Any] | None = None,
        state: State | None = None,
    ) -> None:
        self.data = data
        self.params = params
        self.visits = 0 if state is None else 1
        self.state = state
        self.report: VisitReport | None = None
        self._gangs = gangs
        self._frameworks = [TorchFramework(task(), device="cpu") for _ in gangs]
        for framework, gang in zip(self._frameworks, gangs, strict=True):
            framework.join(gang)

    def train(self, **changes: Any) -> list[Any]:
        """One visit: what each rank gave, or the error it raised."""
        call = make_call(self.visits, params=self.params, **changes)
        shard = self.data.open_shard(Split.TRAIN, call.shard)
        state = self.state
        found = self._on_all(lambda framework: framework.train(call, shard, state, allocate))
        if not isinstance(found[0], BaseException):
            self.state, self.report = found[0]
            self.visits += 1
        return found

    def run(self, visits: int, **changes: Any) -> Ranks:
        for _ in range(visits):
            for given in self.train(**changes):
                if isinstance(given, BaseException):
                    raise given
        return self

    def evaluate(self, **changes: Any) -> list[Any]:
        call = make_eval(params=self.params, **changes)
        shard = self.data.open_shard(Split.VAL, 0)
        state = self.state
        assert state is not None
        return self._on_all(lambda framework: framework.evaluate(call, shard, state))

    def _on_all(self, do: Callable[[TorchFramework], Any]) -> list[Any]:
        def attempt(rank: int) -> Any:
            try:
                return do(self._frameworks[rank])
            except Exception as error:
                # A process would end, and be noticed; a thread has to say so.
                if not isinstance(error, Diverged):
                    self._gangs[rank].close()
                return error

        with concurrent.futures.ThreadPoolExecutor(len(self._frameworks)) as pool:
            return list(pool.map(attempt, range(len(self._frameworks))))
