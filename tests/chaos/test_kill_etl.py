"""R18: an ETL killed before, after or amid any operation leaves the old dataset or the new one.

And the next one makes the same shards, without those again that were done.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal

import pytest

from cerebro.data import open_dataset
from cerebro.errors import DiskFullError
from cerebro.storage.disk import Disk
from cerebro.testing.faults import CountOnly, Fail, FaultyDisk, KillAfter, KillBefore, Tear
from cerebro.types import Split
from tests.etl import prepare, raw_of
from tests.experiments import in_child

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

OLD = {Split.TRAIN: raw_of(range(7))}
NEW = {Split.TRAIN: raw_of([1, -1, *range(2, 12)]), Split.TEST: raw_of(range(5))}
SETTINGS = {"shards": 2, "policy": "quarantine", "max_bad": 1}


def files(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "etl.json"
    }


def recorded_rows(path):
    """Rows of the shards that were recorded as done."""
    file = path / ".etl" / "parts.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    parts = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return sum(part["rows"] + len(part["bad"]) for part in parts)


@pytest.mark.parametrize("kill", [KillBefore, KillAfter, Tear])
def test_killed_at_any_operation_it_leaves_one_of_both_and_ends_the_same(folder, kill):
    prepare(folder / "old", OLD)
    shutil.copytree(folder / "old", folder / "whole")
    counting = FaultyDisk(Disk(), CountOnly())
    prepare(folder / "whole", NEW, disk=counting, **SETTINGS)
    expected, old = files(folder / "whole"), open_dataset(folder / "old")
    new = open_dataset(folder / "whole")
    for number in range(1, len(counting.operations) + 1):
        path = folder / "etl"
        shutil.copytree(folder / "old", path)
        disk = FaultyDisk(Disk(), kill(number))
        status = in_child(lambda path=path, disk=disk: prepare(path, NEW, disk=disk, **SETTINGS))
        found = open_dataset(path)
        assert found.digest in (old.digest, new.digest)
        found.verify()
        # After an operation that fails (a file that is not there) there is nothing to kill.
        assert status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        done = recorded_rows(path)
        report = prepare(path, NEW, **SETTINGS)
        assert files(path) == expected
        assert report.prepared in (0, 17 - done)
        shutil.rmtree(path)
    assert number > 10


def test_a_full_disk_at_any_operation_costs_nothing_but_time(folder):
    prepare(folder / "old", OLD)
    shutil.copytree(folder / "old", folder / "whole")
    counting = FaultyDisk(Disk(), CountOnly())
    prepare(folder / "whole", NEW, disk=counting, **SETTINGS)
    digests = {open_dataset(folder / name).digest for name in ("old", "whole")}
    refused = 0
    for number in range(1, len(counting.operations) + 1):
        path = folder / "etl"
        shutil.copytree(folder / "old", path)
        writing = frozenset({"create", "append", "sync", "make_dir"})
        disk = FaultyDisk(Disk(), Fail(number, errno.ENOSPC, only=writing))
        try:
            prepare(path, NEW, disk=disk, **SETTINGS)
        except DiskFullError:
            refused += 1
        found = open_dataset(path)
        assert found.digest in digests
        found.verify()
        prepare(path, NEW, **SETTINGS)
        assert files(path) == files(folder / "whole")
        shutil.rmtree(path)
    assert refused > 10
