from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cerebro.errors import LeaseLostError, RunLockedError, StoreError
from cerebro.storage import open_store
from cerebro.storage.journal import Journal
from cerebro.storage.lease import Lease, read_lease_holder
from cerebro.storage.lock import RunLock, read_holder
from cerebro.storage.remote_objects import open_objects
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing import bucket

HOLD = """
import sys
from cerebro.storage import open_store
from cerebro.storage.journal import Journal
from cerebro.storage.lease import Lease
from cerebro.testing import bucket
bucket.register()
store = open_store(sys.argv[1])
lease = Lease(store, lease_s=float(sys.argv[2]))
lease.acquire()
journal = Journal.open(store)
print("held", flush=True)
for line in sys.stdin:
    try:
        journal.append([{"by": "first"}])
        print("written", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
lease.release()
"""


@pytest.fixture
def url(tmp_path):
    bucket.register()
    return f"bucket://{tmp_path}/run"


@pytest.fixture
def store(url):
    return open_store(url)


class Driver:
    """Another process that holds the lease, and appends to the journal when told to."""

    def __init__(self, url, lease_s):
        command = [sys.executable, "-c", HOLD, url, str(lease_s)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ, text=True)
        assert self.read() == "held"

    def read(self):
        return self.process.stdout.readline().strip()

    def write(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(url):
    drivers = []

    def begin(lease_s=30.0):
        drivers.append(Driver(url, lease_s))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.close()


def elsewhere(url, lease_s, **options):
    """A lease as a process on another machine has it."""
    return Lease(open_store(url), lease_s=lease_s, machine="another one", **options)


class Away:
    """Objects that cannot be read for a while."""

    def __init__(self, inner):
        self._inner = inner
        self.is_away = False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get(self, *given):
        if self.is_away:
            raise ConnectionResetError
        return self._inner.get(*given)


def test_a_store_that_does_not_answer_takes_no_lease_from_anybody(url):
    objects, now = Away(open_objects(url)[0]), [0.0]
    store = RemoteStore(url, objects, retry=Retry(attempts=1))
    lease = Lease(store, clock=lambda: now[0])
    lease.acquire()
    try:
        objects.is_away, now[0] = True, 31.0
        with pytest.raises(StoreError, match="cannot read") as told:
            lease.check()
        assert not isinstance(told.value, LeaseLostError)
        with pytest.raises(StoreError, match="cannot read"):
            Lease(RemoteStore(url, objects, retry=Retry(attempts=1)), machine="another").acquire()
        objects.is_away = False
        lease.check()
    finally:
        objects.is_away = False
        lease.release()


def test_a_lease_is_taken_and_given_back(store):
    with RunLock(store):
        holder = read_holder(store)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert read_holder(store) is None


def test_a_released_lease_can_be_taken_again(store):
    lock = RunLock(store)
    for _ in range(3):
        with lock:
            pass
    assert len([name for name in store.list() if name.startswith("lock.")]) == 1


def test_a_second_lease_in_one_process_is_refused_at_once(url):
    with RunLock(open_store(url)), pytest.raises(RunLockedError, match=f"pid {os.getpid()}"):
        RunLock(open_store(url)).acquire()


class Untidy:
    """Objects of which none can be removed for a while."""

    def __init__(self, inner):
        self._inner = inner
        self.is_away = True

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def remove(self, *given):
        if self.is_away:
            raise ConnectionResetError
        return self._inner.remove(*given)


def test_earlier_leases_that_cannot_be_removed_keep_nobody_from_taking_the_next(url, caplog):
    """R6: one that was refused its own lease could never try again."""
    with RunLock(open_store(url)):
        pass
    objects = Untidy(open_objects(url)[0])
    store = RemoteStore(url, objects, retry=Retry(attempts=1))
    lease = Lease(store)
    lease.acquire()
    assert "earlier leases of this run could not be removed" in caplog.text
    assert "lock.000001" in store.list()
    assert read_lease_holder(store).pid == os.getpid()
    lease.release()
    assert read_lease_holder(store) is None
    objects.is_away = False
    with RunLock(store):
        assert [name for name in store.list() if name.startswith("lock.")] == ["lock.000003"]


def test_a_lease_that_nobody_could_begin_to_renew_can_be_taken_again(store, monkeypatch):
    now = [0.0]

    def pass_time(seconds):
        now[0] += seconds

    def fail(thread):
        raise RuntimeError("can't start new thread")

    lease = Lease(store, clock=lambda: now[0], sleep=pass_time)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            lease.acquire()
    lease.release()
    # Nobody is asked whether this store may be changed.
    store.write("a", b"1")
    lease.acquire()
    assert now[0] >= 45.0
    lease.release()
    assert read_lease_holder(store) is None


class Meanwhile:
    """Objects; something else happens once one was made, and before one is replaced."""

    def __init__(self, inner, act):
        self._inner = inner
        self._act = act

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def create(self, *given):
        self._inner.create(*given)
        self._act()

    def put(self, *given):
        self._act()
        self._inner.put(*given)


def test_so_is_one_while_the_first_is_being_taken_and_given_back(url):
    refused = []

    def wait(seconds):
        raise AssertionError("there is nothing to wait for")

    def ask():
        with pytest.raises(RunLockedError, match=f"pid {os.getpid()}"):
            Lease(open_store(url), sleep=wait).acquire()
        refused.append(True)

    lease = Lease(RemoteStore(url, Meanwhile(open_objects(url)[0], ask)))
    lease.acquire()
    assert refused == [True]
    lease.release()
    assert refused == [True, True]


def test_a_lease_of_a_process_that_was_killed_here_is_taken_over_at_once(store, start):
    driver = start()
    driver.process.send_signal(signal.SIGKILL)
    driver.process.wait()
    waits = []
    lease = Lease(store, sleep=waits.append)
    lease.acquire()
    lease.release()
    assert waits == []


def test_a_lease_that_is_renewed_is_refused_with_host_and_pid(url, start):
    driver = start(lease_s=0.6)
    # It looks often and is patient: the holder may be slow to renew it.
    contender = elsewhere(url, 40.0, sleep=lambda seconds: time.sleep(0.05))
    with pytest.raises(RunLockedError, match=f"pid {driver.process.pid}"):
        contender.acquire()


def test_a_lease_of_another_machine_is_taken_over_once_it_is_stale(url, store, start):
    start(lease_s=0.4).close()
    lease = elsewhere(url, 0.4)
    began = time.monotonic()
    lease.acquire()
    try:
        assert time.monotonic() - began >= 0.4
        assert read_lease_holder(store).pid == os.getpid()
    finally:
        lease.release()


def test_of_several_who_take_over_one_succeeds(url, start):
    start(lease_s=0.4).close()
    outcomes = []
    together = threading.Barrier(6)

    def contend():
        lease = elsewhere(url, 0.4)
        together.wait()
        try:
            lease.acquire()
        except RunLockedError:
            outcomes.append(None)
        else:
            outcomes.append(lease)

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [lease for lease in outcomes if lease is not None]
    assert len(held) == 1
    held[0].release()


def test_a_driver_that_was_frozen_stops_before_it_writes_again(url, store, start):
    """R6: stopped past its lease, overtaken, and let go: it must not write a thing."""
    driver = start(lease_s=0.5)
    assert driver.write() == "written"
    driver.process.send_signal(signal.SIGSTOP)
    # What it was writing when the signal came is written: from now on it does nothing.
    os.waitid(os.P_PID, driver.process.pid, os.WSTOPPED)
    lease = elsewhere(url, 0.5)
    lease.acquire()
    try:
        journal = Journal.open(store)
        journal.append([{"by": "second"}])
        driver.process.send_signal(signal.SIGCONT)
        assert driver.write() == "LeaseLostError"
        journal.append([{"by": "second"}])
        assert [record["by"] for record in Journal.open(open_store(store.url)).records] == [
            "first",
            "second",
            "second",
        ]
    finally:
        driver.process.send_signal(signal.SIGCONT)
        lease.release()


def test_a_lost_lease_is_not_given_back(url):
    now = [0.0]
    first = Lease(open_store(url), lease_s=10_000.0, clock=lambda: now[0])
    first.acquire()

    def pass_time(seconds):
        now[0] += seconds

    second = elsewhere(url, 10_000.0, clock=lambda: now[0], sleep=pass_time)
    second.acquire()
    with pytest.raises(LeaseLostError, match="another driver"):
        first.check()
    first.release()
    assert read_lease_holder(open_store(url)) is not None
    second.release()
    assert read_lease_holder(open_store(url)) is None


def test_a_lease_that_nobody_took_over_is_trusted_again_after_a_long_sleep(url):
    now = [0.0]
    store = open_store(url)
    lease = Lease(store, lease_s=10_000.0, clock=lambda: now[0])
    lease.acquire()
    now[0] += 50_000.0
    store.write("a", b"1")
    lease.release()
    assert store.read("a") == b"1"


def test_a_damaged_lease_can_be_taken_over(store):
    store.write("lock.000004", b"{")
    with RunLock(store):
        assert "lock.000005" in store.list()
