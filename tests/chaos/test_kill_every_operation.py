"""R1, R2: killed before, after or amid any operation on the disk, a run resumes exactly.

And what its journal called durable is not trained again.
"""

from __future__ import annotations

import contextlib

import pytest

from cerebro.errors import RunInterrupted
from cerebro.run.spec import Checkpointing
from cerebro.testing.faults import KillAfter, KillBefore, Tear
from cerebro.testing.history import check
from tests.experiments import STACK, StoppedAfter, fit_toy, make_toy_data, toy_spec
from tests.kills import (
    assert_exact_after_every_kill,
    assert_exact_from_every_state,
    run_until_killed,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def data(folder):
    make_toy_data(folder / "data")
    return folder / "data"


@pytest.mark.parametrize("kill", [KillBefore, KillAfter, Tear])
def test_a_run_killed_at_any_operation_resumes_exactly(folder, data, kill):
    assert assert_exact_after_every_kill(folder, toy_spec(data), kill) > (90 if STACK else 100)


def test_so_does_one_that_keeps_the_best_trial_alone(folder, data):
    states = assert_exact_from_every_state(folder, toy_spec(data), keep_top=1)
    assert states > (80 if STACK else 100)


def test_so_does_one_that_saves_once_an_epoch(folder, data):
    spec = toy_spec(data, checkpoint=Checkpointing.EPOCH)
    assert assert_exact_from_every_state(folder, spec) > (40 if STACK else 60)


def test_so_does_one_that_saves_nothing(folder, data):
    spec = toy_spec(data, checkpoint=Checkpointing.OFF)
    assert assert_exact_from_every_state(folder, spec) > 30


@pytest.mark.parametrize("stack", [False, 2], ids=["alone", "stacked"])
def test_one_that_saves_once_an_epoch_and_is_stopped_amid_one_may_be_killed_as_well(folder, stack):
    """At any operation of the process that is stopped, and of the one that resumes it."""
    make_toy_data(folder / "data", shards=4)
    spec = toy_spec(folder / "data", checkpoint=Checkpointing.EPOCH, stack=stack)

    def stopped(root, spec, **settings):
        with contextlib.suppress(RunInterrupted):
            fit_toy(root, spec, backend=StoppedAfter(6), workers=2, **settings)

    stopped(folder / "half", spec)
    check(folder / "half")
    assert assert_exact_from_every_state(folder, spec, work=stopped) > 30
    assert assert_exact_from_every_state(folder, spec, start=folder / "half") > 20


@pytest.mark.parametrize("first", [60, 75, 90])
def test_a_run_killed_again_at_any_operation_of_its_resumption_resumes_exactly(folder, data, first):
    spec = toy_spec(data)
    assert run_until_killed(folder / "half", spec, Tear(first)) is None
    states = assert_exact_from_every_state(folder, spec, start=folder / "half")
    assert states > (20 if STACK else 50)
