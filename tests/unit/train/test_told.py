"""What a task is told of its run, whatever kind of class it is."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch

from cerebro.errors import UsageError
from cerebro.task import RunFacts
from cerebro.train.meter import Meter
from cerebro.train.runner import VisitRunner
from tests.unit.train.bare import LineTask, allocate, make_call, make_data


@dataclasses.dataclass(frozen=True)
class FrozenTask(LineTask):
    width: int = 16

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        if self.meter is not None:
            self.meter.add({"error": loss}, len(batch["x"]))
        return loss


def test_a_frozen_task_is_told_too(tmp_path):
    make_data(tmp_path / "data")
    task = FrozenTask()
    for _ in range(2):
        runner = VisitRunner(task, str(tmp_path / "data"), device="cpu")
        _, report = runner.run(make_call(), None, allocate)
        runner.close()
    assert task.facts == RunFacts(shard_rows=(22, 22))
    sums = report.members[0].sums
    assert sums["error"] == pytest.approx(sums["loss"], rel=1e-5)


@pytest.mark.parametrize("is_training", [True, False], ids=["trained", "evaluated"])
def test_a_task_is_told_of_the_shards_that_the_trial_is_trained_on(tmp_path, is_training):
    make_data(tmp_path / "data", rows=54)
    task = FrozenTask()
    runner = VisitRunner(task, str(tmp_path / "data"), device="cpu", ranks=2)
    whole = task.facts.shard_rows
    state, _ = runner.run(make_call(held_out=(0, 1), shard=1), None, allocate)
    if not is_training:
        runner.run(make_call(held_out=(0, 1), shard=0), state, allocate)
    found = task.facts
    runner.run(make_call(), state, allocate)
    runner.close()
    assert (found.shard_rows, found.workers) == (whole[1:], 2)
    assert task.facts.shard_rows == whole


class OwnMeterTask(LineTask):
    meter = [0.0]  # type: ignore[assignment]  # noqa: RUF012


class OwnFactsTask(LineTask):
    def __init__(self):
        self.facts = {"rows": 3}


class MethodTask(LineTask):
    def meter(self):
        return None


class PropertyTask(LineTask):
    @property
    def facts(self):
        return None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (OwnMeterTask, "OwnMeterTask.meter must be left to Cerebro.* has a list there"),
        (OwnFactsTask, "OwnFactsTask.facts must be left to Cerebro.* has a dict there"),
        (MethodTask, "MethodTask.meter .* has a function there"),
        (PropertyTask, "PropertyTask.facts .* has a property there"),
    ],
    ids=["class", "object", "method", "property"],
)
def test_a_task_with_attributes_of_these_names_is_refused(tmp_path, task, message):
    make_data(tmp_path / "data")
    with pytest.raises(UsageError, match=message):
        VisitRunner(task(), str(tmp_path / "data"), device="cpu")


class Held:
    def __init__(self, tensor):
        self.tensor = tensor


def test_a_meter_keeps_nothing_that_a_value_was_computed_from():
    meter = Meter()
    weight = torch.ones(3, requires_grad=True)
    held = []

    def pack(tensor):
        kept = Held(tensor)
        held.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        meter.add({"error": (weight**2).mean()}, 4)
    gc.collect()
    assert held
    assert [ref() for ref in held] == [None] * len(held)
    assert meter.totals() == {"error": 4.0}
