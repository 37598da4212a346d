"""Datasets that are kept at a URL: shards are copied when they are opened."""

from __future__ import annotations

import os
import subprocess

import pytest

from cerebro.data import from_arrays, open_dataset
from cerebro.data.cache import ShardCache
from cerebro.data.etl.mirror import upload
from cerebro.errors import DataError, ShardCorruptError, StoreError
from cerebro.storage import open_store

URL = "memory://cached/numbers"


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    made = from_arrays(tmp_path / "data", {"x": [float(n) for n in range(40)]}, shards=4)
    store = open_store(URL)
    for name in store.list():
        store.remove(name)
    upload(made.path, URL)
    return made


def copies(folder):
    return sorted(path.name for path in folder.rglob("*.arrow"))


def test_a_dataset_at_a_url_is_the_same(dataset):
    there = open_dataset(URL)
    assert there.digest == dataset.digest
    for number in range(4):
        ours, theirs = (each.open_shard("train", number).columns["x"] for each in (dataset, there))
        assert ours.tolist() == theirs.tolist()


def test_only_what_is_opened_is_copied_and_only_once(dataset, tmp_path):
    open_dataset(URL).open_shard("train", 2)
    (copy,) = (tmp_path / "temp").rglob("*.arrow")
    number = copy.stat().st_ino
    open_dataset(URL).open_shard("train", 2)
    assert copy.stat().st_ino == number
    assert len(copies(tmp_path / "temp")) == 1


def test_a_copy_that_was_cut_off_is_made_again(dataset, tmp_path):
    open_dataset(URL).open_shard("train", 0)
    (copy,) = (tmp_path / "temp").rglob("*.arrow")
    os.truncate(copy, 100)
    assert len(open_dataset(URL).open_shard("train", 0)) == 10


def test_a_copy_that_was_changed_is_made_again(dataset, tmp_path):
    before = open_dataset(URL).open_shard("train", 0).columns["x"].tolist()
    (copy,) = (tmp_path / "temp").rglob("*.arrow")
    copy.write_bytes(bytes(copy.stat().st_size))
    assert open_dataset(URL).open_shard("train", 0).columns["x"].tolist() == before


def test_copies_are_not_kept_where_others_can_write(dataset, tmp_path):
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(
        StoreError, match=r"nobody else can write to, but .*shared is not\. Set TMPD"
    ):
        ShardCache(URL, root=str(root)).path(dataset.shards("train")[0])
    assert not list(root.iterdir())


def test_what_a_killed_process_had_fetched_makes_room(dataset, tmp_path):
    info = dataset.shards("train")[0]
    root = tmp_path / "own"
    root.mkdir(mode=0o700)
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    left, own = (root / f".tmp-{pid}-0-abc" for pid in (dead.pid, os.getpid()))
    for path in (left, own):
        path.write_bytes(bytes(100))
    ShardCache(URL, root=str(root), limit_bytes=info.bytes).path(info)
    assert (left.exists(), own.exists()) == (False, True)


def test_a_shard_that_is_damaged_there_is_not_kept(dataset, tmp_path):
    info = dataset.shards("train")[1]
    store = open_store(URL)
    store.write(info.file, bytes(info.bytes))
    with pytest.raises(ShardCorruptError, match="SHA-256"):
        open_dataset(URL).open_shard("train", 1)
    assert not copies(tmp_path / "temp")


def test_copies_unused_for_longest_make_room_for_others(dataset, tmp_path):
    infos = dataset.shards("train")
    cache = ShardCache(URL, root=str(tmp_path / "own"), limit_bytes=2 * infos[0].bytes)
    paths = [cache.path(infos[0]), cache.path(infos[1])]
    os.utime(paths[0], (1, 1))
    cache.path(infos[2])
    assert [os.path.exists(path) for path in paths] == [False, True]
    assert len(copies(tmp_path / "own")) == 2


def test_a_url_without_a_dataset_is_named():
    with pytest.raises(DataError, match="there is no dataset at memory://cached/nothing"):
        open_dataset("memory://cached/nothing")
