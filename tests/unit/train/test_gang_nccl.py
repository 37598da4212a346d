"""What is done with NCCL when the GPU of this rank has failed, told by what stands in for both."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from cerebro.train.gang import nccl
from cerebro.train.gang.group import GangBroken, _breaking
from cerebro.train.gang.nccl import SETTINGS, Nccl


class Gpu:
    """Works until it is told to fail; then all that asks it is told."""

    def __init__(self):
        self.has_failed = False

    def require(self):
        if self.has_failed:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()

    class Event:
        def __init__(self, enable_timing=False):
            pass

        def record(self):
            gpu.require()

        def query(self):
            gpu.require()
            return True

        def elapsed_time(self, other):
            return 1.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return gpu


class Group:
    """A process group over NCCL, which calls every error by a name of its own."""

    Options = SimpleNamespace

    def __init__(self, *_):
        self.error = ""
        self.is_aborted = False

    def allreduce(self, tensor):
        self._require()
        return SimpleNamespace(wait=lambda: None)

    def abort(self):
        self.is_aborted = True
        self._require()

    def _require(self):
        if self.error:
            raise dist.DistBackendError(self.error)


@pytest.fixture
def joined(gpu, monkeypatch):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(nccl, "_left", [])
    for name in SETTINGS:
        monkeypatch.setenv(name, "1")
    found = Nccl(dist.HashStore(), 0, 2)
    assert {name: os.environ[name] for name in SETTINGS} == SETTINGS
    return found


def test_what_nccl_says_of_a_failed_gpu_is_no_fault_of_other_ranks(gpu, joined):
    joined._group.error = "unhandled cuda error"
    with pytest.raises(GangBroken, match="unhandled"), _breaking():
        joined.begin(torch.ones(1))
    gpu.has_failed = True
    with pytest.raises(torch.AcceleratorError, match="device-side assert"), _breaking():
        joined.begin(torch.ones(1))


def test_nccl_is_aborted_while_the_gpu_works(joined):
    joined.begin(torch.ones(1))
    joined.finish()
    assert joined.waited_s() == 0.001
    joined.abort()
    assert joined._group.is_aborted
    assert nccl._left == []


@pytest.mark.parametrize("has_failed", [True, False], ids=["of the gpu", "of nccl"])
def test_what_cannot_be_aborted_is_kept(gpu, joined, caplog, has_failed):
    """To abort it on a failed GPU, or to let it go, might take forever."""
    gpu.has_failed, joined._group.error = has_failed, "remote process exited"
    joined.abort()
    assert joined._group.is_aborted != has_failed
    assert nccl._left == [joined._group]
    assert ("device-side assert" if has_failed else "remote process exited") in caplog.text
