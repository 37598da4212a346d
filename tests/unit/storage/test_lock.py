from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from cerebro.errors import RunLockedError, StoreError
from cerebro.storage import DirectoryStore
from cerebro.storage.lock import RunLock, read_holder

HOLD = """
import sys
from cerebro.storage import DirectoryStore
from cerebro.storage.lock import RunLock
lock = RunLock(DirectoryStore(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "run")


@pytest.fixture
def driver(store):
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLD, store.root]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_host_and_pid(store, driver):
    with pytest.raises(RunLockedError, match=f"host {socket.gethostname()}, pid {driver.pid}"):
        RunLock(store).acquire()


def test_the_lock_is_free_at_once_when_its_holder_is_killed(store, driver):
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    with RunLock(store):
        holder = read_holder(store)
    assert holder is not None
    assert holder.pid == os.getpid()


def test_the_lock_is_not_inherited_by_programs_the_holder_starts(store):
    with RunLock(store):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        RunLock(store).acquire()
    finally:
        child.communicate(b"\n")


def test_a_second_lock_in_one_process_is_refused(store):
    with RunLock(store), pytest.raises(RunLockedError, match=f"pid {os.getpid()}"):
        RunLock(store).acquire()


def test_a_lock_is_not_taken_twice(store):
    lock = RunLock(store)
    with lock, pytest.raises(RunLockedError, match="already"):
        lock.acquire()


def test_a_released_lock_can_be_taken_again(store):
    lock = RunLock(store)
    for _ in range(2):
        with lock:
            pass
    assert read_holder(store) is None


def test_releasing_what_is_not_held_does_nothing(store):
    RunLock(store).release()
    assert store.list() == []


def test_being_refused_leaves_the_holder_in_the_file(store):
    with RunLock(store):
        before = store.read("lock")
        with pytest.raises(RunLockedError):
            RunLock(store).acquire()
        assert store.read("lock") == before


def test_an_unreadable_holder_is_still_a_lock(store):
    with RunLock(store):
        store.truncate("lock", 3)
        with pytest.raises(RunLockedError, match="written by another driver"):
            RunLock(store).acquire()


def test_there_is_no_holder_before_the_first_lock(store):
    assert read_holder(store) is None


def test_a_disk_without_locks_is_a_store_error_that_says_so(store, monkeypatch):
    def flock(fd, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(StoreError, match=r"cannot lock .*: Function not implemented. The disk"):
        RunLock(store).acquire()


def test_a_place_that_cannot_be_written_is_a_store_error(store, tmp_path):
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot open"):
        RunLock(store).acquire()
