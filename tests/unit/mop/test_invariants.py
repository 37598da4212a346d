from __future__ import annotations

from collections.abc import Callable

import pytest

from cerebro.mop.failures import History
from cerebro.mop.invariants import InvariantError, validate
from cerebro.mop.messages import UnitAdded, VisitDone, WorkerJoined
from cerebro.mop.planner import Planner
from cerebro.mop.visit import Phase, Unit


def training() -> Planner:
    """One worker at unit 0, unit 1 waiting."""
    planner = Planner(3, 2, story=100)
    planner.handle(WorkerJoined(0))
    planner.handle(UnitAdded(Unit(0, (0,), 0, 2)))
    planner.handle(UnitAdded(Unit(1, (1,), 1, 2)))
    return planner


def evaluating() -> Planner:
    """One worker at an eval visit of unit 0, another eval visit waiting."""
    planner = Planner(1, 3, story=100)
    planner.handle(WorkerJoined(0))
    planner.handle(UnitAdded(Unit(0, (0,), 0, 2)))
    planner.handle(VisitDone(0, 0, 0, Phase.TRAIN, 0, 0, 1.0))
    return planner


@pytest.mark.parametrize("make", [training, evaluating])
def test_a_plan_under_way_is_valid(make: Callable[[], Planner]) -> None:
    validate(make())


def run_twice(planner: Planner) -> None:
    planner.placement.join(5, frozenset())
    planner._running[5] = planner._running[0]


def skip_a_step(planner: Planner) -> None:
    planner.units[0].step += 1
    planner.units[0].left -= 1


def close_what_waits(planner: Planner) -> None:
    planner.units[1].closed = True


def train_while_evaluating(planner: Planner) -> None:
    planner._running[0] = planner._running[0]._replace(phase=Phase.TRAIN)


@pytest.mark.parametrize(
    ("make", "damage", "problem"),
    [
        (training, run_twice, "one train visit at a time"),
        (training, skip_a_step, "it is at epoch 0, step 1"),
        (training, close_what_waits, "a closed unit has nothing ready"),
        (training, lambda p: p.placement.idle.update({0: None}), "idle or busy, not both"),
        (training, lambda p: p._running.clear(), "live workers are idle or busy"),
        (training, lambda p: setattr(p.units[0], "left", 1), "train visits are done at epoch"),
        (training, lambda p: setattr(p.units[0], "durable", -2), "a train visit starts while"),
        (training, lambda p: setattr(p.units[1], "entry", None), "is ready or running"),
        (training, lambda p: setattr(p.units[0], "evals_left", 1), "no eval visit while training"),
        (
            training,
            lambda p: setattr(p.units[0], "histories", {0: History(deaths=1)}),
            "attempts are numbered",
        ),
        (training, lambda p: setattr(p, "_unfinished", 0), "finished=True"),
        (evaluating, train_while_evaluating, "no train visit while evaluating"),
        (evaluating, lambda p: p.units[0].evals.append(0), "eval visits are left"),
        (evaluating, lambda p: setattr(p.units[0], "entry", None), "while eval visits wait"),
    ],
)
def test_damage_is_found(
    make: Callable[[], Planner], damage: Callable[[Planner], object], problem: str
) -> None:
    planner = make()
    damage(planner)
    with pytest.raises(InvariantError, match=problem):
        validate(planner)


def test_an_idle_worker_beside_ready_work_is_found() -> None:
    planner = training()
    planner.placement.join(7, frozenset())
    planner.placement.idle[7] = None
    with pytest.raises(InvariantError, match="no worker idles"):
        validate(planner)


def test_a_unit_ready_twice_is_found() -> None:
    planner = training()
    entry = planner.units[1].entry
    assert entry is not None
    planner.placement._held.push(entry)
    with pytest.raises(InvariantError, match="a unit is ready once"):
        validate(planner)


def test_an_epoch_left_open_is_found() -> None:
    planner = evaluating()
    state = planner.units[0]
    state.evals.clear()
    state.entry, state.evals_left = None, 0
    planner._running.clear()
    planner.placement.idle[0] = None
    with pytest.raises(InvariantError, match="an epoch ends with its last eval visit"):
        validate(planner)


def test_the_error_tells_the_story_of_the_unit() -> None:
    planner = training()
    skip_a_step(planner)
    with pytest.raises(InvariantError) as caught:
        validate(planner)
    assert [line["type"] for line in caught.value.story] == ["UnitAdded", "Start"]
    assert "UnitAdded" in str(caught.value)
