"""How steps are tried out before a run: on a backend that says what a test wants it to."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from cerebro.backend.base import (
    Answered,
    Done,
    Failed,
    Failure,
    FailureKind,
    Joined,
    Lost,
    Posted,
    Setup,
    StateRef,
    WorkerInfo,
)
from cerebro.data import open_dataset
from cerebro.errors import CerebroError, RunInterrupted, WorkerError
from cerebro.run.gauge import gauge
from cerebro.run.signals import Broken, StopRequested
from cerebro.train.gang.place import GangPlace
from cerebro.train.visit import Group, MemberReport, Stacking, Survey, SurveyCall, VisitReport
from tests.experiments import make_toy_data, toy_spec

PARAMS = {"lr": 0.5}
#: A stack of one is predicted to be faster.
QUICK = Survey(groups=(Group(trials=(0,), step_s={0: 2.0, 1: 1.0}),), memory_bytes=1 << 30)
SLOW = Survey(groups=(Group(trials=(0,), step_s={0: 1.0, 1: 2.0}),), memory_bytes=1 << 30)


def failure(*, is_spent=False):
    return Failure(
        kind=FailureKind.ERROR,
        message="no luck",
        traceback="",
        signature="no luck",
        error="ValueError",
        is_spent=is_spent,
    )


class Scripted:
    """A backend of one worker, which answers as it is told."""

    def __init__(self, survey=QUICK, visit="done"):
        self.survey, self.visit = survey, visit
        self.calls, self.sources, self.kept = [], [], set()
        self.is_stopped = False
        #: A signal that this process gets while the worker is stopped.
        self.at_the_end = None
        #: Comes with the first events.
        self.told = []
        self._events = []

    def start(self, setup, workers):
        info = WorkerInfo(worker=0, pid=1, host="here", device="cpu", versions={})
        self._events.append(Joined(info))

    def events(self):
        found, self._events = [*self._events, *self.told], []
        assert found, "nothing will ever come"
        return found

    def submit(self, worker, call, source):
        self.calls.append(call)
        self.sources.append(source)
        self._events.append(self._answer(call, source))

    def _answer(self, call, source):
        if isinstance(call, SurveyCall):
            if isinstance(self.survey, Failure):
                return Failed(0, call, self.survey)
            return Answered(0, call, self.survey)
        if self.visit == "lost":
            return Lost(0, call, "was killed")
        if self.visit == "failed":
            return Failed(0, call, failure())
        steps = -(-call.limit // call.batch_size)
        report = VisitReport(
            rows=call.limit,
            members=(MemberReport(sums={}),),
            compute_s=steps * (0.010 if call.is_alone else 0.006),
            comm_s=0.0 if call.is_alone else steps * 0.002,
            send_s=0.0 if source is None else 0.5,
        )
        state = StateRef(len(self.calls), 4_000_000, {})
        self.kept.add(state.key)
        return Done(0, call, report, state)

    def release(self, state):
        self.kept.remove(state.key)

    def post(self, payload):
        self.told.append(Posted(payload))

    def stop(self):
        self.is_stopped = True
        if self.at_the_end is not None:
            signal.raise_signal(self.at_the_end)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    make_toy_data(path)
    return path


@pytest.fixture
def measure(data):
    spec = replace(toy_spec(data), batch_size=8, stack="auto")

    def measure(backend, alone=spec, together=None):
        setup = Setup(task="", data=str(data), store="", gang=GangPlace(size=2))
        together = together or replace(spec, gang=2)
        given = {"alone": alone, "together": together, "params": PARAMS}
        cost = gauge(backend, setup, open_dataset(data), **given)
        assert backend.is_stopped
        assert not backend.kept
        return cost

    return measure


def test_a_step_is_measured_alone_and_together_with_what_is_sent_before_a_visit(measure):
    cost = measure(Scripted())
    assert (cost.alone_s, cost.together_s, cost.comm_s) == pytest.approx((0.010, 0.008, 0.002))
    assert (cost.alone_rows, cost.rows, cost.workers) == (8, 16, 2)
    assert (cost.send_s, cost.state_bytes) == (0.5, 4_000_000)


def test_batches_are_measured_as_the_shards_that_cut_them(measure, data):
    """Shards have 36 rows: a gang that is to have twice those of 40 has no more."""
    spec = replace(toy_spec(data), batch_size=40, stack=False)
    cost = measure(Scripted(), spec, replace(spec, gang=2))
    assert (cost.alone_rows, cost.rows, cost.visit_steps) == (36, 36, 1)
    assert not replace(cost, together_s=cost.alone_s).is_worth_it


def test_all_steps_that_are_measured_have_as_many_rows(measure, data):
    backend = Scripted()
    spec = replace(toy_spec(data), batch_size=10, stack=False)
    assert measure(backend, spec, replace(spec, gang=2)).visit_steps == 2
    assert [call.limit for call in backend.calls] == [30, 30, 20, 20, 20, 20]


@pytest.mark.parametrize(
    ("survey", "expected"),
    [(QUICK, Stacking()), (SLOW, None), (failure(), None)],
    ids=["quicker", "slower", "failed"],
)
def test_a_trial_alone_is_measured_as_it_would_be_trained(measure, survey, expected):
    backend = Scripted(survey)
    assert measure(backend) is not None
    _, *visits = backend.calls
    assert [call.stack for call in visits if call.is_alone] == [expected] * 2
    assert [call.stack for call in visits if not call.is_alone] == [None] * 4


@pytest.mark.parametrize(
    "backend",
    [Scripted(failure(is_spent=True)), Scripted(visit="failed"), Scripted(visit="lost")],
    ids=["its GPU fails", "it fails", "it kills its worker"],
)
def test_what_is_wrong_with_a_trial_is_left_to_its_run(measure, backend):
    assert measure(backend) is None


@pytest.mark.parametrize("payload", [Broken(WorkerError("gone")), StopRequested(15)], ids=type)
def test_what_ends_a_run_ends_it_while_steps_are_tried_out(measure, payload):
    backend = Scripted()
    backend.told = [Posted(payload)]
    with pytest.raises(CerebroError, match=r"gone|stopped before the first visit"):
        measure(backend)
    assert backend.is_stopped


def test_a_stop_that_comes_when_nothing_more_is_tried_out_ends_the_run_too(measure):
    backend = Scripted()
    backend.at_the_end = signal.SIGTERM
    with pytest.raises(RunInterrupted, match="stopped before the first visit"):
        measure(backend)


def test_nothing_is_asked_where_trials_are_not_stacked(measure, data):
    backend = Scripted()
    measure(backend, replace(toy_spec(data), batch_size=8, stack=False))
    assert not any(isinstance(call, SurveyCall) for call in backend.calls)
