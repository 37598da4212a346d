"""What every Tracker must bear. Subclass ``TrackerContract`` in a test module and say ``make``."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cerebro.track.efficiency import Efficiency
from cerebro.track.records import (
    EpochFinished,
    MemberVisit,
    Record,
    RunFinished,
    RunStarted,
    TrialAdded,
    TrialFinished,
    VisitFinished,
    VisitStarted,
    WorkerChanged,
)
from cerebro.track.tracker import FanOut, Tracker
from cerebro.types import Mode, Params, TrialStatus

TRIALS = 3
EPOCHS = 2
SHARDS = 2
STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a run is: trials in stacks, over so many shards; one more shard validates."""

    trials: int = TRIALS
    stack: int = 1
    epochs: int = EPOCHS
    shards: int = SHARDS
    steps: int = STEPS

    def stacks(self) -> list[tuple[int, ...]]:
        """Which trials are trained as one; the last stack may be smaller.

        >>> Shape(stack=2).stacks()
        [(0, 1), (2,)]
        """
        numbers = range(self.trials)
        return [tuple(numbers[at : at + self.stack]) for at in numbers[:: self.stack]]


SMALL = Shape()


def visit(
    trials: int | tuple[int, ...],
    epoch: int,
    step: int,
    *,
    start_s: float = 0.0,
    shape: Shape = SMALL,
) -> VisitFinished:
    """An answered visit of a run; the step after the last shard is an evaluation.

    >>> visit(0, 0, 2).phase, len(visit((0, 1), 0, 0).members)
    ('eval', 2)
    """
    stack = (trials,) if isinstance(trials, int) else trials
    training = step < shape.shards
    unit = stack[0] // shape.stack
    return VisitFinished(
        trials=stack,
        epoch=epoch,
        step=step,
        phase="train" if training else "eval",
        shard=(unit + epoch + step) % shape.shards if training else 0,
        worker=unit % 2,
        start_s=start_s,
        end_s=start_s + 0.1,
        compute_s=0.095,
        data_s=0.0004,
        load_s=0.0006,
        hop_s=0.002,
        rows=64,
        members=tuple(_member(epoch, step, shape) for _ in stack),
    )


def _member(epoch: int, step: int, shape: Shape) -> MemberVisit:
    first = (epoch * shape.shards + step) * shape.steps
    losses = np.linspace(1.0 / (first + 1), 1.0 / (first + 2), shape.steps, dtype=np.float32)
    metrics = {"loss": float(losses[-1])}
    if step >= shape.shards:
        return MemberVisit(metrics=metrics)
    return MemberVisit(losses=losses, first_step=first, metrics=metrics)


def begun(done: VisitFinished) -> VisitStarted:
    """The record that came before that of an answered visit.

    >>> begun(visit((0, 1), 0, 0)).trials
    (0, 1)
    """
    return VisitStarted(
        trials=done.trials,
        epoch=done.epoch,
        step=done.step,
        phase=done.phase,
        shard=done.shard,
        worker=done.worker,
        time_s=done.start_s,
    )


def started(*, resumed: bool = False, shape: Shape = SMALL) -> RunStarted:
    """The first record of a run."""
    return RunStarted(
        run="small",
        workers=2,
        trials=shape.trials,
        epochs=shape.epochs,
        train_shards=shape.shards,
        val_shards=1,
        metric="val_accuracy",
        mode=Mode.MAX,
        resumed=resumed,
    )


def epoch_metrics(trial: int, epoch: int) -> dict[str, float]:
    """What a run reports at the end of an epoch."""
    return {"train_loss": 1.0 / (epoch + 1), "val_accuracy": 0.5 + trial / 10 + epoch / 100}


def small_run(params: Sequence[Params] | None = None, *, shape: Shape = SMALL) -> Iterator[Record]:
    """A whole run, by default of three trials, two epochs, two shards and one validation shard.

    >>> sum(isinstance(record, VisitFinished) for record in small_run())
    18
    >>> sum(isinstance(record, VisitFinished) for record in small_run(shape=Shape(stack=3)))
    6
    """
    yield started(shape=shape)
    account = Efficiency(workers=2)
    clock = [1.0, 1.0]
    for trial in range(shape.trials):
        yield TrialAdded(trial=trial, params=params[trial] if params else {"lr": 0.1**trial})
    for epoch in range(shape.epochs):
        for unit, stack in enumerate(shape.stacks()):
            for step in range(shape.shards + 1):
                done = visit(stack, epoch, step, start_s=clock[unit % 2], shape=shape)
                clock[unit % 2] = done.end_s
                account.visit(done)
                yield begun(done)
                yield done
            for trial in stack:
                metrics = epoch_metrics(trial, epoch)
                yield EpochFinished(trial=trial, epoch=epoch, metrics=metrics, seconds=0.3)
    for trial in range(shape.trials):
        yield TrialFinished(trial=trial, status=TrialStatus.FINISHED)
    yield RunFinished(summary=account.summary())


def resumed_run(epochs: int = 1, *, shape: Shape = SMALL) -> Iterator[Record]:
    """The same run carried on by a second process after ``epochs`` epochs."""
    yield started(resumed=True, shape=shape)
    for record in small_run(shape=shape):
        match record:
            case RunStarted():
                pass
            case EpochFinished(trial=trial, epoch=epoch) if epoch < epochs:
                metrics = epoch_metrics(trial, epoch)
                yield EpochFinished(
                    trial=trial, epoch=epoch, metrics=metrics, seconds=0.3, replayed=True
                )
            case VisitStarted(epoch=epoch) | VisitFinished(epoch=epoch) if epoch < epochs:
                pass
            case _:
                yield record


class TrackerContract:
    """The suite; ``make`` builds a tracker that may write below a directory."""

    def make(self, directory: Path) -> Tracker:
        """A fresh tracker."""
        raise NotImplementedError

    def _feed(self, directory: Path, records: Sequence[Record]) -> None:
        tracker = self.make(directory)
        for record in records:
            tracker.record(record)
        tracker.close()

    def test_a_whole_run_is_taken_without_a_problem(self, tmp_path: Path) -> None:
        with FanOut([self.make(tmp_path)]) as fan:
            for record in small_run():
                fan.record(record)
        assert fan.problems == []

    def test_stacks_are_taken_without_a_problem(self, tmp_path: Path) -> None:
        with FanOut([self.make(tmp_path)]) as fan:
            for record in small_run(shape=Shape(trials=5, stack=2)):
                fan.record(record)
        assert fan.problems == []

    def test_many_trials_in_stacks_are_taken(self, tmp_path: Path) -> None:
        self._feed(tmp_path, list(small_run(shape=Shape(trials=200, stack=64))))

    def test_a_stack_whose_members_stopped_at_different_steps_is_taken(
        self, tmp_path: Path
    ) -> None:
        whole = visit((0, 1, 2), 0, 0)
        short = MemberVisit(losses=(math.nan,), first_step=0, metrics={"loss": math.nan})
        ragged = replace(whole, members=(whole.members[0], short, MemberVisit()))
        failed = TrialFinished(trial=1, status=TrialStatus.DIVERGED, error="loss is nan")
        self._feed(tmp_path, [started(), begun(ragged), ragged, failed, visit((0, 2), 0, 1)])

    def test_no_thread_is_left_after_close(self, tmp_path: Path) -> None:
        before = set(threading.enumerate())
        self._feed(tmp_path, list(small_run()))
        assert set(threading.enumerate()) <= before

    def test_records_are_not_changed(self, tmp_path: Path) -> None:
        metrics = epoch_metrics(0, 0)
        params: Params = {"lr": 0.1, "layers": [1, 2]}
        before = copy.deepcopy((metrics, params))
        ended = EpochFinished(trial=0, epoch=0, metrics=metrics, seconds=1.0)
        self._feed(tmp_path, [started(), TrialAdded(trial=0, params=params), ended])
        assert (metrics, params) == before

    def test_nothing_but_close_is_fine(self, tmp_path: Path) -> None:
        self.make(tmp_path).close()

    def test_an_interrupted_run_can_be_closed(self, tmp_path: Path) -> None:
        self._feed(tmp_path, list(small_run())[:12])

    def test_a_resumed_run_is_taken(self, tmp_path: Path) -> None:
        self._feed(tmp_path, list(small_run())[:20])
        self._feed(tmp_path, list(resumed_run()))

    def test_a_resumed_run_of_many_trials_in_stacks_is_taken(self, tmp_path: Path) -> None:
        shape = Shape(trials=80, stack=30)
        self._feed(tmp_path, list(small_run(shape=shape))[:150])
        self._feed(tmp_path, list(resumed_run(shape=shape)))

    def test_hostile_params_are_taken(self, tmp_path: Path) -> None:
        odd: list[Params] = [
            {"</script>": "<b>\x1b[2J", "[red]": '"; DROP', "../../x": "a,b\n"},
            {"naïve ☃": "\ud800", "none": None, "big": 10**30, "nan": math.nan},
            {},
        ]
        self._feed(tmp_path, list(small_run(odd)))

    def test_values_that_are_not_finite_are_taken(self, tmp_path: Path) -> None:
        metrics = {"train_loss": math.nan, "val_accuracy": -math.inf, "huge": 1e300}
        ended = EpochFinished(trial=0, epoch=0, metrics=metrics, seconds=1.0)
        self._feed(tmp_path, [started(), TrialAdded(trial=0, params={}), ended])

    def test_failures_of_trials_and_workers_are_taken(self, tmp_path: Path) -> None:
        lost = WorkerChanged(worker=1, alive=False, cause="signal 9", time_s=1.0)
        failed = TrialFinished(trial=0, status=TrialStatus.FAILED, error="ValueError: [/x] \x00")
        added = TrialAdded(trial=0, params={})
        self._feed(tmp_path, [started(), added, lost, failed])
