"""Bulk work: every job once, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from cerebro.backend import InlineBackend, LocalBackend
from cerebro.backend.threads import ThreadBackend
from cerebro.errors import DataError, RunInterrupted, UsageError, WorkerError
from cerebro.run.jobs import ATTEMPTS, carry_out


class Desk:
    """Where jobs are done: a directory."""

    device = "cpu"

    def __init__(self, folder):
        self.folder = Path(folder)

    def versions(self):
        return {}

    def describe(self):
        return "desk", ""

    def free(self):
        pass

    def close(self):
        pass


@dataclass(frozen=True)
class Office:
    """The opening of workers that have a desk."""

    folder: str
    task: object = None
    threads: int = 1

    def open(self, worker):
        return Desk(self.folder)


@dataclass(frozen=True)
class Note:
    """Leaves a line each time it is run; may fail, or end its process, some times first."""

    name: str
    error: Exception | None = None
    deaths: int = 0

    def run(self, desk):
        file = desk.folder / self.name
        with file.open("a") as notes:
            notes.write("x")
        if self.error is not None:
            raise self.error
        if file.stat().st_size <= self.deaths:
            os._exit(3)
        return self.name.upper()


def do(jobs, folder, backend=None, workers=2):
    found = {}
    carry_out(
        jobs,
        backend or InlineBackend(),
        Office(str(folder)),
        workers=workers,
        done=lambda job, answer: found.update({job.name: answer}),
    )
    return found


@pytest.mark.parametrize("backend", [InlineBackend, LocalBackend, ThreadBackend])
def test_every_job_is_done_once_and_its_answer_told(tmp_path, backend):
    names = [f"n{number}" for number in range(7)]
    assert do([Note(name) for name in names], tmp_path, backend()) == {n: n.upper() for n in names}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(names, "x")


def test_without_jobs_no_worker_is_started(tmp_path):
    class Unstartable(InlineBackend):
        def start(self, setup, workers):
            raise AssertionError("started")

    assert do([], tmp_path, Unstartable()) == {}


@pytest.mark.parametrize(
    ("error", "kind"), [(DataError("bad row"), DataError), (UsageError("bad call"), UsageError)]
)
@pytest.mark.parametrize("backend", [InlineBackend, LocalBackend, ThreadBackend])
def test_the_first_failure_ends_the_work_with_what_it_said(tmp_path, backend, error, kind):
    with pytest.raises(kind, match="bad"):
        do([Note("a"), Note("b", error), Note("c")], tmp_path, backend(), workers=1)
    assert not (tmp_path / "c").exists()


def test_an_error_of_the_job_itself_comes_with_its_traceback(tmp_path):
    with pytest.raises(WorkerError, match=r"KeyError: 'colour'[\s\S]*in run"):
        do([Note("a", KeyError("colour"))], tmp_path)


def test_a_job_whose_worker_dies_is_done_by_another(tmp_path):
    jobs = [Note("a"), Note("b", deaths=ATTEMPTS - 1), Note("c")]
    assert set(do(jobs, tmp_path, LocalBackend())) == {"a", "b", "c"}
    assert (tmp_path / "b").read_text() == "x" * ATTEMPTS
    assert (tmp_path / "a").read_text() == "x"


def test_a_job_that_kills_every_worker_is_given_up(tmp_path):
    with pytest.raises(WorkerError, match=r"3 died with the same: .*exit"):
        do([Note("a", deaths=99)], tmp_path, LocalBackend())
    assert (tmp_path / "a").read_text() == "x" * ATTEMPTS


@dataclass(frozen=True)
class Interrupting(Note):
    """Presses Ctrl-C in the middle of its work."""

    def run(self, desk):
        os.kill(os.getpid(), signal.SIGINT)
        return super().run(desk)


def test_ctrl_c_ends_the_work_once_what_is_under_way_is_done(tmp_path):
    found = {}
    with pytest.raises(RunInterrupted, match="what was done is kept") as stopped:
        carry_out(
            [Note("a"), Interrupting("b"), Note("c")],
            InlineBackend(),
            Office(str(tmp_path)),
            workers=1,
            done=lambda job, answer: found.update({job.name: answer}),
        )
    assert stopped.value.exit_code == 130
    assert set(found) == {"a", "b"}
    assert not (tmp_path / "c").exists()
