from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
import uuid

import pytest

from cerebro.errors import UsageError
from cerebro.storage import DirectoryStore, open_store
from cerebro.storage.bell import Bell, ring
from cerebro.storage.remote_objects import open_objects
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing import bucket
from cerebro.testing.faults import Fail, FaultyObjects

PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "run")


@pytest.fixture
def path(store):
    return f"{store.root}/inbox/bell"


def test_ringing_calls_back_each_time(store):
    heard = threading.Semaphore(0)
    with Bell(store, heard.release):
        for _ in range(3):
            assert ring(store)
            assert heard.acquire(timeout=PATIENCE_S)


def test_a_person_can_ring_with_echo(store, path):
    heard = threading.Event()
    with Bell(store, heard.set):
        subprocess.run(["tee", path], input=b"\n", stdout=subprocess.DEVNULL, check=True)
        assert heard.wait(PATIENCE_S)


def test_only_the_owner_may_ring(store, path):
    with Bell(store, int):
        status = os.lstat(path)
        assert stat.S_ISFIFO(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600


def test_nobody_hears_a_bell_that_is_not_there(store):
    assert not ring(store)
    assert store.list() == []


def test_a_closed_bell_leaves_neither_thread_nor_pipe(store, path):
    before = set(threading.enumerate())
    bell = Bell(store, int)
    bell.close()
    bell.close()
    # Threads of others may end meanwhile.
    assert set(threading.enumerate()) <= before
    assert not os.path.lexists(path)
    assert not ring(store)


def test_what_a_killed_driver_left_is_not_waited_for_and_replaced(store, path):
    os.makedirs(os.path.dirname(path))
    os.mkfifo(path)
    assert not ring(store)
    heard = threading.Event()
    with Bell(store, heard.set):
        assert ring(store)
        assert heard.wait(PATIENCE_S)


def test_a_driver_that_is_busy_keeps_nobody_waiting(store):
    is_free = threading.Event()
    with Bell(store, lambda: is_free.wait(PATIENCE_S)):
        try:
            # More than a pipe takes.
            assert all(ring(store) for _ in range(70_000))
        finally:
            is_free.set()


def test_a_file_of_this_name_is_not_written_to(store, path):
    store.write("inbox/bell", b"")
    assert not ring(store)
    assert store.read("inbox/bell") == b""


def test_a_link_of_this_name_is_removed_and_not_followed(store, path):
    store.write("run.json", b"{}")
    os.makedirs(os.path.dirname(path))
    os.symlink("../run.json", path)
    assert not ring(store)
    with Bell(store, int):
        assert ring(store)
    assert store.read("run.json") == b"{}"


def test_where_there_can_be_no_pipe_the_bell_is_silent(store, path):
    os.makedirs(path)
    with Bell(store, int):
        assert not ring(store)
    assert os.path.isdir(path)


def test_an_inbox_outside_of_the_run_is_refused(store, tmp_path):
    os.mkdir(store.root)
    os.symlink(tmp_path, f"{store.root}/inbox")
    with pytest.raises(UsageError, match="Remove the link"):
        Bell(store, int)


def test_on_a_remote_store_what_is_new_in_the_inbox_rings():
    store = open_store(f"memory://bells-{uuid.uuid4().hex}")
    heard = threading.Event()
    with Bell(store, heard.set, look_s=0.01):
        assert ring(store) is False
        for number in range(2):
            store.write(f"inbox/{number}.json", b"{}")
            assert heard.wait(PATIENCE_S)
            heard.clear()


def test_a_remote_store_that_cannot_be_listed_silences_nobody(tmp_path):
    bucket.register()
    url = f"bucket://{tmp_path}/run"
    objects = FaultyObjects(open_objects(url)[0], Fail(1, errno.EIO))
    heard = threading.Event()
    with Bell(RemoteStore(url, objects, retry=Retry(attempts=1)), heard.set, look_s=0.01):
        open_store(url).write("inbox/a.json", b"{}")
        assert heard.wait(PATIENCE_S)
    assert objects.has_fired
