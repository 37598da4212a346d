"""The judge of run directories finds what is wrong with stacks."""

from __future__ import annotations

import json
import shutil

import pytest

from cerebro.storage import DirectoryStore
from cerebro.storage.journal import encode, read
from cerebro.testing.history import HistoryError, check
from tests.experiments import fast_folder, fit_toy, make_toy_data, toy_spec


@pytest.fixture(scope="module")
def home():
    """Runs with a member that diverges, and with one that breaks its stack."""
    with fast_folder() as path:
        make_toy_data(path / "data")
        for name, kind in (("diverged", "nan_loss"), ("dissolved", "raise")):
            space = {"lr": [0.5, 0.05], "fail": [None, {"kind": kind, "epoch": 1, "step": 1}]}
            fit_toy(path / name, toy_spec(path / "data", space, epochs=3, stack=4))
        yield path


@pytest.fixture
def spoil(home, tmp_path):
    """Change a copy of a run's journal and judge it; what is said about it."""

    def spoil(name, change):
        root = tmp_path / "run"
        shutil.copytree(home / name, root, dirs_exist_ok=True)
        records = json.loads(json.dumps(read(DirectoryStore(root)).records))
        records = change(records) or records
        (root / "journal.jsonl").write_bytes(b"".join(map(encode, records)))
        with pytest.raises(HistoryError) as caught:
            check(root)
        return str(caught.value)

    return spoil


def of(records, kind, nth=0):
    return [record for record in records if record["type"] == kind][nth]


def test_runs_that_nobody_touched_are_good(home):
    check(home / "diverged")
    check(home / "dissolved")


def test_a_visit_that_is_missing(spoil):
    told = spoil("diverged", lambda records: records.remove(of(records, "visit")))
    assert "visit (0, 0) must come, not (0, 1)" in told


def test_a_visit_on_another_shard(spoil):
    told = spoil("diverged", lambda records: of(records, "visit", 1).update(shard=0))
    assert "shard 1 must come, not 0" in told


def test_a_member_that_leaves_amid_an_epoch(spoil):
    told = spoil("diverged", lambda records: of(records, "visit", 1).update(trials=[0, 1, 2]))
    assert "a visit must have (0, 1, 2, 3)" in told


def test_a_member_that_is_not_left_behind(spoil):
    told = spoil("diverged", lambda records: of(records, "visit", 4).update(trials=[0, 1, 2, 3]))
    assert "a visit must have (0, 2), but has (0, 1, 2, 3)" in told


def test_a_member_without_sums(spoil):
    told = spoil("diverged", lambda records: of(records, "visit")["members"].__setitem__(1, {}))
    assert "t0001: a member must have sums" in told


def test_a_checkpoint_with_another_parent(spoil):
    def change(records):
        of(records, "visit", 2)["checkpoint"]["parent"] = "0" * 64

    assert "must follow" in spoil("diverged", change)


def test_a_member_that_ends_twice(spoil):
    def change(records):
        return [*records[:-1], of(records, "trial_end"), records[-1]]

    assert "a trial must end once" in spoil("diverged", change)


def test_a_trial_that_is_placed_twice(spoil):
    def change(records):
        place = records.index(of(records, "stacks"))
        return [*records[: place + 1], records[place], *records[place + 1 :]]

    assert "a trial must be placed once" in spoil("diverged", change)


def test_a_stack_that_goes_on_after_it_was_dissolved(spoil):
    def change(records):
        place = records.index(of(records, "dissolved"))
        return [*records[: place + 1], of(records, "visit"), *records[place + 1 :]]

    assert "a stack must be dissolved once" in spoil("dissolved", change)


def test_trials_that_go_on_elsewhere_than_their_stack_was(spoil):
    told = spoil("dissolved", lambda records: of(records, "dissolved").update(visits=2))
    assert "trials must go on from visit 3" in told


def test_trials_that_got_no_state(spoil):
    told = spoil("dissolved", lambda records: of(records, "dissolved").update(checkpoints=[]))
    assert "a trial must get its state" in told


def test_a_visit_alone_of_a_trial_in_a_stack(spoil):
    def change(records):
        visit = {**of(records, "visit"), "trial": 0, "sums": {"loss": [1.0, 1]}}
        del visit["stack"]
        return [*records[:-1], visit, records[-1]]

    assert "a trial in a stack must have no visits alone" in spoil("diverged", change)


def test_a_state_with_other_trials_than_the_journal_says(home, tmp_path):
    shutil.copytree(home / "diverged", tmp_path / "run")
    for path in (tmp_path / "run" / "stacks").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(HistoryError, match="s0000: a checkpoint that counts must be intact"):
        check(tmp_path / "run")


def test_other_stacks_than_run_json_says(spoil):
    def change(records):
        stack = of(records, "stacks")["stacks"][0]
        stack["trials"].pop()

    assert "as run.json says" in spoil("diverged", change)
