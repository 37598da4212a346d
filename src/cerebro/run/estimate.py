"""How long a run will take, from the visits that an earlier one measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

from cerebro.mop import Costs, simulate
from cerebro.types import Json, Params

#: Above so many visits the lower bound, which plans come close to, is taken for the time.
_SIMULATED_VISITS = 200_000
_EVAL_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the journal of a run tells about the cost of visits."""

    #: Seconds of a training visit, by the trial's params as JSON.
    seconds: Mapping[str, float]
    #: Mean of all training visits.
    mean_s: float
    #: An evaluation against a training visit.
    eval_share: float
    #: Mean bytes of a checkpoint; None where there is none.
    state_bytes: float | None
    #: Trials that were trained as one, in the mean.
    stack_size: int = 1

    def seconds_of(self, params: Params) -> float:
        """Seconds of a training visit of such a trial."""
        return self.seconds.get(_key(params), self.mean_s)


def measure(records: Iterable[Mapping[str, Json]], val_shards: int) -> Measured | None:
    """Read visits out of a journal's records; None if there are none.

    >>> trial = {"type": "trial", "trial": 0, "params": {"lr": 0.1}}
    >>> visit = {"type": "visit", "trial": 0, "epoch": 0, "start_s": 1.0, "end_s": 1.5}
    >>> measure([trial, visit], val_shards=0).mean_s
    0.5
    """
    params: dict[int, str] = {}
    spans: dict[str, list[float]] = defaultdict(list)
    epochs: dict[tuple[int, int], float] = defaultdict(float)
    evals: list[float] = []
    sizes: list[float] = []
    members: list[int] = []
    for record in records:
        kind, trial = record["type"], cast(int, record.get("trial", -1))
        if kind == "trial":
            params[trial] = _key(cast("Params", record["params"]))
        elif kind == "visit":
            # Of a stack each trial has its share.
            trials = cast("list[int]", record.get("trials", [trial]))
            members.append(len(trials))
            span = cast(float, record["end_s"]) - cast(float, record["start_s"])
            saved = cast("dict[str, Json] | None", record.get("checkpoint"))
            for member in trials:
                spans[params[member]].append(span / len(trials))
                epochs[member, cast(int, record["epoch"])] += span / len(trials)
                if saved is not None:
                    sizes.append(cast(int, saved["bytes"]) / len(trials))
        elif kind == "epoch" and val_shards:
            for member in cast("list[int]", record.get("trials", [trial])):
                trained = epochs.pop((member, cast(int, record["epoch"])), 0.0)
                evals.append((cast(float, record["seconds"]) - trained) / val_shards)
    if not spans:
        return None
    mean_s = fmean(span for found in spans.values() for span in found)
    share = fmean(evals) / mean_s if evals and mean_s else 0.0
    return Measured(
        seconds={key: fmean(found) for key, found in spans.items()},
        mean_s=mean_s,
        # Resumed epochs and overheads blur the difference; out of range it says nothing.
        eval_share=share if 0.01 <= share <= 1.0 else _EVAL_SHARE,
        state_bytes=fmean(sizes) if sizes else None,
        stack_size=round(fmean(members)),
    )


def estimate_s(
    seconds: Sequence[float],
    *,
    workers: int,
    epochs: int,
    train_shards: int,
    val_shards: int,
    eval_share: float,
) -> float:
    """The makespan of trials whose training visits take so many seconds.

    >>> estimate_s([1.0, 1.0], workers=2, epochs=3, train_shards=4, val_shards=0, eval_share=0.25)
    12.0
    """
    costs = Costs(
        train=seconds,
        speeds=[1.0] * workers,
        train_shards=train_shards,
        val_shards=val_shards,
        epochs=epochs,
        eval_share=eval_share,
    )
    visits = len(seconds) * epochs * (train_shards + val_shards)
    if visits > _SIMULATED_VISITS:
        return costs.lower_bound()
    return simulate(costs).makespan


def _key(params: Params) -> str:
    return json.dumps(params, sort_keys=True)
