"""Results: a read-only view of a run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro.errors import UsageError
from cerebro.run.history import RunHistory, TrialHistory, ranking
from cerebro.run.recovery import load_history
from cerebro.run.spec import RunDocument
from cerebro.search.decision import Outcome
from cerebro.storage import LocalStore
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.storage.stacked import taken_out
from cerebro.task import Task
from cerebro.track.board import FAILED, TrialRow, leaderboard
from cerebro.track.plain import format_leaderboard
from cerebro.train.runner import import_task, make_framework
from cerebro.train.visit import State
from cerebro.types import Metrics, Mode, Params, TrialStatus, trial_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial of a run. `metrics` are those of its best epoch."""

    id: str
    number: int
    params: Params
    status: TrialStatus
    metrics: Metrics
    #: The best epoch, counted from 0; None if none was finished.
    epoch: int | None
    error: str | None = None
    traceback: str | None = field(default=None, repr=False)


class Leaderboard(list[dict[str, Any]]):
    """Rows from best to worst, as in leaderboard.csv; `pandas.DataFrame(rows)` takes them.

    Their keys: "rank" (None where a trial failed), "trial", "status", the metrics of the best
    epoch, "epoch" (the best, counted from 0), "epochs" (finished), "params.<name>", "error".
    Printed, it is a table for people, whose epochs count from 1.
    """

    def __init__(self, ranked: Sequence[TrialRow], metric: str) -> None:
        super().__init__(leaderboard(ranked))
        self.ranked = ranked
        self.metric = metric

    def __str__(self) -> str:
        return format_leaderboard(self.ranked, metric=self.metric)

    __repr__ = __str__


class Result:
    """What a run has found so far, read from its directory.

    >>> import cerebro
    >>> cerebro.Result.open("no/such/run")
    Traceback (most recent call last):
    cerebro.errors.UsageError: a run directory must have a run.json, but no/such/run has none.
    """

    def __init__(
        self, store: LocalStore, document: RunDocument, history: RunHistory, task: Task | None
    ) -> None:
        self._store = store
        self._history = history
        self._task = task
        #: By stack and checkpoint, and by trial; see `_digests`.
        self._stacked: dict[tuple[int, str], dict[int, str]] = {}
        self.document = document
        self.metric = history.metric
        self.mode = history.mode

    @classmethod
    def open(cls, path: str | os.PathLike[str], task: Task | None = None) -> Result:
        """Read a run's directory; a run that is still going on may be read too."""
        store = LocalStore(path)
        if not store.exists("run.json"):
            raise UsageError(
                f"a run directory must have a run.json, but {os.fspath(path)} has none."
            )
        document, history = load_history(store)
        return cls(store, document, history, task)

    @property
    def path(self) -> str:
        """The run's directory."""
        return self._store.local_path()

    @property
    def is_finished(self) -> bool:
        return self._history.is_finished

    @property
    def summary(self) -> Mapping[str, Any]:
        """Efficiency and where the workers' time went; empty until the run is finished.

        That of a resumed run covers what was done since the last resume.
        """
        return self._history.summary

    @property
    def is_resumed(self) -> bool:
        """Whether more than one process worked on the run."""
        return self._history.drivers > 1

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, by number."""
        return [self._result(trial) for trial in self._history.trials.values()]

    @property
    def best(self) -> TrialResult:
        """The best trial; an error if none has the metric."""
        ranked = ranking(self._history)
        best = self._result(ranked[0]) if ranked else None
        if best is None or best.epoch is None or best.status in FAILED:
            errors = {t.error for t in self._history.trials.values() if t.error}
            raise UsageError(
                f"no trial of {self.path} has finished an epoch with {self.metric}"
                + (f": {'; '.join(sorted(errors)[:3])}" if errors else ".")
            )
        return best

    def leaderboard(self) -> Leaderboard:
        """Trials from best to worst; those that failed or have no value come last, unranked."""
        return Leaderboard([self._row(trial) for trial in ranking(self._history)], self.metric)

    def history(self, trial: str | int) -> list[dict[str, float]]:
        """Metrics of each epoch of a trial; epochs count from 0, as in all files."""
        found = self._find(trial)
        return [{"epoch": n, **epoch.metrics} for n, epoch in enumerate(found.epochs)]

    def outcomes(self, metrics: Sequence[str]) -> list[tuple[Params, Outcome]]:
        """Params of every trial and what it came to, for a search to learn from."""
        found: list[tuple[Params, Outcome]] = []
        for trial in (trial for trial in self.trials if trial.status.is_final):
            values = tuple(trial.metrics[name] for name in metrics if name in trial.metrics)
            has_all = len(values) == len(metrics) and not trial.status.is_failure
            found.append((trial.params, Outcome(values if has_all else None, trial.status)))
        return found

    def load(self, trial: str | int, *, which: str = "best", task: Task | None = None) -> Any:
        """The trained model of a trial, from its "best" epoch or its "final" state.

        `task` is needed where the class lived in a notebook or a script.
        """
        found = self._find(trial)
        ref = self._checkpoint(found, which)
        saved = taken_out(load_checkpoint(self._store, ref, into=bytearray), found.number)
        framework = make_framework(self._task_for(task), device="cpu", threads=0)
        return framework.load(found.params, State(memoryview(saved.data), saved.meta))

    def digest(self) -> str:
        """SHA-256 of all that was learnt: equal for two runs that did exactly the same."""
        body = [
            [
                trial.number,
                dict(trial.params),
                str(trial.status),
                [epoch.metrics for epoch in trial.epochs],
                self.states(trial.number),
            ]
            for trial in self._history.trials.values()
        ]
        text = json.dumps(body, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def states(self, trial: str | int) -> list[tuple[int, str]]:
        """Training visits and SHA-256 of each state that is kept of a trial, oldest first.

        A state that lies in a checkpoint of its stack counts as if it had one of its own.
        """
        found = self._find(trial)
        states: list[tuple[int, str]] = []
        for ref in self._history.kept(found):
            digest = self._digests(ref)[found.number] if ref.is_stack else ref.sha256
            states.append((ref.visits, digest))
        return states

    def _digests(self, ref: CheckpointRef) -> dict[int, str]:
        """SHA-256 of the state of each trial that lies in a stack's checkpoint; read once."""
        key = (ref.unit, ref.name)
        if key not in self._stacked:
            saved = load_checkpoint(self._store, ref)
            self._stacked[key] = {
                trial: hashlib.sha256(taken_out(saved, trial).data).hexdigest()
                for trial in self._history.stacks[ref.unit].trials
                if ref in self._history.kept(self._history.trials[trial])
            }
        return self._stacked[key]

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.trials)

    def _result(self, trial: TrialHistory) -> TrialResult:
        best = trial.best_epoch(self.metric, self.mode)
        return TrialResult(
            id=trial_id(trial.number),
            number=trial.number,
            params=trial.params,
            status=trial.status,
            metrics={} if best is None else dict(trial.epochs[best].metrics),
            epoch=best,
            error=trial.error,
            traceback=trial.traceback,
        )

    def _row(self, trial: TrialHistory) -> TrialRow:
        found = self._result(trial)
        return TrialRow(
            trial=trial.number,
            params=trial.params,
            status=trial.status,
            epochs=len(trial.epochs),
            metric=found.metrics.get(self.metric),
            best_epoch=found.epoch,
            metrics=found.metrics,
            error=trial.error,
        )

    def _find(self, trial: str | int) -> TrialHistory:
        for found in self._history.trials.values():
            if trial in (found.number, trial_id(found.number)):
                return found
        names = ", ".join(trial_id(number) for number in list(self._history.trials)[:20])
        raise UsageError(f"unknown trial {trial!r}. Known: {names}.")

    def _checkpoint(self, trial: TrialHistory, which: str) -> CheckpointRef:
        if which not in ("best", "final"):
            raise UsageError(f"`which` must be 'best' or 'final', but got {which!r}.")
        best = trial.best_epoch(self.metric, self.mode)
        if which == "best" and best is not None:
            visits = trial.epochs[best].visits
            refs = [ref for ref in self._history.kept(trial) if ref.visits == visits]
        else:
            refs = self._history.kept(trial)[-1:]
        if not refs:
            raise UsageError(
                f"{trial_id(trial.number)} must have a checkpoint to load, but none was kept "
                "(checkpoint='off', keep_top, or nothing trained yet)."
            )
        return refs[-1]

    def _task_for(self, task: Task | None) -> Task:
        if task is not None or self._task is not None:
            return task or self._task  # type: ignore[return-value]
        name = self.document.task
        if name.startswith("__main__:"):
            raise UsageError(
                f"the run's task {name} lived in a script or notebook: pass it as task=."
            )
        if self.document.task_has_state:
            raise UsageError(
                f"the run's task {name} was made with arguments, which its name does not tell: "
                "pass it as task=."
            )
        return import_task(name)


__all__ = ["Leaderboard", "Mode", "Result", "TrialResult"]
