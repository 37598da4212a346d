"""Train and select: a run from its first trial, or from where it was stopped, to its end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

from cerebro.backend.base import Backend, Setup, WorkerInfo
from cerebro.errors import UsageError
from cerebro.run.checks import check_batch_size
from cerebro.run.committer import take_out
from cerebro.run.conduct import carry_out_now
from cerebro.run.direction import Direction
from cerebro.run.driver import Driver
from cerebro.run.history import RunHistory
from cerebro.run.ledger import taken_record
from cerebro.run.orders import Orders
from cerebro.run.ranking import beyond, criteria_of, ending_of, rank_trials
from cerebro.run.recovery import OpenRun, open_run
from cerebro.run.reporter import trial_added, trial_changed
from cerebro.run.request import make_conductor
from cerebro.run.spec import (
    RunSpec,
    describe,
    environment,
    environment_changes,
    refuse_changes,
)
from cerebro.search.sampler import Sampler
from cerebro.search.stopper import Endless, Stopper
from cerebro.storage import Store, inbox, layout
from cerebro.task import Task
from cerebro.track import records
from cerebro.track.efficiency import Summary
from cerebro.track.tracker import FanOut, Tracker
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import describe_task, has_own_state, import_task
from cerebro.types import Json, TrialStatus, trial_id

logger = logging.getLogger("cerebro.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run it: none of this changes the results."""

    task: Task | str
    workers: int
    device: str = "auto"
    #: Remove the checkpoints of all but so many best configurations at the end.
    keep_top: int | None = None
    fresh: bool = False
    force: bool = False
    #: States kept in memory before idle ones are left to their checkpoints; default half of all.
    memory_bytes: int | None = None
    #: Write checkpoints on a thread beside the driver's loop.
    threaded: bool = True
    #: Where the ranks of gangs are; None: workers train alone.
    gang: GangPlace | None = None


def fit(
    spec: RunSpec,
    settings: Settings,
    *,
    store: Store,
    backend: Backend,
    sampler: Sampler,
    trackers: Sequence[Tracker],
    stopper: Stopper | None = None,
) -> Summary | None:
    """Carry a run to its end; None if it was finished already and nobody wants more of it.

    One that is finished with nothing but failures begins anew if the task has changed since.
    """

    def begin(run: OpenRun) -> Summary:
        asked = spec
        if run.document is not None:
            # It was decided when the run began, for the workers of that time.
            asked = replace(spec, concurrent=cast("int | None", run.document.spec["concurrent"]))
        with FanOut(trackers) as fan:
            return _Fit(asked, settings, run, sampler, stopper or Endless(), fan).execute(backend)

    with open_run(store, spec, fresh=settings.fresh, force=settings.force) as run:
        for notice in run.notices:
            logger.warning("%s", notice)
        if not run.history.is_finished or inbox.pending(store):
            return begin(run)
        if not _has_failed(run.history) or _changed_task(settings.task, run) is None:
            _warn_of_changed_task(settings.task, run)
            _tell_if_all_failed(run, " --fresh (fresh=True) trains them again.")
            return None
    with open_run(store, spec, fresh=True, force=settings.force) as run:
        logger.warning(
            "all trials of this run had failed, and the code or the arguments of the task have "
            "changed since: it begins anew, and what was there is in %s.",
            run.archived,
        )
        return begin(run)


def make_setup(spec: RunSpec, settings: Settings, store: Store) -> Setup:
    """What the workers of a run open."""
    return Setup(
        task=settings.task,
        data=spec.data,
        data_digest=spec.data_digest,
        store=store.where(),
        device=settings.device,
        threads=spec.threads_per_worker,
        gang=settings.gang,
    )


class _Fit:
    """One process's work on a run."""

    def __init__(
        self,
        spec: RunSpec,
        settings: Settings,
        run: OpenRun,
        sampler: Sampler,
        stopper: Stopper,
        fan: FanOut,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._run = run
        self._fan = fan
        self._num_trials = sampler.num_trials
        self._was_finished = run.history.is_finished
        conductor = make_conductor(spec, sampler, stopper)
        self._direction = Direction(
            conductor, steps=spec.train_shards, epochs=spec.epochs, is_gated=spec.is_gated
        )
        self._orders = Orders(spec, run.history)
        self._direction.begin([*(run.journal.records if run.journal else ()), *run.appended])
        for params in self._direction.proposed:
            check_batch_size(spec, params)

    def execute(self, backend: Backend) -> Summary:
        driver = Driver(
            self._spec,
            self._run,
            backend,
            workers=self._settings.workers,
            threaded=self._settings.threaded,
            memory_bytes=self._settings.memory_bytes,
            device=self._settings.device,
            ready=self._ready,
            track=self._fan.record,
            direction=self._direction,
            orders=self._orders,
            seconds=self._seconds_left(),
        )
        setup = make_setup(self._spec, self._settings, self._run.store)
        summary = replace(driver.execute(setup), ranks=self._ranks)
        self._finish(summary)
        return summary

    @property
    def _ranks(self) -> int:
        """Of each worker, if it is a gang."""
        return 1 if self._settings.gang is None else self._settings.gang.size

    def _seconds_left(self) -> float | None:
        """What earlier processes have left of the time that the run may take."""
        seconds = self._spec.budget.get("seconds")
        if self._was_finished:
            # What people ask of a finished run counts more than the time it was given.
            return None
        spent_s = self._run.history.spent_s + self._run.history.driver_s
        return None if seconds is None else max(0.0, seconds - spent_s)

    def _introduce(self) -> None:
        """Tell the trackers what there is, replaying what earlier processes did."""
        spec, history = self._spec, self._run.history
        criteria = criteria_of(spec.to_json())
        told: list[records.Record] = [
            records.RunStarted(
                run=spec.name,
                workers=self._settings.workers,
                trials=max(len(history.trials), self._num_planned()),
                epochs=spec.epochs,
                train_shards=spec.train_shards,
                val_shards=spec.val_shards,
                metric=spec.metric,
                mode=spec.mode,
                resumed=history.drivers > 1,
                is_open=bool(spec.stopper or spec.goal),
                budget_s=self._seconds_left(),
                max_epochs=spec.max_epochs,
                objectives=criteria.others,
                constraints=criteria.constraints,
                ranks=self._ranks,
                repeats=criteria.repeats,
                is_folded=criteria.is_folded,
            )
        ]
        for trial in history.trials.values():
            told.append(trial_added(trial, history.steps))
            for epoch, done in enumerate(trial.epochs):
                if done.is_inherited:
                    continue
                told.append(
                    records.EpochFinished(
                        trial=trial.number,
                        epoch=epoch,
                        metrics=done.metrics,
                        seconds=done.seconds,
                        replayed=True,
                    )
                )
            if trial.status.is_final or trial.status is TrialStatus.PAUSED:
                told.append(trial_changed(trial, replayed=True))
        self._fan.replay(told)

    def _num_planned(self) -> int:
        repeats = max(self._spec.seeds, self._spec.folds, 1)
        planned = repeats * (self._num_trials or 0)
        most = int(self._spec.budget.get("trials", planned))
        return min(planned, most - most % repeats)

    def _ready(self, info: WorkerInfo) -> None:
        """The first worker is there: begin, or refuse to resume on other ground."""
        run, found = self._run, environment(info.versions, info.device)
        # Where the class lives in a script or notebook, only this process has its source.
        task = self._settings.task
        digest = info.task_digest or (describe_task(task)[1] if isinstance(task, Task) else "")
        if run.document is None:
            has_state = isinstance(task, Task) and has_own_state(task)
            name = info.task_name
            run.begin(describe(self._spec, name, digest, found, task_has_state=has_state))
        else:
            changes = environment_changes(run.document.environment, found)
            if changes and not self._settings.force:
                refuse_changes(changes, run.store.url)
            if changes:
                run.force(changes, replace(run.document, environment=found))
            if digest != run.document.task_digest:
                logger.warning(
                    "the code or the arguments of %s have changed since the run began: trials "
                    "finished before and after the change are not comparable.",
                    info.task_name,
                )
        run.append(
            {
                "type": "driver",
                "number": run.history.drivers,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "workers": self._settings.workers,
            }
        )
        carry_out_now(run, self._direction, self._orders)
        self._introduce()

    def _finish(self, summary: Summary) -> None:
        run, keep = self._run, self._settings.keep_top
        paused = [t.number for t in run.history.trials.values() if not t.status.is_final]
        if keep is not None and not paused:
            ranking = rank_trials(run.history, criteria_of(self._spec.to_json()))
            self._drop(beyond(ranking, keep))
        ending = ending_of(run.history, self._spec.to_json(), is_over=not paused)
        if ending is not None:
            reached_s = ending.after_s if ending.is_goal else None
            summary = replace(summary, ending=str(ending), time_to_target_s=reached_s)
        body = cast("dict[str, Json]", asdict(summary))
        run.store.write(layout.SUMMARY, json.dumps(body, indent=1).encode() + b"\n")
        self._fan.record(records.RunFinished(summary=summary))
        self._fan.close()
        if paused:
            names = ", ".join(trial_id(number) for number in paused[:5])
            logger.warning(
                "%d trials are paused (%s): `cerebro unpause` lets one go on, and the same command "
                "goes on with the run.",
                *(len(paused), names),
            )
            return
        # Last of all: whoever finds this record has nothing left to do.
        run.append({"type": "done", "summary": body})
        _tell_if_all_failed(run)

    def _drop(self, trials: Sequence[int]) -> None:
        """Remove all checkpoints of these trials; others are taken out of stacks they were in."""
        dropped: list[dict[str, Json]] = [{"type": "dropped", "trial": n} for n in trials]
        if dropped:
            self._run.commit(*dropped)
        history = self._run.history
        for stack in history.stacks.values():
            if any(history.trials[number].is_dropped for number in stack.trials):
                for extract in history.extracts(stack, limit=0):
                    record = taken_record(extract.ref)
                    record["checkpoints"] = take_out(self._run.store, [extract])
                    self._run.commit(record)


def _has_failed(history: RunHistory) -> bool:
    """Whether every trial has."""
    trials = history.trials.values()
    return bool(trials) and all(trial.status.is_failure for trial in trials)


def _changed_task(task: Task | str, run: OpenRun) -> str | None:
    """The task's name, if it is known to be another than the one that the run began with."""
    before = "" if run.document is None else run.document.task_digest
    if isinstance(task, str):
        # The workers of a run import it; that it cannot be is theirs to tell.
        with contextlib.suppress(UsageError):
            task = import_task(task)
    if isinstance(task, str) or not before:
        return None
    name, digest = describe_task(task)
    return name if digest and digest != before else None


def _warn_of_changed_task(task: Task | str, run: OpenRun) -> None:
    name = _changed_task(task, run) if isinstance(task, Task) else None
    if name is not None:
        logger.warning(
            "the code or the arguments of %s have changed since the run was finished: "
            "--fresh (fresh=True) trains it again.",
            name,
        )


def _tell_if_all_failed(run: OpenRun, hint: str = "") -> None:
    history = run.history
    if not _has_failed(history):
        return
    first = history.trials[min(history.trials)]
    command = f"cerebro results {shlex.quote(run.store.where())} --trial "
    logger.error(
        "all %d trials failed, the first (%s) with: %s. Its traceback is in "
        "result.trials[0].traceback; `%s` shows it.%s",
        *(len(history.trials), trial_id(first.number), (first.error or "unknown").rstrip(".")),
        *(command + trial_id(first.number), hint),
    )
