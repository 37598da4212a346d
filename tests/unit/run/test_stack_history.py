from __future__ import annotations

from typing import Any

import pytest

from cerebro.errors import JournalCorruptError
from cerebro.run.entry import entries, stack_entry
from cerebro.run.history import Extract, RunHistory
from cerebro.storage.layout import checkpoint_name
from cerebro.types import Mode, TrialStatus
from tests.experiments import make_toy_data, toy_spec
from tests.unit.run.test_history import end_record, epoch_record, trial_record

STEPS = 2
UNIT = -1


def composed(*trials: int) -> list[dict[str, Any]]:
    """Records of a stack of these trials, and of the trials."""
    value = {"trials": list(trials), "start": 1, "stack": {"compiled": True}}
    placed = {"type": "stacks", "trials": list(trials), "stacks": [value]}
    return [*(trial_record(number) for number in trials), placed]


def visit(number: int, *trials: int, diverged=None, is_saved=True, **changes) -> dict[str, Any]:
    epoch, step = divmod(number, STEPS)
    ref = {"stack": 0, "visits": number + 1, "name": checkpoint_name(number + 1, 0)}
    record = {
        "type": "visit",
        "stack": 0,
        "trials": list(trials),
        "epoch": epoch,
        "step": step,
        "members": [{"loss": [float(trial), 1]} for trial in trials],
        "checkpoint": {**ref, "sha256": "0" * 64, "bytes": 1, "parent": None} if is_saved else None,
        **changes,
    }
    if diverged:
        record["diverged"] = {str(trial): "loss is nan" for trial in diverged}
    return record


def own(trial: int, visits: int) -> dict[str, Any]:
    name = checkpoint_name(visits, 0)
    ref = {"trial": trial, "visits": visits, "name": name, "sha256": "1" * 64, "bytes": 1}
    return {**ref, "parent": "0" * 64}


def replay(*records) -> RunHistory:
    return RunHistory.replay(records, steps=STEPS, epochs=100, metric="val_loss", mode=Mode.MIN)


def epoch(number: int, values: dict[int, float]) -> list[dict[str, Any]]:
    """Visits and records of an epoch of a stack."""
    visits = [visit(number * STEPS + step, *values) for step in range(STEPS)]
    return [*visits, *(epoch_record(number, value, trial) for trial, value in values.items())]


def visits_of(refs) -> list[int]:
    return [ref.visits for ref in refs]


def test_trials_of_a_stack_share_its_start_and_advance_together():
    history = replay(*composed(0, 1), visit(0, 0, 1))
    stack = history.stacks[UNIT]
    assert (stack.trials, stack.start, stack.stacking.compiled) == ((0, 1), 1, True)
    for number in (0, 1):
        trial = history.trials[number]
        assert (trial.visits, trial.status, trial.start) == (1, TrialStatus.RUNNING, 1)
        assert trial.sums == {0: {"loss": (float(number), 1)}}
    assert visits_of(stack.checkpoints) == [1]


def test_visits_of_a_stack_follow_each_other():
    with pytest.raises(JournalCorruptError, match="visit 2 of the stack follows 1"):
        replay(*composed(0, 1), visit(0, 0, 1), visit(2, 0, 1))


def test_a_stack_that_was_not_composed_is_refused():
    with pytest.raises(JournalCorruptError):
        replay(trial_record(0), visit(0, 0))


def test_a_member_that_diverges_ends_where_it_was():
    history = replay(*composed(0, 1), visit(0, 0, 1), visit(1, 0, 1, diverged=[1]))
    trial = history.trials[1]
    assert (trial.status, trial.error, trial.visits) == (TrialStatus.DIVERGED, "loss is nan", 1)
    assert history.trials[0].visits == 2


def test_later_visits_do_not_touch_it():
    records = [visit(0, 0, 1, diverged=[1]), end_record("diverged", 1), visit(1, 0, 1)]
    history = replay(*composed(0, 1), *records)
    assert history.trials[1].visits == 0
    assert history.trials[1].status is TrialStatus.DIVERGED


def test_it_keeps_its_last_state_as_long_as_the_others_train():
    rest = [visit(number, 0, 1) for number in range(2, 8)]
    records = [visit(0, 0, 1), visit(1, 0, 1, diverged=[1]), *rest]
    history = replay(*composed(0, 1), *records)
    assert visits_of(history.stacks[UNIT].checkpoints) == [1, 7, 8]
    assert visits_of(history.kept(history.trials[1])) == [1]


def test_the_last_two_and_the_best_of_every_member_are_kept():
    records = [
        *epoch(0, {0: 0.1, 1: 0.9, 2: 0.9}),
        *epoch(1, {0: 0.5, 1: 0.2, 2: 0.8}),
        *epoch(2, {0: 0.5, 1: 0.5, 2: 0.7}),
        *epoch(3, {0: 0.5, 1: 0.5, 2: 0.6}),
    ]
    history = replay(*composed(0, 1, 2), *records)
    assert visits_of(history.stacks[UNIT].checkpoints) == [2, 4, 7, 8]
    kept = [visits_of(history.kept(trial)) for trial in history.trials.values()]
    assert kept == [[2, 8], [4, 8], [8]]
    gone = history.apply(*(end_record("finished", trial) for trial in range(3)))
    assert visits_of(gone) == [7]


def test_applying_record_by_record_is_the_same_as_replaying():
    records = [
        *composed(0, 1),
        *epoch(0, {0: 0.1, 1: 0.9}),
        visit(2, 0, 1, diverged=[1]),
        end_record("diverged", 1),
        visit(3, 0, 1),
        epoch_record(1, 0.2, 0),
        *epoch(2, {0: 0.05}),
        end_record("finished", 0),
        {"type": "dropped", "trial": 1},
    ]
    history = RunHistory(STEPS, 100, "val_loss", Mode.MIN)
    for count, record in enumerate(records, start=1):
        history.apply(record)
        assert history == replay(*records[:count])


# Taking out


def long_history(epochs: int) -> RunHistory:
    """Each epoch is the best of one member."""
    members = range(epochs)
    values = [{m: 0.1 if m == number else 0.5 for m in members} for number in range(epochs)]
    found = [record for number in range(epochs) for record in epoch(number, values[number])]
    return replay(*composed(*members), *found)


def test_of_few_checkpoints_nothing_is_taken_out():
    history = long_history(5)
    assert visits_of(history.stacks[UNIT].checkpoints) == [2, 4, 6, 8, 9, 10]
    assert history.extracts(history.stacks[UNIT]) == []


def test_of_many_the_oldest_are_given_to_those_who_want_them():
    history = long_history(8)
    stack = history.stacks[UNIT]
    extracts = history.extracts(stack)
    assert extracts == [Extract(stack.checkpoints[n], (n,)) for n in range(3)]


def test_what_was_taken_out_belongs_to_the_trial():
    history = long_history(8)
    name = checkpoint_name(2, 0)
    taken = {"type": "taken", "stack": 0, "name": name, "checkpoints": [own(0, 2)]}
    assert visits_of(history.apply(taken)) == [2]
    trial = history.trials[0]
    assert [(ref.unit, ref.visits) for ref in history.kept(trial)] == [(0, 2), (UNIT, 16)]
    assert len(history.extracts(history.stacks[UNIT])) == 2
    # Once the trial does better, its old best is of no use.
    gone = history.apply(*epoch(8, {m: 0.01 if m == 0 else 0.9 for m in range(8)}))
    assert [(ref.unit, ref.visits) for ref in gone if ref.unit == 0] == [(0, 2)]


def test_a_dropped_member_wants_nothing():
    history = long_history(3)
    history.apply(*(end_record("finished", trial) for trial in range(3)))
    gone = history.apply({"type": "dropped", "trial": 1}, {"type": "dropped", "trial": 2})
    assert visits_of(gone) == [4]
    extracts = history.extracts(history.stacks[UNIT], limit=0)
    assert [(extract.ref.visits, extract.trials) for extract in extracts] == [(2, (0,)), (6, (0,))]


# Dissolving


def test_members_of_a_dissolved_stack_go_on_alone():
    history = replay(*composed(0, 1), *epoch(0, {0: 0.1, 1: 0.2}), visit(2, 0, 1))
    refs = [own(0, 2), own(1, 2), own(0, 3), own(1, 3)]
    record = {"type": "dissolved", "stack": 0, "visits": 3, "checkpoints": refs}
    assert visits_of(history.apply(record)) == [2, 3]
    assert history.is_over(history.stacks[UNIT])
    for trial in history.trials.values():
        assert (trial.stack, trial.visits) == (None, 3)
        assert visits_of(trial.checkpoints) == [2, 3]


def test_without_checkpoints_they_start_over():
    history = replay(*composed(0, 1), visit(0, 0, 1, is_saved=False))
    history.apply({"type": "dissolved", "stack": 0, "visits": 0, "checkpoints": []})
    assert [trial.visits for trial in history.trials.values()] == [0, 0]
    assert history.trials[0].status is TrialStatus.PENDING


def test_those_that_have_ended_stay_as_they_are():
    history = replay(*composed(0, 1), visit(0, 0, 1), visit(1, 0, 1, diverged=[1]))
    refs = [own(1, 1), own(0, 2)]
    history.apply({"type": "dissolved", "stack": 0, "visits": 2, "checkpoints": refs})
    assert history.trials[1].status is TrialStatus.DIVERGED
    assert visits_of(history.trials[1].checkpoints) == [1]


# Rolling back and going on


def test_rolling_back_revives_those_that_ended_later():
    records = [visit(0, 0, 1, 2, diverged=[2]), visit(1, 0, 1, 2), visit(2, 0, 1, diverged=[1])]
    history = replay(*composed(0, 1, 2), *records)
    assert history.stacks[UNIT].members_at(3) == (0, 1)
    history.apply({"type": "rollback", "stack": 0, "visits": 2})
    statuses = [history.trials[number].status for number in range(3)]
    assert statuses == [TrialStatus.RUNNING, TrialStatus.RUNNING, TrialStatus.DIVERGED]
    assert history.stacks[UNIT].members_at(2) == (0, 1, 2)


@pytest.fixture
def spec(data):
    return toy_spec(data, epochs=4, stack="auto")


def test_a_stack_goes_on_with_all_members_until_the_epoch_ends(spec):
    history = replay(*composed(0, 1), *epoch(0, {0: 1.0, 1: 1.0}), visit(2, 0, 1, diverged=[1]))
    entry = stack_entry(history, history.stacks[UNIT], spec)
    assert entry.added[1:] == (1, 1, (0,))
    assert entry.added.unit.trials == (0, 1)
    assert list(entry.live.alive) == [0]
    assert entry.checkpoint is not None
    assert entry.checkpoint.visits == 3


def test_a_new_epoch_begins_without_those_that_have_ended(spec):
    records = [visit(0, 0, 1, diverged=[1]), visit(1, 0, 1), epoch_record(0, 0.5, 0)]
    (entry,) = entries(replay(*composed(0, 1), *records), spec)
    assert entry.added[1:] == (1, 0, (0,))
    assert entry.added.unit.trials == (0,)


def test_records_of_an_epoch_that_were_cut_off_are_made_good(spec):
    records = [visit(0, 0, 1), visit(1, 0, 1), epoch_record(0, 0.5, 0)]
    (entry,) = entries(replay(*composed(0, 1), *records), spec)
    assert entry.added[1:3] == (0, 2)
    assert entry.live.recorded == {0}


def test_a_stack_that_is_over_does_not_go_on(spec):
    records = [visit(0, 0, 1), end_record("diverged", 0), end_record("stopped", 1)]
    assert entries(replay(*composed(0, 1), *records), spec) == []


def test_who_has_left_a_stack_is_not_worked_on_with_it(tmp_path):
    """Units enter in the order in which they were last worked on, as they would without a kill."""
    left = {"type": "left", "trial": 0, "checkpoints": []}
    history = replay(*composed(0, 1), left, trial_record(2), visit(0, 0, 1))
    make_toy_data(tmp_path / "data")
    found = entries(history, toy_spec(tmp_path / "data", epochs=100))
    assert [entry.live.id for entry in found] == [0, 2, UNIT]
