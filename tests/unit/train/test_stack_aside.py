"""What a task keeps is seen to change while its steps are traced, and is put back."""

from __future__ import annotations

import copy
import logging
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from cerebro import Task
from cerebro.storage.stacked import take_member
from cerebro.train.stack.aside import aside
from cerebro.train.told import told
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Stacking, State
from cerebro.types import Split
from tests import zoo


@dataclass
class Tally:
    """A user's own class."""

    steps: int = 0


@dataclass(slots=True)
class Slotted:
    steps: int = 0


class Measure(nn.Module):
    """A module of the user's, with a number that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.steps = 0

    def __deepcopy__(self, memo: Any) -> Measure:
        return self


class Keeping(Task):
    def __init__(self, kept: Any) -> None:
        self.kept = kept


def _set(task: Any) -> None:
    task.kept = 1


def _append(task: Any) -> None:
    task.kept.append(1)


def _count(task: Any) -> None:
    task.kept["steps"] += 1


def _count_inside(task: Any) -> None:
    task.kept["all"]["steps"] += 1


def _step(task: Any) -> None:
    task.kept.steps += 1


def _step_inside(task: Any) -> None:
    task.kept[0].steps += 1


def _turn(task: Any) -> None:
    task.kept.move_to_end("a")


def _forget(task: Any) -> None:
    del task.kept


CHANGES = {
    "attribute": (0, _set),
    "gone": (0, _forget),
    "list": ([0], _append),
    "set": ({0}, lambda task: task.kept.add(1)),
    "deque": (deque([0], maxlen=1), _append),
    "dict": ({"steps": 0}, _count),
    "counter": (Counter(steps=2), _count),
    "default": (defaultdict(int), _count),
    "order": (OrderedDict(a=1, b=2), _turn),
    "nested": ({"all": {"steps": 0}}, _count_inside),
    "object": (Tally(), _step),
    "slots": (Slotted(), _step),
    "module": (Measure(), _step),
    "object in a tuple": ((Tally(),), _step_inside),
    "object in a list": ([Tally()], _step_inside),
    "namespace": (SimpleNamespace(steps=0), _step),
}


@pytest.mark.parametrize(("kept", "change"), CHANGES.values(), ids=CHANGES)
def test_what_a_task_keeps_is_seen_to_change_and_put_back(kept: Any, change: Any) -> None:
    task, before = Keeping(kept), copy.deepcopy(kept)
    with aside(task) as has_changed:
        assert not has_changed()
        change(task)
        assert has_changed()
    assert task.kept is kept
    assert task.kept == before


def test_a_task_is_put_back_when_its_step_fails() -> None:
    def fail(task: Any) -> None:
        with aside(task):
            task.kept.append(1)
            raise ZeroDivisionError

    task = Keeping([])
    with pytest.raises(ZeroDivisionError):
        fail(task)
    assert task.kept == []


def test_what_keeps_itself_is_looked_at_once() -> None:
    task = Keeping([])
    task.kept.append(task.kept)
    with aside(task) as has_changed:
        task.kept.append(task)
        assert has_changed()
    assert task.kept == [task.kept]


def test_what_a_library_remembers_is_no_change_of_the_task() -> None:
    """A logger remembers which levels it was asked for."""
    task = Keeping(logging.getLogger("tests.unit.train.aside"))
    with aside(task) as has_changed:
        task.kept.isEnabledFor(logging.INFO)
        assert not has_changed()


def test_slots_that_are_filled_are_emptied_again() -> None:
    kept = Slotted()
    del kept.steps
    with aside(Keeping(kept)) as has_changed:
        kept.steps = 1
        assert has_changed()
    assert not hasattr(kept, "steps")


def test_what_a_task_is_told_is_no_change_of_it() -> None:
    task = Keeping(0)
    with aside(task) as has_changed, told(task, "meter", None):
        assert not has_changed()


class Smooth(zoo.Zoo):
    """Tells a mean that it goes on with from batch to batch, of whatever model."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        self.seen = {"mean": torch.zeros(())}

    def metrics(self, model: Any, batch: Any, params: Any) -> dict[str, Any]:
        mean = model(batch["x"]).detach().abs().mean()
        self.seen["mean"] = 0.9 * self.seen["mean"] + 0.1 * mean
        return {"smooth": self.seen["mean"]}


def test_members_of_a_task_that_metrics_change_are_evaluated_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As numbers of a stack, its means would be those of its first batch."""
    make, shape = zoo.ARCHITECTURES["mlp"]
    params = zoo.make_params(2)
    stacked = zoo.train_stacked(TorchFramework(Smooth(make), device="cpu"), shape, params)
    shard, state = zoo.make_shard(shape, number=5), stacked.states[0]
    call = zoo.visit((0, 1), params, 0, split=Split.VAL, stack=Stacking())
    report = TorchFramework(Smooth(make), device="cpu").evaluate(call, shard, state)
    assert "loss() or metrics() changes its task" in caplog.text
    framework = TorchFramework(Smooth(make), device="cpu")
    for trial in (0, 1):
        data, meta = take_member(state.buffer, state.meta, trial)
        alone = zoo.visit((trial,), params[trial : trial + 1], 0, split=Split.VAL)
        expected = framework.evaluate(alone, shard, State(memoryview(data), meta)).members[0]
        assert report.members[trial].sums["smooth"] == pytest.approx(expected.sums["smooth"])
