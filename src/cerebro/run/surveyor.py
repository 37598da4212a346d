"""Asks a worker about new trials, and puts them into stacks before they begin."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cerebro.data import open_dataset
from cerebro.run.checks import metrics_by
from cerebro.run.devices import count_devices
from cerebro.run.history import TrialHistory
from cerebro.run.recovery import OpenRun
from cerebro.run.spec import RunSpec
from cerebro.run.stacks import Composition, GroupPlan, compose
from cerebro.run.unit import Record
from cerebro.train.visit import Survey, SurveyCall
from cerebro.types import Params, Split

logger = logging.getLogger("cerebro.run")

#: Surveys that may fail before trials go on alone.
_ATTEMPTS = 2


def survey_call(spec: RunSpec, trials: Mapping[int, Params]) -> SurveyCall:
    """What to ask a worker about trials of a run."""
    return SurveyCall(
        trials=tuple(trials),
        params=tuple(trials.values()),
        batch_sizes=tuple(map(spec.batch_size_of, trials.values())),
        seed=spec.seed,
        same_order=spec.same_order,
        measure=spec.stack == "probe",
        goes_by=frozenset(
            metric.removeprefix("train_")
            for _, metric in metrics_by(spec)
            if metric.startswith("train_")
        ),
    )


def composed(
    spec: RunSpec, call: SurveyCall, survey: Survey, *, workers: int, devices: int = 1
) -> Composition:
    """What becomes of these trials in a run."""
    rows = sum(shard.rows for shard in open_dataset(spec.data).shards(Split.TRAIN))
    steps = {
        trial: spec.epochs * -(-rows // size)
        for trial, size in zip(call.trials, call.batch_sizes, strict=True)
    }
    return compose(survey, spec.stack, workers=workers, steps=steps, devices=devices)


class Surveyor:
    """Knows which trials were asked about; the journal says which are placed."""

    def __init__(self, spec: RunSpec, run: OpenRun, workers: int, device: str) -> None:
        self._spec = spec
        self._run = run
        self._workers = workers
        #: What was asked for; the first worker tells what it is.
        self._device = device
        self._failures = 0

    def due(self) -> list[TrialHistory]:
        """Trials of which it is not decided yet how they are trained."""
        trials = self._run.history.trials.values()
        is_late = any(trial.is_placed for trial in trials)
        if self._spec.stack is False or (is_late and self._spec.is_adaptive):
            return []
        return [
            trial
            for trial in self._run.history.trials.values()
            # Those that have begun without stacks go on without, and so do people's own.
            if not (trial.is_placed or trial.visits or trial.status.is_final)
            and trial.proposal is not None
        ]

    def call(self, trials: Sequence[TrialHistory]) -> SurveyCall:
        """What to ask a worker."""
        return survey_call(self._spec, {trial.number: trial.params for trial in trials})

    def place(self, call: SurveyCall, survey: Survey) -> Record:
        """Decide and tell; gives what is to be journaled before these trials begin."""
        devices = self._count_devices()
        composition = composed(self._spec, call, survey, workers=self._workers, devices=devices)
        # A trial alone has nothing to be stacked with.
        is_news = len(call.trials) > 1 or self._spec.stack != "auto"
        for obstacle, count in composition.obstacles().items() if is_news else ():
            told = f"{count} trials are" if count > 1 else "1 trial is"
            logger.warning("%s not stacked: %s", told, obstacle)
        if composition.stacks:
            logger.info("%s", composition.describe())
        return self._record(composition)

    def fail(self, call: SurveyCall, message: str, *, is_final: bool = False) -> Record | None:
        """A survey failed; what is to be journaled if its trials go on alone, not asked again.

        With `is_final` it would fail again, and so will the trials, for the same reason.
        """
        self._failures += 1
        if not is_final and self._failures < _ATTEMPTS:
            return None
        if not is_final:
            logger.warning("trials are not stacked: looking at them failed: %s", message)
        group = GroupPlan(trials=call.trials, obstacle=f"looking at them failed: {message}")
        return self._record(Composition(setting=self._spec.stack, groups=(group,)))

    def _count_devices(self) -> int:
        document = self._run.document
        kind = "cpu" if document is None else str(document.environment.get("device"))
        return count_devices(kind, self._device)

    def _record(self, composition: Composition) -> Record:
        run, document = self._run, self._run.document
        trials = run.history.trials.values()
        # What it says may be of a driver that was killed before it could journal the same.
        if document is not None and not any(trial.is_placed for trial in trials):
            run.rewrite(replace(document, stacks=composition.to_json()))
        alone = sum(trial.is_placed and trial.stack is None for trial in trials)
        return composition.record(alone + len(run.history.stacks), self._spec.train_shards)
