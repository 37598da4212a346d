"""A gang of processes is one worker to the driver, whatever becomes of its ranks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from cerebro.backend import InlineBackend, LocalBackend
from cerebro.backend.base import Done, Failed, FailureKind, Lost
from cerebro.backend.failure import describe_failure
from cerebro.backend.gang import leader
from cerebro.backend.gang.ends import RankFailed, RankLost
from cerebro.backend.gang.follower import AGAIN, FAILED, REFUSED, STOPPED, start_follower
from cerebro.backend.gang.rendezvous import split_address
from cerebro.backend.limits import Limits
from cerebro.data import from_arrays, open_dataset
from cerebro.errors import UsageError, WorkerError
from cerebro.testing.backend_session import Session, make_call
from cerebro.testing.toy import ToyTask
from cerebro.train.gang import group
from cerebro.train.gang.meeting import Visitor
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import State
from cerebro.types import Split
from tests.ports import free_port
from tests.processes import is_alive, started_by_tests, wait_for
from tests.unit.backend.ganging import GangTask
from tests.unit.train.bare import allocate

# Some start five processes one after the other that import torch.
pytestmark = pytest.mark.timeout(300)

PLACE = GangPlace(size=2)


@pytest.fixture
def session(tmp_path):
    """An inline backend with one gang of two."""
    with_backend = Session(InlineBackend(), tmp_path)
    (tmp_path / "faults").mkdir()
    yield with_backend
    with_backend.backend.stop()


def setup_of(session, place=PLACE, task=None):
    is_parent = isinstance(session.backend, LocalBackend)
    faults = str(session.directory / "faults")
    task = task or GangTask(faults, os.getpid(), is_parent=is_parent)
    return replace(session.setup(task), gang=place)


def digest_of(session, visits, **params):
    """The bytes of the state after so many visits of an undisturbed gang."""
    state = None
    for visit in range(visits):
        state = session.train(0, make_call(visit, **params), state)
    return session.content(state)


def test_a_gang_of_one_is_a_worker_like_any_other(session):
    runner = setup_of(session, GangPlace(size=1)).open(0)
    assert type(runner) is VisitRunner
    runner.close()


def test_a_gang_outlives_all_that_may_happen_to_a_rank(session):
    session.backend.start(setup_of(session), 1)
    assert session.join().info.pid == os.getpid()
    expected = digest_of(session, 2)

    # What fails in one rank alone is that rank's failure.
    state = session.train(0, make_call(0))
    failed = session.run(0, make_call(1, fault="memory"), state)
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.MEMORY
    assert "(rank 1)" in failed.failure.message

    # A rank that is killed is a lost worker, which joins again.
    lost = session.run(0, make_call(1, fault="kill"), state)
    assert isinstance(lost, Lost)
    assert lost.cause == "lost rank 1 of its gang, which was killed by SIGKILL"
    session.join()

    # The next visit is trained by a new gang, to the same bytes.
    done = session.run(0, make_call(1), state)
    assert isinstance(done, Done)
    assert session.content(done.state) == expected
    assert done.report.comm_s > 0

    # A rank that dies between visits costs nothing.
    follower = next(child for child in started_by_tests() if child.ppid() == os.getpid())
    follower.kill()
    wait_for(lambda: follower.status() == "zombie", "it is dead")
    answer = session.run(0, make_call(1, split=Split.VAL), done.state)
    assert isinstance(answer, Done)
    assert answer.report.members[0].sums["accuracy"][1] == 20

    session.backend.stop()
    assert started_by_tests() == []


class TellingTask(GangTask):
    """Fails with the number of workers that it is told of."""

    def loss(self, model, batch, params):
        raise ValueError(f"{self.facts.workers} workers")


def test_a_leader_that_tries_a_visit_alone_is_told_so(session):
    session.backend.start(setup_of(session, task=TellingTask()), 1)
    session.join()
    call = make_call()
    for is_alone, expected in ((True, "1 workers"), (False, "2 workers"), (True, "1 workers")):
        failed = session.run(0, replace(call, is_alone=is_alone))
        assert isinstance(failed, Failed)
        assert expected in failed.failure.message


@contextlib.contextmanager
def gang_of_processes(tmp_path, limits):
    """A worker of the local backend that is a gang."""
    session = Session(LocalBackend(log_dir=str(tmp_path / "logs"), limits=limits), tmp_path)
    (tmp_path / "faults").mkdir()
    try:
        session.backend.start(setup_of(session), 1)
        session.join()
        yield session
    finally:
        session.backend.stop()
    wait_for(lambda: not started_by_tests(), "no process is left")


def test_a_gang_is_lost_and_comes_back_like_any_other_worker(tmp_path):
    with gang_of_processes(tmp_path, Limits(stop_s=0.2)) as session:
        state = session.train(0, make_call(0))
        expected = session.content(session.train(0, make_call(1), state))
        # Followers end with their leader.
        ranks = started_by_tests()
        lost = session.run(0, make_call(1, fault="leader kill"), state)
        assert isinstance(lost, Lost)
        assert lost.cause == "was killed by SIGKILL"
        wait_for(lambda: not any(map(is_alive, ranks)), "its followers are gone")
        session.join()
        assert session.content(session.train(0, make_call(1), state)) == expected
        # A leader ends as its follower did, and says which that was.
        lost = session.run(0, make_call(1, fault="kill"), state)
        assert isinstance(lost, Lost)
        assert lost.cause == "lost rank 1 of its gang, which was killed by SIGKILL"
        assert "lost rank 1 of its gang" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_follower_that_hangs_is_noticed_by_what_its_leader_does_not_do(tmp_path):
    with gang_of_processes(tmp_path, Limits(stall_s=3.0, stop_s=0.2)) as session:
        lost = session.run(0, make_call(0, fault="hang"))
        assert isinstance(lost, Lost)
        assert lost.cause.startswith("hung: no batch")


def test_a_framework_that_cannot_be_one_of_several_ranks_is_refused(session):
    with pytest.raises(UsageError, match=r"must be a cerebro.Task for torch.*parallel='mop'"):
        setup_of(session, task=ToyTask()).open(0)


class Elsewhere:
    """A leader with an address, and a follower that comes by itself."""

    def __init__(self, session, log, address=""):
        self.address = address or f"127.0.0.1:{free_port()}"
        self.place = GangPlace(size=2, local=1, address=self.address, check_every=50)
        self.setup = setup_of(session, self.place)
        self.log = log

    def follow(self, setup=None, join_s=60.0):
        with self.log.open("ab") as log:
            return start_follower(setup or self.setup, 1, seat=0, join_s=join_s, log=log)


@pytest.fixture
def deserted():
    """An address at which nobody listens, and which nobody else is given."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"


def test_a_rank_whose_labels_belong_to_other_rows_is_sent_away(session, tmp_path):
    ours = open_dataset(tmp_path / "data")
    parts = [ours.open_shard("train", number).columns for number in range(2)]
    x, y = (np.concatenate([part[name] for part in parts]) for name in ("x", "y"))
    from_arrays(tmp_path / "other", {"x": x, "y": np.roll(y, 1)}, shards=2, validation=1 / 3)
    elsewhere = Elsewhere(session, tmp_path / "follower.log")
    refused = elsewhere.follow(replace(elsewhere.setup, data=str(tmp_path / "other")))
    with pytest.raises(UsageError, match=r"data must be the same .* for rank 1"):
        elsewhere.setup.open(0)
    assert refused.wait(60) == REFUSED
    refused.kill()


def test_a_follower_ends_with_a_code_that_says_what_to_do(session, deserted, tmp_path):
    nowhere = Elsewhere(session, tmp_path / "lonely.log", deserted)
    lonely = nowhere.follow(join_s=0.2)
    elsewhere = Elsewhere(session, tmp_path / "follower.log")
    other = replace(elsewhere.setup, gang=replace(elsewhere.place, check_every=7))
    refused = elsewhere.follow(other)
    with pytest.raises(UsageError, match=r"check_every must be the same.* is 7 for rank 1"):
        elsewhere.setup.open(0)
    assert refused.wait(60) == REFUSED
    refused.kill()
    assert "check_every must be the same" in elsewhere.log.read_text()

    follower = elsewhere.follow()
    leader = elsewhere.setup.open(0)
    try:
        state, _ = leader.run(make_call(0), None, allocate)
        kept = State(memoryview(bytearray(state.buffer)), state.meta)
        with pytest.raises(RankFailed) as raised:
            leader.run(make_call(1, fault="raise"), kept, allocate)
        failure = describe_failure(raised.value)
        assert failure.message == "ValueError: no such luck (rank 1)"
        assert (failure.kind, failure.error) == (FailureKind.ERROR, "ValueError")
        assert "in _strike" in failure.traceback
        assert follower.wait(60) == AGAIN
        follower.kill()
        # The leader listens at the same address again, as soon as it has something to do.
        follower = elsewhere.follow()
        leader.run(make_call(1), kept, allocate)
    finally:
        leader.close()
    assert follower.wait(60) == STOPPED
    follower.kill()

    assert lonely.wait(60) == FAILED
    assert "nobody was there" in nowhere.log.read_text()
    lonely.kill()


@contextlib.contextmanager
def passing(address, *, stays):
    """Somebody who comes as rank 1, again and again, and leaves before all are connected.

    With `stays` only at the end.
    """
    host, port = split_address(address)
    same = ("size", "check_every", "task", "data", "cerebro", "torch", "device", "threads")
    gangs, is_over = [], threading.Event()

    def come():
        while not gangs and not is_over.wait(0.05):
            # The last leader may still be there, and the next one not yet.
            with contextlib.suppress(group.GangBroken, WorkerError):
                visitor = Visitor(host, port, 1, 0.2)
                road = visitor.come({**dict.fromkeys(same, ""), "accelerator": ""})
                if stays:
                    gangs.append(visitor.connect(2, own_host=host, check_every=50, gradients=road))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(come)
        try:
            yield
        finally:
            is_over.set()
            call.result(60.0)
            for gang in gangs:
                gang.close()


def test_a_gang_that_breaks_while_it_is_formed_is_no_fault_of_the_trial(
    session, tmp_path, monkeypatch
):
    monkeypatch.setattr(leader, "_LAST_WORDS_S", 0.1)
    elsewhere = Elsewhere(session, tmp_path / "follower.log")

    @contextlib.contextmanager
    def left_alone():
        with monkeypatch.context() as patch, passing(elsewhere.address, stays=False):
            patch.setattr(group, "_CONNECT", timedelta(seconds=0.3))
            with pytest.raises(RankLost):
                yield

    with left_alone():
        elsewhere.setup.open(0)
    with passing(elsewhere.address, stays=True):
        leading = elsewhere.setup.open(0)
    try:
        with left_alone():
            leading.run(make_call(0), None, allocate)
    finally:
        leading.close()


def test_a_leader_says_who_has_not_come(session, tmp_path, monkeypatch):
    monkeypatch.setenv("CEREBRO_START_S", "0.2")
    with pytest.raises(WorkerError, match="rank 1 did not"):
        Elsewhere(session, tmp_path / "log").setup.open(0)


def test_only_followers_of_a_gang_can_be_started(session):
    with pytest.raises(UsageError, match="`1 <= rank < 2`"):
        start_follower(setup_of(session), 2, seat=0)
