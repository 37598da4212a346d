"""The driver when it is stopped, and when workers die under it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import Joined, Lost
from cerebro.errors import RunInterrupted, UsageError
from cerebro.results import Result
from cerebro.run import committer, stopping
from cerebro.run.spec import Checkpointing
from cerebro.storage import layout
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.track.records import WorkerChanged
from cerebro.train.visit import VisitCall
from tests.experiments import fit_toy, learnt, outcome, toy_spec
from tests.unit.run.runs import StoppedBackend, fit_until, records_of


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """What a run makes that nothing happens to."""
    root = tmp_path_factory.mktemp("whole") / "run"
    fit_toy(root, toy_spec(data))
    return root


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_a_signal_ends_the_run_and_the_same_command_resumes_it(
    data, folder, root, number, code, threaded
):
    spec = toy_spec(data, epochs=4)
    log = folder / "visits"
    task = ToyTask(log=str(log))
    backend = StoppedBackend(root, 3, number=number)
    with pytest.raises(RunInterrupted, match="the same command resumes it") as caught:
        fit_toy(root, spec, backend=backend, task=task, workers=2, threaded=threaded)
    assert caught.value.exit_code == code
    # Visits in flight were finished and saved: of each of two trials two are durable, one is done
    # and one has begun by the time that the driver hears of it. There are 16 in all.
    assert 3 <= len(records_of(root, "visit")) == len(log.read_text().splitlines()) <= 8
    assert not Result.open(root).is_finished
    check(root)
    fit_toy(root, spec)
    fit_toy(folder / "whole", spec)
    assert outcome(root) == outcome(folder / "whole")


def test_a_signal_when_all_is_done_changes_nothing(root, spec, whole):
    fit_toy(root, spec, backend=StoppedBackend(root, 2, "trial_end"))
    assert outcome(root) == outcome(whole)


class StoppedAtStart(InlineBackend):
    """A signal arrives while workers start."""

    def start(self, setup, workers):
        os.kill(os.getpid(), signal.SIGINT)
        super().start(setup, workers)


def test_a_new_run_stopped_while_workers_start_leaves_no_trace(folder, root, spec):
    with pytest.raises(RunInterrupted):
        fit_toy(root, spec, backend=StoppedAtStart())
    assert list(folder.iterdir()) == []


def test_a_resumed_run_stopped_while_workers_start_is_not_taken_for_finished(root, spec, whole):
    fit_until(root, spec, 2)
    before = (root / layout.JOURNAL).read_bytes()
    with pytest.raises(RunInterrupted):
        fit_toy(root, spec, backend=StoppedAtStart())
    assert (root / layout.JOURNAL).read_bytes() == before
    fit_toy(root, spec)
    assert outcome(root) == outcome(whole)


class Stuck(InlineBackend):
    """One visit is never answered; a signal arrives when it starts."""

    def submit(self, worker, call, source, **options):
        if (call.trials, call.is_training, call.visits) == ((0,), True, 3):
            os.kill(os.getpid(), signal.SIGTERM)
            return
        super().submit(worker, call, source, **options)


def test_a_visit_that_does_not_end_is_left_after_a_while(root, spec, whole, monkeypatch):
    monkeypatch.setattr(stopping, "GRACE_S", 0.0)
    with pytest.raises(RunInterrupted) as caught:
        fit_toy(root, spec, backend=Stuck(), workers=2)
    assert caught.value.exit_code == 75
    assert len(records_of(root, "visit", 0)) == 2
    check(root)
    fit_toy(root, spec)
    assert outcome(root) == outcome(whole)


class Endless(InlineBackend):
    """No visit of the second epoch is ever answered."""

    def __init__(self):
        super().__init__()
        self.begun = 0

    def submit(self, worker, call, source, **options):
        if isinstance(call, VisitCall) and call.is_training and call.epoch == 1:
            self.begun += 1
        else:
            super().submit(worker, call, source, **options)

    def events(self):
        # It fails, instead of waiting for ever.
        return super().events() if self._queue else [self._events.get(timeout=60)]


@pytest.mark.parametrize("trials", [1, 2])
def test_a_run_that_reached_its_goal_waits_for_no_visit(data, root, trials):
    goal = {"name": "goal", "metric": "val_loss", "mode": "min", "target": 100.0}
    space = {"lr": [0.1, 0.01][:trials]}
    changes = {"epochs": 3, "goal": {**goal, "max_epochs": None}}
    # With checkpoints the next visit may have to wait until the last is saved.
    spec = toy_spec(data, space, checkpoint=Checkpointing.OFF, **changes)
    backend = Endless()
    fit_toy(root, spec, backend=backend, workers=2, threaded=True)
    result = Result.open(root)
    assert result.ending.startswith("goal reached")
    assert backend.begun
    assert all(trial.status.is_final for trial in result.trials)
    check(root)


class Lasting(InlineBackend):
    """Its visits cannot be ended; it counts those that are left when it stops."""

    ends_visits = False
    left = 0

    def stop(self):
        self.left += len(self._queue)
        super().stop()


def test_visits_that_cannot_be_ended_are_waited_for(data, root):
    goal = {"name": "goal", "metric": "val_loss", "mode": "min", "target": 100.0}
    changes = {"epochs": 3, "goal": {**goal, "max_epochs": None}}
    backend = Lasting()
    spec = toy_spec(data, {"lr": [0.1, 0.01]}, checkpoint=Checkpointing.OFF, **changes)
    fit_toy(root, spec, backend=backend, workers=2, threaded=True)
    assert Result.open(root).ending.startswith("goal reached")
    assert backend.left == 0


def test_a_second_signal_stops_at_once(root, spec, whole):
    class Twice(StoppedBackend):
        def submit(self, worker, call, source, **options):
            super().submit(worker, call, source, **options)
            if call.visits == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunInterrupted, match="stopped at once"):
        fit_toy(root, spec, backend=Twice(root, 100))
    fit_toy(root, spec)
    check(root)
    assert outcome(root) == outcome(whole)


class Unsaved(InlineBackend):
    """A state is never saved once others are; both signals arrive while it should be."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.is_let_go = threading.Event()
        #: Durable visits when it began.
        self.saved = 0

    def save(self, state, request):
        saved = len(records_of(self.root, "visit"))
        if saved and not self.saved:
            self.saved = saved
            # Wherever the main thread is: it need not be the one that takes them.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.pthread_kill(threading.get_ident(), number)
            self.is_let_go.wait(60)
        return super().save(state, request)


def test_a_second_signal_does_not_wait_for_a_state_that_cannot_be_saved(
    root, spec, whole, monkeypatch
):
    monkeypatch.setattr(committer, "_LEAVE_S", 0.05)
    backend = Unsaved(root)
    try:
        with pytest.raises(RunInterrupted, match="stopped at once") as caught:
            fit_toy(root, spec, backend=backend, workers=2, threaded=True)
        assert not backend.is_let_go.is_set()
    finally:
        backend.is_let_go.set()
    assert caught.value.exit_code == 75
    assert len(records_of(root, "visit")) == backend.saved > 0
    check(root)
    fit_toy(root, spec)
    assert outcome(root) == outcome(whole)


# Workers that die


class Deadly(InlineBackend):
    """Visit `visits` of trial 0 kills its worker so many times; another joins in its place."""

    def __init__(self, deaths, visits=2):
        super().__init__()
        self.deaths = deaths
        self.visits = visits
        self.info = None

    def events(self):
        found = super().events()
        for event in found:
            if isinstance(event, Joined):
                self.info = event.info
        return found

    def submit(self, worker, call, source, **options):
        is_visit = isinstance(call, VisitCall) and call.is_training and 0 in call.trials
        if self.deaths and is_visit and call.visits == self.visits:
            self.deaths -= 1
            self._events.put(Lost(worker, call, "was killed by SIGKILL"))
            self._events.put(Joined(self.info))
        else:
            super().submit(worker, call, source, **options)


class Notes:
    def __init__(self):
        self.records = []

    def record(self, record):
        self.records.append(record)

    def close(self):
        pass


@pytest.mark.parametrize("visits", [1, 2, 3])
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_visit_whose_worker_died_is_done_again(root, spec, whole, visits, deaths):
    fit_toy(root, spec, backend=Deadly(deaths, visits))
    check(root)
    assert learnt(root) == learnt(whole)
    assert [record["attempt"] for record in records_of(root, "visit", 0)][visits - 1] == deaths


@pytest.mark.parametrize("visits", [1, 2, 3])
@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_so_is_one_of_a_stack(data, folder, visits, deaths):
    """Three dead workers are one too many: its trials go on alone, and the third dies no more."""
    spec = toy_spec(data, stack=2)
    fit_toy(folder / "whole", spec)
    fit_toy(folder / "run", spec, backend=Deadly(deaths, visits))
    check(folder / "run")
    assert len(records_of(folder / "run", "dissolved")) == (deaths == 3)
    # Alone, too, they began at the shard of the stack.
    assert learnt(folder / "run") == learnt(folder / "whole")


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_a_signal_ends_a_run_with_stacks(data, folder, threaded):
    spec, root = toy_spec(data, stack=2, epochs=4), folder / "run"
    fit_toy(folder / "whole", spec)
    with pytest.raises(RunInterrupted, match="the same command resumes it"):
        fit_toy(root, spec, backend=StoppedBackend(root, 3), workers=2, threaded=threaded)
    assert 3 <= len(records_of(root, "visit")) < 8
    check(root)
    fit_toy(root, spec)
    assert outcome(root) == outcome(folder / "whole")


def test_people_are_told_which_worker_died_and_why(root, spec):
    notes = Notes()
    fit_toy(root, spec, backend=Deadly(1), trackers=[notes])
    changes = [record for record in notes.records if isinstance(record, WorkerChanged)]
    assert [(c.worker, c.alive, c.cause) for c in changes] == [
        (0, True, None),
        (0, False, "was killed by SIGKILL"),
        (0, True, None),
    ]


def test_a_trial_that_kills_three_workers_fails_alone(root, spec, whole):
    fit_toy(root, spec, backend=Deadly(3))
    failed, other = Result.open(root).trials
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.startswith("worker 0 was killed by SIGKILL (quarantined: 3 workers died")
    assert other.status == "finished"
    assert learnt(root)[1] == learnt(whole)[1]


def test_a_worker_that_dies_idle_costs_nothing(data, root, whole):
    class Idle(InlineBackend):
        def start(self, setup, workers):
            super().start(setup, workers)
            self._events.put(Lost(1, None, "was killed by SIGKILL"))

    # The only trial is on worker 0.
    fit_toy(root, toy_spec(data, {"lr": [0.5]}), backend=Idle(), workers=2)
    assert learnt(root)[0] == learnt(whole)[0]


def test_a_worker_that_dies_in_the_first_visit_does_not_hide_a_wrong_metric(data, folder, root):
    spec = toy_spec(data, {"lr": [0.5]}, metric="val_f1")
    with pytest.raises(UsageError, match="'val_f1'"):
        fit_toy(root, spec, backend=Deadly(1, 1))
    assert list(folder.iterdir()) == []
