"""A search in simulated time: how far its stopper would let trials go."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence

from cerebro.data import Dataset
from cerebro.errors import CerebroError
from cerebro.run.earlier import Place, earlier_runs
from cerebro.run.estimate import Measured
from cerebro.run.recovery import load_history
from cerebro.run.request import Request, choose, make_conductor, resolve
from cerebro.search.curves import Curve, power_law
from cerebro.search.simulator import SearchSimulation, simulate_search
from cerebro.types import Metrics, Mode, Params

#: Above so many visits a search is not simulated.
MOST_VISITS = 500_000


def rehearse(
    request: Request,
    dataset: Dataset,
    place: Place,
    *,
    workers: int,
    measured: Measured | None,
) -> tuple[SearchSimulation, str]:
    """Run the search on a simulated clock; also what its learning curves are.

    A visit whose cost is unknown takes a second.
    """
    curve, source = find_curves(request, dataset, place)
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


def find_curves(request: Request, dataset: Dataset, place: Place) -> tuple[Curve, str]:
    """Learning curves of an earlier run of the store, or, with no source, made-up ones."""
    objectives = choose(request).objectives
    names, modes = [name for name, _ in objectives], [mode for _, mode in objectives]
    for store, _, called in earlier_runs(place, dataset):
        with contextlib.suppress(CerebroError):
            trials = load_history(store)[1].trials.values()
            table = {
                _key(trial.params): [epoch.metrics for epoch in trial.epochs]
                for trial in trials
                if trial.epochs and all(name in trial.epochs[0].metrics for name in names)
            }
            if table:
                return drawn_from(table), f"the learning curves of {called}"
    return made_up(names, modes, request.seed), ""


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
