from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cerebro.errors import LeaseLostError
from cerebro.storage import DirectoryStore, open_store
from cerebro.storage.working import published, working_directory
from cerebro.testing import bucket
from tests.processes import wait_for


@pytest.fixture
def store(tmp_path):
    bucket.register()
    return open_store(f"bucket://{tmp_path}/run")


def draw(store, page, error):
    """Write a page, then fail."""
    with published(store) as directory:
        Path(directory, "report.html").write_bytes(page)
        raise error


def seen(store):
    return store.read("report.html") if store.exists("report.html") else None


def test_a_directory_needs_no_other(tmp_path):
    store = DirectoryStore(tmp_path / "run")
    assert working_directory(store, "logs") == str(tmp_path / "run" / "logs")
    with published(store) as directory:
        assert directory == str(tmp_path / "run")


def test_a_remote_store_always_has_the_same_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    first, again = (working_directory(open_store("memory://a/run")) for _ in range(2))
    assert first == again != working_directory(open_store("memory://b/run"))
    assert first.startswith(str(tmp_path / "cache"))


def test_what_was_written_is_in_the_store_at_the_end_and_gone_from_here(store):
    with published(store) as directory:
        Path(directory, "trials/t0000").mkdir(parents=True)
        Path(directory, "trials/t0000/progress.csv").write_text("epoch\n0\n")
        Path(directory, ".tmp-1-0-report.html").write_text("half")
    assert store.read("trials/t0000/progress.csv") == b"epoch\n0\n"
    assert store.list() == ["trials"]
    assert not Path(directory).exists()


def test_what_changes_is_copied_while_it_goes_on(store):
    with published(store, copy_s=0.02) as directory:
        page = Path(directory, "report.html")
        for content in (b"one", b"another"):
            page.write_bytes(content)
            wait_for(lambda: seen(store) == content, "the page")  # noqa: B023


def test_an_error_copies_what_there_is(store):
    with pytest.raises(KeyError):
        draw(store, b"so far", KeyError())
    assert store.read("report.html") == b"so far"


def test_a_store_that_belongs_to_another_driver_is_left_alone(store):
    with pytest.raises(LeaseLostError):
        draw(store, b"mine", LeaseLostError("gone"))
    assert store.list() == []


def test_what_cannot_be_copied_is_told_once_and_fails_nobody(store, caplog):
    def refuse():
        raise LeaseLostError("not yours")

    store.guard = refuse
    with caplog.at_level(logging.WARNING), published(store, copy_s=0.01) as directory:
        Path(directory, "report.html").write_text("page")
    assert sum("could not be copied" in record.message for record in caplog.records) == 1
