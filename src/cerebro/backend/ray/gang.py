"""A gang as the driver sees it: a worker whose actor leads, and an actor for each other rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cerebro.backend.gang.follower import AGAIN, FAILED, REFUSED, STOPPED
from cerebro.backend.process import cause_of
from cerebro.backend.ray.agent import RayAgent
from cerebro.backend.ray.cluster import Cluster, call
from cerebro.backend.ray.member import Ear, Member
from cerebro.backend.ray.orders import Blind, Handle, Order, Placed, RankEnded, Refused
from cerebro.train.gang.place import GangPlace

#: Followers of a rank that cannot start, one after another, before its gang is given up.
_START_ATTEMPTS = 3


@dataclass(slots=True, eq=False)
class _Rank:
    actor: Handle
    #: Its followers are counted.
    turn: int = 0
    #: Whether the leader may have met the last one: not if that was started since its last order.
    is_met: bool = True
    #: How many of the last ones could not start.
    failures: int = 0
    relay: Handle | None = None


class GangMember(Member):
    """The actors of one gang, which Ray places all at once. It is of no use without any of them.

    Args:
        index: The number of the gang, as a worker of the run.
    """

    def __init__(self, index: int, cluster: Cluster, place: GangPlace, ear: Ear) -> None:
        self._group = cluster.reserve(place.size, is_together=place.is_together)
        super().__init__(index, cluster.make(index, True, room=(self._group, 0)), ear)
        self._ranks = {
            rank: _Rank(cluster.make(index, rank, actor=RayAgent, room=(self._group, rank)))
            for rank in range(1, place.size)
        }
        #: What became of a rank that was lost since the last order.
        self._blame = ""

    def settle(self, placed: Placed, charter: Handle) -> None:
        super().settle(placed, charter)
        for rank in self._ranks:
            self._follow(rank, charter)

    def run(self, order: Order, state: Handle | None) -> None:
        self._blame = ""
        for rank in self._ranks.values():
            rank.is_met = True
        super().run(order, state)

    def rejoin(self, charter: Handle) -> None:
        """Its leader has ended, and another comes: followers that do not hear of it hang."""
        self._blame = ""
        for rank in self._ranks.values():
            if rank.is_met:
                rank.is_met = False
                call(rank.actor, "dismiss", rank.turn)
        super().rejoin(charter)

    def hear(
        self,
        number: int,
        said: RankEnded | Refused | Blind,
        charter: Handle,
        find_relay: Callable[[str], Handle],
    ) -> str:
        """A rank has ended, or cannot begin: start it again; why that is of no use, or ""."""
        rank = self._ranks[number]
        if isinstance(said, Refused):
            return f"could not start: {said.error}"
        if isinstance(said, Blind):
            rank.relay = find_relay(said.host)
        elif said.code in (FAILED, REFUSED):
            rank.failures += 1
            if rank.failures >= _START_ATTEMPTS:
                return f"could not start: rank {number} of its gang {cause_of(said.code)}"
        else:
            rank.failures = 0
            if rank.is_met and said.code not in (None, AGAIN, STOPPED):
                self._blame = _lost(number, cause_of(said.code))
        rank.is_met = False
        self._follow(number, charter)
        return ""

    def explain(self, cause: str, rank: int = 0) -> str:
        if rank:
            return _lost(rank, cause)
        return self._blame or cause

    def close(self) -> list[Handle]:
        ranks = [call(rank.actor, "close") for rank in self._ranks.values()]
        return [*super().close(), *ranks]

    def kill(self, cluster: Cluster) -> None:
        super().kill(cluster)
        for rank in self._ranks.values():
            cluster.kill(rank.actor)
        self._ranks.clear()
        cluster.give_back(self._group)

    def _follow(self, number: int, charter: Handle) -> None:
        assert self.placed is not None  # noqa: S101
        rank = self._ranks[number]
        rank.turn += 1
        given = (charter, self.placed.address, rank.turn, rank.relay)
        self._ask("follow", call(rank.actor, "follow", *given), rank=number)


def _lost(rank: int, cause: str) -> str:
    return f"lost rank {rank} of its gang, which {cause}"
