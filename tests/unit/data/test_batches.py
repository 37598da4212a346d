"""Batches of a shard."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.data import (
    BatchBuffers,
    Shard,
    SparseRows,
    batch_order,
    from_arrays,
    iter_batches,
    permutation,
)
from cerebro.data.inputs import as_table
from cerebro.errors import UsageError
from cerebro.types import Split


def make_shard(rows, **columns):
    columns = columns or {
        "x": np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3),
        "y": np.arange(rows),
    }
    table = as_table(columns, split="train")
    return Shard(split=Split.TRAIN, number=0, rows=rows, schema=table.schema, columns=table.columns)


@given(rows=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 99))
def test_batches_hold_every_row_once_in_the_given_order(rows, batch_size, seed):
    shard = make_shard(rows)
    order = permutation(rows, seed=seed, trial=0, epoch=0, shard=0)
    batches = [batch["x"].copy() for batch in iter_batches(shard, batch_size, order)]
    assert np.array_equal(np.concatenate(batches), shard.columns["x"][order])
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)


def test_without_an_order_rows_come_as_they_lie():
    batches = [batch["y"].tolist() for batch in iter_batches(make_shard(5), 2)]
    assert batches == [[0, 1], [2, 3], [4]]


def test_full_batches_reuse_one_dict_and_its_arrays():
    batches = iter_batches(make_shard(6), 2)
    first = next(batches)
    array = first["x"]
    assert next(batches) is first
    assert first["x"] is array


def test_buffers_serve_one_shard_after_another():
    buffers = BatchBuffers(make_shard(4).schema, 4)
    view = buffers.tensors["y"]
    for start in (0, 100):
        shard = make_shard(4, x=np.zeros((4, 2, 3), np.float32), y=np.arange(start, start + 4))
        assert list(buffers.fill(shard)) == [4]
        assert view.tolist() == shard.columns["y"].tolist()


def test_buffers_start_at_multiples_of_64_bytes():
    schema = make_shard(1, a=np.zeros((1, 3), np.uint8), b=np.zeros(1), c=np.zeros((1, 7))).schema
    addresses = [array.ctypes.data for array in BatchBuffers(schema, 5).tensors.values()]
    assert [address % 64 for address in addresses] == [0, 0, 0]


def test_changing_a_batch_leaves_the_shard_alone():
    shard = make_shard(4)
    before = shard.columns["x"].copy()
    for batch in iter_batches(shard, 2):
        batch["x"][:] = -1
    assert np.array_equal(shard.columns["x"], before)


def test_text_bytes_and_sparse_rows_follow_the_order():
    sparse = SparseRows(np.array([0, 1, 1, 3]), np.array([0, 1, 2]), np.array([1, 2, 3]), 3)
    shard = make_shard(3, t=["a", "b", "c"], b=[b"a", b"b", b"c"], s=sparse, y=np.arange(3))
    batches = list(map(dict, iter_batches(shard, 2, np.array([2, 0, 1]))))
    assert [batch["t"] for batch in batches] == [["c", "a"], ["b"]]
    assert [batch["b"] for batch in batches] == [[b"c", b"a"], [b"b"]]
    assert [batch["s"].dense().tolist() for batch in batches] == [
        [[0, 2, 3], [1, 0, 0]],
        [[0, 0, 0]],
    ]


@pytest.mark.parametrize("order", [[0, 3], [-1, 0]])
def test_an_order_that_names_a_row_that_is_not_there_is_refused(order):
    with pytest.raises(UsageError, match="0 <= row < 3"):
        list(iter_batches(make_shard(3), 2, np.array(order)))


def test_an_order_may_take_some_rows_only():
    assert [batch["y"].tolist() for batch in iter_batches(make_shard(9), 4, np.array([8, 8]))] == [
        [8, 8]
    ]


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(UsageError, match="batch_size >= 1"):
        BatchBuffers(make_shard(1).schema, 0)


def test_buffers_of_another_batch_size_are_refused():
    shard = make_shard(3)
    with pytest.raises(UsageError, match="batch_size=2"):
        next(iter_batches(shard, 2, buffers=BatchBuffers(shard.schema, 3)))


def test_values_of_a_tensor_column_are_refused():
    shard = make_shard(3)
    buffers = BatchBuffers(shard.schema, 2)
    with pytest.raises(UsageError, match="inside a loop"):
        buffers.values("x")
    next(buffers.fill(shard))
    with pytest.raises(UsageError, match="read it from `tensors`"):
        buffers.values("x")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A shard that is too large for a cache, so that rows are drawn in blocks."""
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.integers(0, 255, (5003, 1000), np.uint8),
        "y": np.arange(5003),
        "t": [str(n) for n in range(5003)],
    }
    data = from_arrays(tmp_path_factory.mktemp("large"), columns, shards=1)
    return data.open_shard("train", 0)


@pytest.mark.parametrize("batch_size", [7, 64, 100, 128, 1024, 5003, 6000])
def test_blocks_give_the_rows_that_single_rows_would(large, batch_size):
    order = batch_order(large, batch_size, seed=1, trial=2, epoch=3)
    buffers = BatchBuffers(large.schema, batch_size)
    seen = []
    for rows in buffers.fill(large, order):
        index = order[len(seen) : len(seen) + rows]
        assert np.array_equal(buffers.tensors["x"][:rows], large.columns["x"][index])
        assert buffers.tensors["y"][:rows].tolist() == large.columns["y"][index].tolist()
        assert buffers.values("t") == [str(n) for n in buffers.tensors["y"][:rows]]
        seen += index.tolist()
    assert sorted(seen) == list(range(5003))


@pytest.mark.parametrize(
    ("batch_size", "block"), [(7, 1), (16, 2), (128, 16), (100, 4), (96, 8), (4096, 128)]
)
def test_a_batch_has_at_least_eight_whole_blocks(large, batch_size, block):
    assert large.block(batch_size) == block


def test_any_order_may_be_asked_for(large):
    order = np.random.default_rng(1).permutation(5003)
    order[:256] = np.arange(256)
    buffers = BatchBuffers(large.schema, 128)
    found = [buffers.tensors["y"][:rows].copy() for rows in buffers.fill(large, order)]
    assert np.array_equal(np.concatenate(found), np.asarray(large.columns["y"])[order])


def test_rows_of_a_small_shard_are_drawn_one_by_one(tmp_path):
    data = from_arrays(tmp_path / "small", {"x": np.zeros((1000, 1000), np.uint8)}, shards=1)
    assert data.open_shard("train", 0).block(1024) == 1
