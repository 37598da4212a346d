from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from cerebro.cli.directory import is_starting, open_directory
from cerebro.errors import UsageError
from cerebro.steering import find_driver
from cerebro.storage import DirectoryStore
from cerebro.storage.lock import RunLock


def write_lock(path, *, pid, host=None, started=None):
    started = started or datetime.now(UTC)
    holder = {
        "host": host or socket.gethostname(),
        "pid": pid,
        "started": started.isoformat(timespec="seconds"),
    }
    (path / "lock").write_text(json.dumps(holder))


def test_the_process_that_holds_the_lock_is_the_driver(tmp_path):
    store = DirectoryStore(tmp_path)
    with RunLock(store):
        assert find_driver(store).pid == os.getpid()
    assert find_driver(store) is None


def test_a_driver_that_died_is_none(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    write_lock(tmp_path, pid=process.pid)
    assert find_driver(DirectoryStore(tmp_path)) is None


def test_a_process_that_began_after_the_lock_was_taken_is_another(tmp_path):
    write_lock(tmp_path, pid=os.getpid(), started=datetime.now(UTC) - timedelta(days=1))
    assert find_driver(DirectoryStore(tmp_path)) is None


def test_a_driver_on_another_host_counts_as_alive(tmp_path):
    write_lock(tmp_path, pid=1, host="elsewhere")
    assert find_driver(DirectoryStore(tmp_path)).host == "elsewhere"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_lock_that_names_nobody_has_no_driver(tmp_path, text):
    (tmp_path / "lock").write_text(text)
    assert find_driver(DirectoryStore(tmp_path)) is None


@pytest.mark.parametrize("started", ["", "yesterday", None, 5])
def test_a_lock_without_a_time_has_no_driver(tmp_path, started):
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
    (tmp_path / "lock").write_text(json.dumps(holder))
    assert find_driver(DirectoryStore(tmp_path)) is None


def test_a_run_that_waits_for_its_workers_is_starting(tmp_path):
    with RunLock(DirectoryStore(tmp_path)):
        store = open_directory(tmp_path)
        assert is_starting(store)
        (tmp_path / "run.json").write_text("{}")
        assert not is_starting(store)


def test_a_folder_of_runs_is_refused_and_names_them(tmp_path):
    for name in ("b", "a", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "run.json").write_text("{}")
    (tmp_path / "b" / "run.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has none\. Runs in it: a, b\.$"):
        open_directory(tmp_path)


def test_a_file_is_refused(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text("")
    with pytest.raises(UsageError, match="a run is a directory, but"):
        open_directory(path)
