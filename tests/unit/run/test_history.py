from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import CheckpointCorruptError, JournalCorruptError
from cerebro.run.history import RunHistory
from cerebro.run.ranking import rank_trials
from cerebro.storage.layout import checkpoint_name
from cerebro.types import Mode, TrialStatus

STEPS = 2


def trial_record(number: int = 0, **params: Any) -> dict[str, Any]:
    return {"type": "trial", "trial": number, "params": params, "start": number % STEPS}


def visit_record(visit: int, trial: int = 0, *, is_saved: bool = True) -> dict[str, Any]:
    epoch, step = divmod(visit, STEPS)
    name = checkpoint_name(visit + 1, 0)
    ref = {"trial": trial, "visits": visit + 1, "name": name, "sha256": "0" * 64, "bytes": 1}
    return {
        "type": "visit",
        "trial": trial,
        "epoch": epoch,
        "step": step,
        "sums": {"loss": [float(visit), 1]},
        "checkpoint": {**ref, "parent": None} if is_saved else None,
    }


def epoch_record(epoch: int, value: float, trial: int = 0, name: str = "val_loss"):
    metrics = {name: value}
    return {"type": "epoch", "trial": trial, "epoch": epoch, "metrics": metrics, "seconds": 1.5}


def end_record(status: str = "finished", trial: int = 0, **changes: Any) -> dict[str, Any]:
    return {"type": "trial_end", "trial": trial, "status": status, "error": None, **changes}


def epochs_of(values: list[float], trial: int = 0) -> list[dict[str, Any]]:
    """All records of a trial with these values, one an epoch."""
    found = [trial_record(trial)]
    for epoch, value in enumerate(values):
        first = epoch * STEPS
        found += [visit_record(first + step, trial) for step in range(STEPS)]
        found.append(epoch_record(epoch, value, trial))
    return found


def replay(records: list[dict[str, Any]], mode: Mode = Mode.MIN, metric: str = "val_loss"):
    return RunHistory.replay(records, steps=STEPS, epochs=100, metric=metric, mode=mode)


def kept(history: RunHistory, trial: int = 0) -> list[int]:
    return [ref.visits for ref in history.trials[trial].checkpoints]


def test_no_records_make_no_trials():
    history = replay([])
    assert (history.trials, history.drivers, history.is_finished) == ({}, 0, False)


def test_a_trial_counts_its_durable_visits():
    history = replay([trial_record(lr=0.1), visit_record(0), visit_record(1), visit_record(2)])
    trial = history.trials[0]
    assert (trial.visits, trial.status, trial.params) == (3, TrialStatus.RUNNING, {"lr": 0.1})
    assert trial.last_checkpoint is not None
    assert trial.last_checkpoint.visits == 3


def test_a_trial_that_did_nothing_yet_is_pending_and_has_no_checkpoint():
    trial = replay([trial_record()]).trials[0]
    assert (trial.status, trial.last_checkpoint) == (TrialStatus.PENDING, None)


def test_an_epoch_remembers_its_metrics_and_what_it_took():
    (epoch,) = replay(epochs_of([0.5])).trials[0].epochs
    assert (epoch.metrics, epoch.visits, epoch.seconds) == ({"val_loss": 0.5}, 2, 1.5)


def test_the_end_of_a_trial_says_why():
    ended = end_record("failed", error="no luck", traceback="Traceback …")
    trial = replay([trial_record(), ended]).trials[0]
    assert (trial.status, trial.error) == (TrialStatus.FAILED, "no luck")
    assert trial.traceback == "Traceback …"


def test_a_run_is_finished_until_another_driver_takes_it_up():
    records = [{"type": "driver"}, {"type": "done", "summary": {"efficiency": 0.9}}]
    history = replay(records)
    assert (history.is_finished, history.drivers) == (True, 1)
    assert history.summary == {"efficiency": 0.9}
    assert not replay([*records, {"type": "driver"}]).is_finished


def test_a_forced_change_is_remembered_for_people_alone():
    forced = {"type": "forced", "field": "seed", "old": 0, "new": 1}
    assert replay([forced]) == replay([])


# Checkpoints that are kept


def test_checkpoints_that_went_under_another_mode_are_not_expected_back():
    forced = {"type": "forced", "field": "mode", "old": "min", "new": "max"}
    history = replay([*epochs_of([0.3, 0.2, 0.1]), forced], Mode.MAX)
    assert history.trials[0].best_epoch("val_loss", history.mode) == 0
    assert kept(history) == [5, 6]


def test_the_last_two_checkpoints_of_a_running_trial_are_kept():
    history = replay([trial_record(), *(visit_record(n) for n in range(2))])
    assert kept(history) == [1, 2]
    superfluous = history.apply(visit_record(2))
    assert [ref.visits for ref in superfluous] == [1]
    assert kept(history) == [2, 3]


@pytest.mark.parametrize(("mode", "best"), [(Mode.MIN, 4), (Mode.MAX, 2)])
def test_the_best_epochs_checkpoint_is_kept_beside_them(mode, best):
    records = [*epochs_of([0.5, 0.2, 0.3, 0.4]), visit_record(8)]
    assert kept(replay(records, mode)) == [best, 8, 9]


def test_a_better_epoch_frees_the_checkpoint_of_the_one_before():
    history = replay([*epochs_of([0.5]), visit_record(2), visit_record(3), visit_record(4)])
    assert kept(history) == [2, 4, 5]
    assert [ref.visits for ref in history.apply(epoch_record(1, 0.1))] == [2]


def test_a_finished_trial_keeps_its_last_checkpoint_and_the_best():
    assert kept(replay([*epochs_of([0.5, 0.2, 0.3]), end_record()])) == [4, 6]
    assert kept(replay([*epochs_of([0.5, 0.2]), end_record()])) == [4]


def test_the_first_of_equal_epochs_is_the_best():
    history = replay(epochs_of([0.5, 0.2, 0.2]))
    assert history.trials[0].best_epoch("val_loss", Mode.MIN) == 1
    assert history.trials[0].best_epoch("val_loss", Mode.MAX) == 0


def test_a_metric_that_no_epoch_has_has_no_best_epoch():
    history = replay(epochs_of([0.5]), metric="val_accuracy")
    assert history.trials[0].best_epoch("val_accuracy", Mode.MAX) is None
    assert kept(history) == [1, 2]


def test_epochs_without_the_metric_are_passed_over():
    records = epochs_of([0.5, 0.2])
    records[3]["metrics"] = {"train_loss": 0.0}
    assert replay(records).trials[0].best_epoch("val_loss", Mode.MIN) == 1


def test_a_dropped_trial_keeps_nothing():
    history = replay([*epochs_of([0.5, 0.2]), end_record()])
    superfluous = history.apply({"type": "dropped", "trial": 0})
    assert [ref.visits for ref in superfluous] == [4]
    assert (kept(history), history.trials[0].is_dropped) == ([], True)


def test_visits_without_a_checkpoint_leave_none():
    assert kept(replay([trial_record(), visit_record(0, is_saved=False)])) == []


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=5), st.sampled_from(Mode))
def test_what_is_kept_are_the_last_two_and_the_best_at_every_moment(values, mode):
    history = RunHistory(STEPS, 100, "val_loss", mode)
    gone: list[int] = []
    for record in epochs_of(values):
        gone += [ref.visits for ref in history.apply(record)]
        trial = history.trials[0]
        found = [epoch.metrics["val_loss"] for epoch in trial.epochs]
        best = found.index(max(found) if mode is Mode.MAX else min(found)) if found else None
        expected = {n for n in (trial.visits - 1, trial.visits) if n > 0}
        expected |= {trial.epochs[best].visits} if best is not None else set()
        assert kept(history) == sorted(expected)
        assert sorted([*gone, *expected]) == list(range(1, trial.visits + 1))


# Sums


def test_sums_of_the_epoch_under_way_and_of_the_one_before_are_there():
    trial = replay([*epochs_of([0.5, 0.4, 0.3]), visit_record(6)]).trials[0]
    assert trial.sums == {visit: {"loss": (float(visit), 1)} for visit in (3, 4, 5, 6)}


# Going back


def test_going_back_forgets_what_came_later():
    records = [*epochs_of([0.5, 0.2]), visit_record(4), end_record("failed", error="x")]
    history = replay([*records, {"type": "rollback", "trial": 0, "visits": 2}])
    trial = history.trials[0]
    assert (trial.visits, len(trial.epochs), kept(history)) == (2, 1, [])
    assert (trial.status, trial.error) == (TrialStatus.RUNNING, None)
    assert max(trial.sums) == 1


def test_going_back_to_the_beginning_makes_a_trial_pending():
    history = replay([*epochs_of([0.5]), {"type": "rollback", "trial": 0, "visits": 0}])
    trial = history.trials[0]
    assert (trial.status, trial.visits, trial.epochs) == (TrialStatus.PENDING, 0, [])


def test_a_trial_goes_on_from_where_it_went_back_to():
    history = replay([*epochs_of([0.5]), {"type": "rollback", "trial": 0, "visits": 1}])
    assert kept(history) == [1]
    history.apply(visit_record(1))
    assert kept(history) == [1, 2]


# Records that do not fit


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (visit_record(1), "visit 1 of trial 0 follows 0"),
        (visit_record(0, trial=7), "KeyError: 7"),
        ({"type": "visit", "trial": 0}, "KeyError: 'epoch'"),
        ({"type": "party", "trial": 0}, "unknown record type 'party'"),
        ({"type": "party"}, "KeyError: 'trial'"),
        ({}, "KeyError: 'type'"),
        (end_record("lost"), "'lost' is not a valid TrialStatus"),
        ({**visit_record(0), "sums": [1]}, "AttributeError"),
    ],
)
def test_a_record_that_does_not_fit_is_named_with_its_number(record, what):
    with pytest.raises(JournalCorruptError) as caught:
        replay([trial_record(), record])
    assert "journal record 2 does not fit the ones before it" in str(caught.value)
    assert what in str(caught.value)
    assert str(record)[:50] in str(caught.value)


def test_a_reference_that_leads_nowhere_is_refused():
    record = {**visit_record(0), "checkpoint": {"name": "../../etc/passwd"}}
    with pytest.raises(CheckpointCorruptError, match="not a reference"):
        replay([trial_record(), record])


# Ranking


def many(values: dict[int, list[float]]) -> list[dict[str, Any]]:
    return [record for trial, found in values.items() for record in epochs_of(found, trial)]


@pytest.mark.parametrize(("mode", "order"), [(Mode.MIN, [1, 0, 2]), (Mode.MAX, [2, 0, 1])])
def test_trials_are_ranked_by_their_best_epoch(mode, order):
    history = replay(many({0: [0.5, 0.4], 1: [0.1, 0.2], 2: [0.9, 0.45]}), mode)
    assert [row.trial for row in rank_trials(history).rows] == order


def test_ties_go_to_the_earlier_trial():
    history = replay(many({2: [0.5], 0: [0.5], 1: [0.5]}))
    assert [row.trial for row in rank_trials(history).rows] == [0, 1, 2]


def test_failed_and_diverged_trials_and_those_without_a_value_come_last():
    records = many({0: [0.0], 1: [0.1], 2: [], 3: [0.9], 4: [0.8]})
    records += [end_record("failed", 0), end_record("diverged", 1), end_record("finished", 3)]
    assert [row.trial for row in rank_trials(replay(records)).rows] == [4, 3, 0, 1, 2]


# Decisions


def decided(what, *trials, by="search", **more):
    return {"type": "decision", "what": what, "trials": list(trials), "by": by, **more}


PERSON = "me@here:1"
NEW = {"type": "trial", "trial": 0, "params": {}, "start": 0}


def status_after(*records):
    return replay([NEW, *records]).trials[0].status


def test_the_search_does_not_undo_what_a_person_has_stopped():
    stopped = decided("stop", 0, by=PERSON)
    assert status_after(stopped, decided("promote", 0, epochs=3)) is TrialStatus.STOPPED
    again = decided("promote", 0, epochs=3, by=PERSON)
    assert status_after(stopped, again) is TrialStatus.PENDING


def test_nor_what_a_person_has_paused_though_it_may_go_further_then():
    paused = [decided("pause", 0, by=PERSON), decided("promote", 0, epochs=3)]
    assert status_after(*paused) is TrialStatus.PAUSED
    history = replay([NEW, *paused, decided("promote", 0, by=PERSON)])
    assert (history.trials[0].status, history.trials[0].target) == (TrialStatus.PENDING, 3)


def test_what_the_search_has_paused_it_lets_go_on():
    paused = decided("pause", 0)
    assert status_after(paused, decided("promote", 0, epochs=3)) is TrialStatus.PENDING


def test_what_is_proposed_when_the_run_has_ended_ends_with_it():
    halt = {"type": "decision", "what": "halt", "by": PERSON, "reason": "enough"}
    history = replay([NEW, halt, {**NEW, "trial": 1}, {**NEW, "trial": 2, "command": "id"}])
    statuses = [str(trial.status) for trial in history.trials.values()]
    assert statuses == ["stopped", "stopped", "pending"]
    assert history.trials[1].error == "enough"


def test_a_copy_of_an_untrained_copy_begins_with_the_first_ones_hyperparameters():
    first = {**NEW, "params": {"lr": 0.1}}
    copy = {**NEW, "trial": 1, "params": {"lr": 0.2}, "parent": 0, "visits": 0}
    history = replay([first, copy, {**copy, "trial": 2, "params": {"lr": 0.4}, "parent": 1}])
    assert history.trials[2].parent_params == {"lr": 0.1}
