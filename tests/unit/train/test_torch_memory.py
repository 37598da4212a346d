"""Out of memory in PyTorch, as tasks and libraries say it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from cerebro.backend.base import FailureKind
from cerebro.backend.failure import describe_failure
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import OutOfMemory, Stacking
from cerebro.types import Split
from tests.unit.train.bare import LineTask, allocate, make_call, make_data, make_eval

ON_DEVICE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 139.80 GiB\nmore"


class Greedy(LineTask):
    """Raises in its loss, for batches of more than so many rows."""

    def __init__(self, error, rows=0):
        self.error = error
        self.rows = rows

    def loss(self, model, batch, params):
        if len(batch["x"]) > self.rows:
            raise self.error
        return super().loss(model, batch, params)


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "data")


def train(data, task, framework=None, **changes):
    framework = framework or TorchFramework(task, device="cpu")
    return framework.train(make_call(**changes), data.open_shard(Split.TRAIN, 0), None, allocate)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(ON_DEVICE),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4000000000000 bytes."
        ),
        MemoryError("Unable to allocate 3.64 TiB"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_every_way_to_say_it_is_understood(data, error):
    with pytest.raises(OutOfMemory) as info:
        train(data, Greedy(error))
    message = str(info.value)
    assert str(error).splitlines()[0] in message
    assert re.search(r"at most \d+\.\d GiB of the host's \d+\.\d GiB", message)
    assert 'Use a smaller batch_size, or micro_batch = "auto" in the task.' in message
    assert describe_failure(info.value).kind is FailureKind.MEMORY


def test_other_errors_are_what_they_were(data):
    with pytest.raises(RuntimeError, match="shapes"):
        train(data, Greedy(RuntimeError("mat1 and mat2 shapes cannot be multiplied")))


def test_the_allocator_of_the_cpu_is_understood(data):
    class Huge(LineTask):
        def loss(self, model, batch, params):
            torch.empty(1 << 60)
            raise AssertionError("there was room for that")

    with pytest.raises(OutOfMemory, match="of the host's"):
        train(data, Huge())


def test_its_first_cause_counts(data):
    class Wrapping(Greedy):
        def loss(self, model, batch, params):
            try:
                return super().loss(model, batch, params)
            except torch.OutOfMemoryError as error:
                raise ValueError("the batch is bad") from error

    with pytest.raises(OutOfMemory) as info:
        train(data, Wrapping(torch.OutOfMemoryError(ON_DEVICE)))
    assert describe_failure(info.value).error == "OutOfMemoryError"


def test_the_worker_trains_on_afterwards(data):
    framework = TorchFramework(Greedy(torch.OutOfMemoryError(ON_DEVICE), rows=8), device="cpu")
    with pytest.raises(OutOfMemory):
        train(data, framework.task, framework, batch_size=16)
    framework.free()
    _, report = train(data, framework.task, framework)
    assert report.rows == 22


@pytest.mark.parametrize(
    ("micro_batch", "changes", "is_splittable"),
    [
        (None, {}, False),
        (4, {}, False),
        ("auto", {}, True),
        ("auto", {"micro_batch": 2}, True),
        ("auto", {"micro_batch": 1}, False),
        ("auto", {"batch_size": 1}, False),
    ],
)
def test_a_visit_that_can_be_split_further_says_so(data, micro_batch, changes, is_splittable):
    task = Greedy(torch.OutOfMemoryError(ON_DEVICE))
    task.micro_batch = micro_batch
    with pytest.raises(OutOfMemory) as info:
        train(data, task, **changes)
    assert info.value.is_splittable is is_splittable


def test_halving_leads_to_parts_that_fit(data):
    task = Greedy(torch.OutOfMemoryError(ON_DEVICE), rows=2)
    task.micro_batch = "auto"
    size = None
    for smaller in (4, 2):
        with pytest.raises(OutOfMemory):
            train(data, task, micro_batch=size)
        size = make_call(micro_batch=size).smaller_micro_batch
        assert size == smaller
    _, report = train(data, task, micro_batch=size)
    assert report.rows == 22


def test_an_evaluation_has_a_hint_of_its_own(data):
    framework = TorchFramework(LineTask(), device="cpu")
    state, _ = train(data, LineTask(), framework)
    framework.task = Greedy(torch.OutOfMemoryError(ON_DEVICE))
    framework.task.micro_batch = "auto"
    with pytest.raises(OutOfMemory, match="eval_batch_size") as info:
        framework.evaluate(make_eval(), data.open_shard(Split.VAL, 0), state)
    assert not info.value.is_splittable


def test_a_stack_has_a_hint_of_its_own(data):
    class GreedyStack(LineTask):
        def loss(self, model, batch, params):
            raise torch.OutOfMemoryError(ON_DEVICE)

    framework = TorchFramework(GreedyStack(), device="cpu")
    call = replace(make_call(stack=Stacking()), trials=(0, 1), params=({}, {}))
    shard = data.open_shard(Split.TRAIN, 0)
    with pytest.raises(OutOfMemory, match="smaller stacks"):
        framework.train(call, shard, None, allocate)
