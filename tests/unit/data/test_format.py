"""A dataset written by the first release stays readable, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cerebro.data import open_dataset

DATASET = Path(__file__).resolve().parents[2] / "formats" / "dataset-v1"
DIGEST = "8d9febdebb322ca2abe87242df23f54a82bbb274156018817331ae3e3d936ecd"


@pytest.fixture(scope="module")
def golden():
    return open_dataset(DATASET)


def all_shards(dataset):
    return [
        dataset.open_shard(split, number)
        for split in dataset.splits
        for number in range(len(dataset.shards(split)))
    ]


def test_the_manifest_reads_as_it_did(golden):
    assert golden.digest == DIGEST
    assert {name: str(column) for name, column in golden.schema.items()} == {
        "id": "int64",
        "x": "float32[2, 3]",
        "u": "uint8",
        "flag": "bool",
        "half": "float16",
        "text": "text",
        "raw": "bytes",
        "sparse": "sparse float32[5]",
    }
    assert [info.rows for info in golden.shards("train")] == [3, 2]
    assert [info.rows for info in golden.shards("val")] == [2]


def test_every_row_is_there(golden):
    ids = [n for shard in all_shards(golden) for n in shard.columns["id"].tolist()]
    assert sorted(ids) == list(range(7))


def test_every_value_reads_as_it_was_written(golden):
    for shard in all_shards(golden):
        columns = shard.columns
        for row, n in enumerate(columns["id"].tolist()):
            assert columns["x"][row].tolist() == (n + np.arange(6).reshape(2, 3) / 8).tolist()
            assert columns["u"][row] == n * 40
            assert columns["flag"][row] == (n % 2 == 0)
            assert columns["half"][row] == n / 4
            assert columns["text"][row] == f"row {n} ü"
            assert columns["raw"][row] == bytes([n]) * n
            expected = np.zeros(5)
            expected[np.arange(n % 3) * 2] = n / 2
            assert columns["sparse"].dense()[row].tolist() == expected.tolist()
