"""Datasets that are kept at a URL: shards are copied when they are opened."""

from __future__ import annotations

import os

import pytest

from cerebro.data import from_arrays, open_dataset
from cerebro.data.cache import ShardCache
from cerebro.data.etl.mirror import upload
from cerebro.errors import DataError, ShardCorruptError
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
