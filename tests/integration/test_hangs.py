"""R12: a hung worker is found, ended with all that it started, and its visit moved."""

from __future__ import annotations

import pytest

from cerebro import Result
from cerebro.backend import LocalBackend
from cerebro.backend.limits import Limits
from cerebro.testing.history import check
from cerebro.testing.toy import FaultPlan
from cerebro.types import TrialStatus
from tests.experiments import fit_toy, learnt, make_toy_data, toy_spec
from tests.integration.project import make_project

LRS = [0.5, 0.05]
STALL = Limits(stall_s=1.0)
SILENCE = Limits(heartbeat_s=1.0)


class JudgingBackend(LocalBackend):
    """Limits are for visits in which a worker hangs; all others have the time that they need."""

    def __init__(self, log_dir, limits):
        super().__init__(log_dir=log_dir, limits=Limits(stop_s=0.2))
        self._judged = limits

    def submit(self, worker, call, source, *, consume=False):
        if worker in self._workers:
            plan = FaultPlan.of(call.params[0])
            hangs = plan is not None and plan.strikes(call)
            self._workers[worker].watch._limits = self._judged if hangs else self._limits
        super().submit(worker, call, source, consume=consume)


@pytest.fixture
def data(folder):
    make_toy_data(folder / "data")
    return folder / "data"


def run(folder, data, fail, limits=STALL):
    spec = toy_spec(data, {"fail": fail, "lr": LRS})
    backend = JudgingBackend(str(folder / "logs"), limits)
    fit_toy(folder / "sick", spec, workers=2, backend=backend, threaded=True)
    check(folder / "sick")
    return Result.open(folder / "sick")


@pytest.mark.parametrize("kind", ["hang", "stubborn"])
def test_a_visit_that_hangs_once_is_moved_and_the_result_is_the_same(folder, data, kind):
    run(folder, data, [{"kind": kind, "step": 1, "attempts": 1}])
    fit_toy(folder / "well", toy_spec(data, {"fail": [None], "lr": LRS}))
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert [trial[1:] for trial in found.values()] == [trial[1:] for trial in healthy.values()]


def test_a_stopped_worker_is_replaced_and_the_result_is_the_same(folder, data):
    run(folder, data, [{"kind": "stop", "epoch": 1, "attempts": 1}], SILENCE)
    fit_toy(folder / "well", toy_spec(data, {"fail": [None], "lr": LRS}))
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert [trial[1:] for trial in found.values()] == [trial[1:] for trial in healthy.values()]


def test_a_trial_that_hangs_each_time_is_given_up_and_no_other(folder, data):
    result = run(folder, data, [None, {"kind": "hang", "epoch": 1}])
    fit_toy(folder / "well", toy_spec(data, {"fail": [None], "lr": LRS}))
    found, healthy = learnt(folder / "sick"), learnt(folder / "well")
    assert {number: found[number] for number in healthy} == healthy
    for trial in result.trials[2:]:
        assert trial.status is TrialStatus.FAILED
        assert "hung: no batch for" in trial.error


def test_the_limits_can_be_set_from_outside(tmp_path, monkeypatch):
    project = make_project(tmp_path)
    project.edit("experiment.yaml", "  lr: [0.1, 0.01]", "  lr: 0.1\n  fail: hang")
    monkeypatch.setenv("CEREBRO_STALL_S", "0.3")
    done = project.cerebro("run", "experiment.yaml")
    assert "hung: no batch for" in done.stdout + done.stderr


def test_a_limit_that_is_none_is_refused(tmp_path, monkeypatch):
    project = make_project(tmp_path)
    monkeypatch.setenv("CEREBRO_STALL_S", "soon")
    assert "CEREBRO_STALL_S must be a number" in project.refuse("run", "experiment.yaml")
