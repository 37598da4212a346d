from __future__ import annotations

import numpy as np
import pytest
import torch

from cerebro.data import SparseRows, batch_order, from_arrays
from cerebro.train.torch.batches import TorchBatches
from cerebro.train.torch.device import BATCH_SIZES
from tests.unit.train.bare import make_call

ROWS = 11


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    numbers = np.arange(ROWS)
    sparse = SparseRows(
        np.arange(ROWS + 1, dtype=np.int64),
        np.zeros(ROWS, np.int64),
        numbers.astype(np.float32),
        width=3,
    )
    columns = {
        "image": np.repeat(numbers[:, None], 6, 1).reshape(ROWS, 2, 3).astype(np.uint8),
        "half": numbers.astype(np.float16),
        "label": numbers,
        "flag": numbers % 2 == 0,
        "text": [f"row {n} ü" for n in numbers],
        "bytes": [bytes([n]) * n for n in numbers],
        "sparse": sparse,
    }
    data = from_arrays(tmp_path_factory.mktemp("columns"), columns, shards=1)
    return data.open_shard("train", 0)


@pytest.fixture
def batches():
    return TorchBatches(torch.device("cpu"))


def shuffled(batches, shard, **changes):
    call = make_call(batch_size=4, shard=0, **changes)
    return [
        ({name: keep(v) for name, v in batch.items()}, rows)
        for batch, rows in batches.shuffled(shard, call)
    ]


def keep(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def labels(found):
    return [label for batch, _ in found for label in batch["label"].tolist()]


def test_a_training_visit_takes_rows_in_its_seeded_order(batches, shard):
    order = batch_order(shard, 4, seed=3, trial=2, epoch=1)
    found = shuffled(batches, shard, seed=3, trials=(2,), epoch=1)
    assert labels(found) == np.asarray(shard.columns["label"])[order].tolist()


def test_every_row_comes_once(batches, shard):
    assert sorted(labels(shuffled(batches, shard))) == list(range(ROWS))


def test_the_last_batch_is_partial(batches, shard):
    found = shuffled(batches, shard)
    assert [rows for _, rows in found] == [4, 4, 3]
    assert [len(batch["image"]) for batch, _ in found] == [4, 4, 3]


def test_a_batch_may_be_larger_than_the_shard(batches, shard):
    (found,) = batches.in_order(shard, 100)
    assert found[1] == ROWS
    assert found[0]["image"].shape == (ROWS, 2, 3)


def test_an_evaluation_takes_rows_as_they_lie(batches, shard):
    found = [
        (dict(batch, label=batch["label"].clone()), n) for batch, n in batches.in_order(shard, 4)
    ]
    assert labels(found) == np.asarray(shard.columns["label"]).tolist()


def test_tensors_keep_their_dtype_and_shape(batches, shard):
    (batch, _), *_ = shuffled(batches, shard)
    found = {name: (batch[name].dtype, tuple(batch[name].shape)) for name in ("image", "half")}
    assert found == {"image": (torch.uint8, (4, 2, 3)), "half": (torch.float16, (4,))}
    assert batch["flag"].dtype == torch.bool


def test_all_columns_of_a_row_stay_together(batches, shard):
    for batch, _ in shuffled(batches, shard):
        for place, label in enumerate(batch["label"].tolist()):
            assert batch["image"][place].unique().tolist() == [label]
            assert batch["text"][place] == f"row {label} ü"
            assert batch["bytes"][place] == bytes([label]) * label
            assert batch["flag"][place] == (label % 2 == 0)
            assert batch["sparse"].to_dense()[place].tolist() == [label, 0, 0]


def test_sparse_columns_become_sparse_tensors_of_the_full_width(batches, shard):
    (batch, _), *_ = shuffled(batches, shard)
    assert batch["sparse"].layout == torch.sparse_csr
    assert batch["sparse"].shape == (4, 3)


def test_memory_is_used_again_from_batch_to_batch(batches, shard):
    call = make_call(batch_size=4, shard=0)
    places = {batch["image"].data_ptr() for batch, _ in batches.shuffled(shard, call)}
    assert len(places) == 1


def test_changing_a_batch_changes_neither_the_shard_nor_the_next_batch(batches, shard):
    expected = shuffled(batches, shard)
    call = make_call(batch_size=4, shard=0)
    for (batch, _), (untouched, _) in zip(batches.shuffled(shard, call), expected, strict=True):
        assert torch.equal(batch["image"], untouched["image"])
        batch["image"].zero_()
        del batch["label"]
    assert labels(shuffled(batches, shard)) == labels(expected)


def test_what_is_asked_of_one_batch_is_not_asked_of_the_next(batches, shard):
    call = make_call(batch_size=4, shard=0)
    for batch, _ in batches.shuffled(shard, call):
        assert not batch["half"].requires_grad
        assert batch["half"].grad is None
        batch["half"].requires_grad_().float().sum().backward()


def test_buffers_of_few_batch_sizes_are_kept(batches, shard):
    for size in range(1, 50):
        next(batches.in_order(shard, size))
    assert len(batches._buffers) == BATCH_SIZES


def test_buffers_of_sizes_that_take_turns_are_used_again(batches, shard):
    places = [next(batches.in_order(shard, size))[0]["image"].data_ptr() for size in (4, 3, 4)]
    assert places[0] == places[2]


def test_an_evaluation_between_two_batches_of_training_is_no_harm(batches, shard):
    call = make_call(batch_size=4, shard=0)
    expected = labels(shuffled(batches, shard))
    found = []
    for batch, rows in batches.shuffled(shard, call):
        found.append((dict(batch, label=batch["label"].clone()), rows))
        list(batches.in_order(shard, 8))
    assert labels(found) == expected
