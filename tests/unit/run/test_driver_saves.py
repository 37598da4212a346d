"""A run that saves once an epoch, and is stopped in order in the middle of one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import Done
from cerebro.errors import RunInterrupted
from cerebro.results import Result
from cerebro.run import stopping
from cerebro.run.recovery import load_history
from cerebro.run.signals import GraceOver
from cerebro.run.spec import Checkpointing
from cerebro.search.domain import LogUniform
from cerebro.storage import DirectoryStore
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.train.visit import VisitCall
from tests.experiments import (
    StoppedAfter,
    copy_run,
    fit_toy,
    make_toy_data,
    outcome,
    toy_spec,
    trial_files,
)
from tests.unit.run.runs import records_of

STEPS = 4


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Four train shards: an epoch has a middle."""
    return make_toy_data(tmp_path_factory.mktemp("wide") / "data", shards=STEPS).path


def by_epoch(data, space=None, **changes):
    return toy_spec(data, space or {"lr": [0.5, 0.05]}, checkpoint=Checkpointing.EPOCH, **changes)


def stop_after(root, spec, count, **settings):
    with pytest.raises(RunInterrupted) as caught:
        fit_toy(root, spec, backend=StoppedAfter(count), **settings)
    return str(caught.value)


def visits_of(root):
    return {n: t.visits for n, t in load_history(DirectoryStore(root))[1].trials.items()}


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("count", [1, 3, 5, 6])
def test_all_that_was_done_is_saved_and_not_done_again(
    wide, folder, root, count, workers, threaded
):
    spec, log = by_epoch(wide), folder / "visits"
    task = ToyTask(log=str(log))
    said = stop_after(root, spec, count, task=task, workers=workers, threaded=threaded)
    done = len(log.read_text().splitlines())
    assert f"what was trained is saved ({done} visits), the same command resumes it" in said
    assert sum(visits_of(root).values()) == done >= count
    check(root)
    fit_toy(root, spec, task=task)
    assert len(log.read_text().splitlines()) == 2 * 2 * STEPS
    fit_toy(folder / "whole", spec)
    assert outcome(root) == outcome(folder / "whole")
    check(root)


def test_one_that_was_stopped_again_and_again_ends_as_if_it_was_not(wide, folder, root):
    spec = by_epoch(wide, epochs=3)
    fit_toy(folder / "whole", spec)
    stops = 0
    while not root.exists() or not Result.open(root).is_finished:
        with contextlib.suppress(RunInterrupted):
            fit_toy(root, spec, backend=StoppedAfter(1))
        check(root)
        # Two files each of the last two, the best, and that of the last epoch.
        assert all(len(trial_files(root, n)) <= 2 * 4 for n in (0, 1))
        stops += 1
    assert stops > 12
    check(root)
    assert outcome(root) == outcome(folder / "whole")


def test_the_next_checkpoints_of_epochs_take_the_place_of_those_of_a_stop(wide, root):
    spec = by_epoch(wide, {"lr": 0.5}, epochs=3)
    stop_after(root, spec, 2)
    saved = f"v{visits_of(root)[0]:06d}-a0.json"
    assert saved in trial_files(root, 0)
    marks = [record.get("at_stop", False) for record in records_of(root, "visit")]
    assert marks == [True] * len(marks)
    fit_toy(root, spec)
    assert saved not in trial_files(root, 0)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_so_it_is_with_stacks(wide, folder, root, count):
    spec = by_epoch(wide, {"lr": [0.5, 0.05, 0.2]}, stack=2, epochs=3)
    fit_toy(folder / "whole", spec)
    stop_after(root, spec, count)
    check(root)
    assert len(records_of(root, "visit")) >= count
    fit_toy(root, spec)
    check(root)
    assert outcome(root) == outcome(folder / "whole")


SICK = {
    "raises": {"kind": "raise", "epoch": 1, "step": 3},
    "diverges": {"kind": "nan_loss", "epoch": 1, "step": 3},
    "in-evaluation": {"kind": "nan_metric", "epoch": 1},
}


@pytest.mark.parametrize("stack", [False, 2])
@pytest.mark.parametrize("case", SICK)
def test_a_trial_that_fails_later_has_what_it_would_have_had(wide, folder, case, stack):
    space = {"lr": [0.5, 0.05], "fail": [None, SICK[case]]}
    spec = by_epoch(wide, space, stack=stack, epochs=3)
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    stopped = 0
    for count in range(1, 40, 3):
        root = folder / "run"
        try:
            fit_toy(root, spec, backend=StoppedAfter(count))
        except RunInterrupted:
            stopped += 1
            check(root)
            fit_toy(root, spec)
        check(root)
        assert outcome(root) == expected, f"another result after a stop at visit {count}"
        shutil.rmtree(root)
    assert stopped > 2


SPACE = {"lr": LogUniform(1e-3, 1.0)}
TRAIN_GOAL = {"name": "goal", "metric": "train_loss", "mode": "min", "max_epochs": None}
SEARCHES = {
    "halving": {"stopper": {"name": "halving", "eta": 2}},
    "halving-in-stacks": {"stopper": {"name": "halving", "eta": 2}, "stack": 4},
    "asha": {"stopper": {"name": "asha", "eta": 2}},
    "patience": {"stopper": {"name": "patience", "patience": 1}},
    "pbt": {"stopper": {"name": "pbt", "interval": 1}},
    "goal": {"goal": {**TRAIN_GOAL, "target": 1.1}, "num_trials": 1},
}


@pytest.mark.parametrize("case", SEARCHES)
def test_a_search_goes_on_as_it_would(wide, folder, case):
    changes = {"search": "random", "num_trials": 4, "epochs": 4, "stack": False}
    spec = by_epoch(wide, SPACE, **{**changes, **SEARCHES[case]})
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    decided = [r["what"] for r in records_of(folder / "whole", "decision")]
    assert case == "patience" or decided
    for count in (1, 2, 3, 5, 6, 7, 9, 14):
        root = folder / "run"
        try:
            fit_toy(root, spec, backend=StoppedAfter(count))
        except RunInterrupted:
            check(root)
            fit_toy(root, spec)
        check(root)
        assert outcome(root) == expected, f"another result after a stop at visit {count}"
        shutil.rmtree(root)


def test_a_stop_without_checkpoints_is_as_it_was(wide, root):
    spec = toy_spec(wide, checkpoint=Checkpointing.OFF)
    assert stop_after(root, spec, 2).endswith("is saved, the same command resumes it.")
    assert not any("at_stop" in record for record in records_of(root, "visit"))
    assert trial_files(root, 0) == trial_files(root, 1) == []


class Stuck(InlineBackend):
    """The third visit of trial 0 is never answered; a signal arrives when it starts."""

    def submit(self, worker, call, source, **options):
        is_visit = isinstance(call, VisitCall) and call.is_training
        if is_visit and (call.trials, call.visits) == ((0,), 3):
            os.kill(os.getpid(), signal.SIGTERM)
            return
        super().submit(worker, call, source, **options)


class Given(Stuck):
    """It is given as much time as it takes to save all that was done."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.done = 0

    def events(self):
        is_idle = not self._queue and self._events.empty()
        if is_idle and len(records_of(self.root, "visit")) == self.done:
            self.post(GraceOver())
        found = super().events()
        self.done += sum(isinstance(event, Done) and event.call.is_training for event in found)
        return found


def test_the_state_before_a_visit_that_does_not_end_is_saved(wide, folder, root, monkeypatch):
    monkeypatch.setattr(stopping, "LINGER_S", 0.0)
    monkeypatch.setattr(stopping, "GRACE_S", 60.0)
    spec = by_epoch(wide)
    with pytest.raises(RunInterrupted, match="what was trained is saved"):
        fit_toy(root, spec, backend=Given(root), workers=2)
    assert visits_of(root)[0] == 2
    check(root)
    fit_toy(root, spec)
    fit_toy(folder / "whole", spec)
    assert outcome(root) == outcome(folder / "whole")


def test_what_cannot_be_saved_in_time_is_told(wide, folder, root, monkeypatch):
    monkeypatch.setattr(stopping, "LINGER_S", 60.0)
    monkeypatch.setattr(stopping, "GRACE_S", 0.0)
    spec = by_epoch(wide)
    with pytest.raises(RunInterrupted, match=r"\d visits are saved, \d more could not be") as e:
        fit_toy(root, spec, backend=Stuck(), workers=2)
    assert e.value.exit_code == 75
    check(root)
    fit_toy(root, spec)
    fit_toy(folder / "whole", spec)
    assert outcome(root) == outcome(folder / "whole")


def test_a_damaged_checkpoint_of_a_stop_costs_no_more_than_the_epoch(wide, folder, root):
    spec = by_epoch(wide)
    stop_after(root, spec, 10, workers=2)
    fit_toy(folder / "whole", spec)
    for trial, visits in visits_of(root).items():
        broken = copy_run(root, folder / "broken")
        last = sorted((broken / "trials" / f"t{trial:04d}" / "checkpoints").glob("*.safetensors"))
        assert last[-1].name == f"v{visits:06d}-a0.safetensors"
        last[-1].write_bytes(b"x" + last[-1].read_bytes()[1:])
        fit_toy(broken, spec)
        check(broken)
        assert outcome(broken) == outcome(folder / "whole")


def test_a_second_signal_stops_at_once_here_too(wide, folder, root):
    spec = by_epoch(wide)

    class Twice(StoppedAfter):
        def save(self, state, request):
            os.kill(os.getpid(), signal.SIGINT)
            return super().save(state, request)

    with pytest.raises(RunInterrupted, match="stopped at once"):
        fit_toy(root, spec, backend=Twice(2))
    assert not Result.open(root).is_finished
    fit_toy(root, spec)
    fit_toy(folder / "whole", spec)
    assert outcome(root) == outcome(folder / "whole")
