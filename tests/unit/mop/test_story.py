from __future__ import annotations

import pytest

from cerebro.mop.failures import Cause
from cerebro.mop.messages import Event, UnitAdded, VisitDone, VisitFailed, WorkerJoined
from cerebro.mop.planner import Planner
from cerebro.mop.story import Story
from cerebro.mop.visit import Phase, Unit

EVENTS: list[Event] = [
    WorkerJoined(0),
    UnitAdded(Unit(0, (0,), 0, 1)),
    UnitAdded(Unit(1, (1,), 0, 1)),
    VisitDone(0, 0, 0, Phase.TRAIN, 0, 0, 1.0),
    VisitFailed(1, 0, 0, Phase.TRAIN, 0, 0, Cause.ERROR, "E"),
]


def played(events: list[Event], story: int) -> Planner:
    planner = Planner(2, story=story)
    for event in events:
        planner.handle(event)
    return planner


def test_the_story_of_a_unit_holds_its_messages_and_what_led_to_them() -> None:
    kinds = [line["type"] for line in played(EVENTS[:4], story=100).story(1)]
    assert kinds == ["UnitAdded", "VisitDone", "Start"]


def test_a_planner_keeps_no_story_unless_asked() -> None:
    assert played(EVENTS, story=0).story(0) == []


def test_a_story_keeps_the_latest_events() -> None:
    story = Story(limit=2)
    for event in EVENTS:
        story.record(event, [])
    assert story.events() == EVENTS[-2:]


def test_events_replayed_lead_to_the_same_plan() -> None:
    story = Story(limit=100)
    for event in EVENTS:
        story.record(event, [])
    assert played(story.events(), story=0).running() == played(EVENTS, story=0).running()


@pytest.mark.parametrize(("train", "val", "lag"), [(0, 0, 1), (1, -1, 1), (1, 0, -1)])
def test_a_planner_without_shards_is_refused(train: int, val: int, lag: int) -> None:
    with pytest.raises(ValueError, match=r"must hold, but got"):
        Planner(train, val, max_lag=lag)
