"""Batches for accelerators, with the CPU in the place of one; on a real one in tests/gpu."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cerebro.data import from_arrays
from cerebro.data import open_dataset as reopen
from cerebro.train.torch.device import BATCH_SIZES, DeviceBatches, ResidentShards

CPU = torch.device("cpu")
ROWS = 11


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    numbers = np.arange(3 * ROWS)
    columns = {"x": np.repeat(numbers[:, None], 4, 1).astype(np.float32), "label": numbers}
    return from_arrays(tmp_path_factory.mktemp("device"), columns, shards=3)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    numbers = np.arange(ROWS)
    columns = {"label": numbers, "text": [f"row {n}" for n in numbers]}
    return from_arrays(tmp_path_factory.mktemp("mixed"), columns, shards=1).open_shard("train", 0)


def bytes_of(shard):
    return sum(column.nbytes for column in shard.columns.values())


#: Shards that stay on the device, and shards that are moved batch by batch.
PLACES = {"resident": None, "moved": 0}


@pytest.fixture(params=PLACES)
def batches(request):
    return DeviceBatches(CPU, resident_bytes=PLACES[request.param])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 100])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_rows_come_in_order(batches, data, size, is_shuffled):
    shard = data.open_shard("train", 1)
    order = np.random.default_rng(0).permutation(ROWS) if is_shuffled else None
    found = list(batches.batches(shard, size, order))
    labels = np.asarray(shard.columns["label"])
    expected = labels if order is None else labels[order]
    assert torch.cat([batch["label"] for batch, _ in found]).tolist() == expected.tolist()
    assert torch.cat([batch["x"] for batch, _ in found])[:, 3].tolist() == expected.tolist()
    assert [rows for _, rows in found] == [len(batch["x"]) for batch, _ in found]


def test_changing_a_batch_in_place_changes_no_other(batches, data):
    shard = data.open_shard("train", 0)
    expected = [batch["x"].clone() for batch, _ in batches.batches(shard, 4, None)]
    for batch, _ in batches.batches(shard, 4, None):
        batch["x"].requires_grad_().data.zero_()
    found = [batch["x"] for batch, _ in batches.batches(shard, 4, None)]
    assert all(map(torch.equal, found, expected))
    assert not any(x.requires_grad for x in found)


def test_a_loop_that_was_left_early_does_not_disturb_the_next(batches, data):
    shard = data.open_shard("train", 0)
    expected = [batch["label"].tolist() for batch, _ in batches.batches(shard, 2, None)]
    next(batches.batches(shard, 2, None))
    assert [batch["label"].tolist() for batch, _ in batches.batches(shard, 2, None)] == expected


def test_the_next_batch_is_on_its_way_while_one_is_used(data):
    batches, shard = DeviceBatches(CPU, resident_bytes=0), data.open_shard("train", 0)
    loop = batches.batches(shard, 4, None)
    (first, _) = next(loop)
    (stages,) = batches._stages.values()
    assert stages[1].views["label"].tolist() == shard.columns["label"][4:8].tolist()
    assert first["label"].tolist() == shard.columns["label"][:4].tolist()


def test_columns_that_are_no_tensors_come_with_their_rows(mixed):
    batches = DeviceBatches(CPU)
    found = list(batches.batches(mixed, 4, np.arange(ROWS)[::-1].copy()))
    for batch, _ in found:
        assert batch["text"] == [f"row {label}" for label in batch["label"].tolist()]
    assert len(found) == 3


def test_stages_of_few_batch_sizes_are_kept(data):
    batches = DeviceBatches(CPU, resident_bytes=0)
    for size in range(1, 30):
        next(batches.batches(data.open_shard("train", 0), size, None))
    assert len(batches._stages) == BATCH_SIZES


def test_a_shard_that_was_mapped_anew_is_not_kept_twice(data):
    resident = ResidentShards(CPU)
    first = resident.columns(data.open_shard("train", 0))
    again = resident.columns(reopen(data.path).open_shard("train", 0))
    assert again is first
    assert resident.bytes == bytes_of(data.open_shard("train", 0))


def test_shards_unused_for_longest_make_room(data):
    shards = [data.open_shard("train", number) for number in range(3)]
    resident = ResidentShards(CPU, 2 * bytes_of(shards[0]))
    zero, one = resident.columns(shards[0]), resident.columns(shards[1])
    assert resident.columns(shards[0]) is zero
    resident.columns(shards[2])
    assert resident.bytes == 2 * bytes_of(shards[0])
    assert resident.columns(shards[0]) is zero
    assert resident.columns(shards[1]) is not one


def test_a_shard_that_does_not_fit_is_not_kept(data):
    shard = data.open_shard("train", 0)
    resident = ResidentShards(CPU, bytes_of(shard) - 1)
    assert resident.columns(shard) is None
    assert resident.bytes == 0
