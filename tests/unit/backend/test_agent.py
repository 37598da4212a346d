"""An agent: whom it finds, how long it waits, and what it says when it cannot go on."""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from dataclasses import replace

import pytest

from cerebro.backend.base import Setup
from cerebro.backend.gang import seek
from cerebro.backend.gang.agent import serve
from cerebro.backend.gang.muster import mustered
from cerebro.backend.gang.post import Post
from cerebro.backend.gang.rendezvous import Kind
from cerebro.errors import UsageError, WorkerError
from cerebro.testing.toy import ToyTask
from cerebro.train.gang.place import GangPlace
from tests.processes import wait_for
from tests.unit.backend.test_muster import spots


def test_an_agent_that_finds_nobody_says_so():
    following = replace(spots()[1], patience_s=0.3)
    with pytest.raises(WorkerError, match=r"within 0 s.*--patience"):
        serve(following, "cifar", lambda address: pytest.fail("nothing to do"))


def test_an_agent_that_is_sent_away_says_why(monkeypatch):
    monkeypatch.setattr(seek, "REFUSED_S", 0.0)
    leading, following = spots()
    with (
        mustered(leading, "cifar"),
        pytest.raises(UsageError, match="refuses this process: the name of the run"),
    ):
        serve(following, "mnist", lambda address: pytest.fail("nothing to do"))


def test_rank_0_hears_why_an_agent_cannot_go_on():
    leading, following = (replace(spot, kind=Kind.SLURM) for spot in spots())
    task = ToyTask()
    task.lock = threading.Lock()
    failures = []
    with mustered(leading, "cifar") as place:
        place.on_failure = failures.append
        gang = GangPlace(size=2, local=1, address=place.gang)
        setup = Setup(task=task, data="data", store="runs", gang=gang)
        with pytest.raises(UsageError, match="able to travel"):
            serve(following, "cifar", lambda address: setup)
        wait_for(lambda: failures, "the failure")
    assert "rank 1 cannot go on: the task must be able to travel" in str(failures[0])


def test_an_agent_without_patience_says_why_it_was_sent_away():
    leading, following = spots()
    with (
        mustered(leading, "cifar"),
        pytest.raises(UsageError, match="refuses this process: the name of the run"),
    ):
        serve(replace(following, patience_s=1.0), "mnist", lambda address: pytest.fail("no run"))


def test_a_muster_that_takes_its_time_is_waited_for():
    """A connection that ended would be a rank that is lost."""
    following = spots()[1]
    looks = []
    with (
        socket.create_server(("127.0.0.1", int(following.address.rpartition(":")[2]))) as listener,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        finding = pool.submit(seek.find_muster, following, "cifar", lambda: looks.append(None))
        connection, _ = listener.accept()
        with connection, Post(connection) as post:
            assert (post.hear(30.0) or {})["first"] == 1
            wait_for(lambda: len(looks) >= 3, "a process that looks whether it has to stop")
            post.say({"gang": "there", "threads": 1})
            with finding.result(30.0) as found:
                assert found.gang == "there"


def test_a_stranger_that_says_nothing_is_not_waited_for_longer_than_asked():
    following = replace(spots()[1], patience_s=0.3)
    port = int(following.address.rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(WorkerError, match=r"something listens there, but does not answer"),
    ):
        seek.find_muster(following, "cifar", lambda: None)
