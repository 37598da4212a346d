from __future__ import annotations

from dataclasses import replace

import pytest

from cerebro.backend.base import Done, Failure, FailureKind
from cerebro.run.unit import LiveUnit
from cerebro.train.visit import MemberReport, Stacking, VisitCall, VisitReport
from cerebro.types import Split, TrialStatus

STEPS = 2


def done(
    visit: int,
    sums: dict,
    *,
    split: Split = Split.TRAIN,
    compute_s: float = 0.0,
    comm_s: float = 0.0,
) -> Done:
    epoch, step = divmod(visit, STEPS)
    call = VisitCall(
        unit=3,
        trials=(3,),
        params=({},),
        seed=0,
        epoch=epoch,
        step=step,
        steps=STEPS,
        split=split,
        shard=1 - step,
        attempt=2,
        batch_size=8,
    )
    rows = next(iter(sums.values()))[1]
    members = (MemberReport(sums=sums),)
    report = VisitReport(rows=rows, members=members, compute_s=compute_s, comm_s=comm_s)
    return Done(5, call, report, None)


def only(records):
    (record,) = records
    return record


@pytest.fixture
def trial():
    return LiveUnit(3, {3: {"lr": 0.1}}, alive={3: None})


def test_the_record_of_a_visit_says_what_where_and_when(trial):
    event = done(1, {"loss": (4.0, 8)})
    trial.add(event)
    record = trial.visit_record(event, 1.23456789, 2.0, {})
    assert record == {
        "type": "visit",
        "trial": 3,
        "epoch": 0,
        "step": 1,
        "shard": 0,
        "attempt": 2,
        "worker": 5,
        "start_s": 1.234568,
        "end_s": 2.0,
        "rows": 8,
        "sums": {"loss": [4.0, 8]},
    }


def test_the_time_of_an_epoch_has_what_ranks_waited_for_each_other(trial):
    for visit in range(STEPS):
        trial.add(done(visit, {"loss": (1.0, 8)}, compute_s=2.0, comm_s=1.0))
    assert only(trial.epoch_records(0, STEPS, 0))["seconds"] == 6.0


def test_metrics_of_an_epoch_are_means_over_rows_not_over_shards(trial):
    trial.add(done(0, {"loss": (30.0, 10)}))
    trial.add(done(1, {"loss": (0.0, 20)}))
    trial.add(done(0, {"loss": (1.0, 1), "accuracy": (1.0, 1)}, split=Split.VAL))
    trial.add(done(1, {"loss": (1.0, 3), "accuracy": (0.0, 3)}, split=Split.VAL))
    record = only(trial.epoch_records(0, STEPS, 2))
    assert record["metrics"] == {"train_loss": 1.0, "val_loss": 0.5, "val_accuracy": 0.25}
    assert (record["type"], record["trial"], record["epoch"]) == ("epoch", 3, 0)


def test_sums_are_added_in_shard_order_whatever_came_first(trial):
    """Floating-point sums depend on their order, and results must not depend on timing."""
    parts = [1e16, 1.0, -1e16]
    for shard in (2, 0, 1):
        event = done(0, {"loss": (parts[shard], 1)}, split=Split.VAL)
        trial.evals[0, shard] = {3: event.report.members[0].sums}
    trial.add(done(0, {"loss": (1.0, 1)}))
    trial.add(done(1, {"loss": (1.0, 1)}))
    expected = (parts[0] + parts[1] + parts[2]) / 3
    assert only(trial.epoch_records(0, STEPS, 3))["metrics"]["val_loss"] == expected


def test_an_epoch_without_validation_has_train_metrics_alone(trial):
    for visit in range(STEPS):
        trial.add(done(visit, {"loss": (2.0, 1)}))
    assert only(trial.epoch_records(0, STEPS, 0))["metrics"] == {"train_loss": 2.0}


def test_the_seconds_of_an_epoch_are_those_of_its_loops(trial):
    trial.add(done(0, {"loss": (1.0, 1)}, compute_s=0.5))
    trial.add(done(1, {"loss": (1.0, 1)}, compute_s=0.25))
    assert only(trial.epoch_records(0, STEPS, 0))["seconds"] == 0.75
    trial.add(done(2, {"loss": (1.0, 1)}, compute_s=2.0))
    trial.add(done(3, {"loss": (1.0, 1)}))
    assert only(trial.epoch_records(1, STEPS, 0))["seconds"] == 2.0


def failure(message: str = "ValueError: no luck") -> Failure:
    return Failure(
        kind=FailureKind.ERROR, message=message, traceback="Traceback: …", signature="s", error="E"
    )


def test_a_trial_that_finished_ends_without_an_error_even_after_a_retry(trial):
    trial.failure = failure()
    record = only(trial.end(TrialStatus.FINISHED, None))
    assert record == {
        "type": "trial_end",
        "trial": 3,
        "status": "finished",
        "error": None,
        "traceback": None,
    }


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (TrialStatus.FAILED, "2 attempts failed", "ValueError: no luck (2 attempts failed)"),
        (TrialStatus.FAILED, None, "ValueError: no luck"),
        (TrialStatus.DIVERGED, "diverged: loss is nan", "ValueError: no luck"),
    ],
)
def test_a_trial_that_failed_ends_with_its_cause(trial, status, reason, error):
    trial.failure = failure()
    record = only(trial.end(status, reason))
    assert (record["status"], record["error"]) == (str(status), error)
    assert record["traceback"] == "Traceback: …"


def test_a_trial_that_failed_for_no_known_cause_gives_the_planners_reason(trial):
    record = only(trial.end(TrialStatus.FAILED, "quarantined"))
    assert (record["error"], record["traceback"]) == ("quarantined", None)


# Stacks


def stack_done(visit: int, reports: dict[int, MemberReport], *, split: Split = Split.TRAIN) -> Done:
    event = done(visit, {"loss": (1.0, 2)}, split=split, compute_s=3.0)
    call = replace(
        event.call, unit=-4, trials=tuple(reports), params=({},) * len(reports), stack=Stacking()
    )
    report = replace(event.report, members=tuple(reports.values()))
    return replace(event, call=call, report=report)


def loss(value: float) -> MemberReport:
    return MemberReport(sums={"loss": (value, 2)})


@pytest.fixture
def stack():
    trials = (3, 5, 8)
    return LiveUnit(-4, {n: {} for n in trials}, Stacking(), alive=dict.fromkeys(trials))


def test_the_record_of_a_stacks_visit_has_the_sums_of_each_trial(stack):
    event = stack_done(0, {3: loss(1.0), 5: loss(2.0), 8: loss(3.0)})
    assert stack.add(event) == {}
    record = stack.visit_record(event, 0.0, 1.0, {})
    assert (record["stack"], record["trials"]) == (3, [3, 5, 8])
    assert record["members"] == [{"loss": [value, 2]} for value in (1.0, 2.0, 3.0)]
    assert not {"trial", "sums", "diverged"} & record.keys()


def test_a_member_that_diverged_is_told_and_has_no_sums(stack):
    lost = MemberReport(sums={"loss": (9.0, 2)}, diverged="loss is nan")
    event = stack_done(0, {3: loss(1.0), 5: lost, 8: loss(3.0)})
    diverged = stack.add(event)
    assert diverged == {5: "loss is nan"}
    (ended,) = stack.leave(TrialStatus.DIVERGED, diverged)
    assert (ended["trial"], ended["status"], ended["error"]) == (5, "diverged", "loss is nan")
    record = stack.visit_record(event, 0.0, 1.0, diverged)
    assert record["diverged"] == {"5": "loss is nan"}
    assert record["members"][1] == {}
    assert list(stack.alive) == [3, 8]


def test_what_is_said_of_it_later_is_ignored(stack):
    stack.leave(TrialStatus.STOPPED, {5: "not good enough"})
    again = MemberReport(sums={}, diverged="loss is nan")
    assert stack.add(stack_done(0, {3: loss(1.0), 5: again, 8: loss(3.0)})) == {}
    stack.add(stack_done(1, {3: loss(1.0), 5: loss(0.0), 8: loss(3.0)}))
    assert [record["trials"] for record in stack.epoch_records(0, STEPS, 0)] == [[3, 8]]


def test_each_trial_of_a_stack_has_its_means_and_its_share_of_the_time(stack):
    for visit in range(STEPS):
        stack.add(stack_done(visit, {3: loss(1.0), 5: loss(2.0), 8: loss(3.0)}))
    stack.recorded = frozenset({5})
    (record,) = stack.epoch_records(0, STEPS, 0)
    assert (record["stack"], record["trials"]) == (3, [3, 8])
    assert [metrics["train_loss"] for metrics in record["metrics"]] == [0.5, 1.5]
    assert record["seconds"] == 2.0


def test_all_trials_that_are_left_end_together(stack):
    stack.leave(TrialStatus.DIVERGED, {3: "loss is nan"})
    records = stack.end(TrialStatus.FINISHED, None)
    assert [(record["trial"], record["status"]) for record in records] == [
        (5, "finished"),
        (8, "finished"),
    ]
    assert stack.end(TrialStatus.FINISHED, None) == []


def test_only_visits_are_counted_among_what_waits(stack):
    stack.waiting = [{"type": "visit"}, {"type": "trial_end"}, {"type": "visit"}]
    assert stack.num_waiting == 2
