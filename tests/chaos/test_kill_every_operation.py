"""R1, R2: killed before, after or amid any operation on the disk, a run resumes exactly.

And what its journal called durable is not trained again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal

import pytest

from cerebro.errors import RunInterrupted
from cerebro.run.spec import Checkpointing
from cerebro.storage import DirectoryStore
from cerebro.storage.disk import Disk
from cerebro.storage.journal import read
from cerebro.testing.faults import FaultyDisk, KillAfter, KillBefore, Tear
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.experiments import (
    STACK,
    StoppedAfter,
    copy_run,
    fit_toy,
    in_child,
    make_toy_data,
    outcome,
    toy_spec,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

KILLS = [KillBefore, KillAfter, Tear]


@pytest.fixture
def data(folder):
    make_toy_data(folder / "data")
    return folder / "data"


def run_until_killed(root, spec, rule, **settings):
    """The number of operations of a run that ended in spite of the rule; None if it was killed."""
    disk = FaultyDisk(Disk(), rule)
    count = root.with_suffix(".count")

    def work():
        fit_toy(root, spec, disk=disk, **settings)
        count.write_text(str(len(disk.operations)))

    status = in_child(work)
    if status == 0:
        return int(count.read_text())
    assert os.WIFSIGNALED(status), f"the run failed instead of being killed: {rule}"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return None


def durable_visits(root):
    """(trial, epoch, step) of the visits up to each trial's last checkpoint in the journal."""
    if not (root / "journal.jsonl").exists():
        return set()
    found = [r for r in read(DirectoryStore(root)).records if r["type"] == "visit"]
    records = [(trial, r) for r in found for trial in r.get("trials") or [r["trial"]]]
    saved = {trial: (r["epoch"], r["step"]) for trial, r in records if r.get("checkpoint")}
    visits = {(trial, r["epoch"], r["step"]) for trial, r in records}
    return {visit for visit in visits if visit[1:] <= saved.get(visit[0], (-1, -1))}


def started_visits(log):
    """(trial, epoch, step) of what was trained; the log goes."""
    if not log.exists():
        return set()
    lines = log.read_text().splitlines()
    log.unlink()
    return {tuple(map(int, line.split()[:3])) for line in lines}


def assert_exact_after_every_kill(folder, spec, kill, *, first=1, stride=1, **settings):
    """SQLite's loop: n = 1, 2, 3 ... until a run has fewer operations. The number of kills."""
    fit_toy(folder / "whole", spec, **settings)
    expected = outcome(folder / "whole")
    kills = 0
    for n in itertools.count(first, stride):
        root = folder / f"run{n}"
        log = root.with_suffix(".visits")
        # One task for both: a finished run of failures begins anew with another.
        task = ToyTask(log=str(log))
        operations = run_until_killed(root, spec, kill(n), task=task, **settings)
        if operations is not None and n > operations:
            return kills
        # An operation that fails has no "after": a look at a file that is not there.
        kills += operations is None
        check(root, is_settled=False)
        durable = durable_visits(root)
        log.unlink(missing_ok=True)
        fit_toy(root, spec, task=task, **settings)
        assert outcome(root) == expected, f"another result after {kill(n)}"
        check(root)
        assert not durable & started_visits(log), f"a durable visit again after {kill(n)}"
        shutil.rmtree(root)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("kill", KILLS)
def test_a_run_killed_at_any_operation_resumes_exactly(folder, data, kill):
    assert assert_exact_after_every_kill(folder, toy_spec(data), kill) > (90 if STACK else 100)


@pytest.mark.parametrize("kill", KILLS)
def test_so_does_one_that_keeps_the_best_trial_alone(folder, data, kill):
    assert assert_exact_after_every_kill(folder, toy_spec(data), kill, keep_top=1) > (
        90 if STACK else 100
    )


def test_so_does_one_that_saves_once_an_epoch(folder, data):
    spec = toy_spec(data, checkpoint=Checkpointing.EPOCH)
    assert assert_exact_after_every_kill(folder, spec, Tear) > 70


def test_so_does_one_that_saves_nothing(folder, data):
    spec = toy_spec(data, checkpoint=Checkpointing.OFF)
    assert assert_exact_after_every_kill(folder, spec, Tear) > 30


@pytest.mark.parametrize("stack", [False, 2], ids=["alone", "stacked"])
def test_one_that_saves_once_an_epoch_and_is_stopped_amid_one_may_be_killed_as_well(folder, stack):
    """At any operation of the process that is stopped, and of the one that resumes it."""
    make_toy_data(folder / "data", shards=4)
    spec = toy_spec(folder / "data", checkpoint=Checkpointing.EPOCH, stack=stack)
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    root = folder / "run"

    def stopped(disk=None):
        with contextlib.suppress(RunInterrupted):
            fit_toy(root, spec, disk=disk, backend=StoppedAfter(6), workers=2)

    for n in itertools.count(1):
        disk = FaultyDisk(Disk(), Tear(n))
        was_killed = os.WIFSIGNALED(in_child(functools.partial(stopped, disk)))
        check(root, is_settled=not was_killed)
        if not was_killed:
            break
        fit_toy(root, spec)
        check(root)
        assert outcome(root) == expected, f"another result after Tear({n}) of the first"
        shutil.rmtree(root)
    kept = copy_run(root, folder / "half")
    log = folder / "visits"
    for m in itertools.count(1):
        copy_run(kept, root)
        operations = run_until_killed(root, spec, Tear(m))
        if operations is not None and m > operations:
            break
        check(root, is_settled=False)
        durable = durable_visits(root)
        fit_toy(root, spec, task=ToyTask(log=str(log)))
        check(root)
        assert outcome(root) == expected, f"another result after Tear({m}) of the second"
        assert not durable & started_visits(log), f"a durable visit again after Tear({m})"
    assert min(n, m) > 30


@pytest.mark.parametrize("first", [60, 75, 90])
def test_a_run_killed_again_at_any_operation_of_its_resumption_resumes_exactly(folder, data, first):
    spec = toy_spec(data)
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    assert run_until_killed(folder / "half", spec, Tear(first)) is None
    for n in itertools.count(1):
        root = copy_run(folder / "half", folder / "again")
        operations = run_until_killed(root, spec, Tear(n))
        if operations is not None and n > operations:
            break
        check(root, is_settled=False)
        fit_toy(root, spec)
        assert outcome(root) == expected, f"another result after Tear({first}) and Tear({n})"
        check(root)
    assert n > (40 if STACK else 50)
