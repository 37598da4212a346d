from __future__ import annotations

import errno
import os
import signal

import pytest

from cerebro.storage import DirectoryStore
from cerebro.storage.disk import Disk
from cerebro.storage.store import is_temp
from cerebro.testing.faults import (
    Corrupt,
    CountOnly,
    Fail,
    FaultyDisk,
    KillAfter,
    KillBefore,
    Tear,
    flip_bit,
)

OPERATIONS = ["make_dir", "sync_dir", "create", "sync", "rename", "sync_dir"]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "run"


def write(root, rule, data=b"0123456789"):
    disk = FaultyDisk(Disk(), rule)
    DirectoryStore(root, disk).write("a", data)
    return disk


def die(root, rule):
    """Write in a child process; the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            write(root, rule)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def test_counting_lists_the_operations_and_changes_nothing(root):
    disk = write(root, CountOnly())
    assert (disk.operations, disk.has_fired) == (OPERATIONS, False)
    assert (root / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("rule", [KillBefore, KillAfter, Tear])
def test_a_kill_at_any_operation_leaves_all_or_nothing(root, rule, at):
    assert die(root, rule(at)) == signal.SIGKILL
    is_named = at > 5 or (at == 5 and rule is KillAfter)
    names = [name for name in DirectoryStore(root).list() if not is_temp(name)]
    assert names == (["a"] if is_named else [])
    if is_named:
        assert (root / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("rule", [KillBefore(7), KillAfter(7), Tear(7), Fail(7, 5), Corrupt(7)])
def test_a_rule_after_the_last_operation_does_nothing(root, rule):
    assert not write(root, rule).has_fired


def test_kill_before_does_not_do_the_operation(root):
    die(root, KillBefore(1))
    assert not root.exists()


def test_kill_after_has_done_the_operation(root):
    die(root, KillAfter(1))
    assert root.exists()


def test_a_torn_write_leaves_half_of_the_bytes(root):
    die(root, Tear(3))
    (temp,) = root.iterdir()
    assert temp.read_bytes() == b"01234"


def test_a_torn_append_leaves_half_of_the_bytes(root):
    root.mkdir()
    path = str(root / "log")
    pid = os.fork()
    if pid == 0:
        FaultyDisk(Disk(), Tear(1)).append(path, b"0123456789")
        os._exit(0)
    os.waitpid(pid, 0)
    assert (root / "log").read_bytes() == b"01234"


def test_a_failure_happens_once(root):
    root.mkdir()
    disk = FaultyDisk(Disk(), Fail(2, errno.EIO))
    assert disk.list(str(root)) == []
    with pytest.raises(OSError, match="Input/output") as caught:
        disk.list(str(root))
    assert caught.value.errno == errno.EIO
    assert disk.list(str(root)) == []


def test_a_failure_that_stays_hits_every_later_operation(root):
    disk = FaultyDisk(Disk(), Fail(1, errno.EIO, always=True))
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            disk.list(str(root))


def test_a_failure_of_some_operations_spares_the_others(root):
    disk = FaultyDisk(Disk(), Fail(1, errno.EIO, always=True, only=frozenset({"size"})))
    assert disk.list(str(root)) == []
    with pytest.raises(OSError, match="Input/output"):
        disk.size(str(root))


def test_a_failed_write_leaves_half_of_the_bytes(tmp_path):
    disk = FaultyDisk(Disk(), Fail(1, errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        disk.create(str(tmp_path / "a"), [b"0123", b"456789"])
    disk.close()
    assert (tmp_path / "a").read_bytes() == b"01234"


def test_a_corrupt_write_has_one_bit_changed(root):
    assert write(root, Corrupt(3, bit=1)).has_fired
    assert (root / "a").read_bytes() == b"2123456789"


def test_a_corrupt_read_has_one_bit_changed(tmp_path):
    (tmp_path / "a").write_bytes(b"0123")
    assert FaultyDisk(Disk(), Corrupt(1, bit=1)).read(str(tmp_path / "a")) == b"2123"


def test_a_corrupt_read_into_has_one_bit_changed(tmp_path):
    (tmp_path / "a").write_bytes(b"0123")
    buffer = bytearray(6)
    FaultyDisk(Disk(), Corrupt(1, bit=1)).read_into(str(tmp_path / "a"), buffer)
    assert buffer == b"2123\0\0"


def test_every_operation_of_a_disk_is_counted(tmp_path):
    path = str(tmp_path / "a")
    disk = FaultyDisk(Disk(), CountOnly())
    disk.create(path, [b"x"])
    disk.sync(path)
    disk.append(path, b"y")
    disk.size(path)
    disk.truncate(path, 1)
    disk.rename(path, path + "2")
    disk.link(path + "2", path + "3")
    disk.read(path + "2")
    disk.read_into(path + "2", bytearray(1))
    disk.make_dir(path)
    disk.list(path)
    disk.sync_dir(path)
    disk.remove(path + "2")
    public = {name for name in vars(Disk) if not name.startswith("_")} - {"close"}
    assert set(disk.operations) == public


@pytest.mark.parametrize("bit", [0, 7, 8, 15, 16])
def test_flipping_a_bit_twice_gives_the_data_back(bit):
    assert flip_bit(flip_bit(b"ab", bit), bit) == b"ab"
    assert flip_bit(b"ab", bit) != b"ab"
