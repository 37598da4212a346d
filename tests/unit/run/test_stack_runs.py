"""Runs with stacks, on the inline backend."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from cerebro import results
from cerebro.backend import InlineBackend
from cerebro.backend.base import Answered, Failed, Lost
from cerebro.backend.failure import describe_failure
from cerebro.errors import ShardCorruptError, UsageError
from cerebro.results import Result
from cerebro.run.recovery import OpenRun, open_run
from cerebro.run.spec import Checkpointing
from cerebro.storage import DirectoryStore
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.types import TrialStatus
from tests.experiments import fit_toy, learnt, make_toy_data, outcome, toy_spec
from tests.unit.run.runs import Crash, fit_until, records_of

LRS = {"lr": [0.5, 0.05, 0.2, 0.1, 0.3]}
FINISHED, FAILED, DIVERGED = TrialStatus.FINISHED, TrialStatus.FAILED, TrialStatus.DIVERGED


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    """All units start at the same shard: a stack must give the same as its trials alone."""
    path = tmp_path_factory.mktemp("one") / "data"
    make_toy_data(path, shards=1)
    return path


def types_of(root) -> list[str]:
    return [str(record["type"]) for record in read(DirectoryStore(root)).records]


def statuses(root) -> list[TrialStatus]:
    return [trial.status for trial in Result.open(root).trials]


def sick(kind: str, **where) -> dict:
    """The second of three trials goes wrong."""
    return {"lr": 0.1, "fail": [None, {"kind": kind, **where}, {"kind": "hang", "epoch": 99}]}


def assert_same_alone(folder, spec, **settings):
    """The run has checkpoints and metrics of a run without stacks."""
    fit_toy(folder / "alone", replace(spec, stack=False), **settings)
    fit_toy(folder / "run", spec, **settings)
    check(folder / "run")
    assert learnt(folder / "run") == learnt(folder / "alone")
    assert outcome(folder / "run") == outcome(folder / "alone")


@pytest.mark.parametrize("stack", [1, 2, 4, 100])
@pytest.mark.parametrize("mode", Checkpointing)
def test_a_stacked_trial_learns_what_it_learns_alone(one_shard, folder, stack, mode):
    spec = toy_spec(one_shard, LRS, epochs=3, stack=stack, checkpoint=mode)
    assert_same_alone(folder, spec)


def test_a_visit_of_a_stack_is_one_record_and_one_file(data, root):
    fit_toy(root, toy_spec(data, LRS, epochs=1, stack=100))
    visits = records_of(root, "visit")
    assert [visit["trials"] for visit in visits] == [[0, 1, 2, 3, 4]] * 2
    assert [len(visit["members"]) for visit in visits] == [5, 5]
    assert len(list(root.glob("**/*.safetensors"))) == 1
    assert len(list(root.glob("stacks/s0000/checkpoints/*.safetensors"))) == 1


def test_what_was_decided_is_in_run_json_and_the_journal(data, root):
    fit_toy(root, toy_spec(data, {**LRS, "kind": ["a", "b"]}, stack=3))
    found = json.loads((root / "run.json").read_text())
    plan = {"trials": 5, "members": 3, "stacks": 2, "compiled": False, "obstacle": None}
    assert found["stacks"] == {"setting": 3, "groups": [plan, plan]}
    (record,) = records_of(root, "stacks")
    assert [stack["trials"] for stack in record["stacks"]] == [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]
    assert [stack["start"] for stack in record["stacks"]] == [0, 1, 0, 1]
    kinds = types_of(root)
    assert kinds.index("stacks") < kinds.index("visit")


def test_auto_stacks_where_it_pays(data, folder, caplog):
    spec = toy_spec(data, LRS, stack="auto")
    fit_toy(folder / "slow", spec)
    assert Result.open(folder / "slow").document.stacks["groups"][0]["stacks"] == 0
    with caplog.at_level(logging.INFO):
        fit_toy(folder / "fast", spec, task=ToyTask(gain=10.0))
    assert Result.open(folder / "fast").document.stacks["groups"][0]["members"] == 5
    assert "5 trials in 1 stack of 5" in caplog.messages


def test_with_more_workers_there_are_more_stacks(data, root):
    space = {"lr": [0.1 * n for n in range(1, 9)]}
    spec = toy_spec(data, space, stack="auto")
    fit_toy(root, spec, task=ToyTask(gain=1.5), workers=2)
    assert Result.open(root).document.stacks["groups"][0]["stacks"] == 2


def test_an_obstacle_is_told_once_and_the_trials_are_trained_alone(data, root, caplog):
    space = {"lr": [0.1, 0.2], "obstacle": [None, "it uses a hook"]}
    fit_toy(root, toy_spec(data, space, stack=4))
    check(root)
    told = [message for message in caplog.messages if "not stacked" in message]
    assert told == ["2 trials are not stacked: it uses a hook"]
    assert [visit.get("trials") for visit in records_of(root, "visit")].count([0, 2]) == 4
    assert statuses(root) == [FINISHED] * 4


@pytest.mark.parametrize(("stack", "times"), [("auto", 0), (4, 1)])
def test_of_a_single_trial_an_obstacle_is_told_only_if_stacks_were_asked_for(
    data, root, caplog, stack, times
):
    fit_toy(root, toy_spec(data, {"lr": [0.1], "obstacle": ["it uses a hook"]}, stack=stack))
    told = [message for message in caplog.messages if "not stacked" in message]
    assert told == ["1 trial is not stacked: it uses a hook"] * times


def test_batch_sizes_are_not_mixed(data, root):
    fit_toy(root, toy_spec(data, {**LRS, "batch_size": [8, 16]}, batch_size=None, stack=100))
    (record,) = records_of(root, "stacks")
    assert [stack["trials"] for stack in record["stacks"]] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_in_the_same_order_all_trials_see_the_same_rows(one_shard, folder):
    spec = toy_spec(one_shard, LRS, same_order=True, stack=2)
    assert_same_alone(folder, spec)
    other = toy_spec(one_shard, LRS, stack=2)
    fit_toy(folder / "other", other)
    assert outcome(folder / "other") != outcome(folder / "run")


# Members that diverge


@pytest.mark.parametrize("mode", Checkpointing)
@pytest.mark.parametrize("kind", ["nan_loss", "nan_state", "nan_metric"])
def test_a_member_that_diverges_ends_alone(one_shard, folder, kind, mode):
    spec = toy_spec(one_shard, sick(kind, epoch=1), epochs=3, stack=4, checkpoint=mode)
    assert_same_alone(folder, spec)
    assert statuses(folder / "run") == [FINISHED, DIVERGED, FINISHED]
    assert "dissolved" not in types_of(folder / "run")


def test_it_is_left_behind_when_the_next_epoch_begins(data, root):
    fit_toy(root, toy_spec(data, sick("nan_loss", epoch=1), epochs=3, stack=4))
    trials = [visit["trials"] for visit in records_of(root, "visit")]
    assert trials == [[0, 1, 2]] * 4 + [[0, 2]] * 2
    assert [record["trials"] for record in records_of(root, "epoch")] == [[0, 1, 2], [0, 2], [0, 2]]
    assert Result.open(root).load(1).weight.shape == (4, 3)


def test_a_stack_whose_members_have_all_diverged_is_over(one_shard, folder):
    for mode in Checkpointing:
        space = {"lr": 0.1, "fail": [{"kind": "nan_loss", "epoch": n} for n in (1, 0)]}
        spec = toy_spec(one_shard, space, epochs=4, stack=4, checkpoint=mode)
        assert_same_alone(folder / mode, spec)
        assert statuses(folder / mode / "run") == [DIVERGED, DIVERGED]


# Stacks that are given up


@pytest.mark.parametrize("mode", Checkpointing)
@pytest.mark.parametrize("step", [0, 1])
def test_one_bad_member_does_not_take_the_others_down(data, folder, mode, step, caplog):
    spec = toy_spec(data, sick("raise", epoch=1, step=step), epochs=3, stack=4, checkpoint=mode)
    fit_toy(folder / "run", spec)
    check(folder / "run")
    assert statuses(folder / "run") == [FINISHED, FAILED, FINISHED]
    (record,) = records_of(folder / "run", "dissolved")
    assert "2 attempts failed" in record["reason"]
    assert sum("s0000 is dissolved, 3 trials go on alone" in text for text in caplog.messages) == 1
    assert "this trial raises on purpose" in str(Result.open(folder / "run").trials[1].error)
    assert list((folder / "run" / "stacks").rglob("*.safetensors")) == []


def test_after_it_they_learn_what_they_learn_alone(one_shard, folder):
    spec = toy_spec(one_shard, sick("raise_stacked", epoch=1), epochs=3, stack=4)
    assert_same_alone(folder, spec)
    assert statuses(folder / "run") == [FINISHED] * 3
    assert len(records_of(folder / "run", "dissolved")) == 1


def test_a_visit_of_a_stack_is_tried_again_first(one_shard, folder):
    spec = toy_spec(one_shard, sick("raise", epoch=1, attempts=1), epochs=3, stack=4)
    fit_toy(folder / "run", spec)
    check(folder / "run")
    assert statuses(folder / "run") == [FINISHED] * 3
    assert "dissolved" not in types_of(folder / "run")


# Checkpoints


def restless(data, **changes):
    """Members whose best epochs are spread over the run."""
    space = {"lr": [0.02, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0], "noise": [0.0, 0.5]}
    return toy_spec(data, space, epochs=14, stack=100, **changes)


def test_of_a_stack_with_many_best_epochs_the_old_ones_are_taken_out(one_shard, folder):
    assert_same_alone(folder, restless(one_shard))
    assert records_of(folder / "run", "taken")
    files = list((folder / "run" / "stacks").rglob("*.safetensors"))
    assert 1 < len(files) <= 6
    result = Result.open(folder / "run")
    for trial in result.trials:
        assert result.load(trial.number) is not None


def test_a_run_stopped_in_between_takes_out_the_same(one_shard, folder):
    spec = restless(one_shard)
    fit_toy(folder / "whole", spec)
    for count in (2, 5, 10):
        root = folder / str(count)
        fit_until(root, spec, count, "epoch", trial=None)
        fit_toy(root, spec)
        check(root)
        assert outcome(root) == outcome(folder / "whole")


@pytest.mark.parametrize("keep", [1, 3])
def test_keep_top_takes_the_best_out_of_their_stack(one_shard, folder, keep):
    spec = toy_spec(one_shard, LRS, stack=100)
    assert_same_alone(folder, spec, keep_top=keep)
    assert list((folder / "run" / "stacks").rglob("*.safetensors")) == []
    kept = (folder / "run" / "trials").glob("*/checkpoints/*.safetensors")
    assert len({path.parent for path in kept}) == keep


# Resuming


def test_a_resumed_run_has_the_same_stacks_and_no_new_survey(data, root):
    class Unasked(InlineBackend):
        def submit(self, worker, call, source, **options):
            assert hasattr(call, "unit"), "a survey"
            super().submit(worker, call, source, **options)

    spec = toy_spec(data, LRS, stack=2)
    fit_until(root, spec, 3, "visit", trial=None)
    fit_toy(root, spec, backend=Unasked())
    check(root)
    assert len(records_of(root, "stacks")) == 1


def test_a_driver_killed_before_it_journals_what_it_decided_has_decided_nothing(
    data, root, monkeypatch
):
    append = OpenRun.append

    def killed(run, *records):
        if records[0]["type"] == "stacks":
            raise Crash
        append(run, *records)

    spec = toy_spec(data, {"lr": [0.1 * n for n in range(1, 9)]}, stack="auto")
    with monkeypatch.context() as patch:
        patch.setattr(OpenRun, "append", killed)
        with pytest.raises(Crash):
            fit_toy(root, spec, task=ToyTask(gain=4.0))
    assert Result.open(root).document.stacks["groups"][0]["stacks"] == 1
    fit_toy(root, spec, task=ToyTask(gain=4.0), workers=4)
    check(root)
    assert Result.open(root).document.stacks["groups"][0]["stacks"] == 4
    assert len(records_of(root, "stacks")[0]["stacks"]) == 4


def test_each_file_of_a_stack_is_read_once_for_a_digest(data, root, monkeypatch):
    fit_toy(root, toy_spec(data, LRS, stack=100))
    loads = []

    def load(store, ref, **options):
        loads.append(ref.name)
        return load_checkpoint(store, ref, **options)

    monkeypatch.setattr(results, "load_checkpoint", load)
    Result.open(root).digest()
    files = (root / "stacks").rglob("*.safetensors")
    assert sorted(loads) == sorted(path.stem for path in files)


def test_another_setting_is_refused(data, root):
    fit_until(root, toy_spec(data, LRS, stack=2), 1, "visit", trial=None)
    with pytest.raises(UsageError, match="stack was 2 and is 3"):
        fit_toy(root, toy_spec(data, LRS, stack=3))


def test_stacks_by_force_are_for_trials_that_have_not_begun(data, root):
    spec = toy_spec(data, LRS, stack=False)
    fit_until(root, spec, 1, "visit", trial=None)
    fit_toy(root, replace(spec, stack=4), force=True)
    check(root)
    (record,) = records_of(root, "stacks")
    begun = {visit["trial"] for visit in records_of(root, "visit") if "trial" in visit}
    assert begun
    assert begun.isdisjoint(record["trials"])
    assert statuses(root) == [FINISHED] * 5


def test_trials_added_by_force_get_stacks_of_their_own(data, root):
    spec = toy_spec(data, LRS, stack=100, search="random", num_trials=3)
    fit_until(root, spec, 1, "visit", trial=None)
    fit_toy(root, replace(spec, num_trials=5), force=True)
    check(root)
    found = [stack["trials"] for r in records_of(root, "stacks") for stack in r["stacks"]]
    assert found == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("visits", [1, 2, 3])
def test_a_damaged_checkpoint_takes_its_stack_back_to_the_one_before(data, root, visits):
    spec = toy_spec(data, LRS, stack=100)
    fit_until(root, spec, visits, "visit", trial=None)
    files = sorted((root / "stacks" / "s0000" / "checkpoints").glob("*.safetensors"))
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    with open_run(DirectoryStore(root), spec, fresh=False, force=False) as run:
        assert [trial.visits for trial in run.history.trials.values()] == [visits - 1] * 5
        assert "s0000 goes back to visit" in run.notices[-1]
    fit_toy(root, spec)
    check(root)
    fit_toy(root.with_name("whole"), spec)
    assert outcome(root) == outcome(root.with_name("whole"))


# Surveys that fail


class FailingSurvey(InlineBackend):
    """Answers so many surveys with an error, or with the loss of the worker."""

    def __init__(self, failures, answer):
        super().__init__()
        self._left = failures
        self._answer = answer

    def events(self):
        found = []
        for event in super().events():
            if isinstance(event, Answered) and self._left:
                self._left -= 1
                event = self._answer(event)
            found.append(event)
        return found


def broken(event):
    return Failed(event.worker, event.call, describe_failure(ValueError("no luck")))


def dead(event):
    return Lost(event.worker, event.call, "was killed")


def test_a_survey_is_tried_again(data, root, caplog):
    fit_toy(root, toy_spec(data, LRS, stack=2), backend=FailingSurvey(1, broken))
    check(root)
    assert len(records_of(root, "stacks")[0]["stacks"]) == 3
    assert caplog.messages == []


def test_after_two_failures_trials_are_trained_alone(data, root, caplog):
    fit_toy(root, toy_spec(data, LRS, stack=2), backend=FailingSurvey(2, broken))
    check(root)
    assert records_of(root, "stacks")[0]["stacks"] == []
    (told,) = caplog.messages
    assert told.startswith("trials are not stacked: looking at them failed: ValueError: no luck")
    (group,) = Result.open(root).document.stacks["groups"]
    assert (group["trials"], group["stacks"]) == (5, 0)
    assert group["obstacle"].startswith("looking at them failed: ValueError: no luck")


def test_another_worker_is_asked_when_the_first_dies(data, root):
    fit_toy(root, toy_spec(data, LRS, stack=2), backend=FailingSurvey(1, dead), workers=2)
    check(root)
    assert len(records_of(root, "stacks")[0]["stacks"]) == 3


def test_a_damaged_shard_found_by_a_survey_ends_the_run(folder, root):
    make_toy_data(folder / "data")
    spec = toy_spec(folder / "data", LRS, stack=2)
    for path in (folder / "data").glob("train-*.arrow"):
        content = bytearray(path.read_bytes())
        content[-200] ^= 1
        path.write_bytes(content)
    with pytest.raises(ShardCorruptError):
        fit_toy(root, spec)


def test_a_param_that_the_task_lacks_refuses_a_stacked_run_too(data, folder, root):
    with pytest.raises(UsageError, match=r"asks for params\['lr'\]"):
        fit_toy(root, toy_spec(data, {"rate": [0.1, 0.2]}, stack=2))
    assert list(folder.iterdir()) == []
