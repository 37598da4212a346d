from __future__ import annotations

import json

import pytest

from cerebro.mop.failures import Cause
from cerebro.mop.messages import (
    Drain,
    Durable,
    EpochEnded,
    Finished,
    Message,
    Stalled,
    Start,
    UnitAdded,
    UnitFailed,
    UnitFinished,
    UnitStopped,
    VisitDone,
    VisitFailed,
    WorkerJoined,
    WorkerLost,
    from_dict,
    to_dict,
)
from cerebro.mop.visit import Phase, Unit, Visit

MESSAGES: list[Message] = [
    WorkerJoined(1, frozenset({3, 1})),
    WorkerLost(1),
    WorkerLost(1, Cause.MEMORY),
    UnitAdded(Unit(7, (7, 8), 2, 3, weight=2.5), epoch=1, step=4),
    VisitDone(7, 1, 2, Phase.EVAL, 0, 3, 0.25),
    VisitFailed(7, 1, 2, Phase.TRAIN, 1, 3, Cause.DIVERGED, "loss is nan"),
    Durable(7, 12),
    UnitStopped(7),
    Drain(),
    Start(Visit(7, 1, 2, Phase.TRAIN, 5, 1), (7, 8), (3,)),
    EpochEnded(7, 1),
    UnitFinished(7),
    UnitFailed(7, "diverged", Cause.DIVERGED),
    Finished(),
    Stalled(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_survives_json(message: Message) -> None:
    back = from_dict(json.loads(json.dumps(to_dict(message))))
    assert back == message
    assert type(back) is type(message)


def test_a_message_that_survives_json_has_enums_again() -> None:
    back = from_dict(json.loads(json.dumps(to_dict(MESSAGES[5]))))
    assert isinstance(back, VisitFailed)
    assert (back.phase, back.cause) == (Phase.TRAIN, Cause.DIVERGED)
    assert isinstance(back.cause, Cause)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Nonsense"},
        {"type": "Durable", "unit": 1},
        {"type": "Durable", "unit": 1, "visits": 2, "extra": 3},
        {"type": "UnitAdded", "unit": {"id": 1}},
        {"type": "VisitDone", "phase": "sleep"},
    ],
)
def test_what_is_not_a_message_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"unknown message type|must have|is not a valid Phase"):
        from_dict(data)
