"""How trials end in a stack, and stacks before their trials."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import Done, Failed
from cerebro.data import from_arrays
from cerebro.run.spec import Checkpointing
from cerebro.testing.history import check
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.track.files import FileTracker
from cerebro.track.records import TrialFinished, VisitFinished, VisitStarted
from cerebro.train.visit import MemberReport
from cerebro.types import Split
from tests.experiments import fit_toy, toy_spec
from tests.unit.run.runs import records_of
from tests.unit.run.test_stack_runs import DIVERGED, FINISHED, LRS, sick, statuses


class Notes:
    def __init__(self):
        self.records = []

    def record(self, record):
        self.records.append(record)

    def close(self):
        pass


@pytest.mark.parametrize("mode", Checkpointing)
def test_one_that_ended_before_the_others_did_at_once_has_its_own_end(data, root, mode):
    """By epoch, its end waits for the checkpoint that never comes."""
    fails = [
        {"kind": kind, "epoch": 1, "step": n} for n, kind in enumerate(("nan_loss", "nan_stack"))
    ]
    spec = toy_spec(data, {"lr": 0.1, "fail": fails}, epochs=3, stack=4, checkpoint=mode)
    fit_toy(root, spec)
    check(root)
    assert statuses(root) == [DIVERGED, DIVERGED]
    assert [record["trial"] for record in records_of(root, "trial_end")] == [0, 1]


@pytest.mark.parametrize("kind", ["nan_loss", "nan_state", "nan_metric"])
def test_nobody_is_told_more_of_one_that_has_ended(data, root, kind):
    notes = Notes()
    spec = toy_spec(data, sick(kind, epoch=1), epochs=3, stack=4)
    fit_toy(root, spec, trackers=[notes, FileTracker(root)])
    ended = next(n for n, r in enumerate(notes.records) if isinstance(r, TrialFinished))
    told = [r for r in notes.records if isinstance(r, VisitStarted | VisitFinished)]
    assert any(r.trials == (0, 1, 2) for r in told)
    later = [r for r in notes.records[ended:] if isinstance(r, VisitStarted | VisitFinished)]
    assert later
    assert all(r.trials == (0, 2) for r in later)
    assert all(len(r.trials) == len(r.members) for r in told if isinstance(r, VisitFinished))
    rows = csv.DictReader((root / "leaderboard.csv").read_text().splitlines())
    assert {row["trial"]: row["status"] for row in rows} == {
        "t0000": "finished",
        "t0001": "diverged",
        "t0002": "finished",
    }


class Late(InlineBackend):
    """A stack's evaluation of the second shard is answered after that of the first failed twice."""

    def __init__(self):
        super().__init__()
        self._late = []
        self._failures = 0

    def events(self):
        if self._failures == 2:
            self._failures = 0
            return self._late
        found = []
        for event in super().events():
            self._failures += isinstance(event, Failed)
            is_late = isinstance(event, Done) and event.call.epoch == 1 and event.call.stack
            if is_late and event.call.split is Split.VAL and event.call.shard == 1:
                self._late.append(event)
            else:
                found.append(event)
        return found


class FailingEvaluations(ToyFramework):
    """The stack cannot be evaluated on one shard, and a trial of it has diverged on the other."""

    def evaluate(self, call, shard, state):
        report = super().evaluate(call, shard, state)
        if call.stack is None or call.epoch != 1:
            return report
        if call.shard == 0:
            raise ValueError("no evaluation of a stack")
        sick = MemberReport(sums={}, diverged="in a stack alone")
        return replace(report, members=(sick, *report.members[1:]))


class FailingTask(ToyTask):
    framework = "tests.unit.run.test_stack_ends:FailingEvaluations"


@pytest.mark.parametrize("mode", Checkpointing)
def test_evaluations_under_way_end_before_a_stack_is_dissolved(folder, root, mode):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(160, 4)).astype(np.float32), "y": rng.integers(0, 3, 160)}
    from_arrays(folder / "data", train=rows, shards=2, validation=0.5)
    spec = toy_spec(folder / "data", LRS, epochs=3, stack=100, checkpoint=mode)
    assert spec.val_shards == 2
    fit_toy(root, spec, task=FailingTask(), backend=Late(), workers=2)
    check(root)
    # What the late one says of a stack that is given up counts no more.
    assert statuses(root) == [FINISHED] * 5
    assert len(records_of(root, "dissolved")) == 1
    assert "2 attempts failed" in records_of(root, "dissolved")[0]["reason"]
