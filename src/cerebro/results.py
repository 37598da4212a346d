"""Results: a read-only view of a run."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cerebro.errors import UsageError
from cerebro.result_rows import ConfigResult, Leaderboard, TrialResult
from cerebro.run.history import RunHistory, TrialHistory
from cerebro.run.ranking import Ending, criteria_of, ending_of, rank_trials
from cerebro.run.recovery import load_history
from cerebro.run.spec import RunDocument
from cerebro.search.decision import Outcome
from cerebro.spec import MiniBatchSpec
from cerebro.storage import Store, open_store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.storage.stacked import taken_out
from cerebro.task import Task
from cerebro.track.notebook_html import result_html
from cerebro.track.ranking import Config, Ranking
from cerebro.track.text import show, show_count
from cerebro.train.model_export import Export, export_member
from cerebro.train.runner import import_task, make_framework
from cerebro.train.score.calls import Member, TrialWeights
from cerebro.train.score.runner import load_member
from cerebro.train.spec.task import as_task
from cerebro.types import Mode, Params, trial_id


class Result:
    """What a run has found so far, read from its directory.

    >>> import cerebro
    >>> cerebro.Result.open("no/such/run")
    Traceback (most recent call last):
    cerebro.errors.UsageError: a run directory must have a run.json, but no/such/run has none.
    """

    def __init__(
        self, store: Store, document: RunDocument, history: RunHistory, task: Task | None
    ) -> None:
        self._store = store
        self._history = history
        self._task = task
        #: By stack and checkpoint, and by trial; see `_digests`.
        self._stacked: dict[tuple[int, str], dict[int, str]] = {}
        self.document = document
        self.metric = history.metric
        self.mode = history.mode
        self._criteria = criteria_of(document.spec)

    @classmethod
    def open(cls, path: str | os.PathLike[str], task: Task | MiniBatchSpec | None = None) -> Result:
        """Read a run at a path or URL; one that is still going on may be read too."""
        store = open_store(path)
        if not store.exists("run.json"):
            raise UsageError(
                f"a run directory must have a run.json, but {os.fspath(path)} has none."
            )
        document, history = load_history(store)
        return cls(store, document, history, None if task is None else as_task(task))

    @property
    def path(self) -> str:
        """The run's directory, or its URL."""
        return self._store.where()

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
    def configs(self) -> list[ConfigResult]:
        """Configurations from best to worst: by the mean over their repeats.

        After those that are complete and keep the constraints come those of which a repeat failed
        or is not there yet, then those that break a constraint, last those without a value.
        """
        return [self._config(config) for config in self._ranking.configs]

    def pareto(self) -> list[TrialResult]:
        """The trials of the Pareto front, by the first metric; an error with one metric alone.

        No other configuration is better in one of the metrics and as good in all others. Those that
        break a constraint are not looked at; with repeats their means count.
        """
        if not self._criteria.others:
            raise UsageError(
                f"a Pareto front needs several metrics, but {self.path} has only {self.metric}."
            )
        return [trial for config in self.configs if config.is_pareto for trial in config.trials]

    @property
    def ending(self) -> str | None:
        """Why the run ended before its trials did, or which goal it missed; None if neither."""
        found = self._ending
        return None if found is None else str(found)

    @property
    def time_to_target_s(self) -> float | None:
        """Seconds of work until the goal was reached, over all processes; None if it was not."""
        found = self._ending
        return found.after_s if found is not None and found.is_goal else None

    @property
    def best(self) -> TrialResult:
        """The best trial of the best configuration; an error if none has the metric."""
        best = self._ranking.best
        if best is None:
            errors = {t.error for t in self._history.trials.values() if t.error}
            raise UsageError(
                f"no trial of {self.path} has finished an epoch with {self.metric}"
                + (f": {'; '.join(sorted(errors)[:3])}" if errors else ".")
            )
        return self._result(self._history.trials[best.trial])

    def leaderboard(self) -> Leaderboard:
        """Trials in the order of `configs`; those that failed or have no value have no rank."""
        return Leaderboard(self._ranking)

    def history(self, trial: str | int) -> list[dict[str, float]]:
        """Metrics of each epoch of a trial; epochs count from 0, as in all files.

        Those of a copy begin with the first that it was trained in itself.
        """
        found = self._find(trial)
        return [
            {"epoch": number, **epoch.metrics}
            for number, epoch in enumerate(found.epochs)
            if not epoch.is_inherited
        ]

    def seconds(self, trial: str | int) -> list[float]:
        """What each epoch of a trial took: the time of its visits, one after the other."""
        return [each.seconds for each in self._find(trial).epochs if not each.is_inherited]

    def outcomes(self, metrics: Sequence[str]) -> list[tuple[Params, Outcome]]:
        """Params of every trial and what it came to, for a search to learn from."""
        found: list[tuple[Params, Outcome]] = []
        for trial in (trial for trial in self.trials if trial.status.is_final):
            values = tuple(trial.metrics[name] for name in metrics if name in trial.metrics)
            has_all = len(values) == len(metrics) and not trial.status.is_failure
            found.append((trial.params, Outcome(values if has_all else None, trial.status)))
        return found

    def load(
        self,
        trial: str | int,
        *,
        which: str = "best",
        task: Task | MiniBatchSpec | None = None,
    ) -> Any:
        """The trained model of a trial, or of the "best", from its "best" epoch or "final" state.

        That of a MiniBatchSpec is a dict of modules by name. `task` is needed where the class lived
        in a notebook or a script.
        """
        member = self.member(trial, which)
        return load_member(make_framework(self._task_for(task), device="cpu", threads=0), member)

    def export(
        self,
        trial: str | int,
        *,
        to: str = "safetensors",
        path: str | os.PathLike[str] | None = None,
        which: str = "best",
        columns: Sequence[str] | None = None,
        task: Task | MiniBatchSpec | None = None,
    ) -> str:
        """Write the model of a trial, or of the "best", as a file for others; returns its path.

        "safetensors" holds `model.state_dict()`, "torch-export" (.pt2) and "onnx" the model's
        forward, for any number of rows of column "x", or of those that `columns` names, in order.
        A Keras model becomes "safetensors" or "keras", without its optimizer.
        """
        member, about = self.member(trial, which), self.document
        told = {"task": about.task, "task_digest": about.task_digest}
        form = Export(to=to, path=path, columns=columns, data=str(about.spec["data"]), about=told)
        return export_member(self._task_for(task), member, form)

    def member(self, trial: str | int, which: str = "best") -> Member:
        """A trial as one of the models of a test or a prediction."""
        found = self._find(trial)
        ref = self._checkpoint(found, which)
        trials = len(self._history.stacks[ref.unit].trials) if ref.is_stack else 1
        weights = TrialWeights(store=self.path, ref=ref, trial=found.number)
        name = trial_id(found.number)
        return Member(name=name, params=found.params, weights=weights, bytes=ref.bytes // trials)

    def task_name(self) -> str:
        """The task as `module:Class` or `file.py:Class`; an error where that does not suffice."""
        name = self.document.task
        if name.startswith("__main__:"):
            raise UsageError(
                f"the run's task {name} lived in a script or notebook: pass it as task=, or put it "
                "in a file and name it on the command line as --task file.py:Class."
            )
        if self.document.task_has_state:
            raise UsageError(
                f"the run's task {name} was made with arguments, which its name does not tell: "
                "pass it as task=, or name a class without any as --task file.py:Class."
            )
        return name

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

    def __repr__(self) -> str:
        state = "" if self.is_finished else ", not finished"
        count, best = len(self._history.trials), self._ranking.best
        told = show_count(count, "trial") + state
        if best is not None:
            told += f", best {trial_id(best.trial)} with {self.metric} {show(best.metric)}"
        return f"Result({self.path}: {told})"

    def _repr_html_(self) -> str:
        state = "finished" if self.is_finished else "not finished"
        return result_html(self._ranking, self._curve, self.path, state)

    def _curve(self, trial: int, metric: str) -> list[float]:
        """A metric of a trial by epoch; NaN where there is none."""
        return [e.metrics.get(metric, math.nan) for e in self._history.trials[trial].epochs]

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
            repeat=trial.repeat,
            parent=None if trial.parent is None else trial_id(trial.parent),
            parent_epochs=trial.parent_visits // self._history.steps,
            parent_visits=trial.parent_visits,
        )

    def _config(self, config: Config) -> ConfigResult:
        trials = [self._result(self._history.trials[row.trial]) for row in config.rows]
        return ConfigResult(
            id=trials[0].id,
            params=trials[0].params,
            trials=tuple(trials),
            mean=config.mean,
            std=config.std,
            is_complete=config.is_complete,
            is_feasible=config.is_feasible,
            is_pareto=config.is_on_front,
        )

    @property
    def _ranking(self) -> Ranking:
        return rank_trials(self._history, self._criteria)

    @property
    def _ending(self) -> Ending | None:
        return ending_of(self._history, self.document.spec)

    def _find(self, trial: str | int) -> TrialHistory:
        if trial == "best":
            trial = self.best.number
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

    def _task_for(self, task: Task | MiniBatchSpec | None) -> Task:
        if task is not None:
            return as_task(task)
        if self._task is not None:
            return self._task
        return import_task(self.task_name())


__all__ = ["ConfigResult", "Leaderboard", "Mode", "Result", "TrialResult"]
