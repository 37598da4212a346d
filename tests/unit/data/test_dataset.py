"""Opening datasets and shards, and noticing damage."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest

from cerebro.data import dataset as dataset_module
from cerebro.data import from_arrays, open_dataset
from cerebro.errors import DataError, ShardCorruptError, StoreError, UsageError
from cerebro.types import Split


@pytest.fixture
def data(tmp_path):
    columns = {"x": np.arange(60.0).reshape(20, 3), "t": [f"row {n}" for n in range(20)]}
    return from_arrays(tmp_path / "data", columns, shards=4, validation=0.2)


def shard_path(data, split="train", number=0):
    return os.path.join(data.path, data.shards(split)[number].file)


def flip_bit(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        value = file.read(1)[0] ^ (1 << bit)
        file.seek(position)
        file.write(bytes([value]))


def test_a_dataset_opened_again_is_the_same(data):
    again = open_dataset(data.path)
    assert (again.digest, again.schema, again.splits) == (data.digest, data.schema, data.splits)
    assert again.shards(Split.TRAIN) == data.shards("train")


def test_a_split_that_is_not_there_has_no_shards(data):
    assert data.shards("test") == ()
    assert data.rows("test") == 0


def test_an_unknown_split_is_refused(data):
    with pytest.raises(UsageError, match=r"unknown split 'vall'. Known: train, val"):
        data.shards("vall")


@pytest.mark.parametrize("number", [-1, 4])
def test_a_shard_number_out_of_range_is_refused(data, number):
    with pytest.raises(UsageError, match="0 <= number < 4"):
        data.open_shard("train", number)


def test_a_shard_opened_twice_is_the_same_object(data):
    assert data.open_shard("train", 0) is data.open_shard("train", 0)


def test_arrays_of_a_shard_cannot_be_written(data):
    with pytest.raises(ValueError, match="read-only"):
        data.open_shard("train", 0).columns["x"][0] = 1


def test_the_number_of_mapped_shards_is_bounded(data, monkeypatch):
    monkeypatch.setattr(dataset_module, "MAPPED_SHARDS", 2)
    first = data.open_shard("train", 0)
    for number in (1, 2):
        data.open_shard("train", number)
    assert data.open_shard("train", 0) is not first
    assert first.columns["x"].shape == (4, 3)


def test_any_flipped_bit_of_a_shard_is_noticed(data):
    generator = random.Random(0)
    path = shard_path(data)
    for _ in range(50):
        position, bit = generator.randrange(os.path.getsize(path)), generator.randrange(8)
        flip_bit(path, position, bit)
        with pytest.raises(ShardCorruptError, match="SHA-256 must be") as caught:
            open_dataset(data.path).open_shard("train", 0)
        assert path in str(caught.value)
        flip_bit(path, position, bit)
    open_dataset(data.path).verify()


def test_the_error_names_the_file_and_both_digests(data):
    path = shard_path(data)
    flip_bit(path, 1000, 0)
    pattern = (
        f"{data.shards('train')[0].file}.*{data.shards('train')[0].sha256}.* is [0-9a-f]{{64}}"
    )
    with pytest.raises(ShardCorruptError, match=pattern):
        data.open_shard("train", 0)


def test_a_verified_shard_is_not_read_again(data):
    data.open_shard("train", 0)
    flip_bit(shard_path(data), 0, 0)
    assert data.open_shard("train", 0).rows == 4


def test_a_shard_opened_unverified_is_verified_when_asked(data):
    data.open_shard("train", 0, verify=False)
    flip_bit(shard_path(data), os.path.getsize(shard_path(data)) // 2, 0)
    with pytest.raises(ShardCorruptError):
        data.open_shard("train", 0)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_shard_is_noticed_without_verification(data, keep):
    path = shard_path(data)
    os.truncate(path, keep if keep >= 0 else os.path.getsize(path) - 1)
    with pytest.raises(ShardCorruptError, match="bytes, but has"):
        data.open_shard("train", 0, verify=False)


def test_a_missing_shard_is_noticed(data):
    os.remove(shard_path(data))
    with pytest.raises(ShardCorruptError, match="is missing"):
        data.open_shard("train", 0)


def test_a_shard_that_cannot_be_opened_is_an_error_of_ours(data):
    path = shard_path(data)
    os.remove(path)
    os.symlink(path, path)
    with pytest.raises(StoreError, match="cannot be opened"):
        data.open_shard("train", 0)


def test_two_shards_swapped_are_noticed(data):
    first, second = shard_path(data, number=0), shard_path(data, number=1)
    os.rename(first, first + ".x")
    os.rename(second, first)
    os.rename(first + ".x", second)
    with pytest.raises(ShardCorruptError):
        data.open_shard("train", 0)


def test_garbage_in_a_shard_opened_unverified_is_an_error_of_ours(data):
    path = shard_path(data)
    size = os.path.getsize(path)
    with open(path, "wb") as file:
        file.write(b"\0" * size)
    with pytest.raises(ShardCorruptError, match="not a readable Arrow file"):
        data.open_shard("train", 0, verify=False)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_a_path_without_a_dataset_is_refused(tmp_path, make):
    make(tmp_path / "data")
    with pytest.raises(DataError, match=r"no dataset at .*Prepare one with"):
        open_dataset(tmp_path / "data")


def digest_or_error(path):
    try:
        return open_dataset(path).digest
    except DataError:
        return None


def test_a_flipped_bit_of_the_manifest_never_gives_another_dataset(data):
    path = os.path.join(data.path, "dataset.json")
    generator = random.Random(1)
    found = []
    for _ in range(200):
        position, bit = generator.randrange(os.path.getsize(path)), generator.randrange(8)
        flip_bit(path, position, bit)
        found.append(digest_or_error(data.path))
        flip_bit(path, position, bit)
    # A space turned into a line break, say, changes nothing.
    assert set(found) <= {None, data.digest}
    assert found.count(None) > 150


def edit(data, change):
    path = os.path.join(data.path, "dataset.json")
    with open(path) as file:
        body = json.load(file)
    change(body)
    with open(path, "w") as file:
        json.dump(body, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(version=2), "format version 2.*newer Cerebro"),
        (lambda b: b.update(format="zip"), "not the manifest"),
        (lambda b: b.update(extra=1), "exactly the keys"),
        (lambda b: b.update(schema=[]), "schema must be"),
        (lambda b: b.update(schema=["x"]), "needs a name"),
        (lambda b: b["schema"].append(b["schema"][0]), "'x' is there twice"),
        (lambda b: b["schema"][0].update(kind="image"), "unknown kind 'image'"),
        (lambda b: b["schema"][0].update(dtype="object"), "not a column"),
        (lambda b: b["schema"][0].update(shape=[0]), "integers >= 1"),
        (lambda b: b["schema"][0].update(shape=[True]), "integers >= 1"),
        (lambda b: b["schema"][0].pop("kind"), "exactly kind, dtype and shape"),
        (lambda b: b.update(splits=[]), "splits must be"),
        (lambda b: b["splits"].update(other=[]), "splits must be"),
        (lambda b: b["splits"].update(train=[]), "list of shards"),
        (lambda b: b["splits"]["train"][0].pop("rows"), "a shard needs"),
        (lambda b: b["splits"]["train"][0].update(file="../secret"), "not the name of a shard"),
        (lambda b: b["splits"]["train"][0].update(file="/etc/passwd"), "not the name of a shard"),
        (lambda b: b["splits"]["train"][0].update(sha256="0"), "not a SHA-256"),
        (lambda b: b["splits"]["train"][0].update(rows=0), "integers >= 1"),
        (lambda b: b["splits"]["train"][0].update(rows=5), "its digest must be"),
        (lambda b: b.update(digest=None), "its digest must be"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused_by_place(data, change, message):
    edit(data, change)
    with pytest.raises(DataError, match=rf"dataset\.json.*{message}"):
        open_dataset(data.path)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_no_json_object_is_refused(data, text):
    with open(os.path.join(data.path, "dataset.json"), "wb") as file:
        file.write(text)
    with pytest.raises(DataError, match=r"dataset\.json"):
        open_dataset(data.path)


def test_the_representation_says_what_is_there(data):
    assert repr(data).endswith("/data', train: 16 rows in 4 shards, val: 4 rows in 1 shards)")


def test_a_dataset_replaced_while_in_use_is_told_as_that(data):
    from_arrays(data.path, {"x": np.zeros(20), "y": np.zeros(20)}, shards=4)
    with pytest.raises(ShardCorruptError, match=r"was replaced: train-00000-\w+\.arrow is gone"):
        data.open_shard("train", 0)
