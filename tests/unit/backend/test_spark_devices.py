"""The GPU that Spark has given to a task, as CUDA numbers it."""

from __future__ import annotations

import pytest

from cerebro.backend.spark.devices import gpu_number
from cerebro.errors import UsageError

SEEN = ("GPU-0000aaaa-1", "GPU-0000bbbb-2")


@pytest.mark.parametrize(
    ("visible", "address", "number"),
    [
        ("", "3", 3),
        ("", SEEN[1], 1),
        ("GPU-x, GPU-y", "GPU-y", 1),
        ("4,6", "6", 1),
        ("0,1", "5", 5),
    ],
    ids=["number", "uuid", "listed", "renumbered", "unlisted"],
)
def test_an_address_is_a_number_or_a_uuid(monkeypatch, visible, address, number):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_number(address, lambda: SEEN) == number


def test_a_slice_of_a_gpu_is_made_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_number("MIG-1", lambda: SEEN) == 0
    assert gpu_number("MIG-1", lambda: SEEN) == 0
    with pytest.raises(UsageError, match="MIG-2"):
        gpu_number("MIG-2", lambda: SEEN)


def test_a_gpu_that_cuda_does_not_see_is_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=r"which is GPU-z, but CUDA sees GPU-0000aaaa-1"):
        gpu_number("GPU-z", lambda: SEEN)
    with pytest.raises(UsageError, match="CUDA sees none"):
        gpu_number("GPU-z", list)
