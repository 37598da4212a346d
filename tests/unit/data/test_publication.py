"""A writer that is killed or fails leaves the old dataset or the new one, never a mix."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal

import numpy as np
import pytest

from cerebro.data import from_arrays, open_dataset
from cerebro.data.inputs import as_table
from cerebro.data.publication import Cut, publish, sole_writer_at
from cerebro.errors import DataError, DiskFullError, StoreError
from cerebro.storage import open_store
from cerebro.storage.disk import Disk
from cerebro.storage.store import DirectoryStore
from cerebro.testing.faults import CountOnly, Fail, FaultyDisk, KillBefore, Tear
from cerebro.types import Split

OLD = {"x": np.arange(10.0)}
NEW = {"x": np.arange(100.0, 109.0)}


def write_new(path, rule):
    disk = FaultyDisk(Disk(), rule)
    table = as_table(NEW, split="train")
    publish(path, {Split.TRAIN: table}, Cut(shards=2), store=DirectoryStore(path, disk))
    return disk.operations


def killed_while_writing(path, rule) -> bool:
    """Write in a process of its own; whether the rule killed it before it had written all."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            write_new(path, rule)
            status = 0
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def content(path):
    dataset = open_dataset(path)
    dataset.verify()
    return {
        value
        for number in range(len(dataset.shards("train")))
        for value in dataset.open_shard("train", number).columns["x"].tolist()
    }


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("rule", [KillBefore, Tear])
def test_killed_at_any_operation_the_old_or_the_new_dataset_is_there(tmp_path, rule):
    """Up to the first that is not reached: threads may need one more, or less, to write shards."""
    seen = []
    for operation in itertools.count(1):
        path = tmp_path / f"{operation}"
        from_arrays(path, OLD, shards=2)
        is_killed = killed_while_writing(path, rule(operation))
        found = content(path)
        assert found in (set(OLD["x"]), set(NEW["x"]))
        seen.append(min(found))
        if not is_killed:
            break
    assert len(seen) > 15
    assert seen == sorted(seen), "once the new one is there, it stays"
    assert (seen[0], seen[-1]) == (0.0, 100.0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_while_writing_the_first_time_there_is_none_or_all(tmp_path):
    for operation in itertools.count(1):
        path = tmp_path / f"{operation}"
        path.mkdir()
        is_killed = killed_while_writing(path, KillBefore(operation))
        if (path / "dataset.json").exists():
            assert content(path) == set(NEW["x"])
        else:
            assert is_killed
            with pytest.raises(DataError, match="no dataset"):
                open_dataset(path)
        if not is_killed:
            break
    assert operation > 13


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    from_arrays(tmp_path, OLD, shards=2)
    assert killed_while_writing(tmp_path, Tear(5))
    assert len(list(tmp_path.iterdir())) > 3
    from_arrays(tmp_path, NEW, shards=2)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", [1, 2, 3, 5, 9, 10])
def test_a_failing_disk_leaves_the_old_dataset_and_nothing_else(tmp_path, number, operation):
    from_arrays(tmp_path, OLD, shards=2)
    before = sorted(os.listdir(tmp_path))
    expected = DiskFullError if number == errno.ENOSPC else StoreError
    with pytest.raises(expected):
        write_new(tmp_path, Fail(operation, number))
    assert sorted(os.listdir(tmp_path)) == before
    assert content(tmp_path) == set(OLD["x"])


def test_shards_are_durable_before_the_manifest_names_them(tmp_path):
    tmp_path.joinpath("data").mkdir()
    operations = write_new(tmp_path / "data", CountOnly())
    written = [name for name in operations if name in ("create", "sync", "rename", "sync_dir")]
    one_file = ["create", "sync", "rename", "sync_dir"]
    assert written[-4:] == one_file
    assert sorted(written[-12:-4]) == sorted(one_file * 2), "two shards, perhaps side by side"


def test_a_second_writer_is_refused_while_one_is_writing(tmp_path):
    from_arrays(tmp_path, OLD, shards=2)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another one is writing"):
            from_arrays(tmp_path, NEW, shards=2)
    finally:
        os.close(descriptor)
    assert content(tmp_path) == set(OLD["x"])


def test_a_reader_keeps_its_shards_when_the_dataset_is_replaced(tmp_path):
    shard = from_arrays(tmp_path, OLD, shards=1).open_shard("train", 0)
    from_arrays(tmp_path, NEW, shards=1)
    assert set(shard.columns["x"]) == set(OLD["x"])


def test_writing_over_a_damaged_dataset_repairs_it(tmp_path):
    data = from_arrays(tmp_path, OLD, shards=1)
    file = tmp_path / data.shards("train")[0].file
    file.write_bytes(b"\0" * file.stat().st_size)
    from_arrays(tmp_path, OLD, shards=1)
    assert content(tmp_path) == set(OLD["x"])


def test_a_failing_disk_at_the_first_write_leaves_nothing(tmp_path):
    with pytest.raises(StoreError):
        write_new(tmp_path, Fail(9, errno.EIO))
    assert os.listdir(tmp_path) == []


def test_of_two_writers_at_a_url_the_second_is_refused():
    url = "memory://published/numbers"
    first, second = (sole_writer_at(open_store(url)) for _ in range(2))
    with first, pytest.raises(DataError, match=f"only one process may write .* is writing {url}"):
        second.__enter__()
    with sole_writer_at(open_store(url)):
        pass
