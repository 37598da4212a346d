from __future__ import annotations

import errno
import queue
import threading

import pytest

from cerebro.backend.base import StateRef
from cerebro.errors import DiskFullError, StateLostError, StoreError
from cerebro.run import committer
from cerebro.run.committer import Commit, CommitFailed, Committed, Committer, Dropped
from cerebro.storage import DirectoryStore
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.storage.checkpoint import save as save_checkpoint
from cerebro.storage.disk import Disk
from cerebro.storage.journal import Journal, read
from cerebro.testing.faults import CountOnly, Fail, FaultyDisk, Rule
from cerebro.types import Json


class Bench:
    """A committer on a disk that can fail, with states whose bytes are their key."""

    def __init__(self, root, *, threaded=False, rule: Rule | None = None, parents=None):
        self.disk = FaultyDisk(Disk(), CountOnly())
        self.store = DirectoryStore(root, self.disk)
        self.journal = Journal.open(self.store)
        self.posted: queue.Queue = queue.Queue()
        #: Saving waits for it.
        self.gate = threading.Event()
        self.gate.set()
        self.saving = threading.Semaphore(0)
        #: Raised instead of saving.
        self.error: Exception | None = None
        #: Keys of states that are gone.
        self.lost: set[int] = set()
        self.disk.rule = rule or CountOnly()
        self.committer = Committer(
            self.store, self.journal, self.save, self.posted.put, parents or {}, threaded=threaded
        )

    def save(self, state, request):
        if self.error is not None:
            raise self.error
        self.saving.release()
        assert self.gate.wait(30)
        ref = save_checkpoint(
            request.store,
            request.unit,
            visits=request.visits,
            attempt=request.attempt,
            data=b"%d" % state.key,
            meta={},
            parent=request.parent,
        )
        if state.key in self.lost:
            raise StateLostError("it is gone.")
        return ref

    def put(self, number: int, *, trial: int = 0, rewinds: int = 0) -> Commit:
        """Visit `number` of a trial."""
        record: dict[str, Json] = {"type": "visit", "number": number}
        commit = Commit([record], unit=trial, visits=number, state=StateRef(number, 1, {}))
        commit.rewinds = rewinds
        self.committer.put(commit)
        return commit

    def journaled(self) -> list:
        return read(DirectoryStore(self.store.root)).records


@pytest.fixture
def make(folder):
    made: list[Bench] = []

    def make(**options):
        made.append(Bench(folder / "run", **options))
        return made[-1]

    yield make
    for bench in made:
        bench.gate.set()
        bench.committer.close()
        bench.store.close()


def test_a_commit_is_durable_when_it_is_told(make):
    bench = make()
    commit = bench.put(1)
    assert bench.posted.get_nowait() == Committed([commit])
    (record,) = bench.journaled()
    ref = CheckpointRef.from_json(record["checkpoint"])
    assert load_checkpoint(bench.store, ref).data == b"1"


def test_the_checkpoint_is_on_disk_before_the_record_that_names_it(make):
    bench = make()
    bench.put(1)
    assert bench.disk.operations.index("rename") < bench.disk.operations.index("append")


def test_checkpoints_of_a_trial_form_a_chain(make):
    bench = make(parents={1: "f" * 64})
    for number, trial in ((1, 0), (2, 0), (9, 1)):
        bench.put(number, trial=trial)
    refs = [CheckpointRef.from_json(record["checkpoint"]) for record in bench.journaled()]
    assert [ref.parent for ref in refs] == [None, refs[0].sha256, "f" * 64]


def test_records_without_a_state_are_journaled_as_they_are(make):
    bench = make()
    records = [{"type": "visit", "n": 1}, {"type": "epoch", "n": 2}]
    bench.committer.put(Commit([dict(record) for record in records]))
    assert bench.journaled() == records


def test_the_state_belongs_to_the_last_record(make):
    bench = make()
    records: list[dict[str, Json]] = [{"type": "visit"}, {"type": "visit"}]
    bench.committer.put(Commit(records, unit=0, visits=2, state=StateRef(5, 1, {})))
    first, last = bench.journaled()
    assert "checkpoint" not in first
    assert last["checkpoint"]["visits"] == 2


def test_of_a_superfluous_checkpoint_the_manifest_goes_first(make):
    bench = make()
    bench.put(1)
    ref = CheckpointRef.from_json(bench.journaled()[0]["checkpoint"])
    bench.disk.rule = Fail(len(bench.disk.operations) + 2, errno.EIO)
    bench.committer.put(Commit([], remove=[ref]))
    assert bench.store.list("trials/t0000/checkpoints") == ["v000001-a0.safetensors"]


def test_superfluous_checkpoints_are_removed(make):
    bench = make()
    bench.put(1)
    ref = CheckpointRef.from_json(bench.journaled()[0]["checkpoint"])
    bench.committer.put(Commit([], remove=[ref]))
    assert bench.store.list("trials/t0000/checkpoints") == []
    assert len(bench.journaled()) == 1
    # Removed already, by a driver that was killed before it could say so.
    bench.committer.put(Commit([], remove=[ref]))
    assert [type(bench.posted.get_nowait()) for _ in range(3)] == [Committed] * 3


def test_commits_that_wait_together_share_one_sync_of_the_journal(make):
    bench = make(threaded=True)
    bench.gate.clear()
    first = bench.put(1)
    assert bench.saving.acquire(timeout=30)
    others = [bench.put(number) for number in range(2, 6)]
    bench.gate.set()
    assert bench.posted.get(timeout=30) == Committed([first])
    assert bench.posted.get(timeout=30) == Committed(others)
    assert bench.disk.operations.count("append") == 2
    assert [record["number"] for record in bench.journaled()] == [1, 2, 3, 4, 5]


def test_a_put_does_not_wait_for_the_disk(make):
    bench = make(threaded=True)
    bench.gate.clear()
    bench.put(1)
    bench.put(2)
    assert bench.posted.empty()
    assert bench.journaled() == []


def test_closing_finishes_what_was_put(make):
    bench = make(threaded=True)
    for number in range(1, 20):
        bench.put(number)
    bench.committer.close()
    assert [record["number"] for record in bench.journaled()] == list(range(1, 20))
    bench.committer.close()


def test_nothing_is_waited_for_when_nothing_was_put(make):
    make(threaded=True).committer.close()


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
@pytest.mark.parametrize("only", ["create", "rename", "append", "sync"])
def test_a_store_that_fails_is_told_once_and_nothing_later_is_committed(make, threaded, only):
    rule = Fail(1, errno.ENOSPC, always=True, only=frozenset({only}))
    bench = make(threaded=threaded, rule=rule)
    bench.put(1)
    failed = bench.posted.get(timeout=30)
    assert isinstance(failed, CommitFailed)
    assert isinstance(failed.error, DiskFullError)
    bench.disk.rule = CountOnly()
    bench.put(2)
    bench.committer.close()
    assert bench.posted.empty()
    assert bench.journaled() == []


def test_a_commit_that_fails_with_others_takes_them_along(make):
    """Their checkpoints may be on disk, but no record says so: they are strays."""
    bench = make(threaded=True)
    bench.gate.clear()
    bench.put(1)
    assert bench.saving.acquire(timeout=30)
    bench.disk.rule = Fail(1, errno.EIO, always=True, only=frozenset({"append"}))
    for number in (2, 3):
        bench.put(number)
    bench.gate.set()
    bench.committer.close()
    failed = bench.posted.get_nowait()
    assert isinstance(failed, CommitFailed)
    assert isinstance(failed.error, StoreError)
    assert bench.posted.empty()
    assert bench.journaled() == []


def test_an_error_of_the_backend_is_told_as_well(make):
    bench = make(threaded=True)
    bench.error = ValueError("the state is gone")
    bench.put(1)
    failed = bench.posted.get(timeout=30)
    assert failed == CommitFailed(bench.error)
    assert bench.journaled() == []


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_a_lost_state_takes_along_what_follows_of_its_unit_alone(make, threaded):
    bench = make(threaded=threaded)
    bench.lost = {2}
    put = [bench.put(number, trial=trial) for number, trial in ((1, 0), (2, 0), (5, 1), (3, 0))]
    bench.committer.close()
    told = [bench.posted.get_nowait() for _ in range(bench.posted.qsize())]
    kept = [commit for each in told if isinstance(each, Committed) for commit in each.commits]
    dropped = [each for each in told if isinstance(each, Dropped)]
    assert kept == [put[0], put[2]]
    assert [each.commit for each in dropped] == [put[1], put[3]]
    assert {each.reason for each in dropped} == {"it is gone."}
    assert [record["number"] for record in bench.journaled()] == [1, 5]
    assert len(bench.store.list("trials/t0000/checkpoints")) == 2


def test_once_it_has_gone_back_a_unit_is_saved_again(make):
    bench = make()
    bench.lost = {2}
    bench.put(1)
    bench.put(2)
    bench.lost = set()
    bench.put(2, rewinds=1)
    bench.put(3, rewinds=0)
    assert [record["number"] for record in bench.journaled()] == [1, 2]
    first, second = (CheckpointRef.from_json(r["checkpoint"]) for r in bench.journaled())
    assert second.parent == first.sha256


def test_who_is_in_a_hurry_waits_a_moment_for_what_was_put(make, monkeypatch):
    monkeypatch.setattr(committer, "_LEAVE_S", 60.0)
    bench = make(threaded=True)
    for number in range(1, 5):
        bench.put(number)
    bench.committer.close(now=True)
    assert [record["number"] for record in bench.journaled()] == [1, 2, 3, 4]


def test_who_is_in_a_hurry_does_not_wait_for_a_store_that_hangs(make, monkeypatch):
    monkeypatch.setattr(committer, "_LEAVE_S", 0.05)
    others = set(threading.enumerate())
    bench = make(threaded=True)
    bench.gate.clear()
    bench.put(1)
    bench.put(2)
    assert bench.saving.acquire(timeout=30)
    (thread,) = set(threading.enumerate()) - others
    bench.committer.close(now=True)
    assert thread.is_alive()
    bench.gate.set()
    thread.join(30)
    # Nobody hears of what came too late, and no record says that it is there.
    assert bench.posted.empty()
    assert bench.journaled() == []
