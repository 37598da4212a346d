"""Runs that begin, do not begin, begin afresh; one driver at a time."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest

from cerebro.errors import RunCorruptError, RunLockedError, StoreError, UsageError
from cerebro.run.recovery import load_history, open_run
from cerebro.run.spec import describe
from cerebro.storage import DirectoryStore, layout
from cerebro.storage.lock import RunLock
from tests.unit.run.runs import contents, opened, records_of


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
    document, history = load_history(DirectoryStore(root))
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
    assert load_history(DirectoryStore(root))[1].trials == {}


def test_a_resumed_run_stays_when_it_is_refused(unfinished, spec):
    before = records_of(unfinished, "visit")
    with pytest.raises(UsageError), opened(unfinished, spec):
        raise UsageError("no")
    assert records_of(unfinished, "visit") == before


def test_a_journal_with_records_and_no_document_is_a_damaged_run(finished, spec):
    (finished / layout.RUN).unlink()
    before = contents(finished)
    with pytest.raises(RunCorruptError, match=r"run\.json is missing, but there is a journal"):
        fail(opened(finished, spec), AssertionError)
    assert contents(finished) == before
    with opened(finished, spec, fresh=True) as run:
        assert run.document is None
        begin(run, spec)
    assert contents(finished.with_name("run.1")) == before


def test_an_empty_journal_without_a_document_is_from_a_run_that_never_began(root, spec):
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

        class SlowStore(DirectoryStore):
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
    with RunLock(DirectoryStore(root)):
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
        RunLock(DirectoryStore(finished)),
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
