"""What is decided about gangs on Ray without Ray: who is started when, and what is told."""

from __future__ import annotations

import signal
import socket
from concurrent.futures import Future

import pytest

from cerebro.backend.gang.follower import AGAIN, FAILED
from cerebro.backend.ray.gang import GangMember
from cerebro.backend.ray.member import Ear
from cerebro.backend.ray.orders import Blind, Order, Placed, RankEnded, Refused
from cerebro.backend.ray.spot import Spot
from cerebro.errors import WorkerError
from cerebro.train.gang.place import GangPlace

ADDRESS = "10.0.0.7:4000"


class Answer:
    """What a call of an actor will give."""

    def __init__(self):
        self._future = Future()

    def future(self):
        return self._future


class Actor:
    """Remembers what it was asked for."""

    def __init__(self):
        self.asked = []
        self.is_killed = False

    def __getattr__(self, method):
        return Method(self, method)


class Method:
    def __init__(self, actor, name, returns=1):
        self._actor, self._name, self._returns = actor, name, returns

    def options(self, num_returns, max_task_retries=None):
        return Method(self._actor, self._name, num_returns)

    def remote(self, *given):
        self._actor.asked.append((self._name, *given))
        answers = [Answer() for _ in range(self._returns)]
        return answers[0] if self._returns == 1 else answers


class Machines:
    """A cluster with room for everybody."""

    def __init__(self):
        self.actors = []
        self.groups = []

    def reserve(self, size, *, is_together):
        self.groups.append((size, is_together))
        return self.groups[-1]

    def give_back(self, group):
        self.groups.remove(group)

    def make(self, index, *given, actor=None, room=None):
        self.actors.append(Actor())
        return self.actors[-1]

    def kill(self, actor):
        actor.is_killed = True


@pytest.fixture
def machines():
    return Machines()


@pytest.fixture
def gang(machines):
    """A gang of three that Ray has placed."""
    gang = GangMember(0, machines, GangPlace(size=3), Ear())
    gang.begin("charter")
    gang.settle(Placed("node", "host", 1, ADDRESS), "charter")
    return gang


def hear(gang, rank, said):
    return gang.hear(rank, said, "charter", lambda host: f"relay for {host}")


def killed(turn):
    return RankEnded(turn, -signal.SIGKILL)


def test_followers_come_to_where_their_leader_is(machines, gang):
    leader, *agents = machines.actors
    assert leader.asked == [("place",), ("join", "charter", None)]
    assert [agent.asked for agent in agents] == 2 * [[("follow", "charter", ADDRESS, 1, None)]]


def test_a_follower_that_has_ended_is_started_again(machines, gang):
    assert hear(gang, 2, RankEnded(1, AGAIN)) == ""
    assert machines.actors[2].asked[1:] == [("follow", "charter", ADDRESS, 2, None)]
    assert gang.explain("exited with code 1") == "exited with code 1"


def test_a_leader_that_ends_for_a_rank_that_was_killed_is_explained_by_that(gang):
    gang.run(Order(life=0, call="visit"), None)
    assert hear(gang, 1, killed(1)) == ""
    told = gang.explain("exited with code 1")
    assert told == "lost rank 1 of its gang, which was killed by SIGKILL"


def test_what_befell_a_rank_before_an_order_explains_nothing_after_it(gang):
    hear(gang, 1, killed(1))
    gang.run(Order(life=0, call="visit"), None)
    assert gang.explain("hung: no batch") == "hung: no batch"


def test_an_actor_that_is_gone_is_told_by_its_rank(gang):
    told = gang.explain("was lost: its node died", 2)
    assert told == "lost rank 2 of its gang, which was lost: its node died"


def test_with_a_leader_end_the_followers_that_it_had_and_no_newer_ones(machines, gang):
    gang.run(Order(life=0, call="visit"), None)
    hear(gang, 1, killed(1))
    gang.rejoin("charter")
    _, fresh, old = machines.actors
    assert ("dismiss", 1) in old.asked
    assert not [asked for asked in fresh.asked if asked[0] == "dismiss"]
    # Its end was ours, and is nobody's fault.
    hear(gang, 2, killed(1))
    assert gang.explain("exited with code 1") == "exited with code 1"


def test_a_gang_with_a_rank_that_cannot_start_is_given_up(gang):
    assert [hear(gang, 1, RankEnded(turn, FAILED)) for turn in (1, 2)] == ["", ""]
    told = hear(gang, 1, RankEnded(3, FAILED))
    assert told == "could not start: rank 1 of its gang exited with code 1"
    assert hear(gang, 2, Refused(WorkerError("no such file"))) == "could not start: no such file"


def test_a_rank_that_does_not_see_the_store_is_given_a_relay(machines, gang):
    hear(gang, 1, Blind("far"))
    hear(gang, 1, RankEnded(2, AGAIN))
    relayed = [asked[-1] for asked in machines.actors[1].asked]
    assert relayed == [None, "relay for far", "relay for far"]


def test_a_gang_ends_as_a_whole(machines, gang):
    gang.kill(machines)
    assert all(actor.is_killed for actor in machines.actors)
    assert machines.groups == []


def test_one_leader_after_another_listens_at_a_port_that_is_kept():
    spot = Spot("127.0.0.1")
    host, _, port = spot.address.rpartition(":")
    for _ in range(2):
        with socket.socket() as leader:
            leader.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            leader.bind((host, int(port)))
            leader.listen()
            socket.create_connection((host, int(port))).close()
    spot.close()
