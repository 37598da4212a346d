"""Rows of a distributed table, dealt out to shards: every one once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.data.columns import SparseRows
from cerebro.data.frame import deal as dealing
from cerebro.data.frame.deal import Deal, stage
from cerebro.data.frame.plan import Piece, count, cut, even_out
from cerebro.data.frame.shards import make_shard, plan_shards
from cerebro.data.manifest import ShardInfo
from cerebro.data.shard import map_shard
from cerebro.errors import DataError
from cerebro.storage import DirectoryStore, open_store
from tests.experiments import fast_folder

VECTOR = pa.struct(
    [
        pa.field("type", pa.int8()),
        pa.field("size", pa.int32()),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64())),
    ]
)


def batches(first: int, rows: int, size: int) -> list[pa.RecordBatch]:
    """Rows with numbers, in batches of a size."""
    ids = np.arange(first, first + rows)
    table = pa.table({"id": ids, "text": [f"row {n}" for n in ids], "held": ids % 3 == 0})
    return table.to_batches(max_chunksize=size)


def prepared(store, parts, deal, *, size=10, exact=True):
    """Stage parts of so many rows and make shards of them; the ids in each shard by split."""
    staged, first = [], 0
    for part, rows in enumerate(parts):
        found = batches(first, rows, size)
        staged += stage(found, store, f"staging/{part}", deal, part)
        first += rows
    plans = plan_shards(staged, deal, exact=exact)
    shards = {"train": [], "val": []}
    for plan in plans:
        info = make_shard(store, plan)
        shards[plan.split].append(opened(store, plan, info)["id"].tolist())
    return shards


def opened(store: DirectoryStore, plan, info: ShardInfo):
    path = store.local_path(info.file)
    shard = map_shard(path, info, plan.schema, split=plan.split, number=plan.number, verify=True)
    columns: dict[str, Any] = dict(shard.columns)
    if "text" in columns:
        assert columns["text"].arrow.to_pylist() == [f"row {n}" for n in columns["id"]]
    return columns


@settings(max_examples=30)
@given(
    parts=st.lists(st.integers(0, 25), min_size=1, max_size=6),
    shards=st.integers(1, 5),
    validation=st.sampled_from([0.0, 0.2, 0.5]),
    seed=st.integers(0, 3),
)
def test_every_row_comes_out_once_and_shards_are_even(parts, shards, validation, seed):
    rows = sum(parts)
    held_out = round(rows * validation)
    if rows - held_out < shards or (validation and not held_out):
        return
    with fast_folder() as folder:
        deal = Deal(shards=shards, validation=validation, seed=seed)
        found = prepared(DirectoryStore(folder), parts, deal)
    assert sorted(n for split in found.values() for ids in split for n in ids) == list(range(rows))
    assert sum(map(len, found["val"])) == held_out
    sizes = [len(ids) for ids in found["train"]]
    assert len(sizes) == shards
    assert max(sizes) - min(sizes) <= 1


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path)


def test_marked_rows_are_held_out(store):
    found = prepared(store, [10, 20], Deal(shards=2, marker="held"))
    assert sorted(n for ids in found["val"] for n in ids) == list(range(0, 30, 3))


def test_the_same_seed_deals_out_the_same(tmp_path):
    found = [
        prepared(DirectoryStore(tmp_path / str(n)), [30, 7], Deal(shards=3, seed=seed))
        for n, seed in enumerate((1, 1, 2))
    ]
    assert found[0] == found[1] != found[2]


def test_how_rows_arrive_in_batches_makes_no_difference(tmp_path):
    found = [
        prepared(DirectoryStore(tmp_path / str(size)), [40], Deal(shards=3), size=size)
        for size in (3, 40)
    ]
    assert found[0] == found[1]


def test_a_large_part_is_dealt_out_in_runs(store, monkeypatch):
    monkeypatch.setattr(dealing, "RUN_BYTES", 200)
    found = prepared(store, [50], Deal(shards=2, validation=0.1))
    assert len(store.list("staging")) == 3
    assert sorted(n for split in found.values() for ids in split for n in ids) == list(range(50))


def test_few_rows_fill_fewer_shards_where_that_will_do(store):
    assert len(prepared(store, [2], Deal(shards=5), exact=False)["train"]) == 2
    with pytest.raises(DataError, match="2 training rows for num_partitions=5"):
        prepared(store, [2], Deal(shards=5))


def test_rows_can_be_staged_where_there_are_no_directories(tmp_path):
    remote = open_store("memory://deal/staged")
    deal = Deal(shards=2)
    staged = list(stage(batches(0, 9, 4), remote, "staging/0", deal, 0))
    infos = [make_shard(remote, plan) for plan in plan_shards(staged, deal, exact=True)]
    assert sum(info.rows for info in infos) == 9


# Vectors


def vectors(*rows: tuple[int, list[int], list[float]] | list[float]) -> pa.RecordBatch:
    cells = [
        {"type": 1, "size": None, "indices": None, "values": row}
        if isinstance(row, list)
        else {"type": 0, "size": row[0], "indices": row[1], "values": row[2]}
        for row in rows
    ]
    return pa.record_batch([pa.array(cells, VECTOR)], names=["v"])


def shard_of(store, batch, *, sparse):
    deal = Deal(shards=1, sparse=sparse)
    staged = list(stage([batch], store, "staging/0", deal, 0))
    (plan,) = plan_shards(staged, deal, exact=True)
    return opened(store, plan, make_shard(store, plan))["v"]


def test_dense_and_sparse_vectors_become_one_array(store):
    values = shard_of(store, vectors([1.0, 2.0, 3.0], (3, [2], [9.0]), (3, [], [])), sparse=True)
    assert sorted(values.tolist()) == [[0, 0, 0], [0, 0, 9], [1, 2, 3]]


def test_sparse_vectors_stay_sparse_if_all_are(store):
    values = shard_of(store, vectors((4, [1], [5.0]), (4, [0, 3], [1.0, 2.0])), sparse=True)
    assert isinstance(values, SparseRows)
    assert sorted(values.dense().tolist()) == [[0, 5, 0, 0], [1, 0, 0, 2]]


def test_sparse_vectors_become_dense_where_that_was_not_asked_for(store):
    values = shard_of(store, vectors((4, [1], [5.0]), (4, [0, 3], [1.0, 2.0])), sparse=False)
    assert sorted(values.tolist()) == [[0, 5, 0, 0], [1, 0, 0, 2]]


def test_vectors_of_different_sizes_are_refused(store):
    with pytest.raises(DataError, match=r"column 'v'.*same size, but one has 2 and another 3"):
        shard_of(store, vectors([1.0, 2.0], (3, [0], [1.0])), sparse=False)


def test_parts_that_do_not_fit_together_are_refused(store):
    deal = Deal(shards=1)
    staged = [
        each
        for part, batch in enumerate([vectors([1.0]), vectors([1.0, 2.0])])
        for each in stage([batch], store, f"staging/{part}", deal, part)
    ]
    with pytest.raises(DataError, match=r"'v' must be the same in all rows.*float64\[1\]"):
        plan_shards(staged, deal, exact=True)


# Pieces


def piece(rows: int) -> Piece:
    return Piece(file="f", offset=0, bytes=1, start=0, stop=rows)


def test_pieces_are_cut_between_rows():
    first, rest = cut([piece(3), piece(4)], 5)
    assert [(p.start, p.stop) for p in first] == [(0, 3), (0, 2)]
    assert [(p.start, p.stop) for p in rest] == [(2, 4)]
    assert cut([piece(3)], 9) == ([piece(3)], [])


def test_heaps_are_evened_out():
    heaps = even_out([[piece(9)], [], [piece(1)]], [4, 4, 2])
    assert [count(heap) for heap in heaps] == [4, 4, 2]
    with pytest.raises(ValueError, match="10 rows"):
        even_out([[piece(10)]], [9])
