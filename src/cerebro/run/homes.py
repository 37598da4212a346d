"""Which shards each worker should keep to, so that they are read in few places."""

from __future__ import annotations

from cerebro import mop
from cerebro.backend.base import WorkerInfo


class Homes:
    """The workers there are, in the order in which they joined, and what they keep to.

    Nobody waits for a shard that another keeps to: it is a preference of those who have a choice.
    On several hosts each has a part of the shards, for all its workers: what a host reads it keeps.
    The parts are made anew when a host joins that is not among them; those that have no worker by
    then are left out. On one host each device has a part; on the CPU all workers share one copy.

    Args:
        shards: Of the train split.
        workers: How many there are at first.

    >>> info = WorkerInfo(worker=1, pid=0, host="a", device="cuda", versions={})
    >>> Homes(shards=4, workers=2).joined(info)
    [WorkerJoined(worker=1, holds=frozenset({1, 3}))]
    """

    def __init__(self, shards: int, workers: int) -> None:
        self._shards = shards
        self._workers = workers
        self._infos: dict[int, WorkerInfo] = {}
        self._hosts: list[str] = []

    def joined(self, info: WorkerInfo) -> list[mop.WorkerJoined]:
        """A worker is there; what the planner is told of it, and of others for whom that counts."""
        self._infos[info.worker] = info
        if info.host in self._hosts:
            return [self._event(info)]
        present = {each.host for each in self._infos.values()}
        self._hosts = [*(host for host in self._hosts if host in present), info.host]
        return self.all()

    def lost(self, worker: int) -> None:
        """A worker is gone."""
        self._infos.pop(worker, None)

    def all(self) -> list[mop.WorkerJoined]:
        """What the planner is told of all that are there."""
        return [self._event(info) for info in self._infos.values()]

    def _event(self, info: WorkerInfo) -> mop.WorkerJoined:
        return mop.WorkerJoined(info.worker, frozenset(self._part(info)))

    def _part(self, info: WorkerInfo) -> range:
        if len(self._hosts) > 1:
            return range(self._hosts.index(info.host), self._shards, len(self._hosts))
        if info.device == "cpu":
            return range(0)
        return range(info.worker % self._workers, self._shards, self._workers)
