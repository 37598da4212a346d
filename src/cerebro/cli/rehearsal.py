"""A search in simulated time: how far its stopper would let trials go."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from statistics import fmean

from cerebro.cli.estimate import Measured
from cerebro.cli.measuring import earlier_runs
from cerebro.config.schema import ExperimentConfig
from cerebro.data import Dataset
from cerebro.errors import CerebroError
from cerebro.run.recovery import load_history
from cerebro.run.request import Request, make_conductor, resolve
from cerebro.search.curves import Curve, power_law
from cerebro.search.simulator import SearchSimulation, simulate_search
from cerebro.track.text import show_seconds
from cerebro.types import Metrics, Mode, Params

#: Above so many visits a search is not simulated.
MOST_VISITS = 500_000
#: Rungs shown.
_SHOWN = 8


def rehearse(
    config: ExperimentConfig,
    request: Request,
    dataset: Dataset,
    *,
    workers: int,
    measured: Measured | None,
) -> tuple[SearchSimulation, str]:
    """Run the search on a simulated clock; also what its learning curves are.

    A visit whose cost is unknown takes a second.
    """
    curve, source = find_curves(config, request, dataset)
    if not source:
        # Where curves are made up, nobody knows when a target is reached.
        epochs = resolve(request, dataset, workers=workers).spec.epochs
        request = dataclasses.replace(request, goal=None, epochs=epochs)
    spec, sampler, stopper = resolve(request, dataset, workers=workers)
    visit_s = measured.mean_s if measured else 1.0
    simulation = simulate_search(
        make_conductor(spec, sampler, stopper),
        curve=curve,
        workers=workers,
        train_shards=spec.train_shards,
        visit_s=visit_s,
        val_shards=spec.val_shards,
        eval_s=visit_s * (measured.eval_share if measured else 0.25),
    )
    return simulation, source or "made-up learning curves"


def describe_rehearsal(
    simulation: SearchSimulation, source: str, measured: Measured | None
) -> list[tuple[str, str]]:
    """What to say of it, in rows of a plan."""
    if measured is None:
        long = f"as long as {simulation.makespan_s:.0f} training visits"
    else:
        long = f"about {show_seconds(simulation.makespan_s)}"
    epochs = f"{simulation.epochs} epochs of {len(simulation.epochs_of)} trials"
    busy = f"workers are busy {100 * fmean(simulation.busy):.0f} % of it"
    rows = [
        ("search", f"about {epochs}, {long}; {busy}; simulated with {source}"),
        ("", describe_rungs(list(simulation.epochs_of.values()))),
    ]
    if simulation.halted is not None:
        rows.append(("", f"ends early: {simulation.halted}"))
    return rows


def describe_rungs(epochs: Sequence[int]) -> str:
    """How many trials come how far, given the epochs behind each at its end.

    >>> describe_rungs([1] * 6 + [3] * 2 + [9])
    'trials that come to epoch 1: 9, 3: 3, 9: 1'
    """
    levels = sorted(set(epochs) - {0})
    reached = [f"{level}: {sum(each >= level for each in epochs)}" for level in levels]
    if len(reached) > _SHOWN:
        half = _SHOWN // 2
        reached = [*reached[:half], "…", *reached[-half:]]
    return f"trials that come to epoch {', '.join(reached)}"


def find_curves(config: ExperimentConfig, request: Request, dataset: Dataset) -> tuple[Curve, str]:
    """Learning curves of an earlier run of the store, or, with no source, made-up ones."""
    for store, _, called in earlier_runs(config, dataset):
        with contextlib.suppress(CerebroError):
            trials = load_history(store)[1].trials.values()
            table = {
                _key(trial.params): [epoch.metrics for epoch in trial.epochs]
                for trial in trials
                if trial.epochs and all(name in trial.epochs[0].metrics for name in config.metric)
            }
            if table:
                return drawn_from(table), f"the learning curves of {called}"
    return made_up(config.metric, config.mode, config.seed), ""


def drawn_from(table: dict[str, list[Metrics]]) -> Curve:
    """Recorded curves, by params as JSON: a trial has its own, or else that of another.

    The last value of a curve holds for what comes after it.

    >>> curve = drawn_from({'{"lr": 0.1}': [{"loss": 0.5}, {"loss": 0.4}]})
    >>> curve(0, {"lr": 0.1}, 1), curve(7, {"lr": 0.3}, 9)
    ({'loss': 0.5}, {'loss': 0.4})
    """
    others = list(table.values())

    def curve(trial: int, params: Params, epochs: int) -> Metrics:
        key = _key(params)
        digest = hashlib.sha256(key.encode()).digest()
        found = table.get(key) or others[int.from_bytes(digest[:8], "big") % len(others)]
        return found[min(epochs, len(found)) - 1]

    return curve


def made_up(metrics: Sequence[str], modes: Sequence[Mode], seed: int) -> Curve:
    """A curve for each metric that gets better by and by.

    >>> curve = made_up(["accuracy"], [Mode.MAX], 0)
    >>> curve(0, {}, 1)["accuracy"] < curve(0, {}, 9)["accuracy"]
    True
    """
    losses = [power_law(seed + number, metric=name) for number, name in enumerate(metrics)]

    def curve(trial: int, params: Params, epochs: int) -> Metrics:
        found: Metrics = {}
        for name, mode, loss in zip(metrics, modes, losses, strict=True):
            value = loss(trial, params, epochs)[name]
            found[name] = -value if mode is Mode.MAX else value
        return found

    return curve


def _key(params: Params) -> str:
    return json.dumps(dict(params), sort_keys=True)
