"""How ranks find each other, whatever becomes of them on the way."""

from __future__ import annotations

import concurrent.futures
import json
import socket

import pytest
import torch.distributed as dist

from cerebro.errors import UsageError, WorkerError
from cerebro.train.gang.group import GangBroken
from cerebro.train.gang.meeting import Meeting, Visitor
from tests.processes import wait_for

HOST = "127.0.0.1"


def test_a_rank_that_is_started_again_before_all_have_come_takes_its_place():
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    meeting = Meeting(listener, HOST, HOST, 3)
    watcher = dist.TCPStore(HOST, port, is_master=False)

    def come(rank, life):
        with pytest.raises(UsageError, match="all go home"):
            Visitor(HOST, port, rank, 30.0).come({"life": life})

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        coming = []
        for rank, life in ((1, 1), (1, 2), (2, 1)):
            coming.append(pool.submit(come, rank, life))
            told = f'{{"life": {life}}}'.encode()
            key = f"rank {rank}"
            wait_for(lambda k=key, t=told: watcher.check([k]) and t in watcher.get(k), key)
        found = meeting.assemble({}, 30.0, lambda: None)
        meeting.refuse("all go home")
        for call in coming:
            call.result(30.0)
    assert found == [{}, {"life": 2}, {"life": 1}]


def test_who_comes_when_the_gang_is_formed_comes_again():
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    meeting = Meeting(listener, HOST, HOST, 2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        visitor = Visitor(HOST, port, 1, 30.0)
        coming = pool.submit(visitor.come, {})
        meeting.assemble({}, 30.0, lambda: None)
        connecting = pool.submit(
            lambda: visitor.connect(2, own_host=HOST, check_every=0, gradients=coming.result(30.0))
        )
        gang = meeting.open(0, "gloo", lambda: None)
        other = connecting.result(30.0)
    with pytest.raises(GangBroken, match="before this life of rank 1"):
        Visitor(HOST, port, 1, 30.0).come({})
    gang.close()
    other.close()


def leave_after_coming(port, rank):
    """What is left of a rank whose process was killed while others were awaited."""
    store = dist.TCPStore(HOST, port, is_master=False)
    store.set(f"rank {rank}", json.dumps(["gone", {}]))


def test_a_rank_that_ended_after_it_came_is_not_waited_for_once_it_is_started_again():
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    meeting = Meeting(listener, HOST, HOST, 2)
    leave_after_coming(port, 1)
    meeting.assemble({}, 30.0, lambda: None)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        opening = pool.submit(meeting.open, 0, "gloo", lambda: None)
        with pytest.raises(GangBroken, match="before this life of rank 1"):
            Visitor(HOST, port, 1, 30.0).come({})
        with pytest.raises(GangBroken, match="rank 1 was started again while"):
            opening.result(30.0)


def test_who_watches_hears_of_a_rank_that_ended_after_it_came():
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    meeting = Meeting(listener, HOST, HOST, 2)
    leave_after_coming(port, 1)
    meeting.assemble({}, 30.0, lambda: None)

    def watch():
        raise WorkerError("rank 1 has ended")

    with pytest.raises(WorkerError, match="rank 1 has ended"):
        meeting.open(0, "gloo", watch)
