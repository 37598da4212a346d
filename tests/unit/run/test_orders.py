from __future__ import annotations

from typing import Any

import pytest

from cerebro.errors import UsageError
from cerebro.run.history import RunHistory
from cerebro.run.orders import Orders
from cerebro.search.conductor import Propose
from cerebro.search.decision import Clone, Halt, Pause, Promote, Stop
from cerebro.types import Mode
from tests.experiments import make_toy_data, toy_spec

STEPS, EPOCHS = 2, 4


@pytest.fixture
def data(tmp_path):
    make_toy_data(tmp_path / "data")
    return tmp_path / "data"


def history(*records: dict[str, Any]) -> RunHistory:
    return RunHistory.replay(records, steps=STEPS, epochs=EPOCHS, metric="val_loss", mode=Mode.MIN)


def trial(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "trial", "trial": number, "params": {"lr": 0.1}, "start": number % 2, **more}


def visit(number: int, count: int) -> dict[str, Any]:
    epoch, step = divmod(count - 1, STEPS)
    ref = {"trial": number, "visits": count, "name": f"v{count:06}-a0"}
    saved = {**ref, "sha256": f"{number}{count}".zfill(64), "bytes": 1, "parent": None}
    found = {"type": "visit", "trial": number, "epoch": epoch, "step": step, "sums": {}}
    return {**found, "checkpoint": saved}


def made(commits: list[Any]) -> list[dict[str, Any]]:
    return [record for commit in commits for record in commit.records]


def test_trials_get_the_next_numbers_and_start_at_one_shard_after_another(data):
    orders = Orders(toy_spec(data), history(trial(0)))
    records = made(orders.carry_out([Propose(1, 0, {"lr": 0.5}), Propose(2, 0, {"lr": 0.6})]))
    assert [(r["trial"], r["start"], r["proposal"]) for r in records] == [(1, 1, 1), (2, 0, 2)]
    assert all("epochs" not in record for record in records)


def test_under_a_stopper_they_begin_by_waiting(data):
    orders = Orders(toy_spec(data, stopper={"name": "asha"}), history())
    (record,) = made(orders.carry_out([Propose(0, 0, {"lr": 0.5})]))
    assert record["epochs"] == 0


def test_promotions_to_the_same_epoch_are_one_record(data):
    orders = Orders(toy_spec(data), history(*(trial(n) for n in range(4))))
    actions = [Promote(0, 2), Promote(1, 3), Promote(2, 2), Stop(3, "bad"), Promote(3, 9)]
    found = [(r["what"], r["trials"], r.get("epochs")) for r in made(orders.carry_out(actions))]
    assert found == [
        *(("promote", [0, 2], 2), ("promote", [1], 3), ("stop", [3], None)),
        ("promote", [3], 9),
    ]


def test_a_copy_begins_with_the_latest_state_and_the_shards_of_its_parent(data):
    known = history(trial(0), trial(1), visit(1, 1), visit(1, 2), visit(1, 3))
    orders = Orders(toy_spec(data), known)
    (commit,) = orders.carry_out([Clone(0, 1, {"lr": 0.2}, "worse")])
    (record,) = commit.records
    assert (record["trial"], record["parent"], record["visits"], record["start"]) == (2, 1, 3, 1)
    assert (record["replaces"], record["reason"]) == (0, "worse: t0002")
    assert (commit.copy.ref.visits, commit.copy.source, commit.copy.trial) == (3, 1, 2)


def test_of_a_trial_without_a_state_a_copy_begins_anew(data):
    (commit,) = Orders(toy_spec(data), history(trial(0))).carry_out([Clone(0, 0, {"lr": 1}, "x")])
    assert commit.copy is None
    assert commit.records[0]["visits"] == 0


def test_pauses_and_the_end_of_the_run(data):
    orders = Orders(toy_spec(data), history(trial(0)))
    records = made(orders.carry_out([Pause(0, "wait"), Halt("enough")]))
    assert [(r["what"], r["reason"], r["by"]) for r in records] == [
        ("pause", "wait", "search"),
        ("halt", "enough", "search"),
    ]


def test_a_wrong_batch_size_is_refused(data):
    with pytest.raises(UsageError, match="batch_size must be an integer"):
        Orders(toy_spec(data), history()).carry_out([Propose(0, 0, {"batch_size": 0})])


def stacked(*more: dict[str, Any]) -> RunHistory:
    """Three trials in a stack that have one epoch behind them, after which they wait."""
    members = [0, 1, 2]
    stack = {"trials": members, "start": 0, "stack": {"compiled": False}}
    visits = []
    for step in range(STEPS):
        ref = {"stack": 0, "visits": step + 1, "name": f"v{step + 1:06}-a0"}
        visits.append(
            {
                **{"type": "visit", "stack": 0, "epoch": 0, "step": step, "trials": members},
                "members": [{"loss": [1.0, 1]}] * 3,
                "checkpoint": {**ref, "sha256": f"{step}".zfill(64), "bytes": 1, "parent": None},
            }
        )
    metrics = [{"val_loss": value} for value in (0.3, 0.2, 0.1)]
    return history(
        *(trial(n, epochs=1) for n in members),
        {"type": "stacks", "trials": members, "stacks": [stack]},
        *visits,
        {"type": "epoch", "stack": 0, "epoch": 0, "trials": members, "metrics": metrics},
        *more,
    )


def test_those_promoted_together_stay_in_their_stack(data):
    records = made(Orders(toy_spec(data), stacked()).carry_out([Promote(1, 3), Promote(2, 3)]))
    assert [(r["type"], r.get("trials")) for r in records] == [("decision", [1, 2])]


def test_who_is_promoted_later_is_taken_out_of_it(data):
    orders = Orders(toy_spec(data), stacked())
    orders.carry_out([Promote(1, 3)])
    left, promoted = orders.carry_out([Promote(2, 3)])
    assert [record["type"] for record in left.records] == ["left"]
    assert [(extract.ref.visits, extract.trials) for extract in left.extracts] == [(2, (2,))]
    assert promoted.records[0]["trials"] == [2]


def test_so_it_is_after_a_resume(data):
    promoted = {"type": "decision", "what": "promote", "trials": [1], "epochs": 3, "by": "search"}
    known = stacked(promoted)
    records = made(Orders(toy_spec(data), known).carry_out([Promote(2, 3)]))
    assert [record["type"] for record in records] == ["left", "decision"]
