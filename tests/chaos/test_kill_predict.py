"""R19: killed at any operation on the disk, test and predict give each row once, in order."""

from __future__ import annotations

import itertools
import os
import shutil
import signal

import psutil
import pytest

from cerebro.backend import LocalBackend
from cerebro.storage.disk import Disk
from cerebro.testing.faults import FaultyDisk, KillAfter, KillBefore, Tear
from cerebro.train.score.calls import ScoreMode
from tests.experiments import in_child
from tests.kills import RecordingDisk, keep_states
from tests.scored import answer, ask, files, trained_run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def run(folder):
    return trained_run(folder)


def ask_until_killed(run, out, rule, mode):
    """The number of operations of a request that ended in spite of the rule; None if killed."""
    disk = FaultyDisk(Disk(), rule)
    count = out.with_suffix(".count")

    def work():
        answer(ask(run, mode), out, disk)
        count.write_text(str(len(disk.operations)))

    status = in_child(work)
    if status == 0:
        return int(count.read_text())
    assert os.WIFSIGNALED(status), f"it failed instead of being killed: {rule}"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return None


@pytest.mark.parametrize("mode", list(ScoreMode))
def test_killed_at_any_operation_and_asked_again_it_is_byte_identical(folder, run, mode):
    answer(ask(run, mode), folder / "whole")
    expected = files(folder / "whole")
    states = keep_states(
        folder / "out",
        lambda states: answer(ask(run, mode), folder / "out", RecordingDisk(states)),
    )
    for out in states:
        answer(ask(run, mode), out)
        assert files(out) == expected, f"another result after {out.name}"
    assert len(states) > 20


@pytest.mark.parametrize("kill", [KillBefore, KillAfter, Tear])
@pytest.mark.parametrize("mode", list(ScoreMode))
def test_however_it_was_killed(folder, run, kill, mode, seed):
    """With real kills, at every fifth operation, from another one on in each session."""
    answer(ask(run, mode), folder / "whole")
    expected = files(folder / "whole")
    kills = 0
    for n in itertools.count(1 + seed % 5, 5):
        out = folder / f"out{n}"
        operations = ask_until_killed(run, out, kill(n), mode)
        if operations is not None and n > operations:
            break
        kills += operations is None
        answer(ask(run, mode), out)
        assert files(out) == expected, f"another result after {kill(n)}"
        shutil.rmtree(out)
    assert kills >= 20 // 5


def test_a_worker_killed_at_work_costs_nothing_but_its_shard(folder, run):
    answer(ask(run), folder / "whole")
    killed: list[int] = []

    def kill_one(done, total):
        if killed:
            return
        workers = [p for p in psutil.Process().children() if "cerebro" in " ".join(p.cmdline())]
        if workers:
            killed.append(workers[0].pid)
            workers[0].kill()

    backend = LocalBackend(log_dir=str(folder / "logs"))
    request = ask(run, workers=2)
    answer(request, folder / "out", backend=backend, progress=kill_one)
    assert killed
    assert files(folder / "out") == files(folder / "whole")
