"""Data that models are trained on stay as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cerebro.data import from_arrays, open_dataset, use
from cerebro.data.publication import sole_writer_at
from cerebro.data.use import in_use
from cerebro.errors import DataError
from cerebro.storage import open_store
from cerebro.testing import bucket

COLUMNS = {"x": [1.0, 2.0, 3.0, 4.0]}


@pytest.fixture(params=["directory", "url"])
def place(request, tmp_path):
    """A dataset, in a directory or at a URL."""
    made = from_arrays(tmp_path / "data", COLUMNS, shards=2).path
    if request.param == "directory":
        return made
    bucket.register()
    url = f"bucket://{tmp_path}/copy"
    source, target = open_store(made), open_store(url)
    for name in source.list():
        target.write(name, source.read(name))
    return url


def test_who_writes_is_refused_while_somebody_trains(place):
    with (
        in_use(open_dataset(place)),
        pytest.raises(DataError, match="while models are trained on it"),
        sole_writer_at(open_store(place)),
    ):
        pass
    with sole_writer_at(open_store(place)):
        pass


def test_who_trains_is_refused_while_somebody_writes(place):
    dataset = open_dataset(place)
    with (
        sole_writer_at(open_store(place)),
        pytest.raises(DataError, match=r"another process is writing .*train_path"),
        in_use(dataset),
    ):
        pass


def test_several_may_train_at_once_and_leave_nothing(place):
    before = open_store(place).list()
    dataset = open_dataset(place)
    with in_use(dataset), in_use(open_dataset(place)):
        pass
    left = [name for name in open_store(place).list() if name not in before]
    assert [name for name in left if not name.startswith("lock.")] == []


@pytest.mark.parametrize("is_left", [False, True], ids=["free", "left-by-a-dead-writer"])
def test_many_who_begin_at_the_same_moment_all_get_the_data(place, is_left, monkeypatch):
    # However long one of them takes to see whether somebody writes.
    monkeypatch.setattr(use, "_MOMENT_S", 60.0)
    if is_left:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", WRITER, place], env=environ, check=False)
        assert done.returncode == -signal.SIGKILL
    dataset = open_dataset(place)
    together = threading.Barrier(8)

    def train() -> int:
        together.wait()
        with in_use(dataset):
            # All of them at once, or the barrier would break.
            return together.wait(60)

    with ThreadPoolExecutor(8) as pool:
        trained = [pool.submit(train) for _ in range(8)]
        assert sorted(each.result() for each in trained) == list(range(8))


def test_data_that_were_replaced_before_training_began_are_told(tmp_path):
    dataset = from_arrays(tmp_path, COLUMNS, shards=2)
    from_arrays(tmp_path, {"x": [5.0, 6.0]}, shards=2)
    with pytest.raises(DataError, match="somebody has replaced them"), in_use(dataset):
        pass


WRITER = """
import os, signal, sys
from cerebro.data.publication import sole_writer_at
from cerebro.storage import open_store
from cerebro.testing import bucket
bucket.register()
with sole_writer_at(open_store(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED = """
import os, signal, sys
from cerebro.data import open_dataset
from cerebro.data.use import in_use
from cerebro.testing import bucket
bucket.register()
with in_use(open_dataset(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_who_was_killed_is_in_nobodys_way(place):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, place], env=environ, check=False)
    assert done.returncode == -signal.SIGKILL
    with sole_writer_at(open_store(place)):
        pass
    assert not [name for name in open_store(place).list() if name.startswith("use-")]
