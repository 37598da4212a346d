from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace

import pytest

from cerebro.errors import (
    JournalCorruptError,
    ResumeMismatchError,
    RunCorruptError,
    RunLockedError,
    StoreError,
    UsageError,
)
from cerebro.run.recovery import load_history, open_run
from cerebro.run.spec import Checkpointing, describe
from cerebro.storage import LocalStore, layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.journal import read
from cerebro.storage.lock import RunLock
from cerebro.testing.faults import flip_bit
from cerebro.types import Mode, TrialStatus
from tests.experiments import fit_toy, outcome, toy_spec, trial_files
from tests.unit.run.crash import fit_until, records_of


@pytest.fixture(scope="module")
def spec(data):
    return toy_spec(data)


@pytest.fixture
def root(folder):
    return folder / "run"


@pytest.fixture
def finished(data, root):
    """A finished run of two trials, two epochs of two visits each."""
    fit_toy(root, toy_spec(data))
    return root


@pytest.fixture
def unfinished(root, spec):
    """A run whose trial 0 has done three of its four visits."""
    fit_until(root, spec, 3)
    return root


def opened(root, spec, *, fresh=False, force=False):
    return open_run(LocalStore(root), spec, fresh=fresh, force=force)


def begin(run, spec):
    run.begin(describe(spec, "module:Class", "", {}))


def fail(context, error, *, spec=None, make=None):
    """Open a run, begin it where there is a spec, make a folder, and fail."""
    with context as run:
        if spec is not None:
            begin(run, spec)
        if make is not None:
            make.mkdir()
        raise error("no")


def contents(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != layout.LOCK
    }


# New runs


def test_a_new_run_has_neither_document_nor_journal(root, spec):
    with opened(root, spec) as run:
        assert (run.document, run.history.trials) == (None, {})
        with pytest.raises(StoreError, match="begin\\(\\) comes first"):
            run.append({"type": "driver"})


def test_a_run_that_begins_has_both(root, spec):
    with opened(root, spec) as run:
        begin(run, spec)
        run.append({"type": "driver"})
        assert run.history.drivers == 1
    document, history = load_history(LocalStore(root))
    assert (document.task, history.drivers) == ("module:Class", 1)


@pytest.mark.parametrize("error", [UsageError, StoreError, KeyboardInterrupt])
def test_a_run_that_does_not_begin_leaves_no_trace(folder, spec, error):
    root = folder / "new" / "store" / "run"
    with pytest.raises(error):
        fail(opened(root, spec), error, make=root / "logs")
    assert list(folder.iterdir()) == []


def test_a_run_that_is_refused_just_after_it_began_leaves_no_trace(folder, root, spec):
    with pytest.raises(UsageError):
        fail(opened(root, spec), UsageError, spec=spec)
    assert list(folder.iterdir()) == []


def test_what_was_above_a_new_directory_stays(folder, spec):
    (folder / "store").mkdir()
    with pytest.raises(UsageError), opened(folder / "store" / "run", spec):
        raise UsageError("no")
    assert (folder / "store").is_dir()
    assert list((folder / "store").iterdir()) == []


def test_a_directory_with_other_runs_stays(folder, spec):
    with pytest.raises(UsageError):
        fail(opened(folder / "store" / "one", spec), UsageError, make=folder / "store" / "two")
    assert [path.name for path in (folder / "store").iterdir()] == ["two"]


def test_in_a_directory_that_was_there_a_refused_run_leaves_what_was_in_it(root, spec):
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    with pytest.raises(UsageError):
        fail(opened(root, spec), UsageError, spec=spec)
    assert contents(root) == {"notes.txt": b"mine"}
    with opened(root, replace(spec, metric="train_loss")) as run:
        assert run.document is None


@pytest.mark.parametrize("error", [StoreError, RuntimeError, KeyboardInterrupt])
def test_a_run_that_began_stays_whatever_ends_it(root, spec, error):
    with pytest.raises(error):
        fail(opened(root, spec), error, spec=spec)
    assert load_history(LocalStore(root))[1].trials == {}


def test_a_resumed_run_stays_when_it_is_refused(unfinished, spec):
    before = records_of(unfinished, "visit")
    with pytest.raises(UsageError), opened(unfinished, spec):
        raise UsageError("no")
    assert records_of(unfinished, "visit") == before


def test_a_journal_without_a_document_is_from_a_run_that_never_began(root, spec):
    root.mkdir()
    (root / layout.JOURNAL).write_bytes(b"")
    with opened(root, spec) as run:
        assert run.document is None
        assert not (root / layout.JOURNAL).exists()


# One driver


def test_a_second_driver_is_refused(root, spec):
    with (
        opened(root, spec) as run,
        pytest.raises(RunLockedError, match=f"pid {os.getpid()}"),
        opened(root, spec),
    ):
        raise AssertionError("two drivers")
    assert run.document is None


def test_a_second_driver_of_a_new_run_removes_nothing_of_the_first(root, spec):
    """Both found no directory; the other one was faster."""
    with contextlib.ExitStack() as rival:

        class SlowStore(LocalStore):
            def local_path(self, path=""):
                if path == layout.LOCK and not root.exists():
                    run = rival.enter_context(opened(root, spec))
                    begin(run, spec)
                return super().local_path(path)

        with (
            pytest.raises(RunLockedError),
            open_run(SlowStore(root), spec, fresh=False, force=False),
        ):
            raise AssertionError("two drivers")
        assert {layout.RUN, layout.JOURNAL, layout.LOCK} <= {path.name for path in root.iterdir()}


def test_the_lock_is_free_afterwards(root, spec):
    with pytest.raises(RuntimeError):
        fail(opened(root, spec), RuntimeError, spec=spec)
    with RunLock(LocalStore(root)):
        pass


def test_a_store_that_is_a_file_is_a_store_error_and_stays(folder, spec):
    (folder / "store").write_text("precious")
    for path in (folder / "store", folder / "store" / "run"):
        with pytest.raises(StoreError, match="Check that you may write there"), opened(path, spec):
            raise AssertionError("opened a file")
    assert (folder / "store").read_text() == "precious"


# Fresh


def test_a_fresh_run_moves_the_old_one_aside(finished, spec):
    before = contents(finished)
    with opened(finished, spec, fresh=True) as run:
        assert run.document is None
        begin(run, spec)
    assert contents(finished.with_name("run.1")) == before
    with opened(finished, spec, fresh=True) as run:
        begin(run, spec)
    assert contents(finished.with_name("run.1")) == before
    assert (finished.with_name("run.2") / layout.RUN).exists()


def test_a_fresh_run_where_there_is_none_is_a_new_run(folder, root, spec):
    with opened(root, spec, fresh=True) as run:
        begin(run, spec)
    assert [path.name for path in folder.iterdir()] == ["run"]


def test_a_fresh_run_that_is_refused_brings_the_old_one_back(folder, finished, spec):
    before = contents(folder)
    with pytest.raises(UsageError):
        fail(opened(finished, spec, fresh=True), UsageError, spec=spec)
    assert contents(folder) == before


def test_a_run_with_a_live_driver_is_not_moved_aside(folder, finished, spec):
    before = contents(folder)
    with (
        RunLock(LocalStore(finished)),
        pytest.raises(RunLockedError),
        opened(finished, spec, fresh=True),
    ):
        raise AssertionError("two drivers")
    assert contents(folder) == before


def test_a_fresh_run_does_not_need_the_old_one_to_be_readable(finished, spec):
    (finished / layout.RUN).write_text("{")
    with opened(finished, spec, fresh=True) as run:
        assert run.document is None
        begin(run, spec)


def test_a_run_that_cannot_be_moved_aside_is_a_store_error(finished, spec, monkeypatch):
    def refuse(source, target):
        raise PermissionError(13, "Permission denied")

    before = contents(finished)
    monkeypatch.setattr(os, "rename", refuse)
    with (
        pytest.raises(StoreError, match=r"cannot move .* aside: Permission denied"),
        opened(finished, spec, fresh=True),
    ):
        raise AssertionError("opened")
    assert contents(finished) == before


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
    forced = read(LocalStore(unfinished)).records[-1]
    assert forced == {"type": "forced", "field": "seed", "old": 0, "new": 7}
    with opened(unfinished, changed) as run:
        assert len(run.history.trials) == 2
    with pytest.raises(ResumeMismatchError), opened(unfinished, spec):
        raise AssertionError("opened")


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
    with RunLock(LocalStore(finished)):
        document, history = load_history(LocalStore(finished))
    assert not history.is_finished
    assert (len(history.trials), history.metric, history.mode) == (2, "val_loss", Mode.MIN)
    assert document.spec["epochs"] == 2
    assert contents(finished) == before


def test_a_run_that_has_just_begun_can_be_read(finished):
    (finished / layout.JOURNAL).unlink()
    assert load_history(LocalStore(finished))[1].trials == {}


def test_reading_where_there_is_no_run_is_a_store_error(folder):
    with pytest.raises(StoreError, match=r"must be a run directory, but has no run\.json"):
        load_history(LocalStore(folder))


def test_a_damaged_document_is_refused(finished, spec):
    text = json.loads((finished / layout.RUN).read_text())
    text["spec"]["seed"] = 1
    (finished / layout.RUN).write_text(json.dumps(text))
    with pytest.raises(RunCorruptError, match="start the run afresh"), opened(finished, spec):
        raise AssertionError("opened")
