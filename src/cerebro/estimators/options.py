"""What a search passes on to the run behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Options(TypedDict, total=False):
    """Arguments of `Experiment` and of `Experiment.run_fit`, which says what they mean."""

    mode: str
    name: str
    seed: int
    workers: int
    threads_per_worker: int
    #: Training shards that a table in memory is cut into; Spark calls it `num_partitions`.
    shards: int
    num_partitions: int
    compress_sparse: bool
    stopper: object
    goal: Mapping[str, object]
    budget: object
    concurrent: int
    seeds: int
    folds: int
    constraints: Mapping[str, float]
    warm_start: Sequence[Mapping[str, object]]
    learn_from: str | os.PathLike[str]
    checkpoint: str
    device: str
    keep_top: int
    fresh: bool
    force: bool


#: Those of `Experiment.run_fit`.
OF_FIT = frozenset(
    {"stopper", "goal", "budget", "concurrent", "seeds", "folds", "constraints", "warm_start"}
    | {"learn_from", "checkpoint", "device", "keep_top", "fresh", "force"}
)
#: Those of `Experiment`.
OF_EXPERIMENT = frozenset({"workers", "threads_per_worker", "seed"})
#: Those that do not decide what a run finds.
_FREE = frozenset({"name", "workers", "device", "keep_top", "fresh", "force"})


def of(options: Options, names: frozenset[str]) -> dict[str, Any]:
    """The options of these names, to be passed on."""
    return {name: value for name, value in options.items() if name in names}


def deciding(options: Options) -> dict[str, object]:
    """The options that a run is another one for.

    >>> deciding({"seed": 1, "workers": 2})
    {'seed': 1}
    """
    return {name: value for name, value in sorted(options.items()) if name not in _FREE}
