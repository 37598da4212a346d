"""On a GPU a batch is waited for while the GPU has nothing else to do."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from cerebro.data import from_arrays
from cerebro.train.torch.framework import TorchFramework
from tests.unit.train.bare import LineTask, allocate, make_call, make_eval

pytestmark = pytest.mark.gpu

ROWS, BATCHES, WIDTH = 2048, 8, 4096
SLOW_S = 0.02


class Wide(LineTask):
    """Batches with text are decoded on the host, and moved from memory that is not pinned."""

    def model(self, params):
        return torch.nn.Linear(WIDTH, 1)

    def decode(self, batch):
        batch.pop("text")
        return batch


class SlowDecode(Wide):
    def decode(self, batch):
        time.sleep(SLOW_S)
        return super().decode(batch)


class SlowLoss(Wide):
    """The host is through with it long before the GPU is."""

    def loss(self, model, batch, params):
        big = torch.rand(8192, 8192, device="cuda")
        for _ in range(10):
            big = torch.tanh(big @ big)
        return super().loss(model, batch, params) + 0 * big.mean()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    columns = {"x": x, "y": x[:, :1] + 0.5, "text": ["row"] * ROWS}
    return from_arrays(tmp_path_factory.mktemp("wide"), columns, shards=1, validation=0.5)


def visits(task, data):
    """What a training visit and an evaluation report, once all is warm."""
    framework = TorchFramework(task, device="cuda")
    size = ROWS // 2 // BATCHES
    train = replace(make_call(), batch_size=size, steps=1)
    shard, held_out = data.open_shard("train", 0), data.open_shard("val", 0)
    state, _ = framework.train(train, shard, None, allocate)
    again = replace(train, epoch=1)
    state, trained = framework.train(again, shard, state, allocate)
    return trained, framework.evaluate(replace(make_eval(), batch_size=size), held_out, state)


def test_what_the_gpu_waits_for_is_loading(data):
    for report in visits(SlowDecode(), data):
        assert report.compute_s >= BATCHES * SLOW_S
        assert report.load_s > 0.8 * report.compute_s


def test_what_the_host_waits_for_is_computing(data):
    for report in visits(SlowLoss(), data):
        assert report.load_s < 0.2 * report.compute_s
