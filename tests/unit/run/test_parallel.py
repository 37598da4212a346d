"""How workers are divided into gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebro.errors import UsageError
from cerebro.run.parallel import Mode, Parallel, StepCost, compare, divide, parse_parallel

FAST = StepCost(alone_s=0.010, together_s=0.006, comm_s=0.001, workers=2, state_bytes=4_000_000)
SLOW = StepCost(alone_s=0.010, together_s=0.012, comm_s=0.007, workers=2, state_bytes=4_000_000)


def shape(asked, **known):
    found = divide(asked, **known)
    return str(found.mode), found.ranks, found.gangs


@pytest.mark.parametrize(
    ("asked", "workers", "trials", "expected"),
    [
        (("mop",), 4, 1, ("mop", 1, 4)),
        (("ddp",), 4, 9, ("ddp", 4, 1)),
        (("ddp", "host"), 4, 9, ("ddp", 4, 1)),
        (("ddp", 4), 4, 9, ("ddp", 4, 1)),
        (("hybrid", 2), 4, 9, ("hybrid", 2, 2)),
        (("hybrid", 3), 4, 9, ("hybrid", 3, 1)),
        (("hybrid",), 8, 3, ("hybrid", 2, 4)),
        (("hybrid",), 2, 9, ("hybrid", 1, 2)),
        (("auto",), 4, 4, ("mop", 1, 4)),
        (("auto",), 4, 400, ("mop", 1, 4)),
        (("auto",), 4, None, ("mop", 1, 4)),
        (("auto",), 4, 3, ("mop", 1, 4)),
        (("auto",), 4, 2, ("hybrid", 2, 2)),
        (("auto",), 9, 2, ("hybrid", 4, 2)),
        (("auto",), 4, 1, ("ddp", 4, 1)),
        (("auto",), 1, 1, ("mop", 1, 1)),
        (("auto", 2), 4, 1, ("hybrid", 2, 2)),
        (("auto", "host"), 4, 9, ("ddp", 4, 1)),
    ],
    ids=str,
)
def test_workers_are_divided_as_asked_or_as_fits_the_trials(asked, workers, trials, expected):
    assert shape(parse_parallel(*asked), workers=workers, trials=trials) == expected


@pytest.mark.parametrize(
    ("asked", "workers", "trials", "told"),
    [
        (("auto",), 4, 3, "as there are 3 trials for 4 workers; 1 worker left over"),
        (("auto",), 9, 2, "as there are 2 trials for 9 workers; 1 worker left over"),
        (("hybrid", 2), 5, None, "as asked for; 1 worker left over"),
        (("hybrid", 2), 6, 1, "as asked for; 4 workers left over"),
        (("hybrid", 2), 4, 3, "as asked for"),
    ],
    ids=str,
)
def test_workers_without_a_trial_are_told(asked, workers, trials, told):
    found = divide(parse_parallel(*asked), workers=workers, trials=trials)
    assert found.describe().endswith(f", {told}")


def test_one_trial_is_shared_only_where_that_pays():
    auto = Parallel(mode=Mode.AUTO)
    assert shape(auto, workers=2, trials=1, cost=FAST) == ("ddp", 2, 1)
    assert shape(auto, workers=2, trials=1, cost=SLOW) == ("mop", 1, 2)


def test_sending_the_state_before_each_visit_counts():
    auto = Parallel(mode=Mode.AUTO)
    for visit_steps, expected in ((10, ("ddp", 2, 1)), (2, ("mop", 1, 2))):
        cost = replace(FAST, send_s=0.010, visit_steps=visit_steps)
        assert shape(auto, workers=2, trials=1, cost=cost) == expected


def test_rows_are_compared_where_a_batch_alone_is_smaller():
    auto = Parallel(mode=Mode.AUTO)
    cost = replace(SLOW, alone_rows=64, rows=128)
    found = divide(auto, workers=2, trials=1, cost=cost)
    assert (str(found.mode), found.ranks) == ("ddp", 2)
    assert "a step of 64 rows takes 10 ms alone and one of 128 12 ms with 2 workers" in found.reason


def test_the_reason_names_what_was_measured():
    told = divide(Parallel(mode=Mode.AUTO), workers=2, trials=1, cost=SLOW).describe()
    assert told == (
        "parallel mop: 2 workers, as sharing its batches costs the one trial more than it saves: a "
        "step takes 10 ms alone and 12 ms with 2 workers, 7 ms of it communication (4 MB of state)"
    )
    sent = replace(SLOW, send_s=0.02)
    told = divide(Parallel(mode=Mode.AUTO), workers=2, trials=1, cost=sent).describe()
    assert "(4 MB of state sent at 200 MB/s)" in told
    large = replace(SLOW, alone_s=1.2345, state_bytes=1_250_000_000, send_s=1.0)
    told = divide(Parallel(mode=Mode.AUTO), workers=2, trials=1, cost=large).describe()
    assert "a step takes 1,234 ms alone and 12 ms with" in told
    assert "(1,250 MB of state sent at 1,250 MB/s)" in told


def test_what_was_predicted_is_told_beside_what_was_reached():
    shared = divide(Parallel(mode=Mode.AUTO), workers=2, trials=1, cost=FAST)
    told = compare(shared, step_s=0.007, comm_s=0.002)
    assert told == "a step took 7 ms, 2 ms of it communication; predicted: 6 ms"
    alone = divide(Parallel(mode=Mode.AUTO), workers=2, trials=1, cost=SLOW)
    told = compare(alone, step_s=0.011, comm_s=0.0)
    assert told == "a step took 11 ms, 0 ms of it communication; predicted: 10 ms"
    hopping = divide(Parallel(mode=Mode.MOP), workers=2, trials=1)
    assert compare(hopping, step_s=0.007, comm_s=0.0) is None


def test_workers_that_were_not_worth_it_are_told_whoever_has_asked_for_them():
    asked = divide(Parallel(mode=Mode.DDP), workers=3, trials=1)
    told = compare(asked, step_s=0.010, comm_s=0.002)
    assert told == "a step took 10 ms, 2 ms of it communication"
    told = compare(asked, step_s=0.010, comm_s=0.008)
    assert told == (
        "a step took 10 ms, 8 ms of it communication. One worker alone would have taken 6 ms at "
        "most"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("dpp",), "parallel must be one of mop, ddp, hybrid, auto, but got 'dpp'."),
        (("hybrid", 0), 'workers_per_trial must be a number of at least 1 or "host", but got 0.'),
        (("hybrid", True), "but got True."),
        (({"mode": "ddp", "ranks": 2},), "unknown key of parallel 'ranks'"),
        (({"workers_per_trial": 2}, 2), "workers_per_trial is given twice: keep one."),
        (({"check_every": -1},), "check_every must be a number of at least 0, but got -1."),
    ],
    ids=str,
)
def test_a_wrong_wish_is_refused(asked, message):
    with pytest.raises(UsageError) as caught:
        parse_parallel(*asked)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("mop", 2), "with parallel='mop' a worker trains a trial, but got workers_per_trial=2."),
        (("ddp", 2), "with parallel='ddp' all 4 workers train a trial, but got"),
        (("hybrid", 5), "workers_per_trial must be at most the number of workers, 4, but got 5."),
    ],
    ids=str,
)
def test_a_wish_that_does_not_fit_the_workers_is_refused(asked, message):
    with pytest.raises(UsageError) as caught:
        divide(parse_parallel(*asked), workers=4, trials=1)
    assert message in str(caught.value)
