from __future__ import annotations

import contextlib
import os
import resource

import numpy as np
import pytest

from cerebro.storage.disk import Disk


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.close()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


def open_files(path):
    """How many of this process are this file, or have a name that begins like its name."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        # One of another thread may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(path)
    return found


@contextlib.contextmanager
def limited_file_size(size):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_create_refuses_to_overwrite(disk, path):
    disk.create(path, [b"old"])
    with pytest.raises(FileExistsError):
        disk.create(path, [b"new"])
    assert disk.read(path) == b"old"


def test_create_does_not_follow_a_link(disk, path, tmp_path):
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(FileExistsError):
        disk.create(path, [b"x"])
    assert not (tmp_path / "elsewhere").exists()


def test_append_does_not_follow_a_link(disk, path, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError, match="symbolic"):
        disk.append(path, b"x")


def test_more_pieces_than_one_call_takes_are_written_in_order(disk, path):
    pieces = [b"%d," % i for i in range(3000)]
    disk.create(path, pieces)
    assert disk.read(path) == b"".join(pieces)


@pytest.mark.parametrize("limit", [1, 4, 7, 1000])
def test_writes_that_take_less_than_asked_are_continued(disk, path, monkeypatch, limit):
    monkeypatch.setattr(os, "writev", lambda fd, views: os.write(fd, b"".join(views)[:limit]))
    disk.create(path, [b"one", b"three", b"", b"seventeen"])
    assert disk.read(path) == b"onethreeseventeen"


def test_arrays_of_any_shape_are_written_as_their_bytes(disk, path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    disk.create(path, [array.data, np.zeros((0, 3)).data])
    assert disk.read(path) == array.tobytes()


def test_read_into_fills_an_array(disk, path):
    disk.create(path, [np.arange(6, dtype=np.int32).tobytes()])
    target = np.zeros((2, 3), dtype=np.int32)
    assert disk.read_into(path, target.data) == 24
    assert target.ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_sync_closes_a_created_file(disk, path):
    before = open_files(path)
    disk.create(path, [b"x"])
    disk.sync(path)
    assert open_files(path) == before


def test_remove_closes_a_file_that_was_never_synced(disk, path):
    before = open_files(path)
    disk.create(path, [b"x"])
    disk.remove(path)
    assert open_files(path) == before


def test_a_failed_create_closes_the_file(disk, path):
    before = open_files(path)
    with limited_file_size(10), pytest.raises(OSError, match="too large"):
        disk.create(path, [b"x" * 100])
    assert open_files(path) == before


def test_appends_share_one_open_file(disk, path):
    disk.append(path, b"1")
    before = open_files(path)
    disk.append(path, b"2")
    assert open_files(path) == before


def test_close_closes_everything(path):
    before = open_files(path)
    disk = Disk()
    disk.create(path + "1", [b"x"])
    disk.append(path + "2", b"x")
    disk.close()
    assert open_files(path) == before


def test_sync_works_on_a_file_of_another_process(disk, path):
    with open(path, "wb") as file:
        file.write(b"x")
    disk.sync(path)
    assert disk.read(path) == b"x"


def test_a_failed_sync_of_an_appended_file_forgets_it(disk, path, monkeypatch):
    before = open_files(path)
    disk.append(path, b"1")

    def fail(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(path)
    assert open_files(path) == before
