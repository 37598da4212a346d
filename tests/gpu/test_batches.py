"""Batches on a CUDA device: kept there, or moved while the last one trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.data import Shard, SparseRows, from_arrays
from cerebro.train.torch.device import DeviceBatches, ResidentShards
from cerebro.train.torch.framework import TorchFramework
from tests.unit.train.bare import LineTask, allocate, make_call, make_data, make_eval

pytestmark = pytest.mark.gpu

ROWS = 1000
WIDTH = 50_000


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", 0)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """200 MB: a copy takes long enough to be overtaken by whoever does not wait for it."""
    numbers = np.arange(ROWS)
    columns: dict[str, Any] = {
        "x": np.repeat(numbers[:, None], WIDTH, 1).astype(np.float32),
        "label": numbers,
    }
    return from_arrays(tmp_path_factory.mktemp("wide"), columns, shards=1).open_shard("train", 0)


#: Shards that stay on the device, and shards that are moved batch by batch.
PLACES = {"resident": None, "moved": 0}


@pytest.mark.parametrize("place", PLACES)
def test_no_batch_is_used_before_it_has_arrived_or_changed_while_in_use(place, shard, device):
    batches = DeviceBatches(device, resident_bytes=PLACES[place])
    order = np.random.default_rng(0).permutation(ROWS)
    weight = torch.randn(2048, 2048, device=device)
    for _ in range(3):
        sums, labels = [], []
        for batch, _ in batches.batches(shard, 64, order):
            # Keeps the device busy, so that this side runs ahead of it.
            for _ in range(20):
                weight = torch.tanh(weight @ weight)
            x = batch["x"].requires_grad_()
            sums.append((x.detach().amin(1) + x.detach().amax(1)).double() / 2)
            labels.append(batch["label"])
            x.data.fill_(-1)
        expected = torch.from_numpy(np.asarray(shard.columns["label"])[order]).to(device)
        assert torch.equal(torch.cat(labels), expected)
        assert torch.equal(torch.cat(sums), expected.double())


def test_a_batch_that_is_kept_is_not_overwritten(shard, device):
    batches = DeviceBatches(device, resident_bytes=0)
    kept = [batch["x"] for batch, _ in batches.batches(shard, 100, None)]
    found = torch.cat([(x.amin(1) + x.amax(1)).double() / 2 for x in kept]).cpu().numpy()
    assert found.tolist() == np.asarray(shard.columns["label"]).tolist()


def test_a_loop_that_was_left_early_does_not_disturb_the_next(shard, device):
    batches = DeviceBatches(device, resident_bytes=0)
    for _ in range(5):
        next(batches.batches(shard, 64, np.arange(ROWS)[::-1].copy()))
    found = [batch["x"][:, -1] for batch, _ in batches.batches(shard, 64, None)]
    assert torch.cat(found).tolist() == np.asarray(shard.columns["label"]).tolist()


def test_the_host_memory_is_pinned_and_the_batch_is_on_the_device(shard, device):
    batches = DeviceBatches(device, resident_bytes=0)
    (batch, _) = next(batches.batches(shard, 64, None))
    (stages,) = batches._stages.values()
    assert all(view.is_pinned() for stage in stages for view in stage.views.values())
    assert {value.device for value in batch.values()} == {device}


def test_text_and_sparse_columns_come_with_their_rows(tmp_path, device):
    numbers = np.arange(ROWS)
    sparse = SparseRows(
        np.arange(ROWS + 1, dtype=np.int64),
        np.zeros(ROWS, np.int64),
        numbers.astype(np.float32),
        width=3,
    )
    columns = {"label": numbers, "text": [f"row {n}" for n in numbers], "sparse": sparse}
    shard = from_arrays(tmp_path, columns, shards=1).open_shard("train", 0)
    for batch, _ in DeviceBatches(device).batches(shard, 64, None):
        labels = batch["label"].tolist()
        assert batch["text"] == [f"row {label}" for label in labels]
        assert batch["sparse"].to_dense()[:, 0].tolist() == labels
        assert batch["sparse"].device == device


def test_resident_shards_stay_within_their_bytes(shard, device):
    size = sum(column.nbytes for column in shard.columns.values())
    assert ResidentShards(device, size - 1).columns(shard) is None
    resident = ResidentShards(device, size)
    assert resident.columns(shard) is resident.columns(shard)
    assert resident.bytes == size


class Streamed(TorchFramework):
    """Keeps no shard on the device."""

    def __init__(self, task, **given):
        super().__init__(task, **given)
        self._batches._device = DeviceBatches(self._device, resident_bytes=0)


def test_kept_and_moved_shards_train_to_the_same_bits(tmp_path, device):
    data = make_data(tmp_path)
    found = []
    for kind in (TorchFramework, Streamed):
        framework, state = kind(LineTask(), device="cuda"), None
        for visit in range(4):
            call = make_call(visit)
            shard = data.open_shard("train", call.shard)
            state, _ = framework.train(call, shard, state, allocate)
        sums = framework.evaluate(make_eval(), data.open_shard("val", 0), state).members[0].sums
        found.append((bytes(state.buffer), sums))
    assert found[0] == found[1]


class OnDevice(LineTask):
    """Its model has a tensor attribute where the model is, and writes to it."""

    def model(self, params):
        class Mean(nn.Linear):
            def __init__(self):
                super().__init__(4, 1)
                self.mean = torch.zeros(4, device="cuda")

            def forward(self, x):
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                return super().forward(x + self.mean)

        return Mean()


def test_tensor_attributes_on_the_device_are_evaluated_there(tmp_path, device):
    data = make_data(tmp_path)
    framework = TorchFramework(OnDevice(), device="cuda")
    state, _ = framework.train(make_call(), data.open_shard("train", 0), None, allocate)
    before = bytes(state.buffer)
    report = framework.evaluate(make_eval(), data.open_shard("val", 0), state)
    assert report.rows == 11
    assert bytes(state.buffer) == before


def test_loading_leaves_the_generators_of_the_device_alone(tmp_path, device):
    data = make_data(tmp_path)
    framework = TorchFramework(LineTask(), device="cuda")
    state, _ = framework.train(make_call(), data.open_shard("train", 0), None, allocate)
    torch.manual_seed(7)
    expected = torch.rand(1, device=device)
    torch.manual_seed(7)
    framework.load({}, state)
    assert torch.equal(torch.rand(1, device=device), expected)
