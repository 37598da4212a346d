"""Opening runs that are there: changes, repairs, reading."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cerebro.errors import JournalCorruptError, ResumeMismatchError, RunCorruptError, StoreError
from cerebro.run.recovery import load_history
from cerebro.run.spec import Checkpointing
from cerebro.storage import DirectoryStore, layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.journal import read
from cerebro.storage.lock import RunLock
from cerebro.testing.faults import flip_bit
from cerebro.types import Mode, TrialStatus
from tests.experiments import fit_toy, outcome, toy_spec, trial_files
from tests.unit.run.runs import contents, fit_until, opened, records_of

# Changes


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 7}, "seed was 0 and is 7"),
        ({"epochs": 9}, "epochs was 2 and is 9"),
        ({"mode": Mode.MAX}, 'mode was "min" and is "max"'),
        ({"data_digest": "f" * 64}, "data_digest was"),
    ],
)
def test_a_changed_spec_is_refused_and_changes_nothing(finished, spec, change, text):
    before = contents(finished)
    with (
        pytest.raises(ResumeMismatchError, match=text),
        opened(finished, replace(spec, **change)),
    ):
        raise AssertionError("opened")
    assert contents(finished) == before


def test_a_forced_change_is_recorded_and_refused_no_more(unfinished, spec):
    changed = replace(spec, seed=7)
    with opened(unfinished, changed, force=True) as run:
        assert run.document is not None
        assert run.document.spec["seed"] == 7
    forced = read(DirectoryStore(unfinished)).records[-1]
    assert forced == {"type": "forced", "field": "seed", "old": 0, "new": 7}
    with opened(unfinished, changed) as run:
        assert len(run.history.trials) == 2
    with pytest.raises(ResumeMismatchError), opened(unfinished, spec):
        raise AssertionError("opened")


def test_a_forced_mode_does_not_take_trials_back(root, data):
    spec = toy_spec(data, space={"lr": 0.05}, epochs=5)
    fit_until(root, spec, 9)
    with opened(root, replace(spec, mode=Mode.MAX), force=True) as run:
        assert run.notices == []
        assert run.history.trials[0].visits == 9


def test_a_finished_run_has_nothing_to_force(finished, spec):
    before = contents(finished)
    with (
        pytest.raises(ResumeMismatchError, match=r"is finished\. Give the run another name"),
        opened(finished, replace(spec, epochs=9), force=True),
    ):
        raise AssertionError("opened")
    assert contents(finished) == before
    with opened(finished, spec, force=True) as run:
        assert run.history.is_finished


def test_another_number_of_shards_cannot_be_forced(unfinished, spec):
    """The visits of the journal would mean other things."""
    with (
        pytest.raises(ResumeMismatchError, match="train_shards was 2 and is 3"),
        opened(unfinished, replace(spec, train_shards=3), force=True),
    ):
        raise AssertionError("opened")


# Repairs


def test_a_journal_cut_short_is_repaired_with_a_notice(unfinished, spec):
    path = unfinished / layout.JOURNAL
    good = path.read_bytes()
    path.write_bytes(good[:-5])
    with opened(unfinished, spec) as run:
        assert run.notices == ["the last journal record was cut short and has been dropped"]
    assert path.read_bytes() == good[: good[:-1].rfind(b"\n") + 1]


def test_a_journal_damaged_before_its_end_is_refused(unfinished, spec):
    path = unfinished / layout.JOURNAL
    path.write_bytes(flip_bit(path.read_bytes(), 1000))
    with pytest.raises(JournalCorruptError, match="start the run afresh"), opened(unfinished, spec):
        raise AssertionError("opened")


def test_strays_and_half_written_files_are_swept_away(unfinished, spec):
    checkpoints = unfinished / "trials" / "t0000" / "checkpoints"
    known = [f"v00000{n}-a0.{end}" for n in (2, 3) for end in ("json", "safetensors")]
    for name in ("v000099-a0.safetensors", "v000099-a0.json", ".tmp-1-2-v000003-a0.json"):
        (checkpoints / name).write_text("x")
    (unfinished / ".tmp-1-2-run.json").write_text("x")
    with opened(unfinished, spec):
        assert trial_files(unfinished, 0) == known
        assert not (unfinished / ".tmp-1-2-run.json").exists()


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "remove manifest"])
def test_a_damaged_checkpoint_takes_its_trial_back_to_the_one_before(root, spec, harm):
    fit_until(root, spec, 4)
    ref = CheckpointRef.from_json(records_of(root, "visit", 0)[2]["checkpoint"])
    path = root / (ref.manifest_path if harm == "remove manifest" else ref.data_path)
    if harm == "flip":
        path.write_bytes(flip_bit(path.read_bytes(), 4711))
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with opened(root, spec) as run:
        (notice,) = run.notices
        assert f"{ref.name}.{path.suffix[1:]} is damaged" in notice
        assert notice.endswith("t0000 goes back to visit 2.")
        assert run.history.trials[0].visits == 2
    assert records_of(root, "rollback") == [{"type": "rollback", "trial": 0, "visits": 2}]
    # What stood on the damaged one is gone too.
    assert trial_files(root, 0) == ["v000002-a0.json", "v000002-a0.safetensors"]


def test_a_run_goes_on_exactly_after_a_damaged_checkpoint(folder, root, spec):
    fit_toy(folder / "whole", spec)
    fit_until(root, spec, 3)
    for name in trial_files(root, 0):
        (root / "trials/t0000/checkpoints" / name).write_bytes(b"rubbish")
    fit_toy(root, spec)
    assert outcome(root) == outcome(folder / "whole")
    assert records_of(root, "rollback") == [{"type": "rollback", "trial": 0, "visits": 0}]


def test_a_run_without_damage_is_opened_as_it_was_left(unfinished, spec):
    before = (unfinished / layout.JOURNAL).read_bytes()
    with opened(unfinished, spec) as run:
        assert run.notices == []
        assert run.history.trials[0].visits == 3
    assert (unfinished / layout.JOURNAL).read_bytes() == before


def test_without_checkpoints_an_unfinished_trial_starts_over(data, root):
    spec = toy_spec(data, checkpoint=Checkpointing.OFF)
    fit_until(root, spec, 1, "trial_end", trial=None)
    with opened(root, spec) as run:
        found = {(trial.status, trial.visits) for trial in run.history.trials.values()}
    assert found == {(TrialStatus.FINISHED, 4), (TrialStatus.PENDING, 0)}


def test_a_finished_run_is_not_verified(finished, spec):
    """It returns at once; whoever loads a checkpoint verifies it."""
    damaged = finished / "trials/t0000/checkpoints" / trial_files(finished, 0)[-1]
    damaged.write_bytes(b"rubbish")
    before = contents(finished)
    with opened(finished, spec) as run:
        assert run.history.is_finished
    assert contents(finished) == before


# Reading


def test_reading_a_run_changes_nothing_even_while_it_is_written(finished):
    path = finished / layout.JOURNAL
    path.write_bytes(path.read_bytes()[:-5])
    before = contents(finished)
    with RunLock(DirectoryStore(finished)):
        document, history = load_history(DirectoryStore(finished))
    assert not history.is_finished
    assert (len(history.trials), history.metric, history.mode) == (2, "val_loss", Mode.MIN)
    assert document.spec["epochs"] == 2
    assert contents(finished) == before


def test_a_run_that_has_just_begun_can_be_read(finished):
    (finished / layout.JOURNAL).unlink()
    assert load_history(DirectoryStore(finished))[1].trials == {}


def test_reading_where_there_is_no_run_is_a_store_error(folder):
    with pytest.raises(StoreError, match=r"must be a run directory, but has no run\.json"):
        load_history(DirectoryStore(folder))


def test_a_damaged_document_is_refused(finished, spec):
    text = json.loads((finished / layout.RUN).read_text())
    text["spec"]["seed"] = 1
    (finished / layout.RUN).write_text(json.dumps(text))
    with pytest.raises(RunCorruptError, match="start the run afresh"), opened(finished, spec):
        raise AssertionError("opened")
