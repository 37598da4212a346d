from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import threading

import pytest

from cerebro.errors import DiskFullError, StoreError, UsageError
from cerebro.storage import DirectoryStore, open_store
from cerebro.storage.disk import Disk
from cerebro.storage.store import is_temp
from cerebro.testing.faults import WRITES, CountOnly, Fail, FaultyDisk

ONE_WRITE = ["create", "sync", "rename", "sync_dir"]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


@contextlib.contextmanager
def limited_file_size(size):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def counting_store(root):
    """A store whose root exists already, and the list of its operations from now on."""
    disk = FaultyDisk(Disk(), CountOnly())
    store = DirectoryStore(root, disk)
    store.write("first", b"")
    disk.operations.clear()
    return store, disk.operations


def test_making_a_store_touches_nothing(root):
    DirectoryStore(root)
    assert not root.exists()


def test_reading_touches_nothing(root):
    store = DirectoryStore(root)
    assert store.list() == []
    assert not store.exists("a")
    assert not root.exists()


def test_a_file_is_synced_before_and_its_directory_after_it_gets_its_name(root):
    store, operations = counting_store(root)
    store.write("a", b"1")
    assert operations == ONE_WRITE


def test_many_files_are_all_synced_before_the_first_gets_its_name(root):
    store, operations = counting_store(root)
    store.write_many({"a": b"1", "b": b"2"})
    assert operations == ["create", "sync", "create", "sync", "rename", "rename", "sync_dir"]


def test_every_new_directory_is_synced_in_its_parent(root):
    store, operations = counting_store(root)
    store.write("x/y/a", b"1")
    tried = ["make_dir"]
    made = ["make_dir", "sync_dir"]
    assert operations == [*tried, *made, *made, *ONE_WRITE]


def test_a_directory_left_by_a_killed_run_is_synced_in_its_parent_once(root):
    (root / "x").mkdir(parents=True)
    (root / "y").mkdir()
    store, operations = counting_store(root)
    store.write("x/a", b"1")
    store.write("y/a", b"1")
    assert operations == ["make_dir", "sync_dir", *ONE_WRITE, "make_dir", *ONE_WRITE]


def test_an_append_is_one_write_and_one_sync(root):
    store, operations = counting_store(root)
    store.append("first", b"1")
    operations.clear()
    store.append("first", b"2")
    assert operations == ["append", "sync"]


def test_the_first_append_syncs_the_name_too(root):
    store, operations = counting_store(root)
    store.append("log", b"1")
    assert operations == ["append", "sync", "sync_dir"]


def test_truncating_is_durable(root):
    store, operations = counting_store(root)
    store.truncate("first", 0)
    assert operations == ["truncate", "sync"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_full_disk_at_any_operation_keeps_the_old_file_and_no_temp(root, at, code):
    DirectoryStore(root).write("a", b"old")
    # Operation 1 finds the root.
    disk = FaultyDisk(Disk(), Fail(at + 1, code, only=WRITES))
    with pytest.raises(DiskFullError, match=r"3 bytes are needed and \d+ are free"):
        DirectoryStore(root, disk).write("a", b"new")
    # Only the directory's sync comes after the new bytes have their name.
    assert DirectoryStore(root).read("a") == (b"new" if at == 4 else b"old")
    assert DirectoryStore(root).list() == ["a"]


@pytest.mark.parametrize("at", range(2, 9))
def test_a_full_disk_among_many_files_leaves_no_temp(root, at):
    DirectoryStore(root).write("old", b"old")
    disk = FaultyDisk(Disk(), Fail(at, errno.ENOSPC, always=True, only=WRITES))
    with pytest.raises(DiskFullError):
        DirectoryStore(root, disk).write_many({"a": b"1", "b": b"2"})
    assert not any(map(is_temp, DirectoryStore(root).list()))
    assert DirectoryStore(root).read("old") == b"old"


def test_a_failed_sync_is_not_tried_again(root):
    DirectoryStore(root).write("a", b"old")
    disk = FaultyDisk(Disk(), Fail(3, errno.EIO))
    with pytest.raises(StoreError, match="Input/output error"):
        DirectoryStore(root, disk).write("a", b"new")
    assert disk.operations == ["make_dir", "create", "sync", "remove"]
    assert DirectoryStore(root).read("a") == b"old"


def test_a_real_full_disk_is_reported_with_the_bytes_needed(root):
    store = DirectoryStore(root)
    store.write("a", b"old")
    with limited_file_size(1000), pytest.raises(DiskFullError, match="5000 bytes are needed"):
        store.write("a", b"x" * 5000)
    assert store.read("a") == b"old"
    assert store.list() == ["a"]


def test_an_error_names_the_file_and_a_remedy(root):
    with pytest.raises(StoreError, match=r"cannot read .*/runs/nope: No such file .*Check that"):
        DirectoryStore(root).read("nope")


def test_an_error_carries_the_number_of_the_system(root):
    with pytest.raises(StoreError) as caught:
        DirectoryStore(root).read("nope")
    assert caught.value.errno == errno.ENOENT


def test_a_root_that_is_a_file_is_a_store_error(root):
    root.write_bytes(b"")
    with pytest.raises(StoreError, match="Not a directory"):
        DirectoryStore(root).write("a", b"1")


def test_a_temp_of_a_dead_process_with_our_pid_is_no_obstacle(root):
    store = DirectoryStore(root)
    store.write("a", b"1")
    number = next_temp_number(store)
    stale = root / f".tmp-{os.getpid()}-{number + 1}-b"
    stale.write_bytes(b"half")
    store.write("b", b"2")
    assert (store.read("b"), stale.read_bytes()) == (b"2", b"half")


def next_temp_number(store):
    """The number in the name of the last temp this process used."""
    seen = []

    class Spy(Disk):
        def create(self, path, chunks):
            seen.append(path)
            super().create(path, chunks)

    DirectoryStore(store.root, Spy()).write("spied", b"")
    store.remove("spied")
    return int(os.path.basename(seen[0]).split("-")[2])


def test_two_stores_of_one_directory_write_at_once(root):
    stores = [DirectoryStore(root), DirectoryStore(root)]

    def write(store):
        for _ in range(100):
            store.write("a", b"x" * 1000)

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert DirectoryStore(root).list() == ["a"]


def test_bytes_are_not_copied_to_be_written(root):
    seen = []

    class Spy(Disk):
        def create(self, path, chunks):
            seen.extend(chunks)
            super().create(path, chunks)

    data = memoryview(bytearray(10))
    DirectoryStore(root, Spy()).write("a", data)
    assert seen[0] is data


def test_a_link_out_of_the_store_is_refused(root, tmp_path):
    canary = tmp_path / "canary"
    canary.write_bytes(b"alive")
    root.mkdir()
    (root / "link").symlink_to(canary)
    store = DirectoryStore(root)
    for operate in (store.read, store.remove, store.size, lambda path: store.write(path, b"x")):
        with pytest.raises(UsageError, match="link out of"):
            operate("link")
    assert canary.read_bytes() == b"alive"


def test_a_linked_directory_out_of_the_store_is_refused(root, tmp_path):
    root.mkdir()
    (root / "trials").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="link out of"):
        DirectoryStore(root).write("trials/a", b"x")
    assert not (tmp_path / "a").exists()


def test_a_link_to_a_sibling_with_the_same_prefix_is_refused(root, tmp_path):
    root.mkdir()
    evil = tmp_path / "runs-evil"
    evil.mkdir()
    (root / "link").symlink_to(evil)
    with pytest.raises(UsageError, match="link out of"):
        DirectoryStore(root).write("link/a", b"x")


def test_a_link_inside_the_store_is_followed(root):
    store = DirectoryStore(root)
    store.write("real/a", b"1")
    (root / "link").symlink_to(root / "real")
    assert store.read("link/a") == b"1"


def test_a_root_that_is_a_link_is_followed(root, tmp_path):
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")
    DirectoryStore(root).write("a", b"1")
    assert (tmp_path / "real" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("name", ["..", "/etc", "a/../..", ""])
def test_a_child_outside_the_store_is_refused(root, name):
    with pytest.raises(UsageError):
        DirectoryStore(root).child(name)


@pytest.mark.parametrize("root", ["", "a\0b"])
def test_a_root_must_be_a_possible_name(root):
    with pytest.raises(UsageError, match="must be a directory"):
        DirectoryStore(root)


def test_a_relative_root_is_fixed_when_the_store_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore("runs")
    monkeypatch.chdir("/")
    assert store.root == str(tmp_path / "runs")


def test_open_store_takes_a_path(root):
    assert open_store(root).root == str(root)


def test_open_store_takes_a_file_url(tmp_path):
    assert open_store(f"file://{tmp_path}/a%20b").root == str(tmp_path / "a b")


def test_a_file_url_is_decoded_once(tmp_path):
    assert open_store(f"file://{tmp_path}/a%2520b").root == str(tmp_path / "a%20b")


def test_the_url_of_a_store_with_odd_characters_opens_it(tmp_path):
    store = DirectoryStore(tmp_path / "a b#c?d%20")
    assert open_store(store.url).root == store.root


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:SECRET@bucket/runs?token=SECRET",
        "hdfs://user:SECRET@host/runs",
        "file://user:SECRET@host/runs",
        "file:///runs?SECRET",
        "file:///runs#SECRET",
        "file://",
    ],
)
def test_other_urls_are_refused_without_repeating_credentials(url):
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "SECRET" not in str(caught.value)


def test_a_closed_store_may_be_moved_away_and_used_again(tmp_path):
    store = DirectoryStore(tmp_path / "run")
    for _ in range(2):
        store.write("trials/t0000/params.json", b"{}")
        store.append("journal.jsonl", b"x")
        store.close()
        shutil.rmtree(tmp_path / "run")
