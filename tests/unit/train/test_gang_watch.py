"""A rank that is gone is noticed by those who wait for it where nothing would tell them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import socket
import subprocess
import sys
import threading

import pytest
import torch

from cerebro.backend.gang.message import pack_call
from cerebro.backend.gang.rank import _serve
from cerebro.train.gang import group
from cerebro.train.gang.group import GangBroken
from cerebro.train.gang.watch import Watch, connect
from tests.unit.train.bare import make_call
from tests.unit.train.ranks import DEADLINE_S, HOST, connected

POOL = concurrent.futures.ThreadPoolExecutor


class Exchange:
    """Gives the values of all ranks, which are threads, to each of them."""

    def __init__(self, size):
        self._values = [None] * size
        self._barrier = threading.Barrier(size, timeout=DEADLINE_S)

    def of(self, rank, meanwhile=lambda values: None):
        def exchange(value):
            self._values[rank] = value
            self._barrier.wait()
            meanwhile(self._values)
            self._barrier.wait()
            return self._values

        return exchange


@contextlib.contextmanager
def watches(size, meanwhile=lambda values: None):
    """By rank: its watch, and what is set when it has lost another; the leader looks on, then."""
    exchange = Exchange(size)
    all_lost = [threading.Event() for _ in range(size)]

    def lose(rank):
        if rank == 0:
            # As NCCL does, which may wait for all that are left.
            assert size == 2 or all_lost[1].wait(DEADLINE_S)
        all_lost[rank].set()

    def come(rank):
        say = exchange.of(rank, meanwhile if rank == 0 else lambda values: None)
        watch = Watch(connect(rank, size, HOST, say), lambda: lose(rank))
        return watch, all_lost[rank]

    with POOL(size) as pool:
        found = list(pool.map(come, range(size)))
    try:
        yield found
    finally:
        for watch, _ in found:
            watch.close()


def test_one_lost_rank_is_lost_to_all_before_its_leader_has_dealt_with_that():
    with watches(3) as [(leader, leader_lost), (_, second_lost), (third, third_lost)]:
        third.close()
        assert second_lost.wait(DEADLINE_S)
        leader.close()
        assert leader_lost.is_set()
        assert not third_lost.is_set()


def test_strangers_are_not_taken_for_ranks():
    strangers = []

    def come_first(values):
        host, port, token = values[0]
        for said in (b"x" * len(token), token[:5].encode()):
            stranger = socket.create_connection((host, port))
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            strangers.append(stranger)

    with watches(2, come_first) as [(_, leader_lost), (follower, _)]:
        for stranger in strangers:
            assert stranger.recv(1) == b""
            stranger.close()
        assert not leader_lost.is_set()
        follower.close()
        assert leader_lost.wait(DEADLINE_S)


FORKING = """
import os, signal, socket, sys
from cerebro.train.gang.watch import Watch

watch = Watch([socket.create_connection(("127.0.0.1", int(sys.argv[1])))], lambda: None)
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_rank_is_missed_though_what_it_forked_lives_on():
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(DEADLINE_S)
        command = [sys.executable, "-c", FORKING, str(listener.getsockname()[1])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(DEADLINE_S)
                assert connection.recv(1) == b""
            # Both ends of this are open until the child has ended, for which it waits here.
            assert process.communicate(b"x", timeout=DEADLINE_S) == (b"", None)
            assert process.returncode == -signal.SIGKILL


class FakeNccl:
    """Waits for ranks that are gone until it is told not to, and then says nothing."""

    def __init__(self, *_):
        self._is_begun = False
        self._ended = threading.Event()

    def connect(self):
        pass

    def waited_s(self):
        return 0.0

    def begin(self, tensor):
        self._is_begun = True

    def finish(self):
        assert not self._is_begun or self._ended.wait(DEADLINE_S)

    def abort(self):
        self._ended.set()


@pytest.fixture
def gangs(monkeypatch):
    monkeypatch.setattr(group, "Nccl", FakeNccl)
    with connected(2, gradients="nccl") as found:
        yield found


def test_a_gang_breaks_when_a_rank_is_gone_on_which_nccl_waits(gangs):
    gangs[0].add_up(torch.ones(1))
    gangs[1].close()
    with pytest.raises(GangBroken, match="another rank has ended"):
        gangs[0].finish()


def test_what_goes_wrong_with_half_a_sum_is_the_fault_of_the_lost_rank(gangs):
    with pytest.raises(ValueError, match="its own"), gangs[0].whole():
        raise ValueError("its own")
    gangs[0].add_up(torch.ones(1))
    gangs[1].close()
    with pytest.raises(GangBroken, match="another rank has ended"):
        gangs[0].finish()
    with pytest.raises(GangBroken, match="another rank has ended"), gangs[0].whole():
        raise ValueError("loss is nan")


def test_the_last_word_of_a_leader_is_heard_though_it_is_gone_by_then(monkeypatch):
    monkeypatch.setattr(group, "Nccl", FakeNccl)

    def lead(gang):
        gang.send(None)
        gang.close()

    # Whether the follower is fast enough to hear it first is a matter of luck.
    for _ in range(20):
        with connected(2, gradients="nccl") as [leader, follower], POOL(1) as pool:
            leading = pool.submit(lead, leader)
            assert follower.receive() is None
            leading.result(DEADLINE_S)


class LosingRunner:
    """Fails because its gang has lost a rank, in words that do not say so."""

    def __init__(self, gangs):
        self._gangs = gangs

    def run(self, call, state, allocate):
        self._gangs[1].add_up(torch.ones(1))
        self._gangs[0].close()
        with contextlib.suppress(GangBroken):
            self._gangs[1].finish()
        raise ValueError("loss is nan")


class Words:
    def __init__(self):
        self.told = []

    def tell(self, failure):
        self.told.append(failure)


def test_a_follower_does_not_blame_the_task_for_a_lost_rank(gangs):
    words, message = Words(), {"visit": pack_call(make_call(0))}
    with POOL(1) as pool:
        sending = pool.submit(gangs[0].send, message)
        with pytest.raises(GangBroken, match="another rank has ended"):
            _serve(LosingRunner(gangs), gangs[1], words, is_first=True)
        sending.result(DEADLINE_S)
    assert words.told == []
