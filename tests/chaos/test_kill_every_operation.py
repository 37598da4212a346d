"""R1: killed before, after or in the middle of any operation on the disk, a run resumes exactly."""

from __future__ import annotations

import itertools
import os
import shutil
import signal

import pytest

from cerebro.run.spec import Checkpointing
from cerebro.storage.disk import Disk
from cerebro.testing.faults import FaultyDisk, KillAfter, KillBefore, Tear
from cerebro.testing.history import check
from tests.experiments import copy_run, fit_toy, in_child, make_toy_data, outcome, toy_spec

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


def assert_exact_after_every_kill(folder, spec, kill, **settings):
    """SQLite's loop: n = 1, 2, 3 ... until a run has fewer operations. The number of kills."""
    fit_toy(folder / "whole", spec, **settings)
    expected = outcome(folder / "whole")
    kills = 0
    for n in itertools.count(1):
        root = folder / f"run{n}"
        operations = run_until_killed(root, spec, kill(n), **settings)
        if operations is not None and n > operations:
            return kills
        # An operation that fails has no "after": a look at a file that is not there.
        kills += operations is None
        check(root, is_settled=False)
        fit_toy(root, spec, **settings)
        assert outcome(root) == expected, f"another result after {kill(n)}"
        check(root)
        shutil.rmtree(root)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("kill", KILLS)
def test_a_run_killed_at_any_operation_resumes_exactly(folder, data, kill):
    assert assert_exact_after_every_kill(folder, toy_spec(data), kill) > 100


@pytest.mark.parametrize("kill", KILLS)
def test_so_does_one_that_keeps_the_best_trial_alone(folder, data, kill):
    assert assert_exact_after_every_kill(folder, toy_spec(data), kill, keep_top=1) > 100


def test_so_does_one_that_saves_once_an_epoch(folder, data):
    spec = toy_spec(data, checkpoint=Checkpointing.EPOCH)
    assert assert_exact_after_every_kill(folder, spec, Tear) > 70


def test_so_does_one_that_saves_nothing(folder, data):
    spec = toy_spec(data, checkpoint=Checkpointing.OFF)
    assert assert_exact_after_every_kill(folder, spec, Tear) > 30


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
    assert n > 50
