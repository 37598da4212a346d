"""Stacks on a CUDA device: captured steps give what the plain loop gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Stacking
from cerebro.types import Split
from tests import zoo

pytestmark = pytest.mark.gpu

MEMBERS = 3
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def exact() -> Any:
    """Full float32 in matrix products and convolutions."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def compiler() -> Iterator[None]:
    """What the compiler starts at first use, and would keep until exit, ends with the test."""
    from torch._inductor.async_compile import shutdown_compile_workers

    before = dict(os.environ)
    yield
    shutdown_compile_workers()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def both(task: zoo.Zoo, shape: Any, **given: Any) -> tuple[zoo.Trained, zoo.Trained]:
    params = zoo.make_params(MEMBERS)
    plain = zoo.train_plain(TorchFramework(task, device="cuda"), shape, params)
    stacked = zoo.train_stacked(TorchFramework(task, device="cuda"), shape, params, **given)
    return plain, stacked


#: Masks are drawn in another way on a device; its recurrent layers have no stacked version.
EXACT = [name for name in zoo.ARCHITECTURES if name not in ("dropout", "gru", "lstm")]


@pytest.mark.parametrize("name", EXACT)
def test_members_get_the_weights_they_would_get_alone(name: str) -> None:
    make, shape = zoo.ARCHITECTURES[name]
    plain, stacked = both(zoo.Zoo(make), shape)
    for member in range(MEMBERS):
        assert zoo.difference(plain.tensors[member], stacked.tensors[member]) < TOLERANCE
        for first, second in zip(plain.reports[member], stacked.reports[member], strict=True):
            assert second.losses == pytest.approx(first.losses, rel=TOLERANCE, abs=1e-5)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", ["mlp", "cnn_group_norm"])
def test_compiled_steps_agree_too(name: str) -> None:
    make, shape = zoo.ARCHITECTURES[name]
    plain, stacked = both(zoo.Zoo(make), shape, stack=Stacking(compiled=True))
    for member in range(MEMBERS):
        assert zoo.difference(plain.tensors[member], stacked.tensors[member]) < TOLERANCE


def assert_told_alike(plain: zoo.Trained, stacked: zoo.Trained) -> None:
    for own, expected in zip(stacked.reports, plain.reports, strict=True):
        for found, alone in zip(own, expected, strict=True):
            assert found.sums["accuracy"] == pytest.approx(alone.sums["accuracy"], abs=1e-3)


def test_what_a_task_tells_its_meter_is_known_of_each_member() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    assert_told_alike(*both(zoo.Metered(make), shape))


@pytest.mark.usefixtures("compiler")
def test_it_is_known_of_compiled_steps_too() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    assert_told_alike(*both(zoo.Metered(make), shape, stack=Stacking(compiled=True)))


def test_numbers_of_the_moment_at_which_a_step_is_traced_are_left_out() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(zoo.Momentary(make), shape)
    assert_told_alike(plain, stacked)
    assert {tuple(one.sums) for own in stacked.reports for one in own} == {("loss", "accuracy")}


def test_adam_schedules_by_batch_and_clipping() -> None:
    def optimizer(model: Any, params: Any) -> Any:
        made = torch.optim.AdamW(model.parameters(), lr=params["lr"] / 5, weight_decay=0.1)
        return made, torch.optim.lr_scheduler.CosineAnnealingLR(made, 60)

    make, shape = zoo.ARCHITECTURES["mlp"]
    task = zoo.Zoo(make, optimizer, scheduler_step="batch", clip_grad_norm=0.5)
    plain, stacked = both(task, shape)
    for member in range(MEMBERS):
        assert zoo.difference(plain.tensors[member], stacked.tensors[member]) < TOLERANCE
        assert stacked.metas[member]["scheduler"] == plain.metas[member]["scheduler"]


def test_dropout_is_the_same_on_every_run_and_learns_as_well() -> None:
    make, shape = zoo.ARCHITECTURES["dropout"]
    plain, stacked = both(zoo.Zoo(make), shape)
    _, again = both(zoo.Zoo(make), shape)
    for member in range(MEMBERS):
        for name, tensor in stacked.tensors[member].items():
            assert torch.equal(tensor, again.tensors[member][name])
        last, expected = stacked.reports[member][-1], plain.reports[member][-1]
        mean, other = sum(last.losses) / len(last.losses), sum(expected.losses) / len(last.losses)
        assert mean == pytest.approx(other, rel=0.25)


def test_evaluations_agree() -> None:
    make, shape = zoo.ARCHITECTURES["cnn_batch_norm"]
    task, params = zoo.Zoo(make), zoo.make_params(MEMBERS)
    plain, stacked = both(task, shape)
    framework = TorchFramework(task, device="cuda")
    shard = zoo.make_shard(shape, number=5)
    trials = tuple(range(MEMBERS))
    call = zoo.visit(trials, params, 0, split=Split.VAL, stack=Stacking())
    report = framework.evaluate(call, shard, stacked.states[0])
    for trial in trials:
        alone = zoo.visit((trial,), [params[trial]], 0, split=Split.VAL)
        expected = framework.evaluate(alone, shard, plain.states[trial]).members[0].sums
        for metric, (total, rows) in expected.items():
            found = report.members[trial].sums[metric]
            assert found[1] == rows
            assert found[0] == pytest.approx(total, rel=1e-3, abs=1e-2)
    framework.close()
