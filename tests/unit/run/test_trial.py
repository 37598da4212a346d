from __future__ import annotations

import pytest

from cerebro.backend.base import Done, Failure, FailureKind
from cerebro.run.trial import LiveTrial
from cerebro.train.visit import VisitCall, VisitReport
from cerebro.types import Split, TrialStatus

STEPS = 2


def done(visit: int, sums: dict, *, split: Split = Split.TRAIN, compute_s: float = 0.0) -> Done:
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
    return Done(5, call, VisitReport(rows=rows, sums=sums, compute_s=compute_s), None)


@pytest.fixture
def trial():
    return LiveTrial(3, {"lr": 0.1})


def test_the_record_of_a_visit_says_what_where_and_when(trial):
    record = trial.visit_record(done(1, {"loss": (4.0, 8)}), 1.23456789, 2.0)
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


def test_metrics_of_an_epoch_are_means_over_rows_not_over_shards(trial):
    trial.add(done(0, {"loss": (30.0, 10)}))
    trial.add(done(1, {"loss": (0.0, 20)}))
    trial.add(done(0, {"loss": (1.0, 1), "accuracy": (1.0, 1)}, split=Split.VAL))
    trial.add(done(1, {"loss": (1.0, 3), "accuracy": (0.0, 3)}, split=Split.VAL))
    record = trial.epoch_record(0, STEPS, 2)
    assert record["metrics"] == {"train_loss": 1.0, "val_loss": 0.5, "val_accuracy": 0.25}
    assert (record["type"], record["trial"], record["epoch"]) == ("epoch", 3, 0)


def test_sums_are_added_in_shard_order_whatever_came_first(trial):
    """Floating-point sums depend on their order, and results must not depend on timing."""
    parts = [1e16, 1.0, -1e16]
    for shard in (2, 0, 1):
        event = done(0, {"loss": (parts[shard], 1)}, split=Split.VAL)
        trial.evals[0, shard] = event.report.sums
    trial.add(done(0, {"loss": (1.0, 1)}))
    trial.add(done(1, {"loss": (1.0, 1)}))
    expected = (parts[0] + parts[1] + parts[2]) / 3
    assert trial.epoch_record(0, STEPS, 3)["metrics"]["val_loss"] == expected


def test_an_epoch_without_validation_has_train_metrics_alone(trial):
    for visit in range(STEPS):
        trial.add(done(visit, {"loss": (2.0, 1)}))
    assert trial.epoch_record(0, STEPS, 0)["metrics"] == {"train_loss": 2.0}


def test_the_seconds_of_an_epoch_are_those_of_its_loops(trial):
    trial.add(done(0, {"loss": (1.0, 1)}, compute_s=0.5))
    trial.add(done(1, {"loss": (1.0, 1)}, compute_s=0.25))
    assert trial.epoch_record(0, STEPS, 0)["seconds"] == 0.75
    trial.add(done(2, {"loss": (1.0, 1)}, compute_s=2.0))
    trial.add(done(3, {"loss": (1.0, 1)}))
    assert trial.epoch_record(1, STEPS, 0)["seconds"] == 2.0


def failure(message: str = "ValueError: no luck") -> Failure:
    return Failure(
        kind=FailureKind.ERROR, message=message, traceback="Traceback: …", signature="s", error="E"
    )


def test_a_trial_that_finished_ends_without_an_error_even_after_a_retry(trial):
    trial.failure = failure()
    record = trial.end_record(TrialStatus.FINISHED, None)
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
    record = trial.end_record(status, reason)
    assert (record["status"], record["error"]) == (str(status), error)
    assert record["traceback"] == "Traceback: …"


def test_a_trial_that_failed_for_no_known_cause_gives_the_planners_reason(trial):
    record = trial.end_record(TrialStatus.FAILED, "quarantined")
    assert (record["error"], record["traceback"]) == ("quarantined", None)
