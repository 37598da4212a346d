"""CUDA names its devices as PyTorch does, before PyTorch is there."""

from __future__ import annotations

import pytest
import torch

from cerebro.backend.spark.devices import cuda_uuids, gpu_number

pytestmark = pytest.mark.gpu


def test_the_devices_of_cuda_are_found_by_their_uuids(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    expected = [
        f"GPU-{torch.cuda.get_device_properties(number).uuid}"
        for number in range(torch.cuda.device_count())
    ]
    assert cuda_uuids() == expected
    assert [gpu_number(address) for address in expected] == list(range(len(expected)))
