from __future__ import annotations

from typing import Any

import pytest

from cerebro.run.direction import Direction
from cerebro.search.conductor import Conductor, Propose
from cerebro.search.decision import Halt, Outcome, Promote, Stop
from cerebro.search.sampler import GridSampler
from cerebro.search.space import parse_space
from cerebro.search.stopper import Endless
from cerebro.search.stoppers import make_stopper
from cerebro.types import Mode, Params, TrialStatus

STEPS, EPOCHS = 2, 4
LRS = [0.1, 0.2, 0.3, 0.4]


def direction(stopper: object = None) -> Direction:
    made = make_stopper(stopper, metric="loss", mode=Mode.MIN, epochs=EPOCHS, num_trials=4)
    sampler = GridSampler(parse_space({"lr": LRS}))
    conductor = Conductor(
        sampler, made, epochs=EPOCHS, concurrent=None, objectives=[("loss", Mode.MIN)]
    )
    return Direction(conductor, steps=STEPS, epochs=EPOCHS, is_gated=stopper is not None)


def trial(number: int, **more: Any) -> dict[str, Any]:
    params = {"lr": LRS[number]}
    return {
        "type": "trial",
        "trial": number,
        "params": params,
        "start": 0,
        "proposal": number,
    } | more


def promote(epochs: int, *trials: int) -> dict[str, Any]:
    found = {"type": "decision", "what": "promote", "by": "search"}
    return {**found, "trials": list(trials), "epochs": epochs}


def epoch(number: int, count: int, loss: float) -> dict[str, Any]:
    return {"type": "epoch", "trial": number, "epoch": count - 1, "metrics": {"loss": loss}}


#: A run of successive halving: 4 trials, 1 epoch, the best two; 2 epochs, the best; 4.
HALVING = {"name": "halving", "eta": 2}
RECORDS = [
    *(trial(n) for n in range(4)),
    promote(1, 0, 1, 2, 3),
    *(epoch(n, 1, loss) for n, loss in enumerate((0.4, 0.3, 0.2, 0.1))),
]


def test_without_a_stopper_trials_are_proposed_and_that_is_all() -> None:
    found = direction()
    found.begin()
    assert found.take() == [Propose(n, 0, {"lr": lr}) for n, lr in enumerate(LRS)]
    for number in range(4):
        found.hear(trial(number))
    assert found.take() == []


def test_with_one_they_wait_for_their_first_promotion() -> None:
    found = direction(HALVING)
    found.begin()
    found.take()
    for number in range(4):
        found.hear(trial(number))
    assert found.take() == [Promote(n, 1) for n in range(4)]


def test_a_resumed_run_knows_what_is_left_to_do() -> None:
    found = direction(HALVING)
    found.begin(RECORDS)
    due = found.take()
    assert {action for action in due if isinstance(action, Promote)} == {
        Promote(2, 2),
        Promote(3, 2),
    }
    assert {action.trial for action in due if isinstance(action, Stop)} == {0, 1}


@pytest.mark.parametrize("cut", range(len(RECORDS) + 1))
def test_wherever_it_was_cut_off_the_same_is_decided_in_the_end(cut: int) -> None:
    """What is heard before the cut is told again by the journal, and the rest as it happens."""
    found = direction(HALVING)
    found.begin(RECORDS[:cut])
    for record in RECORDS[cut:]:
        found.take()
        found.hear(record)
    whole = direction(HALVING)
    whole.begin(RECORDS)
    assert found.take() == whole.take()


def test_a_copy_is_heard_of_before_the_end_of_who_it_replaces() -> None:
    found = direction({"name": "asha"})
    found.begin()
    for number in range(4):
        found.hear(trial(number))
    found.take()
    found.hear(
        {
            **{"type": "trial", "trial": 4, "params": {"lr": 0.5}, "start": 0, "proposal": None},
            **{"parent": 0, "visits": STEPS, "replaces": 1},
        }
    )
    assert Promote(4, 3) in found.take()


def test_what_people_let_go_on_is_not_decided_twice() -> None:
    found = direction()
    found.begin([trial(n) for n in range(4)])
    found.hear({"type": "trial_end", "trial": 0, "status": "finished"})
    found.hear({**promote(9, 0), "by": "me@here"})
    assert found.take() == []


def test_another_version_of_a_search_goes_on_from_what_was_decided(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = direction(HALVING)
    found.begin([*RECORDS, promote(2, 0)])
    assert "would not decide now as it did before (promote 0 2)" in caplog.text


HALT: dict[str, Any] = {"type": "decision", "what": "halt", "by": "search", "reason": "reached"}


def test_the_end_of_a_run_is_no_second_thought(caplog: pytest.LogCaptureFixture) -> None:
    found = direction({"name": "goal", "target": 0.25})
    found.begin([*RECORDS[:4], promote(EPOCHS, 0, 1, 2, 3), *RECORDS[5:], HALT])
    assert not caplog.text
    assert found.take() == []


def test_what_was_on_its_way_when_people_ended_a_run_ends_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = direction(HALVING)
    found.begin([*(trial(n) for n in range(3)), {**HALT, "by": "me@here"}, trial(3)])
    assert not caplog.text
    assert found.take() == []


class Listener(GridSampler):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(parse_space({"lr": LRS}))
        self.told: list[tuple[int, Params, TrialStatus]] = []

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        self.told.append((number, params, outcome.status))


def test_a_sampler_learns_from_what_people_add_but_not_from_copies() -> None:
    sampler = Listener()
    conductor = Conductor(
        *(sampler, Endless()), epochs=EPOCHS, concurrent=None, objectives=[("loss", Mode.MIN)]
    )
    found = Direction(conductor, steps=STEPS, epochs=EPOCHS, is_gated=False)
    added: dict[str, Any] = {"proposal": None, "params": {"lr": 0.7}, "command": "1"}
    copy = {**added, "trial": 5, "parent": 0, "visits": 1}
    found.begin([*(trial(n) for n in range(4)), {**trial(0), **added, "trial": 4}])
    found.hear({**trial(0), **copy})
    for number in (4, 5):
        found.hear({"type": "trial_end", "trial": number, "status": "failed"})
    assert sampler.told == [(-5, {"lr": 0.7}, TrialStatus.FAILED)]


def visit(number: int, step: int, loss: float, **more: Any) -> dict[str, Any]:
    found = {"type": "visit", "trial": number, "epoch": 0, "step": step}
    return found | {"sums": {"loss": [loss * 10, 10]}} | more


GOAL = {"name": "goal", "metric": "train_loss", "mode": "min", "target": 0.5}


def test_visits_that_a_stop_made_durable_are_heard_with_their_epoch() -> None:
    """As they would have been without it."""
    found = direction(GOAL)
    found.begin([trial(0), trial(1), visit(0, 0, 0.1, at_stop=True)])
    found.take()
    found.hear(visit(1, 0, 0.9))
    assert not any(isinstance(action, Halt) for action in found.take())
    found.hear(visit(0, 1, 0.9))
    assert [type(action) for action in found.take()] == [Halt]


def test_those_of_a_trial_that_fails_are_never_heard() -> None:
    found = direction(GOAL)
    found.begin([trial(0), trial(1), visit(0, 0, 0.1, at_stop=True)])
    found.take()
    found.hear({"type": "trial_end", "trial": 0, "status": "failed"})
    assert not any(isinstance(action, Halt) for action in found.take())
