"""What visits cost, tried out."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cerebro.cli.opening import open_experiment
from cerebro.config.schema import ExperimentConfig
from cerebro.run.estimate import Measured, measure
from cerebro.search import Sampler, Space
from cerebro.search.decision import Decision, Report, Stop
from cerebro.search.stopper import Endless
from cerebro.storage.journal import read as read_journal
from cerebro.types import Json, Params

#: Trials that are tried out, and visits of each; the first warms up and does not count.
_TRIED = 5
_TRIED_STACKED = 16
_VISITS = 2


def measure_now(
    config: ExperimentConfig, path: Path, sampler: Sampler
) -> tuple[Measured | None, str]:
    """Train a few visits of a few trials for real; nothing is left behind."""
    count = _TRIED if config.stack is False else _TRIED_STACKED
    first = spread(sampler, count)
    tried = len(first) or min(count, sampler.num_trials or count)
    with tempfile.TemporaryDirectory(prefix="cerebro-plan-") as folder:
        experiment = open_experiment(config, path, store=folder)
        experiment.run_fit(
            config.task,
            Space(config.space),
            num_epochs=_VISITS,
            metric=config.metric,
            mode=config.mode,
            # Where what is tried depends on results, a few that cover the space stand for it.
            search="sobol",
            num_trials=tried,
            warm_start=first,
            batch_size=config.batch_size,
            global_batch_size=config.global_batch_size,
            parallel=config.parallel,
            workers_per_trial=config.workers_per_trial,
            stopper=FewVisits(_VISITS),
            checkpoint="visit",
            device=config.device,
            stack=config.stack,
            same_order=config.same_order,
            progress=False,
        )
        records = [dict(record) for record in read_journal(experiment.store).records]
    measured = measure(warmed_up(records), val_shards=0)
    return measured, f"{tried} trials tried out just now"


class FewVisits(Endless):
    """Every trial is stopped after so many visits.

    >>> FewVisits(2).visited(Report(0, 0, 2, {}))[0].trial
    0
    """

    def __init__(self, visits: int) -> None:
        self._visits = visits

    def visited(self, report: Report) -> list[Decision]:
        return [Stop(report.trial, "tried out")] if report.visits >= self._visits else []

    def describe(self) -> dict[str, Json]:
        return {"name": "few_visits", "visits": self._visits}


def spread(sampler: Sampler, count: int) -> list[Params]:
    """Some of the trials that a search would propose, from all over it; none if it is adaptive.

    >>> from cerebro.search import make_sampler, parse_space
    >>> spread(make_sampler("grid", parse_space({"lr": [1, 2, 3, 4, 5]})), 3)
    [{'lr': 1}, {'lr': 3}, {'lr': 5}]
    """
    total = sampler.num_trials or 0
    if sampler.is_adaptive:
        return []
    count = min(count, total)
    numbers = [index * (total - 1) // max(1, count - 1) for index in range(count)]
    return [params for number in numbers if (params := sampler.ask(number)) is not None]


def warmed_up(records: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """The records without the first visit of each trial or stack that has more.

    >>> visit = {"type": "visit", "trial": 0}
    >>> warmed_up([visit | {"step": 0}, visit | {"step": 1}])
    [{'type': 'visit', 'trial': 0, 'step': 1}]
    """
    units = [_unit(record) for record in records]
    seen: set[str | None] = set()
    kept: list[dict[str, Json]] = []
    for unit, record in zip(units, records, strict=True):
        if unit is not None and unit not in seen and units.count(unit) > 1:
            seen.add(unit)
            continue
        kept.append(record)
    return kept


def _unit(record: dict[str, Json]) -> str | None:
    if record["type"] != "visit":
        return None
    return f"stack {record['stack']}" if "stack" in record else f"trial {record['trial']}"
